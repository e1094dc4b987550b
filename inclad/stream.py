"""The protocol: learn the tasks one after another; after each, score every task seen so far."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from inclad.continual.learner import Learner, learn_task
from inclad.data.task import Sample, Task
from inclad.evaluate import Evaluation, evaluate
from inclad.features import Extractor


@dataclass
class Step:
    """What was measured after learning one task of the stream.

    `evaluations` hold one entry for each of the tasks `tested`: a row of the results matrix R. `maps` and
    `scores` are those of the followed samples.
    """

    task: Task
    tested: list[str]
    evaluations: list[Evaluation]
    train_seconds: float
    score_seconds: float
    kept_bytes: int
    maps: np.ndarray
    scores: np.ndarray


def run_stream(
    tasks: Sequence[Task],
    learner: Learner,
    extractor: Extractor,
    follow: Sequence[Sample] = (),
    *,
    upper: bool = False,
) -> Iterator[Step]:
    """Run the stream, yielding a step after each task.

    Only tasks seen so far are scored, the lower triangle of R, unless `upper` asks for those still to come as
    well (forward transfer). The samples of `follow` are scored after every task, whatever task they belong
    to.
    """
    for count, task in enumerate(tasks, start=1):
        started = time.perf_counter()
        learn_task(learner, task, extractor)
        learned = time.perf_counter()
        scored_tasks = tasks if upper else tasks[:count]
        evaluations = [evaluate(learner.score, each, extractor, learner.key) for each in scored_tasks]
        scored = time.perf_counter()
        maps, scores = _followed(learner, extractor, follow)
        yield Step(
            task=task,
            tested=[each.name for each in scored_tasks],
            evaluations=evaluations,
            train_seconds=learned - started,
            score_seconds=scored - learned,
            kept_bytes=learner.kept_bytes(),
            maps=maps,
            scores=scores,
        )


def _followed(
    learner: Learner, extractor: Extractor, samples: Sequence[Sample]
) -> tuple[np.ndarray, np.ndarray]:
    pairs = [learner.score(batch) for batch in extractor.images(samples)]
    if not pairs:
        size = extractor.image_size
        return np.empty((0, size, size), np.float32), np.empty(0, np.float32)
    maps, scores = zip(*((maps.cpu().numpy(), scores.cpu().numpy()) for maps, scores in pairs))
    return np.concatenate(maps), np.concatenate(scores)


def pick_examples(tasks: Sequence[Task]) -> list[Sample]:
    """One image a task to follow through the stream: its first defective test image that has a mask, else its
    first defective one; a task without any has none."""
    defective = [sorted((s for s in task.test if s.label), key=lambda s: s.mask is None) for task in tasks]
    return [samples[0] for samples in defective if samples]


class StreamRecord:
    """Steps of several learners on one stream, as the tidy tables that a results folder holds."""

    def __init__(self, dataset: str, ordering: str):
        self._key = {"dataset": dataset, "ordering": ordering}
        self._cells: list[dict] = []
        self._missing: list[dict] = []
        self._costs: list[dict] = []
        self._maps: dict[tuple[str, str], list[np.ndarray]] = {}

    def add(self, detector: str, protocol: str, number: int, step: Step) -> None:
        """Take in step `number` (1-based) of a learner."""
        key = {**self._key, "detector": detector, "protocol": protocol}
        for task, evaluation in zip(step.tested, step.evaluations):
            for level, value in (("image", evaluation.image), ("pixel", evaluation.pixel)):
                place = {**key, "level": level, "step": number, "task": task}
                self._cells.append({**place, "roc_auc": value})
                if level in evaluation.reasons:
                    self._missing.append({**place, "reason": evaluation.reasons[level]})
        self._costs.append(
            {
                **key,
                "step": number,
                "task": step.task.name,
                "train_s": step.train_seconds,
                "score_s": step.score_seconds,
                "kept_bytes": step.kept_bytes,
            }
        )
        self._maps.setdefault((detector, protocol), []).append(step.maps)

    def r_matrix(self) -> pd.DataFrame:
        """Cells of every results matrix R, one a row; missing ones have no roc_auc."""
        return pd.DataFrame(self._cells)

    def missing(self) -> pd.DataFrame:
        """Why cells are missing; empty when none is."""
        return pd.DataFrame(self._missing)

    def costs(self) -> pd.DataFrame:
        """Seconds and bytes of every step."""
        return pd.DataFrame(self._costs)

    def maps(self) -> dict[str, np.ndarray]:
        """Maps (steps, followed images, size, size) by "detector.protocol"."""
        return {f"{d}.{p}": np.stack(maps) for (d, p), maps in self._maps.items()}
