"""Images for the benchmarks, drawn into a temporary folder."""

from pathlib import Path

import numpy as np
from PIL import Image

from inclad.data import mini
from inclad.data.task import Sample, Task


def mini_tasks(folder: Path, size: int, train: int, good: int, defective: int, count: int = 6) -> list[Task]:
    """The first `count` components of the mini dataset at `size` pixels, drawn once a folder."""
    root = mini.generate(folder / f"mini-{size}-{train}-{good}-{defective}", 0, size, train, good, defective)
    return mini.read(root, list(mini.COMPONENTS)[:count])


def textured_task(folder: Path, size: int, train: int, test: int, seed: int = 0) -> Task:
    """One task of blotchy textures; every second test image has a pale square that its mask marks."""
    random = np.random.default_rng(seed)
    folder = folder / f"textures-{size}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)

    def save(stem: str, defective: bool) -> Sample:
        image, mask = folder / f"{stem}.png", folder / f"{stem}_mask.png"
        coarse = Image.fromarray(random.integers(60, 180, (size // 8, size // 8, 3), dtype=np.uint8))
        pixels = np.array(coarse.resize((size, size), Image.Resampling.BILINEAR))
        truth = np.zeros((size, size), np.uint8)
        if defective:
            row, column = random.integers(0, size * 3 // 4, 2)
            truth[row : row + size // 8, column : column + size // 8] = 255
            pixels[truth > 0] += 60
            Image.fromarray(truth).save(mask, compress_level=1)
        Image.fromarray(pixels).save(image, compress_level=1)
        return Sample(image, 1, "square", mask) if defective else Sample(image)

    return Task(
        "drawn",
        "textures",
        tuple(save(f"train_{i}", False) for i in range(train)),
        tuple(save(f"test_{i}", i % 2 == 1) for i in range(test)),
    )
