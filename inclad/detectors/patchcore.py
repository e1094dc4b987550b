"""PatchCore: the distance of each patch to the nearest one in a coreset of normal patches.

Roth et al., Towards total recall in industrial anomaly detection, CVPR 2022. Differences from the released
code: the two layers are concatenated rather than pooled to 1,024 numbers, distances are plain rather than
squared, and the image score is the maximum of the smoothed map.
"""

import torch
from torch import Tensor
from torch.nn import functional

from inclad.detectors.detector import Detector, at_least_one
from inclad.features import Batch, Extractor, Images, local_means
from inclad.neighbors import farthest_first, nearest


class PatchCore(Detector):
    """Memory bank of normal patches, thinned to a coreset.

    `coreset_ratio` is the share of patches kept; the selection runs in a random projection to
    `projection` dimensions from `starts` random points; `sigma` smooths the map, in pixels.
    """

    stages = (2, 3)
    memoryless = True

    def __init__(
        self,
        *,
        coreset_ratio: float = 0.1,
        projection: int = 128,
        starts: int = 10,
        sigma: float = 4.0,
        seed: int = 0,
    ):
        if not 0 < coreset_ratio <= 1:
            raise ValueError(f"patchcore: coreset_ratio: {coreset_ratio} is not above 0 and at most 1")
        at_least_one("patchcore", starts=starts)
        self.coreset_ratio = coreset_ratio
        self.projection = projection
        self.starts = starts
        self.sigma = sigma
        self.seed = seed
        self.bank = torch.empty(0, 0)

    def fit(self, images: Images) -> None:
        patches = torch.cat([embed(batch).flatten(0, 1) for batch in images])
        self.bank = self.coreset(patches)

    def distances(self, batch: Batch) -> Tensor:
        """Distance (B, P) of each patch to its nearest neighbour in the bank."""
        return patch_distances(embed(batch), self.bank)

    def coreset(self, patches: Tensor) -> Tensor:
        """The rows (M, D) of `patches` (N, D) that stand for all of them, M = max(1, ratio x N)."""
        count = max(1, int(self.coreset_ratio * len(patches)))
        generator = torch.Generator().manual_seed(self.seed)
        if self.projection and self.projection < patches.shape[1]:
            matrix = torch.randn(patches.shape[1], self.projection, generator=generator)
            projected = patches @ (matrix / self.projection**0.5).to(patches.device)
        else:
            projected = patches
        return patches[farthest_first(projected, count, generator, self.starts)]

    def state(self) -> dict[str, Tensor]:
        return {"bank": self.bank}

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.bank = state["bank"]


def embed(batch: Batch) -> Tensor:
    """Patch embeddings (B, P, D) float32: both layers averaged over 3 x 3 neighbours, side by side on the
    finer grid (section 3.1; P = h w positions of stage 2, row by row)."""
    fine, coarse = (local_means(maps) for maps in batch.features(PatchCore.stages))
    coarse = functional.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
    return torch.cat([fine, coarse], 1).permute(0, 2, 3, 1).flatten(1, 2)


def patch_distances(embeddings: Tensor, bank: Tensor) -> Tensor:
    """Distance (B, P) of each patch (B, P, D) to its nearest neighbour in `bank` (M, D)."""
    distances, _ = nearest(embeddings.flatten(0, 1), bank)
    return distances.view(embeddings.shape[:2])
