"""PaDiM: a Gaussian of normal features at every location, and the Mahalanobis distance to it.

Defard et al., PaDiM: a patch distribution modeling framework for anomaly detection and localization, ICPR
2021. Section 3.2, equation 1 for the covariance, equation 2 for the distance.
"""

import torch
from torch import Tensor
from torch.nn import functional

from inclad.detectors.detector import Detector, at_least_one
from inclad.features import Batch, Extractor, Images


class PaDiM(Detector):
    """A Gaussian per location over a random choice of channels.

    `channels` of all channels of the three stages are drawn from `channel_seed`, the same for every task: only
    then can distances to the Gaussians of two tasks be compared. `regularization` is added to the diagonal
    of every covariance; `sigma` smooths the map, in pixels.
    """

    stages = (1, 2, 3)
    memoryless = True
    least_images = 2  # a covariance needs two

    def __init__(
        self,
        *,
        channels: int = 100,
        regularization: float = 0.01,
        sigma: float = 4.0,
        channel_seed: int = 1024,
    ):
        if regularization <= 0:
            raise ValueError(f"padim: regularization: {regularization} must be above 0")
        at_least_one("padim", channels=channels)
        self.channels = channels
        self.regularization = regularization
        self.sigma = sigma
        self.channel_seed = channel_seed
        self.mean = torch.empty(0, 0)
        self.whitening = torch.empty(0, 0, 0)

    def fit(self, images: Images) -> None:
        self.mean, self.whitening = fit_gaussians(
            images, self.channels, self.channel_seed, self.regularization
        )

    def distances(self, batch: Batch) -> Tensor:
        """Distance (B, P) of each location to its Gaussian."""
        return mahalanobis(embed(batch, self.channels, self.channel_seed), self.mean, self.whitening)

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "whitening": self.whitening}

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.mean, self.whitening = state["mean"], state["whitening"]


def embed(batch: Batch, channels: int, seed: int) -> Tensor:
    """Embeddings (P, B, d) float32 of the chosen channels at each of P locations of the finest stage.

    Coarser stages are up-sampled to the nearest neighbour, as in the public implementations; channels are
    chosen before that, which changes nothing but the cost.
    """
    stages = batch.features(PaDiM.stages)
    size = stages[0].shape[-2:]
    widths = [maps.shape[1] for maps in stages]
    parts = []
    for maps, chosen in zip(stages, _choose(widths, channels, seed)):
        # With few channels a stage may give none, which `interpolate` refuses.
        if len(chosen):
            # Channels last: rows of an embedding are then moved whole, and products of them are twice as fast.
            part = maps[:, chosen].contiguous(memory_format=torch.channels_last)
            parts.append(part if part.shape[-2:] == size else functional.interpolate(part, size=size))
    return torch.cat(parts, 1).permute(2, 3, 0, 1).flatten(0, 1).contiguous()


def _choose(widths: list[int], channels: int, seed: int) -> list[Tensor]:
    """Channel indices within each stage; all channels when there are no more than asked for."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(sum(widths), generator=generator)[:channels].sort().values
    offsets = [sum(widths[:i]) for i in range(len(widths))]
    return [chosen[(chosen >= o) & (chosen < o + w)] - o for o, w in zip(offsets, widths)]


def fit_gaussians(images: Images, channels: int, seed: int, regularization: float) -> tuple[Tensor, Tensor]:
    """Mean (P, d) and whitening matrix (P, d, d) of each location, float32.

    The whitening matrix is the inverse of the covariance's Cholesky factor L, so that the Mahalanobis
    distance is the length of L^-1 (z - mean). Two passes: the mean first, then products of centred
    values, so that memory does not grow with the number of images and nothing large cancels.
    """
    if len(images) < 2:
        raise ValueError(
            f"padim needs at least 2 normal training images to fit a covariance, got {len(images)}"
        )
    total = sum(embed(batch, channels, seed).sum(1).cpu().double() for batch in images)
    # Row by row, as they are when they come from a file: products of another layout round differently.
    mean = (total / len(images)).float().contiguous().to(images.extractor.device)
    # In float64: where there are fewer images than channels the smallest eigenvalue is `regularization` alone,
    # and single precision would leave three digits of the distance. On the CPU for all devices:
    # factorisations of small matrices differ between them, or are not there.
    covariance = torch.zeros(*mean.shape, mean.shape[1], dtype=torch.float64)
    for batch in images:
        centred = (embed(batch, channels, seed) - mean[:, None]).cpu().double()
        covariance.baddbmm_(centred.transpose(1, 2), centred)
    covariance /= len(images) - 1
    covariance.diagonal(dim1=1, dim2=2).add_(regularization)
    factor = torch.linalg.cholesky(covariance)
    del covariance
    identity = torch.eye(mean.shape[1], dtype=torch.float64).expand_as(factor)
    whitening = torch.linalg.solve_triangular(factor, identity, upper=False).float().contiguous()
    return mean, whitening.to(mean.device)


def mahalanobis(embeddings: Tensor, mean: Tensor, whitening: Tensor) -> Tensor:
    """Mahalanobis distances (B, P) of `embeddings` (P, B, d) to the Gaussian of each location."""
    centred = embeddings - mean[:, None]
    return torch.bmm(centred, whitening.transpose(1, 2)).square().sum(2).sqrt().T.contiguous()
