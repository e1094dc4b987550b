"""The plain side of every benchmark: how one would first write it, with the usual libraries.

The same mathematics and the same random numbers as the package, and none of its short cuts: every cell of the
results matrix R passes its images through the whole network again.
"""

from collections.abc import Sequence

import numpy as np
import timm
import torch
from scipy.ndimage import gaussian_filter
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from inclad.backbones import Backbone
from inclad.continual.replay import ReplayBuffer
from inclad.data.images import read_image, read_mask
from inclad.data.task import Sample, Task

BATCH = 32


# ---- single steps


def farthest_first(points: Tensor, count: int, starts: Tensor) -> list[int]:
    """Indices of `count` of the `points` (N, D), each the farthest from all before it."""
    nearest = (points[:, None] - points[starts]).norm(dim=2).mean(1)
    picks = []
    for _ in range(count):
        pick = int(nearest.argmax())
        picks.append(pick)
        nearest = torch.minimum(nearest, (points - points[pick]).norm(dim=1))
    return picks


def weighted_farthest_first(points: Tensor, weights: Tensor, count: int) -> list[int]:
    """As `farthest_first`, by weight times distance, from the point of largest weight on."""
    picks = [int(weights.argmax())]
    nearest = (points - points[picks[0]]).norm(dim=1)
    while len(picks) < count:
        pick = int((weights * nearest).argmax())
        picks.append(pick)
        nearest = torch.minimum(nearest, (points - points[pick]).norm(dim=1))
    return picks


def pixel_roc_auc(masks: np.ndarray, maps: np.ndarray) -> float:
    """scikit-learn over all pixels of `masks` bool and `maps` float32, both (B, H, W)."""
    return roc_auc_score(masks.ravel(), maps.ravel())


def to_image_size(maps: Tensor, size: int, sigma: float = 4.0) -> Tensor:
    """Coarse maps (B, h, w) -> (B, size, size): bilinear, then a Gaussian, one map after the other."""
    large = functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    return torch.from_numpy(np.stack([gaussian_filter(one, sigma) for one in large.numpy()]))


