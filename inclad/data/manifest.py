"""A stream written out: every image and mask with its path below the dataset's root and its sha256.

A manifest holds no pixel, so it may be passed on where the images may not. Whoever has the images runs the very
same stream from it, or is told the first file that differs.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from inclad.data import elpv, mini, mtd
from inclad.data.catalog import DATASETS, choose_size, load_tasks
from inclad.data.check import find_problems
from inclad.data.croissant import describe
from inclad.data.folder import hostile, listed_path
from inclad.data.sources import SOURCES, Source
from inclad.data.task import DataError, Sample, Task
from inclad.files import write_atomic

FORMAT = "inclad manifest 1"
MAX_BYTES = 256 * 2**20
KNOWN = SOURCES | {
    "mini": Source("mini, drawn by this project", "", "Apache License 2.0"),
    "elpv": Source("ELPV solar cells", "https://github.com/zae-bayern/elpv-dataset", "CC BY-NC-SA 4.0"),
}
SEEDS = {"elpv": elpv.SPLIT_SEED, "mtd": mtd.SPLIT_SEED}  # of splits that we draw, as the dataset has none
DEFAULT_ROOTS = {"mini": mini.default_root, "elpv": elpv.default_root}

Text, Number, Maybe = (str,), (int,), (str, type(None))
HEAD = {
    "scenario": Text,
    "dataset": Text,
    "ordering": Text,
    "sources": (dict,),
    "tasks": (list,),
    "images": (list,),
}
TASK = {"position": Number, "dataset": Text, "task": Text, "mask_threshold": Number}
IMAGE = {
    **{"dataset": Text, "task": Text, "position": Number, "split": Text, "image": Text, "mask": Maybe},
    **{"label": Number, "defect": Text, "sha256": Text, "mask_sha256": Maybe},
}


def build(
    scenario: str,
    dataset: str,
    ordering: str,
    tasks: Sequence[str],
    root: str = "",
    roots: Mapping[str, str] | None = None,
    own: Source | None = None,
) -> dict:
    """The manifest of a stream, from the images themselves; `tasks` as in `load_tasks`, in the stream's order.

    Keys: format, scenario, dataset, ordering; `sources`, for each dataset its title, licence, homepage and seed (of
    a split that is drawn, else null), where `own` takes the place of what is known of `dataset`;
    `tasks` (position from 1, dataset, task, mask_threshold); `images`, a row an image: dataset, task, position,
    split (train or test), image and mask (POSIX paths below the dataset's root), label (1 = anomalous),
    defect, sha256, mask_sha256. Raises DataError with everything that is wrong with the data.
    """
    found = load_tasks(dataset, tasks, root, roots)
    # What is damaged here must not become what others are held to.
    problems, _ = find_problems(found, choose_size(dataset), decode_images=False)
    if problems:
        raise DataError(problems)
    places = _roots(found, dataset, root, roots)
    rows = [
        row for position, task in enumerate(found, 1) for row in _rows(task, position, places[task.dataset])
    ]
    files = [
        places[row["dataset"]] / row[key] for row in rows for key in ("image", "mask") if row[key] is not None
    ]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        digests = dict(zip(files, pool.map(_sha256, files)))
    for row in rows:
        for key, digest in (("image", "sha256"), ("mask", "mask_sha256")):
            row[digest] = None if row[key] is None else digests[places[row["dataset"]] / row[key]]
    known = KNOWN | ({dataset: own} if own else {})
    return {
        "format": FORMAT,
        "scenario": scenario,
        "dataset": dataset,
        "ordering": ordering,
        "sources": {name: _source(name, known) for name in dict.fromkeys(task.dataset for task in found)},
        "tasks": [
            {
                "position": position,
                "dataset": task.dataset,
                "task": task.name,
                "mask_threshold": task.mask_threshold,
            }
            for position, task in enumerate(found, 1)
        ],
        "images": rows,
    }


def write(content: dict, folder: Path | str) -> list[Path]:
    """Write manifest.json, an image a line, and croissant.json, which describes it, into `folder`."""
    lines = [json.dumps(row, ensure_ascii=False) for row in content["images"]]
    head = json.dumps({**content, "images": []}, ensure_ascii=False, indent=1)
    text = head.removesuffix("[]\n}") + "[\n" + ",\n".join(lines) + "\n]\n}\n"
    paths = [Path(folder) / "manifest.json", Path(folder) / "croissant.json"]
    write_atomic(paths[0], text)
    described = describe(content, hashlib.sha256(text.encode()).hexdigest())
    write_atomic(paths[1], json.dumps(described, ensure_ascii=False, indent=2) + "\n")
    return paths


def load(path: Path | str) -> dict:
    """A manifest file, checked as data from outside; DataError when it is none, or names files outside of a root."""
    path = Path(path)
    if not path.is_file():
        raise DataError([f"{path}: no file; give a manifest.json"])
    if path.stat().st_size > MAX_BYTES:
        raise DataError([f"{path}: larger than {MAX_BYTES // 2**20} MiB; no manifest is"])
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError([f"{path}: cannot be read ({error.strerror}); give a manifest.json"]) from None
    except (ValueError, RecursionError):
        raise DataError([f"{path}: not JSON; build the manifest again"]) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError([f"{path}: no manifest (its format is not {FORMAT!r}); build it again"])
    problems = list(_wrong(content, "", HEAD)) or [
        *(
            text
            for number, entry in enumerate(content["tasks"], 1)
            for text in _wrong(entry, f"task {number}, ", TASK)
        ),
        *(
            text
            for number, row in enumerate(content["images"], 1)
            for text in _wrong(row, f"image {number}, ", IMAGE)
        ),
    ]
    if not problems:
        problems = list(_contradictions(content))
    if problems:
        more = f" (and {len(problems) - 1} more like this)" if len(problems) > 1 else ""
        raise DataError([f"{path}: {problems[0]}{more}"])
    return content


def check(path: Path | str, root: str = "", roots: Mapping[str, str] | None = None) -> dict:
    """`load`, then compare every file with the data below `root` or `roots`.

    Raises DataError with the first difference: a file that is missing or has another content, an image that the
    manifest does not list, another label, mask, split or order.
    """
    return _verified(path, root, roots)[0]


def read(path: Path | str, root: str = "", roots: Mapping[str, str] | None = None) -> list[Task]:
    """The tasks of a manifest in its order, after `check`."""
    return _verified(path, root, roots)[1]


def _verified(path: Path | str, root: str, roots: Mapping[str, str] | None) -> tuple[dict, list[Task]]:
    content = load(path)
    found = load_tasks(content["dataset"], [entry["task"] for entry in content["tasks"]], root, roots)
    places = _roots(found, content["dataset"], root, roots)
    _check_files(path, content["images"], places)
    for position, (entry, task) in enumerate(zip(content["tasks"], found), 1):
        listed = [row for row in content["images"] if row["task"] == task.name]
        _check_rows(path, listed, list(_rows(task, position, places[task.dataset])), places[task.dataset])
        if entry["mask_threshold"] != task.mask_threshold:
            values = f"{entry['mask_threshold']}, its reader {task.mask_threshold}"
            raise DataError([f"{path}: task {task.name!r} has the mask threshold {values}; build it again"])
    return content, found


def _roots(found: list[Task], dataset: str, root: str, roots: Mapping[str, str] | None) -> dict[str, Path]:
    given = {**(roots or {}), **({dataset: root} if root else {})}
    names = dict.fromkeys(task.dataset for task in found)
    return {name: Path(given.get(name) or DEFAULT_ROOTS[name]()) for name in names}


def _source(name: str, known: Mapping[str, Source]) -> dict:
    source = known.get(name, Source(name, ""))
    licence = source.licence or "not stated"
    return {"title": source.title, "licence": licence, "homepage": source.page, "seed": SEEDS.get(name)}


def _rows(task: Task, position: int, root: Path) -> Iterator[dict]:
    """A row an image, still without sha256."""

    def below(path: Path | None) -> str | None:
        return None if path is None else path.relative_to(root).as_posix()

    def row(split: str, sample: Sample) -> dict:
        return {
            **{"dataset": task.dataset, "task": task.name, "position": position, "split": split},
            **{"image": below(sample.image), "mask": below(sample.mask)},
            **{"label": sample.label, "defect": sample.defect},
        }

    yield from (row("train", sample) for sample in task.train)
    yield from (row("test", sample) for sample in task.test)


def _check_files(path: Path | str, rows: list[dict], places: dict[str, Path]) -> None:
    pairs = (("image", "sha256"), ("mask", "mask_sha256"))
    listed = [
        (places[row["dataset"]], row[key], row[d]) for row in rows for key, d in pairs if row[key] is not None
    ]

    def look(entry: tuple[Path, str, str]) -> str:
        root, name, digest = entry
        file = listed_path(root, name)
        if file is None:
            return f"{path}: {name} leaves {root}; only paths below it are read"
        if not file.is_file():
            return f"{file}: missing, but {path} lists it; restore it or give the root the manifest was built from"
        if _sha256(file) != digest:
            return f"{file}: its content differs from what {path} lists (sha256); restore it"
        return ""

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for problem in pool.map(look, listed):
            if problem:
                pool.shutdown(cancel_futures=True)
                raise DataError([problem])


def _check_rows(path: Path | str, listed: list[dict], found: list[dict], root: Path) -> None:
    """The first difference between the rows of one task in the manifest and those its reader finds."""
    known = {row["image"]: row for row in listed}
    for row in found:
        if row["image"] not in known:
            raise DataError([f"{root / row['image']}: an extra image that {path} does not list; remove it"])
        for key, value in row.items():
            if known[row["image"]][key] != value:
                raise DataError(
                    [f"{root / row['image']}: {key} is {value!r}, in {path} {known[row['image']][key]!r}"]
                )
    there = {row["image"] for row in found}
    for row in listed:
        if row["image"] not in there:
            raise DataError(
                [
                    f"{root / row['image']}: {path} lists it, but the reader of {row['dataset']} does not take it"
                ]
            )
    if [row["image"] for row in listed] != [row["image"] for row in found]:
        raise DataError(
            [f"{path}: images of task {listed[0]['task']!r} twice or in another order; build it again"]
        )


def _wrong(entry: object, where: str, fields: dict[str, tuple[type, ...]]) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"{where}expected a mapping, got {type(entry).__name__}"
        return
    for name, kinds in fields.items():
        if type(entry.get(name, ...)) not in kinds:
            yield f"{where}{name}: expected {kinds[0].__name__}, got {json.dumps(entry.get(name))[:60]}"


def _contradictions(content: dict) -> Iterator[str]:
    owners = {entry["task"]: entry for entry in content["tasks"]}
    mixed = content["dataset"] == "mixed"
    if not owners:
        yield "it lists no task"
    for entry in content["tasks"]:
        name, dataset = entry["task"], entry["dataset"]
        if dataset not in DATASETS or (
            not name.startswith(f"{dataset}:") if mixed else dataset != content["dataset"]
        ):
            yield f"task {name!r} is of dataset {dataset!r}, the stream of {content['dataset']!r}"
        if not any(row["task"] == name for row in content["images"]):
            yield f"task {name!r} has no images"
    if len(owners) != len(content["tasks"]):
        yield "a task is listed twice"
    if [entry["position"] for entry in content["tasks"]] != list(range(1, len(content["tasks"]) + 1)):
        yield "the positions of its tasks are not 1, 2, 3 ..."
    for number, row in enumerate(content["images"], 1):
        owner = owners.get(row["task"], {})
        if (row["dataset"], row["position"]) != (owner.get("dataset"), owner.get("position")):
            yield f"image {number}, task {row['task']!r} is not the listed task of that dataset and position"
        for name in (row["image"], row["mask"]):
            if name is not None and (hostile(name) or PurePosixPath(name).as_posix() != name):
                yield f"image {number}, {name[:80]!r}: not a plain POSIX path below the root"
        if (row["mask"] is None) != (row["mask_sha256"] is None):
            yield f"image {number}: mask and mask_sha256 go together"


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError([f"{path}: cannot be read ({error.strerror}); check the copy"]) from None
