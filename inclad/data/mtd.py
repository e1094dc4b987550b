"""Magnetic Tile Defect (Huang, Qiu and Yuan 2020): MT_<kind>/Imgs/exp<E>_num_<N>.jpg, masks as .png beside.

Six exposures of the same tiles make six tasks, exp1 to exp6, that differ in light (exp0 has three images
and is left out). The number counts camera frames and the exposures of a tile follow each other, so frames
less than 100 apart show one tile. The split is drawn once for the tiles, not for each exposure: otherwise
nearly every tested tile would have been seen in another task's training, which flatters every figure of
forgetting.
"""

import re
from pathlib import Path

import numpy as np

from inclad.data.folder import choose, existing_root, image_files, subfolders, visible
from inclad.data.images import decode
from inclad.data.task import DataError, Sample, Task

TASKS = [f"exp{exposure}" for exposure in range(1, 7)]
KINDS = {"blowhole", "break", "crack", "fray", "free", "uneven"}
SAME_TILE = 100  # frames
TEST_SHARE = 0.3  # of the tiles that are sound in every exposure
SPLIT_SEED = 0
MASK_THRESHOLD = 128  # masks are anti-aliased: "above 0" would make cracks half as wide again
LAYOUT = "MT_Free, MT_Crack, MT_Fray ..., each with Imgs/exp<E>_num_<N>.jpg and .png"

_NAME = re.compile(r"(exp[1-6])_num_(\d+)$")


def read(root: Path | str | None, names: list[str] | None = None) -> list[Task]:
    """Read the named exposures (None: all six) below `root`, one task each.

    Tested are all defective images, every tile that shows a defect in any image, and 30 % of the other
    tiles (a fixed seed); all other normal images are trained on. A defective image whose mask has no pixel
    of at least 128 keeps label 1 with mask None. Raises one DataError with everything that is wrong.
    """
    root = existing_root(root, "mtd", LAYOUT)
    names = choose(names, TASKS, "mtd")
    problems: list[str] = []
    images = _images(root, problems)
    tested = _tested_frames(images)
    tasks = []
    for name in names:
        mine = [(frame, kind, path) for exposure, frame, kind, path in images if exposure == name]
        train = [Sample(path) for frame, kind, path in mine if kind == "free" and frame not in tested]
        test = [Sample(path) for frame, kind, path in mine if kind == "free" and frame in tested]
        test += [Sample(path, 1, kind, _mask(path, problems)) for _, kind, path in mine if kind != "free"]
        if not problems and not (train and test):
            problems.append(
                f"{root}: {name} has {len(train)} training and {len(test)} test images; both are needed"
            )
        tasks.append(Task("mtd", name, tuple(train), tuple(test), MASK_THRESHOLD))
    if problems:
        raise DataError(problems, tasks)
    return tasks


def tiles(frames: list[int]) -> list[int]:
    """Number the tiles: the tile of each frame, where neighbours less than 100 apart are the same tile."""
    order = np.argsort(frames, kind="stable")
    new = np.diff(np.asarray(frames)[order], prepend=-SAME_TILE - 1) >= SAME_TILE
    found = np.empty(len(frames), dtype=int)
    found[order] = np.cumsum(new)
    return found.tolist()


def _images(root: Path, problems: list[str]) -> list[tuple[str, int, str, Path]]:
    """Exposure, frame, kind and path of every image of the six exposures."""
    kinds = {folder.name.removeprefix("MT_").lower(): folder for folder in subfolders(root, root, problems)}
    found = []
    for kind in sorted(KINDS & kinds.keys()):
        for path in image_files(kinds[kind] / "Imgs", root, problems):
            match = _NAME.match(path.stem)
            if match and path.suffix.lower() != ".png":
                found.append((match[1], int(match[2]), kind, path))
    if not found:
        names = ", ".join(path.name for path in visible(root, root, [])[:5]) or "nothing"
        problems.append(f"{root}: no image of Magnetic Tile Defect, it holds {names}; expected {LAYOUT}")
        raise DataError(problems)
    return found


def _tested_frames(images: list[tuple[str, int, str, Path]]) -> set[int]:
    """Frames of the tiles that go into the test; judged over all exposures, whichever tasks are read."""
    frames = [frame for _, frame, _, _ in images]
    tile_of = dict(zip(frames, tiles(frames)))
    defective = {tile_of[frame] for _, frame, kind, _ in images if kind != "free"}
    sound = sorted(set(tile_of.values()) - defective)
    drawn = np.random.default_rng(SPLIT_SEED).permutation(sound)[: round(TEST_SHARE * len(sound))]
    return {frame for frame, tile in tile_of.items() if tile in defective or tile in drawn}


def _mask(image: Path, problems: list[str]) -> Path | None:
    """The mask beside a defective image; None when it is absent or marks nothing."""
    for path in (image.with_suffix(".png"), image.with_suffix(".PNG")):
        if path.is_file():
            try:
                marks = decode(path).convert("L").getextrema()[1] >= MASK_THRESHOLD
                return path if marks else None
            except DataError as error:
                problems += error.problems
                return None
    return None
