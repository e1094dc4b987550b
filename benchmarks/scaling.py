"""How the time of one scoring pass grows with tasks, images and patches, beside what theory says."""

import time
from pathlib import Path

import numpy as np

from benchmarks.pictures import textured_task
from inclad.backbones import load_backbone
from inclad.continual.catalog import make_learner
from inclad.data.task import Sample
from inclad.features import Extractor

# Exponent of the cost. A new image meets every Gaussian and every CFA bank; PatchCore's older banks share one
# budget. Patches are the queries, and for all but PaDiM the bank grows with them.
THEORY = {
    ("padim", "tasks"): 1, ("patchcore", "tasks"): 0, ("cfa", "tasks"): 1,
    ("padim", "images"): 1, ("patchcore", "images"): 1, ("cfa", "images"): 1,
    ("padim", "patches"): 1, ("patchcore", "patches"): 2, ("cfa", "patches"): 2,
}  # fmt: skip
REPEATS = 3
ORDERS = np.random.default_rng(0)


def measure(folder: Path, quick: bool) -> list[dict]:
    """Rows detector, against, value, seconds, slope; features are there before, so scoring alone is timed."""
    backbone = load_backbone(device="cpu")
    rows = []
    for detector in ("patchcore", "padim", "cfa"):

        def add(against: str, value: int, seconds: float, detector: str = detector) -> None:
            slope = THEORY[detector, against]
            rows.append(
                {"detector": detector, "against": against, "value": value, "seconds": seconds, "slope": slope}
            )

        # PatchCore's banks must be large enough that products, and not calls, take the time.
        size, train = (192, 32) if detector == "patchcore" else (128, 8)
        size, train, test = (64, 4, 8) if quick else (size, train, 64)
        tasks = [textured_task(folder, size, train, test, seed) for seed in range(6)]
        extractor = Extractor(backbone, size)
        learner = _learner(detector)
        samples = list(tasks[0].test)
        for count, task in enumerate(tasks, start=1):
            learner.learn(extractor.images(task.train))
            if count in (1, 2, 4, 6):
                add("tasks", count, _seconds(learner, extractor, samples[:16]))
        for images in (4, 8) if quick else (8, 16, 32, 64):
            add("images", images, _seconds(learner, extractor, samples[:images]))
        for side in (64, 96) if quick else (64, 96, 128, 192, 256):
            tasks = [textured_task(folder, side, 4, 8, seed) for seed in (10, 11)]
            extractor = Extractor(backbone, side)
            learner = _learner(detector)
            for task in tasks:
                learner.learn(extractor.images(task.train))
            stride = 8 if detector == "patchcore" else 4
            add("patches", (side // stride) ** 2, _seconds(learner, extractor, list(tasks[0].test)))
    return rows


def _learner(detector: str):
    return make_learner(detector, "continual", {"epochs": 0} if detector == "cfa" else None)


def _seconds(learner, extractor: Extractor, samples: list[Sample]) -> float:
    """Fastest of some passes, each in an order of its own: a batch that was seen before is remembered."""
    extractor.features(samples, (1,))
    taken = []
    for _ in range(REPEATS + 1):
        order = ORDERS.permutation(len(samples))
        started = time.perf_counter()
        for batch in extractor.images([samples[i] for i in order]):
            learner.score(batch)
        taken.append(time.perf_counter() - started)
    return min(taken[1:])
