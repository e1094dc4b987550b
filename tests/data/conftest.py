"""Small folders of images, made for one test each."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def save(
    path: Path, value: int | np.ndarray = 100, size: tuple[int, int] = (12, 10), mode: str = "RGB"
) -> Path:
    """Write an image of one value, or of an array, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = value if isinstance(value, np.ndarray) else np.full((size[1], size[0]), value, np.uint8)
    Image.fromarray(array).convert(mode).save(path)
    return path


@pytest.fixture
def picture() -> Callable[..., Path]:
    return save


@pytest.fixture
def mvtec_tree(tmp_path: Path) -> Path:
    """Two categories: 3 training images, 2 good, 2 `cut` with masks; every image differs."""
    root = tmp_path / "tree"
    for start, category in ((0, "bolt"), (100, "nut")):
        for index in range(3):
            save(root / category / "train/good" / f"{index:03}.png", start + index)
        for index in range(2):
            save(root / category / "test/good" / f"{index:03}.png", start + 10 + index)
            save(root / category / "test/cut" / f"{index:03}.png", start + 20 + index)
            save(root / category / "ground_truth/cut" / f"{index:03}_mask.png", 255, mode="L")
    return root


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return Path(__file__).parents[2] / ".." / "shared" / "data"
