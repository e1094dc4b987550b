"""Replay: the detector goes on training, on each task's images and a balanced buffer of earlier ones."""

from pathlib import Path

import torch
from torch import Tensor

from inclad.continual.learner import Learner
from inclad.data.task import Sample
from inclad.detectors.detector import Detector
from inclad.features import Batch, Extractor, Images
from inclad.neighbors import weighted_farthest_first


class Replay(Learner):
    """The weights carry over from task to task; trained on are its images and the buffer's, shuffled together
    (InCLAD, section 4 and appendix C). With an empty buffer it is the naive learner.

    The buffer holds max(1, round(`buffer_ratio` x mean training size)) images, or `buffer_capacity` where
    that is above 0; `buffer_selection` is "random", or "farthest" for images that differ most from each other.
    """

    def __init__(
        self,
        detector: Detector,
        *,
        buffer_ratio: float = 0.2,
        buffer_capacity: int = 0,
        buffer_selection: str = "random",
        seed: int = 0,
    ):
        self.detector = detector
        self.stages = detector.stages
        self.buffer = ReplayBuffer(buffer_ratio, seed, buffer_capacity, buffer_selection)

    def learn(self, images: Images) -> None:
        self.detector.fit(self.buffer.with_replay(images))
        self.buffer.take(images)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.detector.score(batch)

    def state(self) -> dict[str, Tensor]:
        return self.detector.state() | self.buffer.state()

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.detector.load(self.buffer.load(state), extractor)


class ReplayBuffer:
    """One budget of normal images, shared evenly by the tasks seen.

    Quotas differ by at most one; what a small task can't fill goes to the others. A task's samples are put
    in an order once, so a shrinking quota keeps a subset of what was kept before. Ratio 0 keeps nothing.
    Beside the references to the samples it holds a copy of their pixels, (size, size, 3) uint8 each: that is
    what later tasks train on, and what the bytes kept count.
    """

    def __init__(self, ratio: float, seed: int = 0, capacity: int = 0, selection: str = "random"):
        if ratio < 0:
            raise ValueError(f"buffer_ratio: {ratio} is negative")
        if selection not in ("random", "farthest"):
            raise ValueError(f"buffer_selection: {selection!r} is unknown (known: random, farthest)")
        self.ratio = ratio
        self.capacity = capacity
        self.selection = selection
        self.copies: dict[Sample, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._sizes: list[int] = []
        self._kept: list[list[Sample]] = []

    def samples(self) -> list[Sample]:
        """All samples kept, in task order."""
        return [sample for kept in self._kept for sample in kept]

    def with_replay(self, images: Images) -> Images:
        """The images and those of the buffer, which are read from its copies."""
        images.extractor.copies = self.copies
        return images.of([*images.samples, *self.samples()])

    def take(self, images: Images) -> None:
        """Take in a task's training images and copy the pixels of those that are kept."""
        order = None
        if self.selection == "farthest" and self.ratio:
            order = _spread(images)
        self.add(images.samples, order)
        pixels = {sample: images.extractor.decoded(sample) for sample in self.samples()}
        self.copies.clear()
        self.copies |= pixels

    def add(self, samples: tuple[Sample, ...], order: list[int] | None = None) -> None:
        """Take in a task's training samples and shrink the others to the new quotas."""
        if self.ratio == 0:
            return
        self._sizes.append(len(samples))
        if order is None:
            order = torch.randperm(len(samples), generator=self._generator).tolist()
        self._kept.append([samples[i] for i in order])
        budget = self.capacity or max(1, round(self.ratio * sum(self._sizes) / len(self._sizes)))
        quotas = fair_quotas(budget, [len(kept) for kept in self._kept])
        self._kept = [kept[:quota] for kept, quota in zip(self._kept, quotas)]

    def state(self) -> dict[str, Tensor]:
        """Copies of the pixels, the task each is from, and the sizes of the tasks seen."""
        if not self._kept:
            return {}
        tasks = [task for task, kept in enumerate(self._kept) for _ in kept]
        return {
            "replay.pixels": torch.stack([self.copies[sample] for sample in self.samples()]),
            "replay.task": torch.tensor(tasks),
            "replay.sizes": torch.tensor(self._sizes),
        }

    def load(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take over what `state` gave; what else is in `state` is returned. Samples then have no file."""
        state = dict(state)
        if "replay.pixels" in state:
            pixels = state.pop("replay.pixels").cpu()
            tasks = state.pop("replay.task").tolist()
            self._sizes = state.pop("replay.sizes").tolist()
            samples = [Sample(Path(f"replay/{task}/{i}")) for i, task in enumerate(tasks)]
            self._kept = [
                [s for s, t in zip(samples, tasks) if t == task] for task in range(len(self._sizes))
            ]
            self.copies.clear()
            self.copies |= dict(zip(samples, pixels))
        return state


def _spread(images: Images) -> list[int]:
    """All places in `images`, the first and then always the farthest by mean features of the deepest stage."""
    deepest = images.extractor.backbone.stages[-1:]
    means = torch.cat([batch.features(deepest)[0].mean((2, 3)) for batch in images])
    return weighted_farthest_first(means, torch.ones_like(means[:, 0]), len(means)).tolist()


def fair_quotas(budget: int, available: list[int]) -> list[int]:
    """Split `budget` over tasks: as even as `available` allows, earlier tasks first for what is left over."""
    quotas = [0] * len(available)
    left = min(budget, sum(available))
    while left:
        for task, quota in enumerate(quotas):
            if left and quota < available[task]:
                quotas[task] += 1
                left -= 1
    return quotas
