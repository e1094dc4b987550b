"""Anomaly maps from a coarse grid to image size: up-sampling and smoothing as one linear operator."""

from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor
from torch.nn import functional


def to_image_size(maps: Tensor, size: int, sigma: float = 4.0) -> Tensor:
    """Bilinear up-sampling (align_corners False), then a Gaussian, of coarse maps.

    `maps` (B, h, w) float32 -> (B, size, size) float32. `sigma` is in pixels of the image, with scipy's
    half-sample `reflect` border and 4 sigma truncation; 0 smooths nothing. Both steps are linear and
    separable, so together they are A m A^T with one matrix A a side.
    """
    rows = _operator(maps.shape[-2], size, float(sigma)).to(maps.device)
    columns = _operator(maps.shape[-1], size, float(sigma)).to(maps.device)
    return rows @ maps @ columns.T


def position_maps(values: Tensor, size: int, sigma: float = 4.0) -> Tensor:
    """Values (B, P) at the positions of a square grid, row by row -> anomaly maps (B, size, size)."""
    side = round(values.shape[1] ** 0.5)
    return to_image_size(values.view(-1, side, side), size, sigma)


@lru_cache(maxsize=32)
def _operator(coarse: int, fine: int, sigma: float) -> Tensor:
    identity = torch.eye(coarse, dtype=torch.float64)[None]
    upsampled = functional.interpolate(identity, size=fine, mode="linear", align_corners=False)[0].T.numpy()
    if sigma > 0:
        upsampled = gaussian_filter1d(upsampled, sigma, axis=0, mode="reflect", truncate=4.0)
    return torch.from_numpy(np.ascontiguousarray(upsampled, dtype=np.float32))
