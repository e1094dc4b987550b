"""Solar cells in electroluminescence light (ELPV, Buerhop-Lutz et al. 2018; Deitsch et al. 2019).

Real images that come with the package `elpv-dataset` (CC BY-NC-SA 4.0): two tasks, the mono- and the
polycrystalline cells. A cell is normal when experts gave it the defect probability 0, anomalous at 1; the
doubtful ones between are dropped. There are no masks.
"""

import importlib.util
import zlib
from pathlib import Path

import numpy as np

from inclad.data.folder import choose, existing_root, listed_path
from inclad.data.task import DataError, Sample, Task

TASKS = ["mono", "poly"]
TEST_SHARE = 0.3  # of the normal cells; all anomalous cells are tested
SPLIT_SEED = 0


def read(root: Path | str | None = None, names: list[str] | None = None) -> list[Task]:
    """Read the named tasks from `root` (holds labels.csv and images/), else from the installed package.

    The split is ours, as the dataset has none: a fixed seed draws 30 % of the normal cells of a task for
    the test, the others are trained on. Raises one DataError with everything that is wrong.
    """
    root = existing_root(
        root or default_root(), "elpv", "labels.csv and images/, as in the package elpv-dataset"
    )
    names = choose(names, TASKS, "elpv")
    problems: list[str] = []
    cells = _labels(root, problems)
    tasks = []
    for name in names:
        normal = [path for path, kind, probability in cells if kind == name and probability == 0]
        anomalous = [path for path, kind, probability in cells if kind == name and probability == 1]
        if not problems and (len(normal) < 2 or not anomalous):
            counts = f"{len(normal)} normal and {len(anomalous)} anomalous cells"
            problems.append(f"{root / 'labels.csv'}: {name} has {counts}; a task needs two and one at least")
        shuffled = np.random.default_rng([SPLIT_SEED, zlib.crc32(name.encode())]).permutation(len(normal))
        tested = set(shuffled[: round(TEST_SHARE * len(normal))].tolist())
        train = [Sample(path) for index, path in enumerate(normal) if index not in tested]
        test = [Sample(path) for index, path in enumerate(normal) if index in tested]
        test += [Sample(path, 1, "defective") for path in anomalous]
        tasks.append(Task("elpv", name, tuple(train), tuple(test)))
    if problems:
        raise DataError(problems, tasks)
    return tasks


def default_root() -> Path:
    """The package's data folder; the package is found but not imported, nothing is loaded into memory."""
    spec = importlib.util.find_spec("elpv_dataset")
    if spec is None:
        raise DataError(
            ["elpv: the package elpv-dataset is not installed; pip install elpv-dataset, or give a root"]
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _labels(root: Path, problems: list[str]) -> list[tuple[Path, str, float]]:
    """Rows of labels.csv, which is columns between spaces: path, probability, kind."""
    table = root / "labels.csv"
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        problems.append(f"{table}: cannot be read; it comes with the images, copy it again")
        return []
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text, value, kind = line.split()
            probability = float(value)
        except ValueError:
            problems.append(f"{table}, line {number}: expected path, probability and mono or poly")
            continue
        path = listed_path(root, text)
        if path is None:
            problems.append(
                f"{table}, line {number}: {text} leaves the folder; only paths below {root} are read"
            )
        elif not path.is_file():
            problems.append(f"{path}: named in {table.name} but missing; copy the images again")
        else:
            rows.append((path, kind, probability))
    return rows