def mahalanobis(embeddings: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    """Distances (B, P) of `embeddings` (B, P, d), one image after the other, by inverse covariances (P, d, d)."""
    distances = []
    for image in embeddings:
        centred = image - mean
        distances.append(torch.einsum("pd,pde,pe->p", centred, inverse, centred).sqrt())
    return torch.stack(distances)


def nearest(queries: Tensor, bank: Tensor, k: int = 1) -> Tensor:
    """Distances (Q, k) of each query to its k nearest in `bank`: a whole table, then the smallest.

    torch.cdist expands the square, and what all vectors share drowns the differences: so about the centre,
    and the distance once more from the difference itself. Its exact mode would be ten times slower.
    """
    centre = bank.mean(0)
    index = torch.cdist(queries - centre, bank - centre).topk(k, 1, largest=False).indices
    return torch.stack([(queries - bank[column]).norm(dim=1) for column in index.T], 1)


class Network:
    """The whole network on contiguous tensors; hooks keep the maps of strides 4, 8 and 16."""

    def __init__(self, backbone: Backbone):
        self.whole = timm.create_model(backbone.weights.model).eval()
        # Blocks behind the last stage keep their first weights: they take their time, and nobody reads them.
        self.whole.load_state_dict(backbone.network.state_dict(), strict=False)
        self.whole = self.whole.to(memory_format=torch.contiguous_format)
        self.mean, self.std = backbone.mean, backbone.std
        self.kept: dict[str, Tensor] = {}
        self.modules = backbone.network.feature_info.module_name()
        for name in self.modules:
            self.whole.get_submodule(name).register_forward_hook(self._keep(name))

    def _keep(self, name: str):
        def hook(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            self.kept[name] = output

        return hook

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> list[Tensor]:
        """Maps (B, C_s, H_s, W_s) of `pixels` (B, 3, H, W) in [0, 1]."""
        self.whole((pixels - self.mean) / self.std)
        return [self.kept[name] for name in self.modules]


def read_pixels(samples: Sequence[Sample], size: int) -> Tensor:
    """(B, 3, size, size) float32 in [0, 1], from the files."""
    pixels = torch.stack([torch.from_numpy(read_image(sample.image, size)) for sample in samples])
    return pixels.permute(0, 3, 1, 2).contiguous().float() / 255


def batches(samples: Sequence[Sample], count: int = BATCH) -> list[Sequence[Sample]]:
    """The samples, `count` at a time."""
    return [samples[start : start + count] for start in range(0, len(samples), count)]


# ---- whole streams


class Learner:
    """Learns tasks and scores images; `continual` keeps something of the earlier tasks, else nothing."""

    sigma = 4.0

    def __init__(self, network: Network, size: int, continual: bool):
        self.network, self.size, self.continual = network, size, continual

    def maps(self, samples: Sequence[Sample]) -> list[Tensor]:
        return self.network(read_pixels(samples, self.size))

    def finish(self, distances: Tensor) -> Tensor:
        side = round(distances.shape[1] ** 0.5)
        return to_image_size(distances.reshape(-1, side, side), self.size, self.sigma)

    def choose(self, distances: list[Tensor], scores: list[Tensor]) -> Tensor:
        """Each image from the memory of its lowest score."""
        best = torch.stack(scores).argmin(0)
        return torch.stack([distances[memory][image] for image, memory in enumerate(best.tolist())])


class PatchCore(Learner):
    """A coreset of patches a task; older ones thinned to a quarter of the newest together."""

    ratio, projection, starts, history, seed = 0.1, 128, 10, 0.25, 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.banks: list[Tensor] = []

    def embed(self, samples: Sequence[Sample]) -> Tensor:
        _, fine, coarse = (functional.avg_pool2d(maps, 3, 1, 1) for maps in self.maps(samples))
        coarse = functional.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        return torch.cat([fine, coarse], 1).flatten(2).transpose(1, 2)

    def learn(self, samples: Sequence[Sample]) -> None:
        patches = torch.cat([self.embed(part).flatten(0, 1) for part in batches(samples)])
        generator = torch.Generator().manual_seed(self.seed)
        projected = patches
        if self.projection < patches.shape[1]:
            matrix = torch.randn(patches.shape[1], self.projection, generator=generator)
            projected = patches @ (matrix / self.projection**0.5)
        starts = torch.randperm(len(patches), generator=generator)[: self.starts]
        newest = patches[farthest_first(projected, max(1, int(self.ratio * len(patches))), starts)]
        if self.continual and self.banks:
            share = max(1, int(self.history * len(newest)) // len(self.banks))
            self.banks = [self.thin(bank, newest, share) for bank in self.banks]
        self.banks = [*self.banks, newest] if self.continual else [newest]

    def thin(self, bank: Tensor, newest: Tensor, count: int) -> Tensor:
        if len(bank) <= count:
            return bank
        return bank[weighted_farthest_first(bank, nearest(bank, newest)[:, 0], count)]

    def score(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        embeddings = self.embed(samples)
        distances = [torch.stack([nearest(image, bank)[:, 0] for image in embeddings]) for bank in self.banks]
        maps = self.finish(self.choose(distances, [one.mean(1) for one in distances]))
        return maps, maps.amax((1, 2))


class PaDiM(Learner):
    """A Gaussian a location and task, over a random choice of channels."""

    channels, regularization, seed = 100, 0.01, 1024

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.gaussians: list[tuple[Tensor, Tensor]] = []

    def embed(self, samples: Sequence[Sample]) -> Tensor:
        stages = self.maps(samples)
        size = stages[0].shape[-2:]
        every = torch.cat([functional.interpolate(maps, size=size) for maps in stages], 1)
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(every.shape[1], generator=generator)[: self.channels].sort().values
        return every[:, chosen].flatten(2).transpose(1, 2)

    def learn(self, samples: Sequence[Sample]) -> None:
        embeddings = torch.cat([self.embed(part) for part in batches(samples)]).numpy()
        mean = embeddings.mean(0, dtype=np.float64)
        covariances = np.stack([np.cov(embeddings[:, place].T) for place in range(embeddings.shape[1])])
        inverse = np.linalg.inv(covariances + self.regularization * np.eye(covariances.shape[1]))
        gaussian = torch.from_numpy(mean).float(), torch.from_numpy(inverse).float()
        self.gaussians = [*self.gaussians, gaussian] if self.continual else [gaussian]

    def score(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        embeddings = self.embed(samples)
        distances = [mahalanobis(embeddings, *gaussian) for gaussian in self.gaussians]
        maps = self.finish(self.choose(distances, [self.finish(one).amax((1, 2)) for one in distances]))
        return maps, maps.amax((1, 2))


class CFA(Learner):
    """A trained descriptor and a bank of centres; all banks are made anew from the stored images."""

    batch, rate, decay, attract, repel, alpha, nu, buffer_ratio, seed = (
        32,
        1e-3,
        5e-4,
        3,
        3,
        0.1,
        1e-3,
        0.2,
        0,
    )

    def __init__(self, network: Network, size: int, continual: bool, epochs: int = 50):
        super().__init__(network, size, continual)
        self.epochs = epochs
        self.generator = torch.Generator().manual_seed(self.seed)
        self.descriptor: nn.Linear | None = None
        self.buffer = ReplayBuffer(self.buffer_ratio, self.seed)
        self.tasks: list[list[Sample]] = []

    def embed(self, samples: Sequence[Sample]) -> Tensor:
        stages = [functional.avg_pool2d(maps, 3, 1, 1) for maps in self.maps(samples)]
        size = stages[0].shape[-2:]
        stages = [functional.interpolate(s, size=size, mode="bilinear", align_corners=False) for s in stages]
        rows, columns = torch.linspace(-1, 1, size[0]), torch.linspace(-1, 1, size[1])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(samples), -1, -1, -1)
        return torch.cat([*stages, places], 1).flatten(2).transpose(1, 2)

    def start(self, width: int) -> None:
        self.descriptor = nn.Linear(width, width - 2)
        for parameter in self.descriptor.parameters():
            drawn = torch.rand(parameter.shape, generator=self.generator) * 2 - 1
            parameter.data.copy_(drawn * width**-0.5)

    @torch.no_grad()
    def bank(self, samples: Sequence[Sample]) -> Tensor:
        total = sum(self.descriptor(self.embed(part)).double().sum(0) for part in batches(samples))
        return (total / len(samples)).float()

    def learn(self, samples: Sequence[Sample]) -> None:
        if self.descriptor is None:
            self.start(self.embed(samples[:1]).shape[2])
        seen = [*samples, *(self.buffer.samples() if self.continual else [])]
        bank = self.bank(seen)
        radius = nn.Parameter(torch.tensor(1e-5))
        optimizer = torch.optim.AdamW(
            [*self.descriptor.parameters(), radius], lr=self.rate, weight_decay=self.decay, amsgrad=True
        )
        for _ in range(self.epochs):
            order = torch.randperm(len(seen), generator=self.generator).tolist()
            for part in batches([seen[i] for i in order], self.batch):
                embeddings = self.descriptor(self.embed(part)).flatten(0, 1)
                squares = nearest(embeddings, bank, self.attract + self.repel).square()
                pulled = (squares[:, : self.attract] - radius**2).relu().mean()
                pushed = (radius**2 - squares[:, self.attract :] - self.alpha).relu().mean()
                optimizer.zero_grad()
                ((pulled + pushed) / self.nu).backward()
                optimizer.step()
        if self.continual:
            self.tasks.append(list(samples))
            self.banks = [self.bank(task) for task in self.tasks]
            self.buffer.add(tuple(samples))
        else:
            self.banks = [bank]

    @torch.no_grad()
    def score(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        embeddings = self.descriptor(self.embed(samples))
        distances = [torch.stack([self.soft(image, bank) for image in embeddings]) for bank in self.banks]
        maps = self.finish(self.choose(distances, [self.finish(one).amax((1, 2)) for one in distances]))
        return maps, maps.amax((1, 2))

    def soft(self, embeddings: Tensor, bank: Tensor) -> Tensor:
        distances = nearest(embeddings, bank, self.attract)
        return functional.softmin(distances, 1)[:, 0] * distances[:, 0]


LEARNERS = {"patchcore": PatchCore, "padim": PaDiM, "cfa": CFA}


def run_stream(tasks: Sequence[Task], learner: Learner) -> np.ndarray:
    """Results matrices R (2, N, N): image and pixel ROC-AUC, NaN above the diagonal."""
    R = np.full((2, len(tasks), len(tasks)), np.nan)
    for i, task in enumerate(tasks):
        learner.learn(list(task.train))
        for j, seen in enumerate(tasks[: i + 1]):
            parts = [learner.score(part) for part in batches(seen.test)]
            maps, scores = (torch.cat(each).numpy() for each in zip(*parts))
            masks = np.stack([read_mask(s.mask, learner.size, seen.mask_threshold) for s in seen.test])
            R[0, i, j] = roc_auc_score([sample.label for sample in seen.test], scores)
            R[1, i, j] = pixel_roc_auc(masks, maps)
    return R
