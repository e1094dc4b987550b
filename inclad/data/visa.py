"""VisA (Zou et al. 2022), as it is downloaded or as its owner's script converts it.

Raw: <category>/Data/Images/{Normal,Anomaly}/NNN.JPG, Data/Masks/Anomaly/NNN.png, and the official one-class
split in split_csv/1cls.csv. Converted: 1cls/<category>/{train/good, test/good, test/bad, ground_truth/bad}.
Normal/000.JPG and Anomaly/000.JPG are two images, so files are known by folder and stem. Mask pixels are the
numbers of defect kinds, 1 to 9, and look black: every pixel above 0 counts.
"""

import csv
from collections import defaultdict
from pathlib import Path, PurePosixPath

from inclad.data import mvtec
from inclad.data.folder import choose, existing_root, image_files, listed_path, natural, subfolders, unwrap
from inclad.data.sources import SOURCES
from inclad.data.task import DataError, Sample, Task

SPLIT = Path("split_csv") / "1cls.csv"
COLUMNS = ("object", "split", "label", "image", "mask")
LAYOUT = "split_csv/1cls.csv and one folder a category, or the converted folder 1cls"


def read(root: Path | str | None, names: list[str] | None = None) -> list[Task]:
    """Read the named categories (None: all there) below `root`, raw or converted, one task each.

    The raw layout wins where both are there. Raises one DataError with everything that is wrong.
    """
    root = existing_root(unwrap(root, "VisA_20220922", "VisA"), "visa", LAYOUT)
    problems: list[str] = []
    raw = [folder.name for folder in subfolders(root, root, problems) if (folder / "Data").is_dir()]
    if not raw:
        return mvtec.read(unwrap(root, "1cls"), names, dataset="visa", layout=LAYOUT)
    rows = _rows(root, problems)
    names = choose(names, [name for name in rows if name in raw], str(root))
    files = _Files(root, problems)
    tasks = [_task(name, rows[name], files, problems) for name in names]
    if problems:
        raise DataError(list(dict.fromkeys(problems)), tasks)
    return tasks


def _rows(root: Path, problems: list[str]) -> dict[str, list[dict[str, str]]]:
    """Rows of the split by category, in natural order of the categories."""
    table = root / SPLIT
    if not table.is_file():
        page = SOURCES["visa"].page
        raise DataError([*problems, f"{table}: the official split is missing; put it there, it is on {page}"])
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError([*problems, f"{table}: cannot be read ({error}); download it again"]) from None
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise DataError([*problems, f"{table}: expected the columns {', '.join(COLUMNS)}; download it again"])
    found = defaultdict(list)
    for number, row in enumerate(rows, 2):
        if row["split"] not in ("train", "test") or row["label"] not in ("normal", "anomaly"):
            problems.append(
                f"{table}, line {number}: expected train or test, normal or anomaly; download it again"
            )
            continue
        found[row["object"]].append(row)
    return {name: found[name] for name in sorted(found, key=natural)}


class _Files:
    """Finds listed files by folder and stem, so that a copy saved with other suffixes is still read."""

    def __init__(self, root: Path, problems: list[str]):
        self.root, self.problems = root, problems
        self.folders: dict[str, dict[str, Path]] = {}

    def find(self, text: str) -> Path | None:
        listed = PurePosixPath(text)
        folder = listed.parent.as_posix()
        if folder not in self.folders:
            path = listed_path(self.root, folder)
            if path is None:
                self.problems.append(
                    f"{self.root / SPLIT}: {folder} leaves the folder; only paths below {self.root} are read"
                )
            files = image_files(path, self.root, self.problems) if path else []
            self.folders[folder] = {file.stem: file for file in files}
            if len(self.folders[folder]) < len(files):
                self.problems.append(f"{path}: two files of the same stem; keep the official one")
        return self.folders[folder].get(listed.stem)


def _task(name: str, rows: list[dict[str, str]], files: _Files, problems: list[str]) -> Task:
    samples: dict[str, list[Sample]] = {"train": [], "test": []}
    missing: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        image = files.find(row["image"])
        if image is None:
            missing[PurePosixPath(row["image"]).parent.as_posix()].append(row["image"])
            continue
        if row["label"] == "normal":
            sample = Sample(image)
        else:
            sample = Sample(image, 1, "anomaly", files.find(row["mask"]) if row["mask"] else None)
        samples[row["split"]].append(sample)
    for folder, lost in missing.items():
        problems.append(
            f"{files.root / folder}: {len(lost)} images of the official split are not there "
            f"(first: {PurePosixPath(lost[0]).name}); copy them again"
        )
    ordered = {
        split: tuple(sorted(found, key=lambda sample: (sample.label, natural(sample.image.name))))
        for split, found in samples.items()
    }
    return Task("visa", name, ordered["train"], ordered["test"])
