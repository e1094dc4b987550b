"""One scoring pass over a task's test set: image and pixel ROC-AUC, or the reason why one is missing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inclad.cache import content_key, file_digest, source_digest
from inclad.data.images import read_image, read_mask
from inclad.data.task import Sample, Task
from inclad.features import Batch, Extractor
from inclad.metrics import pixel_roc_auc, roc_auc

Score = Callable[[Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Evaluation:
    """ROC-AUC at both levels, in [0, 1]; NaN where missing, and then the reason is given."""

    image: float
    pixel: float
    reasons: dict[str, str]


def evaluate(score: Score, task: Task, extractor: Extractor, key: str = "") -> Evaluation:
    """Score every test image of a task once and take both ROC-AUCs from it.

    `key` is the content key of what scores, where it has one: with a cache, the same test set is then scored
    by it once, whatever the stream. So all orders of naive learners share one table of tasks by tasks.

    Anomalous images without a mask are left out at pixel level. Raises ValueError naming the image when a
    map or a score is not finite.
    """
    cache = extractor.cache
    if cache and key:
        key = _evaluation_key(key, task, extractor)
        if known := cache.get(key):
            image, pixel = known["roc_auc"].tolist()
            return Evaluation(image, pixel, _reasons(task, image, pixel))
    image, pixel = _evaluate(score, task, extractor)
    if cache and key:
        cache.put(key, {"roc_auc": torch.tensor([image, pixel], dtype=torch.float64)})
    return Evaluation(image, pixel, _reasons(task, image, pixel))


def _reasons(task: Task, image: float, pixel: float) -> dict[str, str]:
    """Why a level is missing, by level."""
    reasons = {}
    if math.isnan(image):
        reasons["image"] = one_class(task)
    if all(sample.mask is None for sample in task.test):
        reasons["pixel"] = "no masks"
    elif math.isnan(pixel):
        reasons["pixel"] = "one class only: every pixel has the same label"
    return reasons


def _evaluation_key(key: str, task: Task, extractor: Extractor) -> str:
    return content_key(
        kind="evaluation",
        state=key,
        images=extractor.key(task.test),
        labels=[sample.label for sample in task.test],
        masks=[file_digest(sample.mask) if sample.mask else "" for sample in task.test],
        threshold=task.mask_threshold,
        code=source_digest("evaluate", "metrics", "maps", "data.images"),
    )


def _evaluate(score: Score, task: Task, extractor: Extractor) -> tuple[float, float]:
    measured = [sample for sample in task.test if sample.label == 0 or sample.mask is not None]
    masked = {sample for sample in measured if sample.mask is not None}
    scores, maps = [], []
    for batch in extractor.images(task.test):
        batch_maps, batch_scores = score(batch)
        batch_maps, batch_scores = batch_maps.cpu().numpy(), batch_scores.cpu().numpy()
        check_finite(batch.samples, batch_maps, batch_scores)
        scores.append(batch_scores)
        if masked:
            keep = [sample.label == 0 or sample.mask is not None for sample in batch.samples]
            maps.append(batch_maps[keep])
    image = roc_auc(np.array([sample.label for sample in task.test]), np.concatenate(scores))
    if not masked:
        return image, math.nan
    return image, pixel_roc_auc(extractor.masks(measured, task.mask_threshold), np.concatenate(maps))


def read_pictures(
    samples: Sequence[Sample], tasks: Sequence[Task], size: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images (B, size, size, 3) uint8, masks (B, size, size) bool and task names of samples to look at."""
    owners = {sample: task for task in tasks for sample in task.test}
    images = [read_image(sample.image, size) for sample in samples]
    masks = [read_mask(sample.mask, size, owners[sample].mask_threshold) for sample in samples]
    names = [owners[sample].name for sample in samples]
    if not names:
        return np.empty((0, size, size, 3), np.uint8), np.empty((0, size, size), bool), names
    return np.stack(images), np.stack(masks), names


def example_rows(tasks: Sequence[Task], size: int, each: int = 2) -> list[tuple[str, list]]:
    """For a contact sheet, a row a task: `each` normal training and `each` defective test images.

    A cell is (image, mask or None, title); defects are of different kinds where there are several.
    """
    rows = []
    for task in tasks:
        defective = sorted((s for s in task.test if s.label), key=lambda s: s.mask is None)
        kinds: dict[str, Sample] = {}
        for sample in defective:
            kinds.setdefault(sample.defect, sample)
        # One of every kind first, then more of the same.
        varied = dict.fromkeys([*kinds.values(), *defective])
        chosen = [*task.train[:each], *list(varied)[:each]]
        cells = [
            (
                read_image(sample.image, size),
                read_mask(sample.mask, size, task.mask_threshold) if sample.mask else None,
                sample.defect,
            )
            for sample in chosen
        ]
        rows.append((task.name, cells))
    return rows


def one_class(task: Task) -> str:
    """Why a test set of one class has no ROC-AUC."""
    missing = "normal" if all(sample.label for sample in task.test) else "anomalous"
    return f"one class only: no {missing} test images"


def check_finite(samples: Sequence[Sample], maps: np.ndarray, scores: np.ndarray) -> None:
    """Raise ValueError, naming the first image, when a map or score is NaN or infinite."""
    finite = np.isfinite(scores) & np.isfinite(maps).all((1, 2))
    if not finite.all():
        raise ValueError(f"{samples[int(finite.argmin())].image}: its anomaly map or score is not finite")
