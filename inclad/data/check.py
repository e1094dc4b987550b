"""Is this copy whole? Every image and mask is looked at once, and all problems are told together."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from inclad.data.images import binarise, decode, probe
from inclad.data.task import DataError, Sample, Task


@dataclass
class _Seen:
    """What one look at a sample's files told."""

    digest: str = ""
    problems: list[str] = field(default_factory=list)
    empty_mask: bool = False


def check_tasks(tasks: list[Task], image_size: int, least_train: int = 1) -> list[str]:
    """Decode every file of `tasks` and return warnings, a line each: what makes figures missing or doubtful.

    Masks are looked at as the metrics see them, at `image_size` pixels a side. Raises one DataError with
    all problems: files that are missing, damaged or too large, masks of another size than their image,
    entries listed twice, tasks without test images or with fewer than `least_train` training images.
    """
    problems, warnings = find_problems(tasks, image_size, least_train)
    if problems:
        raise DataError(problems)
    return warnings


def find_problems(
    tasks: list[Task],
    image_size: int,
    least_train: int = 1,
    *,
    decode_images: bool = True,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[str], list[str]]:
    """The problems that `check_tasks` raises and its warnings, both in full.

    Without `decode_images` images are judged as `probe` does, which is several times faster; masks are
    decoded all the same. `advance` is called after each sample.
    """
    problems = [
        f"task {name!r} is listed {count} times; list it once"
        for name, count in Counter(task.name for task in tasks).items()
        if count > 1
    ]
    warnings: list[str] = []
    seen: dict[Sample, _Seen] = {}
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for task in tasks:
            samples = list(dict.fromkeys([*task.train, *task.test]))
            looks = pool.map(
                lambda sample, task=task: _look(sample, task.mask_threshold, image_size, decode_images),
                samples,
            )
            found = {}
            for sample, look in zip(samples, looks):
                found[sample] = look
                advance()
            if 0 < len(task.train) < least_train:
                problems.append(
                    f"task {task.name!r}: {len(task.train)} training images; the detectors chosen need {least_train}"
                )
            problems += _structure(task) + [text for sample in samples for text in found[sample].problems]
            warnings += _doubts(task, found, image_size)
            seen |= found
    return problems, warnings + _leaks(tasks, seen) + _contradictions(tasks, seen)


def _look(sample: Sample, threshold: int, image_size: int, decode_image: bool) -> _Seen:
    seen = _Seen()
    try:
        size = decode(sample.image).size if decode_image else probe(sample.image)
        with Path(sample.image).open("rb") as file:
            seen.digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (DataError, OSError) as error:
        seen.problems += getattr(error, "problems", [f"{sample.image}: {error}"])
        return seen
    if sample.mask is not None:
        try:
            mask = decode(sample.mask)
            seen.empty_mask = not binarise(mask, image_size, threshold, sample.mask).any()
        except DataError as error:
            seen.problems += error.problems
            return seen
        if mask.size != size:
            sizes = "{} x {} pixels, its image {} x {}".format(*mask.size, *size)
            seen.problems.append(
                f"{sample.mask}: {sizes} ({sample.image}); draw the mask on the image's grid"
            )
    return seen


def _structure(task: Task) -> list[str]:
    problems = []
    if not task.train:
        problems.append(f"task {task.name!r}: no training images; a detector needs normal ones")
    if not task.test:
        problems.append(f"task {task.name!r}: no test images; there is nothing to measure")
    problems += [
        f"{sample.image}: anomalous, but a training image of task {task.name!r}; move it to the test"
        for sample in task.train
        if sample.label != 0
    ]
    counts = Counter(sample.image for sample in [*task.train, *task.test])
    return problems + [
        f"{path}: listed {count} times in task {task.name!r}; list it once"
        for path, count in counts.items()
        if count > 1
    ]


def _doubts(task: Task, found: dict[Sample, _Seen], image_size: int) -> list[str]:
    warnings = []
    labels = {sample.label for sample in task.test}
    if len(labels) == 1:
        only = "anomalous" if labels == {1} else "normal"
        warnings.append(
            f"task {task.name!r}: all test images are {only}; its ROC-AUC cells will be missing; add the others"
        )
    anomalous = [sample for sample in task.test if sample.label == 1]
    without = [sample for sample in anomalous if sample.mask is None]
    if anomalous and len(without) == len(anomalous):
        warnings.append(
            f"task {task.name!r}: no masks at all; its pixel cells will be missing; add masks if there are any"
        )
    elif without:
        warnings.append(
            f"task {task.name!r}: {len(without)} of {len(anomalous)} anomalous images have no mask "
            f"(first: {without[0].image}); pixel figures leave them out; add the masks"
        )
    empty = [sample for sample in anomalous if found[sample].empty_mask]
    if empty:
        first = f"{len(empty)} masks mark nothing at {image_size} pixels (first: {empty[0].mask})"
        warnings.append(
            f"task {task.name!r}: {first}; their images count as normal in pixel figures; take a larger "
            "image_size, or draw them again unless the owner's are empty too"
        )
    return warnings


def _leaks(tasks: list[Task], seen: dict[Sample, _Seen]) -> list[str]:
    """Images that are byte for byte in some task's training and in some task's test."""
    trained = {seen[sample].digest: (task, sample) for task in tasks for sample in task.train}
    trained.pop("", None)  # unreadable
    warnings = []
    for task in tasks:
        twins = [
            (sample, *trained[seen[sample].digest]) for sample in task.test if seen[sample].digest in trained
        ]
        if twins:
            tested, owner, sample = twins[0]
            warnings.append(
                f"task {task.name!r}: {len(twins)} test images are byte for byte training images too "
                f"(first: {tested.image} = {sample.image} of task {owner.name!r}); scores will "
                "flatter; remove one of each two"
            )
    return warnings


def _contradictions(tasks: list[Task], seen: dict[Sample, _Seen]) -> list[str]:
    """Test images of one task that are byte for byte the same and have both labels."""
    warnings = []
    for task in tasks:
        twins: dict[str, dict[int, Sample]] = defaultdict(dict)
        for sample in task.test:
            if seen[sample].digest:
                twins[seen[sample].digest].setdefault(sample.label, sample)
        both = [pair for pair in twins.values() if len(pair) == 2]
        if both:
            warnings.append(
                f"task {task.name!r}: {len(both)} test images are there as normal and as anomalous (first: "
                f"{both[0][0].image} = {both[0][1].image}); no detector can have both right, remove one"
            )
    return warnings
