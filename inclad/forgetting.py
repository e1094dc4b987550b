"""The story of one defect along a stream, read from the results of a run: the page on forgetting."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from inclad import metrics
from inclad.results import read_arrays, read_table, to_matrix


@dataclass(frozen=True)
class Story:
    """One defective image of the first part, its maps after every step, and the matrices R at image level.

    `remedies` compares all detectors of the stream. `maps` holds (steps, H, W) float32 a protocol, `R` an
    (N, N) matrix a protocol.
    """

    detector: str
    tasks: list[str]
    image: np.ndarray
    mask: np.ndarray
    maps: dict[str, np.ndarray]
    R: dict[str, np.ndarray]
    costs: pd.DataFrame
    remedies: pd.DataFrame

    @property
    def first(self) -> str:
        """Name of the part in the picture."""
        return self.tasks[0]

    @property
    def vmax(self) -> float:
        """Upper end of the one colour scale: the highest value right after the part was learned."""
        return float(max(maps[0].max() for maps in self.maps.values()))

    def steps(self) -> list[str]:
        """Labels of the steps."""
        return [f"{number} of {len(self.tasks)}: {name}" for number, name in enumerate(self.tasks, start=1)]

    def price(self) -> pd.DataFrame:
        """What is kept and how long scoring takes after the first and the last task."""
        rows = []
        for protocol, costs in self.costs.groupby("protocol", sort=False):
            for when, row in (("first", costs.iloc[0]), ("last", costs.iloc[-1])):
                parts = int(row["step"])
                rows.append(
                    {
                        "protocol": protocol,
                        "after the": f"{when} part",
                        "kept (MiB)": row["kept_bytes"] / 2**20,
                        "scoring (s a part)": row["score_s"] / parts,
                    }
                )
        return pd.DataFrame(rows)

    def sentence_start(self) -> str:
        """How well the first part is known right after it was learned (Markdown)."""
        value = self.R["naive"][0, 0]
        return (
            f"Right after learning *{self.first}*, {self.detector} tells its defective test images from its "
            f"normal ones with an image ROC-AUC of **{value:.2f}** (0.5 is guessing, 1 is perfect; one seed)."
        )

    def sentence_end(self) -> str:
        """What is left of it after the last part (Markdown)."""
        naive, continual = self.R["naive"][-1, 0], self.R["continual"][-1, 0]
        before, after = self.background("naive", 0), self.background("naive", -1)
        return (
            f"After {len(self.tasks)} parts the image ROC-AUC on *{self.first}* is **{naive:.2f}** for the naive "
            f"detector and **{continual:.2f}** for the continual one. In this picture {before:.0%} of the sound "
            f"surface scored higher than half of the defect did at first; for the naive detector it is now "
            f"**{after:.0%}**."
        )

    def sentence_bwt(self) -> str:
        """Backward transfer and the mean of R for both protocols (Markdown)."""
        said = [
            f"{name} {metrics.bwt(R):+.2f} (mean of all cells {metrics.roc_auc_cl(R):.2f})"
            for name, R in self.R.items()
        ]
        return f"BWT of {self.detector} at image level on this stream: {', '.join(said)}. One seed."

    def sentence_price(self) -> str:
        """How much more the continual form keeps at the end (Markdown)."""
        kept = {name: rows["kept_bytes"].iloc[-1] for name, rows in self.costs.groupby("protocol")}
        return (
            f"At the end of the stream the continual {self.detector} keeps **{kept['continual'] / kept['naive']:.2f}** "
            f"times the bytes of the naive one, for {len(self.tasks)} parts instead of one."
        )

    def sentence_rest(self) -> str:
        """The part that the continual form lost most of, and what it keeps of it (Markdown)."""
        R = self.R["continual"]
        losses = R.diagonal()[:-1] - R[-1, :-1]
        worst = int(np.nanargmax(losses))
        if not losses[worst] > 0.01:
            return "On this stream the continual form lost nothing worth a hundredth of ROC-AUC on any part."
        return (
            f"The remedy is not perfect. The continual form lost most on *{self.tasks[worst]}*: its image ROC-AUC "
            f"went from {R[worst, worst]:.2f} to **{R[-1, worst]:.2f}**."
        )

    def finding(self) -> str:
        """The whole story in two sentences, for a page that includes it (Markdown)."""
        first, naive, continual = self.R["naive"][0, 0], self.R["naive"][-1, 0], self.R["continual"][-1, 0]
        return (
            f"A detector ({self.detector}) that had just learned the part *{self.first}* told its defective images "
            f"from sound ones with a ROC-AUC of {first:.2f}. When it had learned {len(self.tasks) - 1} more parts, "
            f"the same test gave {naive:.2f}; a form of it that keeps a memory of each part got {continual:.2f}.\n"
        )

    def background(self, protocol: str, step: int) -> float:
        """Share of the sound surface that scores above the median of the defect, from 0 to 1."""
        scores = self.maps[protocol][step]
        return float((scores[~self.mask] > np.median(scores[self.mask])).mean())


def read_story(stream: str | Path, detector: str) -> Story:
    """The story of `detector`, naive and continual, in a stream's results folder.

    Raises ValueError, in one line, when the stream has no such detector, lacks a protocol, or followed no
    image with a mask.
    """
    cells = read_table(stream, "r_matrix")
    if detector not in set(cells["detector"]):
        raise ValueError(
            f"{stream} has no detector {detector!r} (there are: {', '.join(cells['detector'].unique())})"
        )
    arrays = read_arrays(stream, "followed")
    cells = cells[(cells["detector"] == detector) & (cells["level"] == "image")]
    R, tasks = {}, []
    for protocol in ("naive", "continual"):
        if f"{detector}.{protocol}" not in arrays:
            raise ValueError(f"{stream} has no {protocol} {detector}: run that stream with both protocols")
        R[protocol], tasks = to_matrix(cells[cells["protocol"] == protocol])
    if len(tasks) < 2:
        raise ValueError(
            f"{stream} has one task only: nothing can be forgotten; take a stream of two or more"
        )
    followed = [str(name) for name in arrays["tasks"]]
    if not followed or followed[0] != tasks[0] or not arrays["masks"][0].any():
        raise ValueError(
            f"{stream}: no defective image with a mask was followed for its first task {tasks[0]!r}"
        )
    costs = read_table(stream, "costs")
    return Story(
        detector=detector,
        tasks=tasks,
        image=arrays["images"][0],
        mask=arrays["masks"][0],
        maps={name: arrays[f"{detector}.{name}"][:, 0].astype(np.float32) for name in R},
        R=R,
        costs=costs[costs["detector"] == detector],
        remedies=compare_remedies(read_table(stream, "summary"), costs),
    )


def compare_remedies(summary: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """A row a detector: roc_auc_cl at image level of both forms, and MiB that the continual one keeps."""
    image = summary[summary["level"] == "image"]
    table = image.pivot(index="detector", columns="protocol", values="roc_auc_cl")
    table = table.reindex(image["detector"].drop_duplicates())[["naive", "continual"]]
    last = costs[costs["protocol"] == "continual"].groupby("detector")["kept_bytes"].last()
    table["kept (MiB)"] = last / 2**20
    return table.rename_axis(index="detector", columns=None).reset_index()
