"""A results folder: tidy CSV, arrays, figures and run.json, written whole or not at all."""

import contextlib
import io
import json
import math
import os
import platform
import re
import resource
import shutil
import sys
import time
import uuid
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from inclad import metrics
from inclad.files import project_folder, publish_folder, restore_folder, write_atomic

# Columns that are names, so that task "01" stays "01".
TEXT = {
    "dataset", "task", "detector", "ordering", "protocol", "level", "reason", "notebook", "backbone",
    "source", "defect", "image", "mask", "split", "detector_a", "detector_b",
}  # fmt: skip
# The tables that one notebook makes and others read: who makes them, and what must be in them.
_STREAM = ["dataset", "ordering", "detector", "protocol"]
MADE_BY = {
    "experts": ("experts", ["dataset", "task", "detector", "image_roc_auc", "pixel_roc_auc"]),
    "r_matrix": ("stream", [*_STREAM, "level", "step", "task", "roc_auc"]),
    "summary": ("stream", [*_STREAM, "level", "roc_auc_cl", "bwt", "final_avg", "cells"]),
    "costs": ("stream", [*_STREAM, "step", "train_s", "score_s", "kept_bytes"]),
}
FIGURES = ("roc_auc_cl", "bwt", "bwt_stepwise", "bwt_final", "final_avg")  # made from one R
FIGURE_BYTES = 200_000

_open_folders: set[Path] = set()  # temporary folders of this process


class Results:
    """What one run leaves behind, collected in a temporary folder beside `folder` until `finish`.

    A relative `folder` starts at the project folder. Leftovers of killed runs of the same result are swept
    first; a finished result stays until the new one replaces it. Raises ValueError for names of tables that
    are no plain file names, RuntimeError when something is written after `finish`.
    """

    def __init__(self, folder: str | Path, notebook: str, parameters: dict):
        self.folder = _resolve(folder)
        self._notebook, self._parameters = notebook, parameters
        self._started = time.perf_counter()
        restore_folder(self.folder)
        _sweep(self.folder)
        self._temporary = self.folder.parent / f".{self.folder.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
        self._temporary.mkdir(parents=True)
        _open_folders.add(self._temporary)

    def table(self, name: str, frame: pd.DataFrame) -> None:
        """Write name.csv: UTF-8, the index left out, missing values empty, numbers with all their digits."""
        if not len(frame.columns):
            raise ValueError(f"table {name!r} has no columns; leave out a table that has nothing to say")
        texts = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
        frame = frame.assign(**{column: frame[column].map(_portable, na_action="ignore") for column in texts})
        self._write(f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))

    def array(self, name: str, **arrays: np.ndarray) -> None:
        """Write name.npz, compressed. Raises ValueError for object arrays, which only pickle could hold."""
        for key, value in arrays.items():
            if np.asarray(value).dtype.hasobject:
                raise ValueError(f"{name}.npz: array {key!r} holds Python objects; give numbers or text")
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        self._write(f"{name}.npz", buffer.getvalue())

    def figure(self, name: str, fig: Figure) -> None:
        """Write name.png, the same bytes for the same figure."""
        self._write(f"{name}.png", png(fig))

    def text(self, name: str, content: str) -> None:
        """Write a text file, for example a Markdown sentence that a page of the book includes."""
        self._write(name, content)

    def finish(self, **more: object) -> Path:
        """Write run.json, rename the folder into place and return it.

        run.json holds notebook, parameters, seconds and `run_info`, overridden and extended by the keywords.
        It is strict JSON: NaN and infinity become null; give the reason under another key. The home folder
        becomes ~ and the project folder a dot.
        """
        info = {
            "notebook": self._notebook,
            "parameters": self._parameters,
            **run_info(str(more.get("device", "cpu"))),
            "seconds": round(time.perf_counter() - self._started, 3),
            **more,
        }
        text = json.dumps(_strict(info), indent=1, ensure_ascii=False, allow_nan=False)
        self._write("run.json", text + "\n")
        publish_folder(self._temporary, self.folder)
        _open_folders.discard(self._temporary)
        return self.folder

    def _write(self, name: str, content: bytes | str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+\.\w+", name):
            raise ValueError(f"{name!r} is no name for a result: use letters, digits, - and _")
        if self._temporary not in _open_folders:
            raise RuntimeError(f"{self.folder.name} is finished: {name} comes too late")
        write_atomic(self._temporary / name, content)


def read_table(folder: str | Path, name: str) -> pd.DataFrame:
    """The table name.csv of a results folder; names are text, missing numbers NaN, missing text "".

    Raises, in one line with its path, FileNotFoundError when it is not there, ValueError when it is torn,
    lacks a column or holds text where numbers belong.
    """
    path = _resolve(folder) / f"{name}.csv"
    notebook, needed = MADE_BY.get(name, (Path(folder).name.split("--")[0], []))
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no {name}.csv: make it with `inclad run {notebook}` and its params file, "
            "or with `inclad run --book`"
        )
    try:
        text = path.read_bytes().decode()
        if not text.endswith("\n"):
            raise ValueError("its last line does not end, it may be torn")
        columns = pd.read_csv(io.StringIO(text), nrows=0).columns
        if lacking := [column for column in needed if column not in columns]:
            raise ValueError(f"lacks the columns {', '.join(lacking)}")
        frame = pd.read_csv(
            io.StringIO(text),
            dtype={column: str for column in columns if column in TEXT},
            keep_default_na=False,  # a task may be called "NA"
            na_values={column: ["", "nan", "NaN"] for column in columns if column not in TEXT},
        )
        for column in needed:
            if column not in TEXT and len(frame) and not pd.api.types.is_numeric_dtype(frame[column]):
                raise ValueError(f"column {column} holds text where numbers belong")
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors too
        reason = "not UTF-8" if isinstance(error, UnicodeError) else " ".join(str(error).split())
        raise ValueError(
            f"{folder}/{name}.csv: {reason}; make it again with `inclad run {notebook} --force`"
        ) from None
    return frame


