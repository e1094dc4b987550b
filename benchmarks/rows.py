"""What is measured: each row makes its inputs, does the work our way and the plain way, and compares the two."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import plain
from benchmarks.pictures import mini_tasks, textured_task
from inclad.backbones import load_backbone
from inclad.cache import Cache
from inclad.continual.catalog import PROTOCOLS, make_learner
from inclad.data.task import Task
from inclad.detectors import padim, patchcore
from inclad.evaluate import evaluate
from inclad.features import Extractor
from inclad.maps import to_image_size
from inclad.metrics import pixel_roc_auc
from inclad.neighbors import farthest_first
from inclad.stream import Step, run_stream

TOLERANCE = 1e-5
Answer = dict[str, np.ndarray]


class Row:
    """One comparison. `prepare` is not timed, `ours` and `plain` are; both give arrays of the same names.

    `target` is what plain seconds over our seconds must reach, or what `value` must not exceed where
    `at_most`; None asks for nothing. `repeats` runs are made and the fastest counts: other programs on the
    machine only ever add time. With `default_allocator`, the plain side runs in a process of its own that
    has the system's allocator.
    """

    name = ""
    target: float | None = None
    at_most = False
    repeats = 1
    default_allocator = False

    def __init__(self, folder: Path, quick: bool = False):
        self.folder, self.quick = folder, quick

    def prepare(self) -> None:
        """Make the inputs."""

    def ours(self) -> Answer:
        """The package's way."""
        raise NotImplementedError

    def plain(self) -> Answer | None:
        """The way one would first write it; None where nothing is compared."""
        return None

    def about(self) -> str:
        """Sizes, and what must be known about the two sides."""
        raise NotImplementedError

    def extra(self) -> dict[str, float]:
        """Measured once after the timing, about our side."""
        return {}

    def checks(self, ours: Answer, plain: Answer | None, extra: dict[str, float]) -> dict[str, bool]:
        """What must be true beside the target."""
        if not plain:
            return {}
        worst = max(difference(ours[name], plain[name]) for name in plain)
        return {f"agree to {worst:.1g}": worst <= TOLERANCE}


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference, in units of the largest value where that is above 1; infinite where NaN differ."""
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    a, b = np.nan_to_num(a.astype(np.float64)), np.nan_to_num(b.astype(np.float64))
    return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))


# ---- single steps


class FarthestFirst(Row):
    name, target, repeats = "farthest-first", 10, 3

    def prepare(self) -> None:
        images = 6 if self.quick else 60
        tasks = mini_tasks(self.folder, 128 if self.quick else 224, images // 6, 1, 1)
        extractor = Extractor(load_backbone(device="cpu"), 128 if self.quick else 224)
        batches = extractor.images([sample for task in tasks for sample in task.train])
        patches = torch.cat([patchcore.embed(batch).flatten(0, 1) for batch in batches])
        matrix = torch.randn(patches.shape[1], 128, generator=torch.Generator().manual_seed(0))
        self.points = patches @ (matrix / 128**0.5)
        self.count = len(self.points) // 10
        self.starts = torch.randperm(len(self.points), generator=torch.Generator().manual_seed(1))[:10]

    def ours(self) -> Answer:
        picks = farthest_first(self.points, self.count, torch.Generator().manual_seed(1))
        return {"picks": np.sort(picks.numpy())}

    def plain(self) -> Answer:
        return {"picks": np.sort(plain.farthest_first(self.points, self.count, self.starts))}

    def about(self) -> str:
        count = 6 * 16**2 if self.quick else 60 * 28**2
        return f"{count:,} x 128 patches of the mini dataset, 10 % picked; plain: one pick at a time"

    def checks(self, ours, plain, extra):
        common = len(np.intersect1d(ours["picks"], plain["picks"]))
        return {f"{common} of {len(plain['picks'])} picks the same": common == len(plain["picks"])}


class PixelRocAuc(Row):
    name, target, repeats = "pixel ROC-AUC", 10, 3

    def prepare(self) -> None:
        random = np.random.default_rng(0)
        self.count = 6 if self.quick else 115
        coarse = torch.from_numpy(random.normal(size=(self.count, 28, 28)).astype(np.float32))
        self.maps = to_image_size(coarse, 224, 2.0).numpy()
        self.masks = np.zeros(self.maps.shape, bool)
        for mask in self.masks[::2]:  # half of the images have a square of 45 x 45: 2 % of all pixels
            row, column = random.integers(0, 179, 2)
            mask[row : row + 45, column : column + 45] = True
        self.maps[self.masks] += 0.7
        self.maps[-1] = self.maps[-1].round(1)  # ties

    def ours(self) -> Answer:
        return {"roc_auc": np.array(pixel_roc_auc(self.masks, self.maps))}

    def plain(self) -> Answer:
        return {"roc_auc": np.array(plain.pixel_roc_auc(self.masks, self.maps))}

    def extra(self) -> dict[str, float]:
        tracemalloc.start()
        pixel_roc_auc(self.masks, self.maps)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return {"bytes": peak / self.maps.size}

    def about(self) -> str:
        count = 6 if self.quick else 115
        return f"{count * 224**2 / 1e6:.1f} million pixels, 2 % defective, with ties; plain: scikit-learn"

    def checks(self, ours, plain, extra):
        off = difference(ours["roc_auc"], plain["roc_auc"])
        small = extra["bytes"] <= 8 or self.quick  # below a million pixels other buffers count
        return {f"equal to {off:.1g}": off <= 1e-12, f"{extra['bytes']:.1f} bytes a pixel": small}


class Maps(Row):
    name, target, repeats = "up-sampling and smoothing", 15, 10

    def prepare(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.coarse = torch.rand(2 if self.quick else 32, 28, 28, generator=generator)

    def ours(self) -> Answer:
        return {"maps": to_image_size(self.coarse, 224).numpy()}

    def plain(self) -> Answer:
        return {"maps": plain.to_image_size(self.coarse, 224).numpy()}

    def about(self) -> str:
        return f"{2 if self.quick else 32} maps, 28 -> 224; plain: interpolate, then scipy's Gaussian"


class PadimScores(Row):
    name, target, repeats = "PaDiM scores", 3, 3

    def prepare(self) -> None:
        side, images, d = (8, 5, 20) if self.quick else (56, 64, 100)
        generator = torch.Generator().manual_seed(0)
        self.embeddings = torch.randn(side**2, images, d, generator=generator)
        self.mean = torch.randn(side**2, d, generator=generator) * 0.1
        factor = torch.randn(side**2, d, d, generator=generator) / d**0.5
        covariance = factor @ factor.transpose(1, 2) + 0.01 * torch.eye(d)
        self.inverse = torch.linalg.inv(covariance.double()).float()
        lower = torch.linalg.cholesky(covariance.double())
        self.whitening = torch.linalg.solve_triangular(lower, torch.eye(d).double(), upper=False).float()
        self.by_image = self.embeddings.transpose(0, 1).contiguous()

    def ours(self) -> Answer:
        parts = [padim.mahalanobis(e, self.mean, self.whitening) for e in self.embeddings.split(32, 1)]
        return {"distances": torch.cat(parts).numpy()}

    def plain(self) -> Answer:
        return {"distances": plain.mahalanobis(self.by_image, self.mean, self.inverse).numpy()}

    def about(self) -> str:
        size = "d = 20, 8 x 8, 5 images" if self.quick else "d = 100, 56 x 56, 64 images in batches of 32"
        return f"{size}; plain: inverse covariances, one image at a time"


class ForwardPass(Row):
    name, target, repeats, default_allocator = "forward pass", 2.5, 3, True

    def prepare(self) -> None:
        generator = torch.Generator().manual_seed(0)
        count, size = (3, 64) if self.quick else (96, 224)
        self.pixels = torch.rand(count, 3, size, size, generator=generator)
        self.backbone = load_backbone(device="cpu")
        self.network = plain.Network(self.backbone)
        for network in (self.backbone, self.network):
            network(self.pixels[:1])

    def _all(self, network) -> Answer:
        parts = [network(batch) for batch in self.pixels.split(32)]
        return {f"stage{s}": torch.cat(maps).numpy() for s, maps in enumerate(zip(*parts), start=1)}

    def ours(self) -> Answer:
        return self._all(self.backbone)

    def plain(self) -> Answer:
        return self._all(self.network)

    def about(self) -> str:
        size = "3 images, 64 px" if self.quick else "96 images, 224 px, batches of 32, to stage 3"
        return f"{size}; plain: contiguous tensors, default allocator, the whole network"


# ---- whole runs


class ContinualRun(Row):
    """A continual stream beside nothing but a plain forward pass of its images."""

    default_allocator = True
    detector = ""

    def prepare(self) -> None:
        size, train, test = (64, 4, 2) if self.quick else (224, 100, 30)
        self.image_size = size
        self.tasks = mini_tasks(self.folder, size, train, test, test)
        self.backbone = load_backbone(device="cpu")
        self.network = plain.Network(self.backbone)
        self.samples = [sample for task in self.tasks for sample in (*task.train, *task.test)]
        for network in (self.backbone, self.network):
            network(torch.zeros(1, 3, size, size))

    def ours(self) -> Answer:
        extractor = Extractor(self.backbone, self.image_size)
        learner = make_learner(self.detector, "continual")
        for step in run_stream(self.tasks, learner, extractor):
            assert len(step.evaluations) == len(step.tested)
        return {"stage3": extractor.features(self.samples[-4:], (3,))[0].numpy()}

    def plain(self) -> Answer:
        for part in plain.batches(self.samples):
            stages = self.network(plain.read_pixels(part, self.image_size))
        return {"stage3": stages[2][-4:].numpy()}

    def about(self) -> str:
        size = "six tasks of 4 + 4 images, 64 px" if self.quick else "six tasks of 100 + 60 images, 224 px"
        return (
            f"{size}, from files to R; plain: only reading these images and one forward pass, contiguous, "
            "default allocator, the whole network"
        )


class ContinualPadimRun(ContinualRun):
    name, target, detector = "continual PaDiM run", 1.0, "padim"


class ContinualPatchcoreRun(ContinualRun):
    name, target, detector = "continual PatchCore run", 0.5, "patchcore"


class WholeSet(Row):
    """Three detectors x three orders x naive and continual: with a cache, against plain runs."""

    name, target = "the whole set", 8

    def prepare(self) -> None:
        self.image_size, train, test, count = (64, 6, 3, 3) if self.quick else (128, 24, 8, 6)
        tasks = mini_tasks(self.folder, self.image_size, train, test, test, count)
        if self.quick:
            tasks = [with_tie(task) for task in tasks]
        shuffled = np.random.default_rng(0).permutation(len(tasks))
        self.orders = [tasks, tasks[::-1], [tasks[i] for i in shuffled]]
        self.backbone = load_backbone(device="cpu")
        self.network = plain.Network(self.backbone)
        for network in (self.backbone, self.network):
            network(torch.zeros(1, 3, self.image_size, self.image_size))

    def _runs(self) -> Iterator[tuple[str, list[Task], str, str]]:
        for number, tasks in enumerate(self.orders):
            for detector in plain.LEARNERS:
                for protocol in PROTOCOLS:
                    yield f"{detector} {protocol} {number}", tasks, detector, protocol

    def ours(self) -> Answer:
        cache = Cache(self.folder / "cache", 5)
        cache.clear()
        found, extractor, order = {}, None, None
        for name, tasks, detector, protocol in self._runs():
            if tasks is not order:  # one process of the book runs one order
                extractor, order = Extractor(self.backbone, self.image_size, cache=cache), tasks
            options = {"epochs": 1} if detector == "cfa" else None
            learner = make_learner(detector, protocol, options)
            found[name] = to_r(list(run_stream(tasks, learner, extractor)))
        return found

    def plain(self) -> Answer:
        found = {}
        for name, tasks, detector, protocol in self._runs():
            arguments = (1,) if detector == "cfa" else ()
            continual = protocol == "continual"
            learner = plain.LEARNERS[detector](self.network, self.image_size, continual, *arguments)
            found[name] = plain.run_stream(tasks, learner)
        return found

    def checks(self, ours: Answer, plain: Answer, extra: dict[str, float]) -> dict[str, bool]:
        """Naive CFA is told apart: it trains on through all tasks, a nearest centre that changes places with the
        next in the last digit sends it another way, and another memory format alone moves R as much."""
        apart = {name: difference(ours[name], plain[name]) for name in plain}
        trained = max(each for name, each in apart.items() if name.startswith("cfa naive"))
        others = max(each for name, each in apart.items() if not name.startswith("cfa naive"))
        return {
            f"R agree to {others:.1g}": others <= TOLERANCE,
            f"those of naive CFA, whose training amplifies rounding, to {trained:.1g}": trained <= 0.05,
        }

    def about(self) -> str:
        size = "3 tasks of 6 + 7 images, 64 px" if self.quick else "six tasks of 24 + 16 images, 128 px"
        return f"18 runs, {size}, CFA 1 epoch, cache on and empty at first; plain: all again for every cell"


def with_tie(task: Task) -> Task:
    """The task with its first normal test image once more, as a defective one: two equal scores, one a side."""
    normal, defective = (next(s for s in task.test if s.label == label) for label in (0, 1))
    return replace(task, test=(*task.test, replace(defective, image=normal.image)))


def to_r(steps: list[Step]) -> np.ndarray:
    """Results matrices (2, N, N) of the steps of a stream: image and pixel ROC-AUC, NaN where missing."""
    R = np.full((2, len(steps), len(steps)), np.nan)
    for i, step in enumerate(steps):
        for j, each in enumerate(step.evaluations):
            R[:, i, j] = each.image, each.pixel
    return R


class Memory(Row):
    """Peak memory of the process; its `extra` is the row's value."""

    name, target, at_most = "memory", 6, True

    def prepare(self) -> None:
        train, test = (20, 20) if self.quick else (1000, 1150)
        self.task = textured_task(self.folder, 224, train, test)
        self.backbone = load_backbone(device="cpu")

    def ours(self) -> Answer:
        found, extractor = {}, Extractor(self.backbone, 224)
        for detector, options in (("patchcore", {"coreset_ratio": 0.01}), ("padim", None)):
            learner = make_learner(detector, "continual", options)
            learner.learn(extractor.images(self.task.train))
            result = evaluate(learner.score, self.task, extractor)
            found[detector] = np.array([result.image, result.pixel])
        return found

    def about(self) -> str:
        size = "20 + 20" if self.quick else "1,000 training and 1,150 test"
        return (
            f"GiB at the peak, PatchCore then PaDiM, one task of {size} images, 224 px; coreset of 1 %, as the "
            "time to pick 10 % of 784,000 patches is another question (its bank adds 0.04 GiB)"
        )


