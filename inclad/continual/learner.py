"""What every learner is: tasks in, one after another; anomaly maps and image scores out."""

from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from inclad.cache import content_key, source_digest
from inclad.data.task import Task
from inclad.detectors.detector import Detector, maps_and_scores
from inclad.features import Batch, Extractor, Images
from inclad.files import write_atomic


class Learner(ABC):
    """Learns a stream of tasks and scores images without being told their task.

    Higher maps and scores mean more anomalous.
    """

    stages: tuple[int, ...] = ()
    # Content key of what is kept, where that depends on nothing but images and options; else "".
    key: str = ""

    @abstractmethod
    def learn(self, images: Images) -> None:
        """Learn the next task from its normal images."""

    @abstractmethod
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Anomaly maps (B, size, size) float32 and image scores (B,) float32 of a batch."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All that is kept, as named tensors."""

    @abstractmethod
    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        """Take over a state that `state` gave, learned with the same backbone and image size."""

    def kept_bytes(self) -> int:
        """Bytes of all that is kept from one task to the next."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state().values())


class Naive(Learner):
    """The detector itself, fitted to each task in turn; nothing is done against forgetting."""

    def __init__(self, detector: Detector):
        self.detector = detector
        self.stages = detector.stages

    def learn(self, images: Images) -> None:
        self.key = fit_once(self.detector, images)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if not self.key:
            return self.detector.score(batch)
        distances = batch.once(self.key, partial(self.detector.distances, batch))
        return maps_and_scores(distances, batch.size, self.detector.sigma)

    def state(self) -> dict[str, Tensor]:
        return self.detector.state()

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.detector.load(state, extractor)

    def kept_bytes(self) -> int:
        return self.detector.kept_bytes()


def learn_task(learner: Learner, task: Task, extractor: Extractor) -> None:
    """Learn a task; a FloatingPointError names it."""
    try:
        learner.learn(extractor.images(task.train))
    except FloatingPointError as error:
        raise FloatingPointError(f"task {task.name!r}: {error}") from error


def fit_once(detector: Detector, images: Images) -> str:
    """Fit the detector; or, with a cache, take over what it learned from the same images before.

    Orders, protocols and experts meet the same tasks: one coreset and one set of Gaussians a task serve all.
    Returns the content key of what was learned, "" without a cache and for detectors that start from their
    last state or are not all of this package, whose code is not known.
    """
    cache = images.extractor.cache
    modules = {cls.__module__ for cls in type(detector).__mro__} - {"abc", "builtins"}
    code = [module.removeprefix("inclad.") for module in modules if module.startswith("inclad.")]
    if not cache or not detector.memoryless or len(code) < len(modules):
        detector.fit(images)
        return ""
    key = content_key(
        kind="state",
        detector=f"{type(detector).__module__}.{type(detector).__qualname__}",
        options=detector.options(),
        images=images.extractor.key(images.samples),
        code=source_digest(*code, "neighbors"),
    )
    state = cache.get(key)
    if state is None:
        detector.fit(images)
        cache.put(key, detector.state())
    else:
        device = images.extractor.device
        detector.load({part: tensor.to(device) for part, tensor in state.items()}, images.extractor)
    return key


def save_learner(learner: Learner, path: Path) -> None:
    """Write all that is kept to a safetensors file, whole or not at all."""
    write_atomic(path, save({name: tensor.contiguous().cpu() for name, tensor in learner.state().items()}))


def load_learner(learner: Learner, path: Path, extractor: Extractor) -> None:
    """Give a fresh learner of the same detector and options what `save_learner` wrote.

    ValueError names the file when it is no such file, or another learner's.
    """
    try:
        state = {name: tensor.to(extractor.device) for name, tensor in load_file(path).items()}
        learner.load(state, extractor)
    except (SafetensorError, KeyError, RuntimeError, IndexError) as error:
        raise ValueError(f"{path}: not the state of this learner ({error})") from error


def numbered(state: dict[str, Tensor], name: str) -> list[Tensor]:
    """The tensors name.0, name.1, ... of a state, in order."""
    return [state[f"{name}.{i}"] for i in range(sum(key.startswith(f"{name}.") for key in state))]


def best_memory(distances: list[Tensor], scores: list[Tensor]) -> Tensor:
    """Distances (B, P) from the memory that explains each image best: the one of lowest score.

    `distances` and `scores` hold one (B, P) and one (B,) tensor a memory; the earliest memory wins a tie.
    """
    choice = torch.stack(scores).argmin(0)
    return torch.stack(distances)[choice, torch.arange(len(choice), device=choice.device)]
