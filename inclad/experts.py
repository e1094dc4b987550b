"""Single-task experts: every detector trained and tested on one task alone."""

from collections.abc import Iterator, Sequence

from inclad.continual.catalog import make_learner
from inclad.data.task import Task
from inclad.evaluate import Evaluation, evaluate
from inclad.features import Extractor


def run_experts(
    tasks: Sequence[Task],
    detectors: Sequence[str],
    extractor: Extractor,
    options: dict[str, dict] | None = None,
) -> Iterator[tuple[Task, str, Evaluation]]:
    """Yield task, detector name and evaluation, one expert after the other, task by task."""
    for task in tasks:
        for name in detectors:
            # The naive learner after one task is the detector itself.
            expert = make_learner(name, "naive", (options or {}).get(name))
            expert.learn(extractor.images(task.train))
            yield task, name, evaluate(expert.score, task, extractor)