def read_streams(folders: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables r_matrix and summary of several results folders of streams, one below the other.

    Detectors of one order may come from several runs. Raises ValueError, in one line, when none is named, when
    two hold the same detector in the same order, or for two datasets.
    """
    if not folders:
        raise ValueError("streams: name at least one results folder of `inclad run stream`")
    tables = [(folder, read_table(folder, "r_matrix"), read_table(folder, "summary")) for folder in folders]
    seen: dict[tuple[str, str], str] = {}
    for folder, r_matrix, _ in tables:
        for ordering, detector in (
            r_matrix[["ordering", "detector"]].drop_duplicates().itertuples(index=False)
        ):
            if (ordering, detector) in seen:
                raise ValueError(
                    f"streams: {seen[ordering, detector]} and {folder} both hold {detector} in the order {ordering}; "
                    "name one"
                )
            seen[ordering, detector] = folder
    r_matrix, table = (pd.concat([each[i] for each in tables], ignore_index=True) for i in (1, 2))
    if table["dataset"].nunique() > 1:
        raise ValueError(f"streams: a report is of one dataset, got {', '.join(table['dataset'].unique())}")
    return r_matrix, table


def run_parameters(folder: str | Path) -> dict:
    """The parameters in the run.json of a results folder; ValueError with its path when it can't be read."""
    path = _resolve(folder) / "run.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["parameters"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: can't be read ({type(error).__name__}): run it again") from error


