import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn.functional import interpolate

from inclad.maps import position_maps, to_image_size


def plain(maps: torch.Tensor, size: int, sigma: float) -> np.ndarray:
    """Each step by itself, in float64."""
    up = interpolate(maps.double()[:, None], size=(size, size), mode="bilinear", align_corners=False)[:, 0]
    if sigma == 0:
        return up.numpy()
    return np.stack([gaussian_filter(m, sigma, mode="reflect", truncate=4.0) for m in up.numpy()])


@pytest.mark.parametrize("sigma", [0, 0.7, 4.0])
@pytest.mark.parametrize(("coarse", "size"), [((28, 28), 224), ((8, 8), 64), ((5, 5), 72), ((4, 9), 64)])
def test_one_operator_equals_resizing_then_smoothing(coarse, size, sigma):
    maps = torch.rand((3, *coarse), generator=torch.Generator().manual_seed(0))
    assert np.abs(to_image_size(maps, size, sigma).numpy() - plain(maps, size, sigma)).max() <= 1e-5


@pytest.mark.parametrize("place", [(0, 0), (0, 3), (7, 7), (4, 0)])
def test_the_border_reflects_like_scipys(place):
    maps = torch.zeros(1, 8, 8)
    maps[(0, *place)] = 1.0
    ours, theirs = to_image_size(maps, 64, 4.0).numpy(), plain(maps, 64, 4.0)
    assert np.abs(ours - theirs).max() <= 1e-6
    assert ours.sum() == pytest.approx(theirs.sum(), rel=1e-5)


def test_a_constant_map_stays_constant():
    assert torch.allclose(to_image_size(torch.full((2, 7, 7), 3.0), 96), torch.tensor(3.0), atol=1e-5)


def test_position_maps_reads_positions_row_by_row():
    values = torch.arange(32.0).view(2, 16)
    assert torch.equal(position_maps(values, 64, 1.0), to_image_size(values.view(2, 4, 4), 64, 1.0))


def test_maps_do_not_depend_on_the_batch():
    maps = torch.rand(5, 8, 8, generator=torch.Generator().manual_seed(1))
    together = to_image_size(maps, 64)
    alone = torch.cat([to_image_size(m[None], 64) for m in maps])
    assert torch.allclose(together, alone, atol=1e-6)
