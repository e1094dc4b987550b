"""Single-task experts: every detector trained and tested on one task alone."""

from collections.abc import Iterator, Sequence

import pandas as pd

from inclad.continual.catalog import make_learner
from inclad.continual.learner import learn_task
from inclad.data.task import Task
from inclad.evaluate import Evaluation, evaluate
from inclad.features import Extractor

Expert = tuple[Task, str, Evaluation]


def run_experts(
    tasks: Sequence[Task],
    detectors: Sequence[str],
    extractor: Extractor,
    options: dict[str, dict] | None = None,
    seed: int = 0,
) -> Iterator[Expert]:
    """Yield task, detector name and evaluation, one expert after the other, task by task."""
    for task in tasks:
        for name in detectors:
            # The naive learner after one task is the detector itself.
            expert = make_learner(name, "naive", (options or {}).get(name), seed)
            learn_task(expert, task, extractor)
            yield task, name, evaluate(expert.score, task, extractor, expert.key)


def experts_table(dataset: str, experts: Sequence[Expert]) -> pd.DataFrame:
    """ROC-AUC of every expert at both levels, one a row; NaN where a level can't be measured."""
    rows = [(dataset, task.name, name, found.image, found.pixel) for task, name, found in experts]
    return pd.DataFrame(rows, columns=["dataset", "task", "detector", "image_roc_auc", "pixel_roc_auc"])


def missing_table(dataset: str, experts: Sequence[Expert]) -> pd.DataFrame:
    """Why a ROC-AUC is missing, one a row; empty when none is."""
    rows = [
        (dataset, name, level, task.name, reason)
        for task, name, found in experts
        for level, reason in found.reasons.items()
    ]
    return pd.DataFrame(rows, columns=["dataset", "detector", "level", "task", "reason"])
