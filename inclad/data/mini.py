"""The mini dataset: six synthetic components, made on the spot from a seed, in the layout of MVTec AD.

It has the structure of the real benchmarks (normal training images, several kinds of defect, exact masks)
and no licence to ask for, so that every page of the book can run anywhere in minutes.
"""

import hashlib
import io
import json
import shutil
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import binary_closing, binary_fill_holes

from inclad.data import mini_faults as faults
from inclad.data import mini_scenes as scenes
from inclad.data import mvtec
from inclad.data.mini_scenes import Scene
from inclad.data.task import DataError, Task
from inclad.files import project_folder, publish_folder, restore_folder

VERSION = 3  # raised whenever the same seed gives other pictures
MARKER = "mini.json"
SPLITS = {"train": 0, "good": 1, "defective": 2}
VISIBLE = 5 / 255  # a smaller change of a channel is neither drawn nor marked


@dataclass(frozen=True)
class Component:
    """How one component looks, how restless its photographs are, and what can go wrong with it.

    `light` is the spread of brightness and of the tilt of the light between images, `grain` the camera
    noise; `parts` of the scene can be missing (fault "missing").
    """

    draw: Callable[..., Scene]
    faults: dict[str, Callable[..., np.ndarray] | None]
    light: float = 0.03
    grain: float = 0.008
    parts: int = 0


COMPONENTS: dict[str, Component] = {
    "capsule": Component(
        scenes.capsule,
        {
            "crack": partial(faults.crack, length=0.5, width=0.022, strength=0.75),
            "dent": partial(faults.dent, radius=0.17, strength=0.65),
            "missing": None,
            "stain": partial(faults.stain, radius=0.10, tint=(0.35, 0.45, 0.30), strength=0.7),
        },
        parts=1,
    ),
    "circuit": Component(
        scenes.circuit,
        {
            "missing": None,
            "scratch": partial(faults.scratch, length=0.45, width=0.012, strength=0.35),
            "solder": partial(faults.drop, radius=0.045, colour=(0.74, 0.75, 0.74)),
            "stain": partial(faults.stain, radius=0.12, tint=(2.1, 1.0, 0.6), strength=0.6),
        },
        light=0.05,
        parts=16,
    ),
    "fabric": Component(
        scenes.fabric,
        {
            "cut": partial(faults.crack, length=0.5, width=0.04, strength=0.85, branches=0),
            "hole": partial(faults.hole, radius=0.09),
            "pull": partial(faults.smear, length=0.9, width=0.05, angle=0.0),
            "stain": partial(faults.stain, radius=0.16, tint=(0.75, 0.60, 0.40), strength=0.7),
        },
    ),
    "gear": Component(
        scenes.gear,
        {
            "crack": partial(faults.crack, length=0.40, width=0.026, strength=0.85),
            "missing": None,
            "rust": partial(faults.stain, radius=0.12, tint=(0.55, 0.33, 0.25), strength=0.9),
            "scratch": partial(faults.scratch, length=0.50, width=0.02, strength=0.7),
        },
        parts=16,
    ),
    "terrazzo": Component(
        scenes.terrazzo,
        {
            "crack": partial(faults.crack, length=0.8, width=0.02, strength=0.5, branches=2),
            "hole": partial(faults.hole, radius=0.06, depth=0.85),
            "scratch": partial(faults.scratch, length=0.7, width=0.016, strength=-0.4),
            "stain": partial(faults.stain, radius=0.17, tint=(0.62, 0.50, 0.30), strength=0.55),
        },
        light=0.05,
        grain=0.012,
    ),
    "wood": Component(
        scenes.wood,
        {
            "fade": partial(faults.fade, radius=0.18, shift=(0.08, 0.08, 0.08), strength=1.0),
            "hole": partial(faults.hole, radius=0.04, depth=0.8),
            "scratch": partial(faults.scratch, length=0.5, width=0.012, strength=0.35),
            "stain": partial(faults.stain, radius=0.13, tint=(0.70, 0.70, 0.75), strength=0.6),
        },
        light=0.06,
    ),
}


def draw(
    component: str, split: str, index: int, *, seed: int = 0, size: int = 256, sound: bool = False
) -> tuple[np.ndarray, np.ndarray, str]:
    """Draw one image: uint8 (size, size, 3), its mask bool (size, size) and the name of its defect.

    `split` is train, good or defective. Each image has generators of its own from (seed, component, split,
    index), so that how many others there are changes nothing. `sound` draws a defective image before its
    damage: outside the mask the two are equal.
    """
    spec = COMPONENTS[component]
    key = [seed, zlib.crc32(component.encode()), SPLITS[split], index]
    scene = spec.draw(np.random.default_rng([*key, 0]), size)
    photograph = partial(_photograph, key=[*key, 1], light=spec.light, grain=spec.grain)
    image = photograph(scene.image)
    mask = np.zeros((size, size), dtype=bool)
    if split != "defective" or sound:
        return image, mask, "good"
    name = list(spec.faults)[index % len(spec.faults)]
    for attempt in range(20):  # damage that lands where it cannot be seen is drawn again
        rng = np.random.default_rng([*key, 2, attempt])
        if spec.faults[name] is None:
            part = int(rng.integers(spec.parts))
            damaged = spec.draw(np.random.default_rng([*key, 0]), size, without=part).image
        else:
            damaged = spec.faults[name](rng, scene)
        visible = np.abs(np.clip(damaged, 0, 1) - np.clip(scene.image, 0, 1)).max(2) > VISIBLE
        mask = binary_fill_holes(binary_closing(visible, iterations=1)) | visible
        if mask.mean() > 0.0008:
            break
    return np.where(mask[..., None], photograph(damaged), image), mask, name


