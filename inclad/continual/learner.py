"""What every learner is: tasks in, one after another; anomaly maps and image scores out."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from inclad.detectors.detector import Detector, image_scores
from inclad.features import Batch, Images
from inclad.maps import position_maps


class Learner(ABC):
    """Learns a stream of tasks and scores images without being told their task.

    Higher maps and scores mean more anomalous.
    """

    stages: tuple[int, ...] = ()

    @abstractmethod
    def learn(self, images: Images) -> None:
        """Learn the next task from its normal images."""

    @abstractmethod
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Anomaly maps (B, size, size) float32 and image scores (B,) float32 of a batch."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All that is kept, as named tensors."""

    def kept_bytes(self) -> int:
        """Bytes of all that is kept from one task to the next."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state().values())


class Naive(Learner):
    """The detector itself, fitted to each task in turn; nothing is done against forgetting."""

    def __init__(self, detector: Detector):
        self.detector = detector
        self.stages = detector.stages

    def learn(self, images: Images) -> None:
        self.detector.fit(images)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.detector.score(batch)

    def state(self) -> dict[str, Tensor]:
        return self.detector.state()

    def kept_bytes(self) -> int:
        return self.detector.kept_bytes()


def best_memory(distances: list[Tensor], scores: list[Tensor]) -> Tensor:
    """Distances (B, P) from the memory that explains each image best: the one of lowest score.

    `distances` and `scores` hold one (B, P) and one (B,) tensor a memory; the earliest memory wins a tie.
    """
    choice = torch.stack(scores).argmin(0)
    return torch.stack(distances)[choice, torch.arange(len(choice), device=choice.device)]


def maps_and_scores(distances: Tensor, size: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Distances (B, P) of positions -> anomaly maps (B, size, size) and their maxima (B,)."""
    maps = position_maps(distances, size, sigma)
    return maps, image_scores(maps)
