"""What the pages on single detectors share: a part to compute on, and numbers of a stream in tables and sentences."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown

from inclad import metrics, plots
from inclad.backbones import load_backbone
from inclad.continual.catalog import make_learner
from inclad.data.catalog import load_tasks
from inclad.data.check import check_tasks
from inclad.data.task import Task
from inclad.detectors.detector import Detector
from inclad.evaluate import evaluate, read_pictures
from inclad.features import Batch, Extractor, Images
from inclad.files import project_folder
from inclad.results import read_table, run_parameters, to_matrix
from inclad.stream import pick_examples

# ---- what a page computes on


@dataclass(frozen=True)
class Part:
    """One part at the image size and with the backbone of a stream, and one defective image of it.

    `image` uint8 (H, W, 3), `mask` bool (H, W) True on the defect; `defective` and `sound` are batches of one.
    """

    task: Task
    extractor: Extractor
    image: np.ndarray
    mask: np.ndarray
    defective: Batch
    sound: Batch

    @property
    def train(self) -> Images:
        """The normal images to learn from."""
        return self.extractor.images(self.task.train)


def read_setup(stream: str | Path) -> dict:
    """The parameters with which a stream was run; ValueError with its path when it can't be read."""
    try:
        return run_parameters(stream)
    except ValueError:
        raise ValueError(f"{stream} has no whole run.json: make it with `inclad run stream`") from None


def open_part(stream: str | Path, name: str) -> Part:
    """The part `name` of the stream's dataset, read as the stream read it.

    Raises DataError for a part that is not there, ValueError for one without a mask or a sound test image.
    """
    setup = read_setup(stream)
    limits = {key: setup[key] for key in ("max_train", "max_test", "seed")}
    (task,) = load_tasks(setup["dataset"], [name], **limits)
    check_tasks([task], setup["image_size"])
    examples = pick_examples([task])
    sound = [sample for sample in task.test if not sample.label]
    if not examples or examples[0].mask is None or not sound:
        raise ValueError(f"part: {name} has no defective test image with a mask, or no sound one")
    extractor = Extractor(load_backbone(setup["backbone"]), setup["image_size"])
    (image,), (mask,), _ = read_pictures(examples, [task], setup["image_size"])
    return Part(task, extractor, image, mask, Batch(examples, extractor), Batch(sound[:1], extractor))


def compare(part: Part, detectors: dict[object, Detector], option: str) -> pd.DataFrame:
    """Fit each detector to the part: ROC-AUC at both levels and bytes kept, a row a value of `option`."""
    for detector in detectors.values():
        detector.fit(part.train)
    return part_table(part, detectors, option)


# ---- numbers of a stream, in tables and sentences


def made_with(stream: str | Path, detector: str) -> Markdown:
    """The sentence that says with what settings the numbers of a page were made."""
    setup = read_setup(stream)
    return _made_with(setup, _options_said(setup, detector))


def made_with_each(stream: str | Path, detectors: Sequence[str]) -> Markdown:
    """`made_with` for several detectors of one stream."""
    setup = read_setup(stream)
    return _made_with(setup, "; ".join(f"{name}: {_options_said(setup, name)}" for name in detectors))


def _options_said(setup: dict, detector: str) -> str:
    own = setup["options"].get(detector, {})
    return ", ".join(f"`{key}` {value}" for key, value in own.items()) or "every option as in the paper"


def _made_with(setup: dict, options: str) -> Markdown:
    return Markdown(
        f"*Numbers on this page: dataset {setup['dataset']}, profile **{setup['profile']}** ({options}), backbone "
        f"{setup['backbone']}, {setup['image_size']} pixels a side, seed {setup['seed']}, one run.*"
    )


