"""The datasets that can be read by name, and the one call that turns names into tasks."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from inclad.data import btad, dagm, elpv, mini, mpdd, mtd, mvtec, visa
from inclad.data.task import DataError, Sample, Task

# A new dataset is one file with `read(root, names)` and its line here.
DATASETS: dict[str, Callable[..., list[Task]]] = {
    "mini": mini.read,
    "elpv": elpv.read,
    "mvtec": mvtec.read,
    "visa": visa.read,
    "btad": btad.read,
    "mpdd": mpdd.read,
    "dagm": dagm.read,
    "mtd": mtd.read,
}

# Pixels a side at which a dataset is read unless told otherwise: 224 is the paper's, mini is drawn for less.
IMAGE_SIZE = {"mini": 128}
MAX_SIZE = 4096


def choose_size(dataset: str, image_size: int = 0) -> int:
    """`image_size`, or the dataset's own where it is 0."""
    if image_size < 0:
        raise ValueError(
            f"image_size: {image_size} is negative; give pixels a side, or 0 for the dataset's own"
        )
    if image_size > MAX_SIZE:
        raise ValueError(f"image_size: {image_size} is too large; give at most {MAX_SIZE} pixels a side")
    return image_size or IMAGE_SIZE.get(dataset, 224)


def load_tasks(
    dataset: str,
    tasks: Sequence[str] = (),
    root: str = "",
    roots: Mapping[str, str] | None = None,
    *,
    max_train: int = 0,
    max_test: int = 0,
    seed: int = 0,
) -> list[Task]:
    """Read tasks in the order of `tasks` (none named: all of `dataset`, in natural order).

    A stream over several datasets names its tasks `dataset:task` (with `dataset` "mixed" all of them) and
    takes the folders from `roots`; its tasks keep that long name. `max_train` and `max_test` above 0 keep
    a subset drawn from (seed, task), the same whatever the other tasks are; a test subset keeps the
    proportion of normal and anomalous images and at least one of each. Raises one DataError with
    everything that is wrong.
    """
    if isinstance(tasks, str):
        raise DataError([f"tasks: {tasks!r} is one text; give a list of names"])
    if seed < 0:
        raise DataError([f"seed: {seed} is negative; give 0 or more"])
    roots = dict(roots or {})
    wrong = [
        f"roots: {name}: expected a folder, got {each!r}"
        for name, each in roots.items()
        if not isinstance(each, (str, Path))
    ]
    if wrong:
        raise DataError(wrong)
    if root:
        roots[dataset] = root
    mixed = dataset == "mixed" or any(":" in name for name in tasks)
    if mixed:
        found = _read_mixed(dataset, list(tasks), roots)
    else:
        found = _read(dataset, list(tasks) or None, roots.get(dataset))
    for limit, value in (("max_train", max_train), ("max_test", max_test)):
        if value < 0:
            raise DataError([f"{limit}: {value} is negative; give 0 for all images"])
    limited = [_limit(task, max_train, max_test, seed) for task in found]
    return [replace(task, name=f"{task.dataset}:{task.name}") for task in limited] if mixed else limited


def _read(dataset: str, names: list[str] | None, root: str | None) -> list[Task]:
    if dataset not in DATASETS:
        raise DataError([f"dataset {dataset!r} is unknown; known: {', '.join(DATASETS)}, mixed"])
    return DATASETS[dataset](root or None, names)


def _read_mixed(dataset: str, tasks: list[str], roots: dict[str, str]) -> list[Task]:
    if not tasks:
        raise DataError(["tasks: a mixed stream needs its tasks listed, each as dataset:task"])
    pairs = [tuple(name.split(":", 1)) if ":" in name else (dataset, name) for name in tasks]
    problems = [
        f"tasks: {name!r} names no dataset; write dataset:{name}"
        for reader, name in pairs
        if reader == "mixed"
    ]
    found: dict[tuple[str, str], Task] = {}
    for reader in dict.fromkeys(reader for reader, _ in pairs if reader != "mixed"):
        try:
            read = _read(reader, [name for owner, name in pairs if owner == reader], roots.get(reader))
        except DataError as error:
            problems += error.problems
        else:
            found |= {(reader, task.name): task for task in read}
    if problems:
        raise DataError(problems)
    return [found[pair] for pair in pairs]


def _limit(task: Task, max_train: int, max_test: int, seed: int) -> Task:
    key = zlib.crc32(f"{task.dataset}:{task.name}".encode())
    train, test = task.train, task.test
    if 0 < max_train < len(train):
        train = _subset(train, max_train, [seed, key, 0])
    if 0 < max_test < len(test):
        normal = tuple(sample for sample in test if sample.label == 0)
        anomalous = tuple(sample for sample in test if sample.label == 1)
        share = round(max_test * len(anomalous) / len(test))
        share = max(min(share, max_test - bool(normal)), bool(anomalous))
        rest = max(max_test - share, bool(normal))
        kept = {*_subset(normal, rest, [seed, key, 1]), *_subset(anomalous, share, [seed, key, 2])}
        test = tuple(sample for sample in test if sample in kept)
    return replace(task, train=train, test=test)


def _subset(samples: tuple[Sample, ...], count: int, seed: list[int]) -> tuple[Sample, ...]:
    """A seeded subset in the old order; a larger count only adds to a smaller one."""
    kept = np.random.default_rng(seed).permutation(len(samples))[:count]
    return tuple(samples[index] for index in sorted(kept))