def settings_table(folders: list[str]) -> pd.DataFrame:
    """What runs were made with, a row a results folder: run, detectors, profile, backbone, image_size, seed.

    From their run.json; what a run does not say is empty. ValueError names a folder without one.
    """
    names = ["detectors", "profile", "backbone", "image_size", "max_train", "seed"]
    rows = []
    for folder in folders:
        parameters = run_parameters(folder)
        values = [parameters.get(name, "") for name in names]
        rows.append([Path(folder).name, *(", ".join(v) if isinstance(v, list) else v for v in values)])
    return pd.DataFrame(rows, columns=["run", *names])


def read_arrays(folder: str | Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of name.npz in a results folder, never unpickled; ValueError when not there or torn."""
    path = _resolve(folder) / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{folder}: {name}.npz can't be read ({type(error).__name__}): run it again"
        ) from error


def to_matrix(r_matrix: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Rows (step, task, roc_auc) of one stream -> R (N, N) float64, NaN where missing, and the N tasks.

    Tasks stand in the order in which they first appear, which is that of learning. Raises ValueError for a
    cell given twice and for steps that do not fit the tasks.
    """
    rows = r_matrix.sort_values("step", kind="stable")
    twice = rows[rows.duplicated(["step", "task"])]
    if len(twice):
        step, task = twice.iloc[0][["step", "task"]]
        raise ValueError(f"step {step}, task {task!r} is there twice: choose one stream and one level first")
    first = rows.drop_duplicates("task").set_index("task")["step"]
    tasks = list(first.index)
    size = int(rows["step"].max()) if len(rows) else 0
    if size != len(tasks) or (first > np.arange(1, size + 1)).any():
        raise ValueError(
            f"{len(tasks)} tasks first tested at steps {', '.join(map(str, first))}: each step must learn "
            "one task; keep missing cells as rows without a roc_auc"
        )
    R = np.full((size, size), np.nan)
    R[rows["step"].to_numpy() - 1, first.index.get_indexer(rows["task"])] = rows["roc_auc"]
    return R, tasks


def lower_triangle(r_matrix: pd.DataFrame) -> pd.DataFrame:
    """The rows of r_matrix.csv of tasks seen so far; those of tasks still to come (`upper`) are left out."""
    keys = [name for name in ("dataset", "ordering") if name in r_matrix]
    rows = r_matrix.sort_values("step", kind="stable")
    first = rows.drop_duplicates([*keys, "task"])
    learned = first.groupby(keys, sort=False).cumcount() + 1 if keys else pd.Series(range(1, len(first) + 1))
    steps = first[[*keys, "task"]].assign(learned=learned.to_numpy())
    merged = r_matrix.merge(steps, on=[*keys, "task"], how="left")
    return r_matrix[(merged["step"] >= merged["learned"]).to_numpy()]


def summary(r_matrix: pd.DataFrame) -> pd.DataFrame:
    """One row a stream, detector, protocol and level: the figures of `inclad.metrics` made from its R.

    Every column beside step, task and roc_auc tells streams apart.
    """
    keys = [column for column in r_matrix.columns if column not in ("step", "task", "roc_auc")]
    rows = []
    groups = r_matrix.groupby(keys, sort=False, dropna=False) if keys else [((), r_matrix)]
    for key, group in groups:
        R, _ = to_matrix(group)
        rows.append(
            {
                **dict(zip(keys, key)),
                "roc_auc_cl": metrics.roc_auc_cl(R),
                "bwt": metrics.bwt(R),
                "bwt_stepwise": metrics.bwt_stepwise(R),
                "bwt_final": metrics.bwt_final(R),
                "final_avg": metrics.final_average(R),
                "cells": metrics.valid_cells(R),
            }
        )
    return pd.DataFrame(rows, columns=[*keys, *FIGURES, "cells"])


def mean_over_detectors(summary: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation (N - 1) over detectors; a row an ordering, level and protocol.

    `n` says how many detectors had every cell of those attempted, as "valid/attempted"; the mean is missing
    unless all had, since a mean over those that happen to be there would not be comparable.
    """
    rows = []
    for key, group in summary.groupby(["dataset", "ordering", "level", "protocol"], sort=False):
        complete = group["cells"] == group["cells"].max()
        valid = complete & group["roc_auc_cl"].notna()
        row = dict(zip(["dataset", "ordering", "level", "protocol"], key))
        for figure in FIGURES:
            whole = valid.all()
            row[figure] = group[figure].mean() if whole else np.nan
            row[f"{figure}_std"] = group[figure].std() if whole else np.nan
        rows.append({**row, "n": f"{valid.sum()}/{len(group)}"})
    return pd.DataFrame(rows)


def with_spread(means: pd.DataFrame) -> pd.DataFrame:
    """The table of `mean_over_detectors` to be read: "mean ± standard deviation" in one column a figure."""
    shown = means[["ordering", "level", "protocol"]].copy()
    for figure in FIGURES:
        pairs = zip(means[figure], means[f"{figure}_std"])
        shown[figure] = [f"{mean:.3f} ± {std:.3f}" if math.isfinite(mean) else "–" for mean, std in pairs]
    return shown.assign(n=means["n"])


def run_info(device: str = "cpu") -> dict:
    """Versions, platform and peak memory (MiB, of the host process and of the CUDA device in use)."""
    versions = {"python": platform.python_version()}
    for package in ("inclad", "torch", "timm", "numpy", "pandas"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    # Linux counts in KiB, macOS in bytes.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    info = {
        "versions": versions,
        "platform": platform.platform(),
        "device": device,
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1),
    }
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None and torch.cuda.is_available():
        info["device_name"] = torch.cuda.get_device_name(device)
        info["peak_device_memory_mib"] = round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return info


def png(fig: Figure, limit: int = FIGURE_BYTES) -> bytes:
    """The figure as a PNG, on white, without date or software; the same bytes for the same figure.

    150 dots an inch; where that passes `limit` bytes, fewer dots, then 256 colours.
    """
    for dpi, colours in ((150, 0), (120, 0), (100, 0), (120, 256), (100, 256), (80, 256)):
        fig.set_dpi(dpi)
        canvas = FigureCanvasAgg(fig)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        if colours:
            image = image.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        image.save(buffer, format="PNG", optimize=True, dpi=(dpi, dpi))
        if buffer.tell() <= limit:
            break
    return buffer.getvalue()


def _resolve(folder: str | Path) -> Path:
    folder = Path(folder)
    return folder if folder.is_absolute() else project_folder() / folder


def _sweep(folder: Path) -> None:
    """Remove temporary folders of this result whose process is gone."""
    for path in folder.parent.glob(f".{folder.name}.*.tmp"):
        match = re.fullmatch(re.escape(f".{folder.name}.") + r"(\d+)-[0-9a-f]{8}\.tmp", path.name)
        if match and path not in _open_folders and not _alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    if process == os.getpid():  # its folders are in _open_folders: this one is of an earlier process
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _portable(value: object) -> object:
    """Text without the places of this machine: the project folder becomes a dot, the home folder ~."""
    if not isinstance(value, str) or "/" not in value:
        return value
    home = Path.home()
    places = [(str(home), "~")]
    with contextlib.suppress(ValueError):
        places.insert(0, (str(project_folder()), "."))
    for place, short in places:
        value = re.sub(rf"(?<![\w.-]){re.escape(place)}(?![\w.-])", short, value)
    if len(home.parts) > 2:  # /home/NAME: other folders may tell the name too
        value = re.sub(rf"(?<=\w/){re.escape(home.name)}(?![\w.-])", "~", value)
    return value


def _strict(value: object) -> object:
    """The value as strict JSON knows it."""
    if isinstance(value, dict):
        return {str(_strict(key)): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_strict(item) for item in (sorted(value) if isinstance(value, set) else value)]
    if isinstance(value, np.ndarray):
        return _strict(value.tolist())
    if isinstance(value, np.generic):
        return _strict(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, Path)):
        return _portable(str(value))
    return value
