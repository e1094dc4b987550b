"""One look at a whole dataset: what is there, beside what its owner publishes, and everything that is wrong.

An error stops a run, or says that a category is not the published one because images are missing. A warning
stops nothing: it says which figures to doubt.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tqdm import tqdm

from inclad.data.catalog import DATASETS, choose_size
from inclad.data.check import find_problems
from inclad.data.sources import SOURCES
from inclad.data.task import DataError, Task
from inclad.reference import reference_table

COLUMNS = ("train_normal", "test_normal", "test_anomalous")
CHECKED = (
    "Looked at: the header of every image, all checksums of PNG, the end of JPEG, every pixel of masks and of "
    "other formats; copies by sha256."
)


@dataclass(frozen=True)
class Category:
    """Images of one task by their use, and the published numbers, where there are any."""

    name: str
    counts: dict[str, int]
    masks: int
    published: dict[str, int] | None = None


@dataclass(frozen=True)
class Inventory:
    """What a dataset holds; every error and warning is a line with its path, its meaning and what to do."""

    dataset: str
    root: str
    categories: list[Category] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def take_inventory(dataset: str, root: Path | str = "") -> Inventory:
    """Read and check all of `dataset` below `root` in one pass, with a progress bar on a terminal.

    Nothing that is wrong with the data is raised. Raises ValueError for an unknown dataset.
    """
    if dataset not in DATASETS:
        raise ValueError(f"dataset {dataset!r} is unknown; known: {', '.join(DATASETS)}")
    errors: list[str] = []
    try:
        tasks = DATASETS[dataset](root or None, None)
    except DataError as error:
        tasks, errors = error.tasks, error.problems
    tasks = [task for task in tasks if task.train or task.test]  # the reader has told of empty ones
    with tqdm(
        total=sum(len(task.train) + len(task.test) for task in tasks),
        desc=dataset,
        unit="image",
        disable=None,
        leave=False,
    ) as bar:
        problems, warnings = find_problems(
            tasks, choose_size(dataset), decode_images=False, advance=bar.update
        )
    published = _published(dataset, tasks)
    categories = [_category(task, published.get(task.name)) for task in tasks]
    fewer, others = _compare(dataset, root, tasks, categories, published)
    return Inventory(
        dataset,
        Path(root).as_posix() if root else "",
        categories,
        errors + problems + fewer,
        others + warnings,
    )


def as_text(inventory: Inventory) -> str:
    """A table of counts, then every error and every warning, a line each."""
    head = ("category", "train normal", "test normal", "test anomalous", "masks")
    rows = [head, *(_row(category) for category in inventory.categories)]
    if len(rows) > 2:
        sums = [sum(each.counts[column] for each in inventory.categories) for column in COLUMNS]
        masks = sum(each.masks for each in inventory.categories)
        rows.append(("all", *map(str, sums), str(masks)))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    if inventory.categories:
        for name, *numbers in rows:
            cells = (text.rjust(width) for text, width in zip(numbers, widths[1:]))
            lines.append("  ".join([name.ljust(widths[0]), *cells]))
        if not any(each.published for each in inventory.categories):
            lines.append("There are no published counts to compare with.")
        lines.append(CHECKED)
    for title, found in (("error", inventory.errors), ("warning", inventory.warnings)):
        if found:
            lines += ["", f"{len(found)} {title}{'s' if len(found) > 1 else ''}:", *found]
    if not inventory.errors and not inventory.warnings:
        lines += ["", "Nothing is wrong."]
    return "\n".join(lines)


def as_json(inventory: Inventory) -> str:
    """The same for programs: dataset, root, categories with counts and published counts, errors, warnings."""
    return json.dumps(asdict(inventory), indent=2, ensure_ascii=False)


def _row(category: Category) -> tuple[str, ...]:
    known = category.published
    counts = [
        f"{count} of {known[column]}" if known else str(count) for column, count in category.counts.items()
    ]
    return (category.name, *counts, str(category.masks))


def _category(task: Task, published: dict[str, int] | None) -> Category:
    anomalous = [sample for sample in task.test if sample.label]
    counts = (len(task.train), len(task.test) - len(anomalous), len(anomalous))
    masks = sum(sample.mask is not None for sample in anomalous)
    return Category(task.name, dict(zip(COLUMNS, counts)), masks, published)


def _published(dataset: str, tasks: list[Task]) -> dict[str, dict[str, int]]:
    """Published counts by category; {} for a folder of one's own, which shares no category with them."""
    table = reference_table("dataset_counts").set_index("dataset")
    if dataset not in table.index:
        return {}
    known = table.loc[dataset].set_index("category")[list(COLUMNS)].to_dict("index")
    return known if any(task.name in known for task in tasks) else {}


def _compare(
    dataset: str,
    root: Path | str,
    tasks: list[Task],
    categories: list[Category],
    published: dict[str, dict[str, int]],
) -> tuple[list[str], list[str]]:
    """Errors for categories with images missing; warnings for other deviations from the published counts."""
    errors, warnings = [], []
    title = SOURCES[dataset].title if dataset in SOURCES else dataset
    for task, category in zip(tasks, categories):
        if not published:
            break
        folder = os.path.commonpath([sample.image.parent for sample in [*task.train, *task.test]])
        known = category.published
        if known is None:
            warnings.append(
                f"{folder}: {category.name!r} is no category of {title}; a run over all tasks learns it too and "
                "its means are not the published ones; move it elsewhere or name the tasks you want"
            )
            continue
        wrong = [
            f"{category.counts[column]} of {known[column]} {column.replace('_', ' ')}"
            for column in COLUMNS
            if category.counts[column] != known[column]
        ]
        if any(category.counts[column] < known[column] for column in COLUMNS):
            errors.append(
                f"{folder}: {', '.join(wrong)} images of {category.name!r}; part of the copy is missing and its "
                "figures are not comparable with published ones; copy it again"
            )
        elif wrong:
            warnings.append(
                f"{folder}: {', '.join(wrong)} images of {category.name!r}, more than published; figures are not "
                "comparable with published ones; remove what was added"
            )
    present = {task.name for task in tasks}
    warnings += [
        f"{root}: category {name!r} of {title} is not there; a run over all tasks goes without it and its means "
        "are not the published ones; copy it, or name the tasks you want"
        for name in published
        if name not in present
    ]
    return errors, warnings