# ---- beside the most used library, where it is installed


class Anomalib(Row):
    """Fit one task and score its test images: anomalib's torch models with the same network and layers."""

    detector = ""
    stages: tuple[int, ...] = ()

    def prepare(self) -> None:
        size, train, test = (64, 4, 2) if self.quick else (224, 60, 20)
        self.image_size = size
        self.task = mini_tasks(self.folder, size, train, test, test, 1)[0]
        self.backbone = load_backbone(stages=self.stages, device="cpu")
        self.backbone(torch.zeros(1, 3, size, size))

    def ours(self) -> Answer:
        extractor = Extractor(self.backbone, self.image_size)
        learner = make_learner(self.detector, "naive")
        learner.learn(extractor.images(self.task.train))
        scores = [learner.score(batch)[1] for batch in extractor.images(self.task.test)]
        return {"scores": torch.cat(scores).numpy()}

    def plain(self) -> Answer:
        model = self.model(
            backbone=self.backbone.weights.model,
            layers=self.backbone.network.feature_info.module_name(),
            pre_trained=False,
            **self.options,
        )
        extractor = model.feature_extractor.feature_extractor
        extractor.load_state_dict(self.backbone.network.state_dict(), strict=False)
        model.train()
        model.feature_extractor.eval()
        self.fit(model, torch.cat([model(part) for part in self._pixels(self.task.train)]))
        model.eval()
        for part in self._pixels(self.task.test):
            model(part)
        return {}  # its scores are weighted and normalised in its own ways: only the time is compared

    def _pixels(self, samples) -> Iterator[Tensor]:
        for part in plain.batches(samples):
            pixels = plain.read_pixels(part, self.image_size)
            yield (pixels - self.backbone.mean) / self.backbone.std

    def about(self) -> str:
        size = "4 + 4 images, 64 px" if self.quick else "60 + 40 images, 224 px"
        return f"one task of {size}, from files to maps; beside anomalib's model, same network and layers"


class AnomalibPatchcore(Anomalib):
    name, detector, stages, options = "PatchCore beside anomalib", "patchcore", (2, 3), {"num_neighbors": 1}

    @property
    def model(self):
        from anomalib.models.image.patchcore.torch_model import PatchcoreModel

        return PatchcoreModel

    def fit(self, model, embeddings: Tensor) -> None:
        from anomalib.models.components import KCenterGreedy

        model.memory_bank = KCenterGreedy(embedding=embeddings, sampling_ratio=0.1).sample_coreset()


class AnomalibPadim(Anomalib):
    name, detector, stages, options = "PaDiM beside anomalib", "padim", (1, 2, 3), {"n_features": 100}

    @property
    def model(self):
        from anomalib.models.image.padim.torch_model import PadimModel

        return PadimModel

    def fit(self, model, embeddings: Tensor) -> None:
        model.gaussian.fit(embeddings)


ROWS = [
    FarthestFirst,
    PixelRocAuc,
    Maps,
    PadimScores,
    ForwardPass,
    ContinualPadimRun,
    ContinualPatchcoreRun,
    WholeSet,
    Memory,
    *([AnomalibPatchcore, AnomalibPadim] if find_spec("anomalib") else []),
]
