"""What every detector is: normal images in, anomaly maps and image scores out."""

from abc import ABC, abstractmethod

from torch import Tensor

from inclad.features import Batch, Extractor, Images
from inclad.maps import position_maps


class Detector(ABC):
    """An anomaly detector for one memory; higher maps and scores mean more anomalous.

    `stages` are the stages of the frozen backbone that it reads, (1, 2, 3) for strides 4, 8, 16. A detector that
    judges position by position gives `distances`, and `sigma` to smooth their map with; others give `score`.
    """

    stages: tuple[int, ...] = ()
    # True where `fit` starts from nothing, so that what is learned, and with it `distances`, depends on the
    # images alone and need not be computed twice.
    memoryless: bool = False
    sigma: float = 0.0
    least_images: int = 1  # normal images without which a task can't be learned
    least_size: int = 1  # pixels a side below which the method has nothing left to look at

    @abstractmethod
    def fit(self, images: Images) -> None:
        """Learn what is normal from normal images.

        Called again with the images of another task, it is the naive learner: what the method keeps by
        itself (trained weights) is the starting point, all else is replaced.
        """

    def distances(self, batch: Batch) -> Tensor:
        """Distances (B, P) float32 from what is normal, of the positions of a square grid, row by row."""
        raise NotImplementedError(f"{type(self).__name__} has neither `distances` nor `score`")

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Anomaly maps (B, size, size) float32 and image scores (B,) float32 of a batch."""
        return maps_and_scores(self.distances(batch), batch.size, self.sigma)

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All that was learned, as named tensors; `load` of it gives the same scores."""

    @abstractmethod
    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        """Take over a state that `state` gave, learned with the same backbone and image size."""

    def options(self) -> dict[str, int | float | str]:
        """The hyperparameters."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}

    def kept_bytes(self) -> int:
        """Bytes of what is kept for scoring."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state().values())


def at_least_one(name: str, **options: int) -> None:
    """ValueError, naming detector and option, for the first of the options that is below 1."""
    for key, value in options.items():
        if value < 1:
            raise ValueError(f"{name}: {key}: {value} must be at least 1")


def maps_and_scores(distances: Tensor, size: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Distances (B, P) of positions -> anomaly maps (B, size, size) and their maxima (B,)."""
    maps = position_maps(distances, size, sigma)
    return maps, image_scores(maps)


def image_scores(maps: Tensor) -> Tensor:
    """Image scores (B,): the maximum of each map (B, H, W)."""
    return maps.flatten(1).amax(1)