def _matrices(stream: str | Path, detector: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """R at image level by protocol, and the tasks; ValueError when the stream has no such detector."""
    cells = read_table(stream, "r_matrix")
    if detector not in set(cells["detector"]):
        known = ", ".join(cells["detector"].unique())
        raise ValueError(f"{stream} has no detector {detector!r} (there are: {known})")
    cells = cells[(cells["detector"] == detector) & (cells["level"] == "image")]
    found = {name: to_matrix(rows) for name, rows in cells.groupby("protocol", sort=False)}
    return {name: R for name, (R, _) in found.items()}, next(tasks for _, tasks in found.values())


def kept_parts(stream: str | Path, detector: str) -> pd.DataFrame:
    """Image ROC-AUC of each part right after it was learned and at the end of the stream, by protocol."""
    matrices, tasks = _matrices(stream, detector)
    table = pd.DataFrame({"part": tasks})
    for protocol, R in matrices.items():
        table[f"{protocol}, learned"] = R.diagonal()
        table[f"{protocol}, end"] = R[-1]
    return table


def kept_sentence(stream: str | Path, detector: str) -> Markdown:
    """Backward transfer of both protocols, and the part that the continual form lost most of."""
    matrices, tasks = _matrices(stream, detector)
    said = [f"{name} **{metrics.bwt(R):+.2f}**" for name, R in matrices.items()]
    text = f"Backward transfer (BWT), over all later steps and not only the last, at image level: {', '.join(said)}."
    if "continual" in matrices and len(tasks) > 1:
        R = matrices["continual"]
        losses = (R.diagonal() - R[-1])[:-1]
        worst = int(np.nanargmax(losses))
        text += (
            f" The continual form lost most on *{tasks[worst]}*: {R[worst, worst]:.2f} when learned, "
            f"{R[-1, worst]:.2f} at the end."
            if losses[worst] >= 0.005
            else " The continual form lost less than a hundredth on every part."
        )
    return Markdown(text)


def stream_costs(stream: str | Path, detector: str) -> pd.DataFrame:
    """KiB kept, seconds to learn a part and to score one, after the first and after the last part."""
    costs = read_table(stream, "costs")
    rows = []
    for protocol, own in costs[costs["detector"] == detector].groupby("protocol", sort=False):
        for when, row in (("first", own.iloc[0]), ("last", own.iloc[-1])):
            rows.append(
                {
                    "protocol": protocol,
                    "after the": f"{when} part",
                    "kept (KiB)": row["kept_bytes"] / 2**10,
                    "learning (s)": row["train_s"],
                    "scoring (s a part)": row["score_s"] / row["step"],
                }
            )
    return pd.DataFrame(rows)


def kept_tensors(detector: Detector) -> pd.DataFrame:
    """What a detector keeps of one part, a row a tensor: name, shape, bytes."""
    return pd.DataFrame(
        [
            {"tensor": name, "shape": " x ".join(map(str, values.shape)), "bytes": values.nbytes}
            for name, values in detector.state().items()
        ]
    )


def source(function: Callable) -> Markdown:
    """The code of one function, with its file and lines: what an equation on a page points to."""
    function = inspect.unwrap(function)  # not the decorator around it
    lines, first = inspect.getsourcelines(function)
    file = Path(inspect.getsourcefile(function)).resolve().relative_to(project_folder())
    where = f"`{file.as_posix()}`, lines {first} to {first + len(lines) - 1}"
    return Markdown(f"{where}\n\n```python\n{textwrap.dedent(''.join(lines))}```")


# ---- the families that train: one detector of a stream, means of a stream


def train_on(part: Part, stream: str | Path, name: str, **changes: int | float | str) -> Detector:
    """A fresh detector with the seed and the options that it had in the stream, and `changes`, fitted to the part."""
    setup = read_setup(stream)
    options = setup["options"].get(name, {}) | changes
    learner = make_learner(name, "naive", options, setup["seed"])
    learner.learn(part.train)
    return learner.detector


def part_table(part: Part, detectors: dict[object, Detector], option: str) -> pd.DataFrame:
    """ROC-AUC at both levels and KiB kept of detectors that are fitted already, a row a value of `option`."""
    rows = []
    for value, detector in detectors.items():
        found = evaluate(detector.score, part.task, part.extractor)
        kept = detector.kept_bytes() / 2**10
        rows.append({option: value, "image": found.image, "pixel": found.pixel, "kept (KiB)": kept})
    return pd.DataFrame(rows)


def kept_levels(stream: str | Path, detectors: Sequence[str]) -> pd.DataFrame:
    """Mean ROC-AUC over the parts, right after each was learned and at the end, a row a detector and level."""
    cells = read_table(stream, "r_matrix")
    rows = []
    for name in detectors:
        for level in plots.LEVELS:
            row: dict = {"detector": name, "level": level}
            for protocol in plots.LINES:
                own = cells[["detector", "level", "protocol"]] == [name, level, protocol]
                R, _ = to_matrix(cells[own.all(axis=1)])
                row[f"{protocol}, learned"] = np.nanmean(R.diagonal())
                row[f"{protocol}, end"] = np.nanmean(R[-1])
            rows.append(row)
    return pd.DataFrame(rows)


def last_costs(stream: str | Path, detectors: Sequence[str]) -> pd.DataFrame:
    """The rows of `stream_costs` after the last part, of several detectors."""
    tables = []
    for name in detectors:
        table = stream_costs(stream, name)
        table = table[table["after the"] == "last part"].drop(columns="after the")
        table.insert(0, "detector", name)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def kept_networks(detectors: dict[str, Detector]) -> pd.DataFrame:
    """What trained detectors keep, a row a network (or a tensor outside of one): numbers and KiB."""
    rows = []
    for name, detector in detectors.items():
        for network, tensors in groupby(detector.state().items(), lambda item: item[0].partition(".")[0]):
            tensors = [values for _, values in tensors]
            kept = {"numbers": sum(t.numel() for t in tensors), "KiB": sum(t.nbytes for t in tensors) / 2**10}
            rows.append({"detector": name, "what": network} | kept)
    return pd.DataFrame(rows)


def kept_sentences(stream: str | Path, detectors: Sequence[str]) -> Markdown:
    """`kept_sentence` of several detectors, a line each."""
    return Markdown("\n".join(f"- {name}. {kept_sentence(stream, name).data}" for name in detectors))
