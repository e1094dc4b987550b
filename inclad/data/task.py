"""What a dataset is: a list of tasks; a task has normal training samples and labelled test samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class DataError(ValueError):
    """Everything that is wrong with the data, found in one pass; one problem a line, each with its path.

    `tasks` holds what could be read all the same, for those who look on after the first problem.
    """

    def __init__(self, problems: list[str], tasks: "Sequence[Task]" = ()):
        self.problems = list(problems)
        self.tasks = list(tasks)
        count = len(self.problems)
        head = "" if count == 1 else f"{count} problems in the data:\n"
        super().__init__(head + "\n".join(self.problems))


@dataclass(frozen=True)
class Sample:
    """One image file; `label` 1 = anomalous; `mask` is None for normal images and where none exists."""

    image: Path
    label: int = 0
    defect: str = "good"
    mask: Path | None = None


@dataclass(frozen=True)
class Task:
    """One inspected component.

    `train` holds normal samples only. A mask pixel counts as defective when its value (0-255, after
    conversion to one 8-bit channel) is at least `mask_threshold`.
    """

    dataset: str
    name: str
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]
    mask_threshold: int = 1
