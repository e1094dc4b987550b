"""Small drawn tasks, and a network of random projections in place of a real one."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from inclad.backbones import Backbone, Weights, load_backbone
from inclad.cache import Cache
from inclad.data.task import Sample, Task
from inclad.features import Extractor

SIZE = 64

torch.set_num_threads(1)


class FakeBackbone(nn.Module):
    """Strides 4, 8, 16 like the real one: averages of pixels, mixed by fixed random numbers."""

    def __init__(self, widths: tuple[int, ...] = (8, 12, 16), scale: float = 1.0, sha256: str = "0" * 64):
        super().__init__()
        self.stages = (1, 2, 3)
        self.weights = Weights("fake", "drawn", sha256)
        self.channels = dict(zip(self.stages, widths))
        self.calls = 0
        generator = torch.Generator().manual_seed(0)
        self.memory_format = torch.contiguous_format
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.5))
        self.matrices = [scale * torch.randn(width, 6, generator=generator) for width in widths]

    @torch.inference_mode()
    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        centred = pixels - self.mean
        both = torch.cat([centred, centred.square()], 1)
        return tuple(
            torch.einsum("cd,bdhw->bchw", matrix, functional.avg_pool2d(both, 2 ** (stage + 1)))
            for stage, matrix in zip(self.stages, self.matrices)
        )

    def normalise(self, pixels: Tensor) -> Tensor:
        return pixels - self.mean

    def untrained(self, deepest: int) -> nn.Sequential:
        """A stem that halves the picture and a small block a stage."""
        widths = (3, 6, *self.channels.values())
        return nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.Conv2d(b, b, 1))
                for a, b in pairwise(widths[: deepest + 2])
            )
        )

    def stem(self, pixels: Tensor) -> Tensor:
        centred = functional.avg_pool2d(self.normalise(pixels), 2)
        return torch.cat([centred, centred.square()], 1)


def draw_task(
    folder: Path, name: str, *, train: int = 6, normal: int = 4, anomalous: int = 4, masks: bool = True
) -> Task:
    """A task of noisy stripes whose width and colour depend on its name; a defect is a pale square."""
    random = np.random.default_rng(sum(name.encode()))
    colour, period = random.uniform(60, 180, 3), random.integers(8, 24)
    (folder / name).mkdir(parents=True)

    def save(stem: str, defective: bool) -> Sample:
        stripes = (np.arange(SIZE) % period < period / 2)[:, None, None] * 40
        pixels = random.normal(colour + stripes, 8, (SIZE, SIZE, 3))
        mask = np.zeros((SIZE, SIZE), np.uint8)
        if defective:
            row, column = random.integers(4, SIZE - 20, 2)
            mask[row : row + 14, column : column + 14] = 255
            pixels[mask > 0] += 60
        image, truth = folder / name / f"{stem}.png", folder / name / f"{stem}_mask.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(image)
        if not defective:
            return Sample(image)
        Image.fromarray(mask).save(truth)
        return Sample(image, 1, "square", truth if masks else None)

    return Task(
        "drawn",
        name,
        tuple(save(f"train_{i}", False) for i in range(train)),
        tuple(save(f"good_{i}", False) for i in range(normal))
        + tuple(save(f"bad_{i}", True) for i in range(anomalous)),
    )


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """Three tasks of 6 training and 4 + 4 test images, 64 x 64."""
    folder = tmp_path_factory.mktemp("tasks")
    return [draw_task(folder, name) for name in ("01", "bolt", "cable")]


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Task]:
    """Draw a task of its own: `make_task(name, train=, normal=, anomalous=, masks=)`."""
    return lambda name="own", **counts: draw_task(tmp_path, name, **counts)


@pytest.fixture
def make_extractor() -> Callable[..., Extractor]:
    """An extractor over a fake network: `make_extractor(widths=, scale=, sha256=, memory_gib=, cache=, size=)`."""

    def make(memory_gib: float = 1.0, cache: Cache | None = None, size: int = SIZE, **options) -> Extractor:
        return Extractor(FakeBackbone(**options), size, memory_gib, cache)

    return make


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache, large enough for all that is drawn here."""
    return Cache(tmp_path / "cache", 1)


@pytest.fixture
def extractor(make_extractor: Callable[..., Extractor]) -> Extractor:
    return make_extractor()


@pytest.fixture(scope="session")
def real_backbone() -> Backbone:
    """The default backbone with its ImageNet weights."""
    return load_backbone(device="cpu")


@pytest.fixture(scope="session")
def random_backbone() -> Callable[[str], Backbone]:
    """A frozen timm network of random weights, stages 1 to 3: `random_backbone(name)`."""

    def make(name: str) -> Backbone:
        torch.manual_seed(0)
        network = timm.create_model(name, pretrained=False, features_only=True, out_indices=(1, 2, 3))
        backbone = Backbone(network, (1, 2, 3), Weights(name, "drawn", "0" * 64), (0.5,) * 3, (0.5,) * 3)
        return backbone.eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def real_extractor(real_backbone: Backbone) -> Extractor:
    return Extractor(real_backbone, SIZE)