def _photograph(image: np.ndarray, key: list[int], light: float, grain: float) -> np.ndarray:
    """Light that is never quite the same, and the noise of a camera; uint8."""
    rng = np.random.default_rng(key)
    x, y = scenes.coordinates(len(image))
    gain, tilt_x, tilt_y = rng.normal(0, light, 3)
    image = image * (1 + gain + tilt_x * x + tilt_y * y)[..., None]
    image = image + grain * rng.standard_normal(image.shape, dtype=np.float32)
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def generate(
    root: Path | str, seed: int = 0, size: int = 256, train: int = 40, good: int = 20, defective: int = 30
) -> Path:
    """Write the whole dataset to `root`, unless it is there already whole and from the same arguments.

    `train`, `good` and `defective` count images a component. The folder appears at once when complete. Raises
    DataError rather than replace a folder that is not a mini dataset.
    """
    root = Path(root)
    recipe = {
        "version": VERSION,
        "seed": seed,
        "size": size,
        "train": train,
        "good": good,
        "defective": defective,
    }
    if is_whole(root, recipe):
        return root
    if root.exists() and not (root / MARKER).is_file() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(
            [f"{root}: holds something else than a mini dataset; give another folder or empty it"]
        )
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = root.parent / f".{root.name}.{uuid.uuid4().hex}.tmp"
    try:
        content = hashlib.sha256()
        for path, data in sorted(_files(recipe)):
            target = temporary / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            content.update(f"{path}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        marker = {"recipe": recipe, "sha256": content.hexdigest()}
        (temporary / MARKER).write_text(json.dumps(marker, indent=1) + "\n")
        if not is_whole(root, recipe):  # else another process was faster, with the same pictures
            publish_folder(temporary, root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return root


def _files(recipe: dict[str, int]) -> list[tuple[str, bytes]]:
    """Relative path and content of every image and mask."""
    found = []
    for component in COMPONENTS:
        for split in SPLITS:
            for index in range(recipe[split]):
                image, mask, defect = draw(component, split, index, seed=recipe["seed"], size=recipe["size"])
                folder = "train" if split == "train" else "test"
                found.append((f"{component}/{folder}/{defect}/{index:03}.png", _png(image)))
                if split == "defective":
                    path = f"{component}/ground_truth/{defect}/{index:03}_mask.png"
                    found.append((path, _png(mask.astype(np.uint8) * 255)))
    return found


def _png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def is_whole(root: Path | str, recipe: dict[str, int] | None = None) -> bool:
    """Whether `root` holds every byte its marker promises and, with a `recipe`, was made from that one."""
    root = Path(root)
    restore_folder(root)
    try:
        marker = json.loads((root / MARKER).read_text())
        if recipe is not None and marker["recipe"] != recipe:
            return False
        content = hashlib.sha256()
        for path in sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png")):
            content.update(f"{path}\0{hashlib.sha256((root / path).read_bytes()).hexdigest()}\n".encode())
        return marker["sha256"] == content.hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read(root: Path | str | None = None, names: list[str] | None = None) -> list[Task]:
    """Read the named components (None: all), one task each; the dataset is made first where it is absent.

    Without `root` it lives in build/data/mini of the project and is made from the defaults of `generate`;
    a folder of your own may come from any arguments. Raises DataError, also for a damaged folder of yours.
    """
    if not root:
        root = generate(default_root())
    elif not Path(root).exists() or (Path(root).is_dir() and not any(Path(root).iterdir())):
        generate(root)
    elif not (Path(root) / MARKER).is_file():
        raise DataError(
            [f"{root}: not a mini dataset (no {MARKER}); for parts of your own set dataset: mvtec"]
        )
    elif not is_whole(root):
        raise DataError([f"{root}: not a whole mini dataset; delete the folder, it will be made again"])
    return mvtec.read(root, names, dataset="mini")


def default_root() -> Path:
    """build/data/mini of the project; DataError outside of one."""
    try:
        return project_folder() / "build" / "data" / "mini"
    except ValueError as error:
        raise DataError([f"mini: {error}, or give a root"]) from None
