"""Results in, figures out: every figure and table of the book. Reads tables and arrays, runs no model."""

import base64
import hashlib
import io
from collections.abc import Sequence
from itertools import pairwise

import ipywidgets as widgets
import matplotlib
import numpy as np
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from pandas.io.formats.style import Styler
from PIL import Image

from inclad.results import FIGURE_BYTES, lower_triangle, png, to_matrix

WIDTH = 7.0  # inches
FRAME_BYTES = 120_000
STYLE = {
    **matplotlib.rcParamsDefault,
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
}
del STYLE["backend"]  # the caller's

# Okabe-Ito, with grey as the ninth; a detector keeps colour and marker in the whole book.
DETECTORS = {
    "patchcore": ("#0072B2", "o"),
    "padim": ("#D55E00", "s"),
    "cfa": ("#009E73", "^"),
    "ganomaly": ("#000000", "v"),
    "stfpm": ("#E69F00", "D"),
    "rd4ad": ("#56B4E9", "P"),
    "efficientad": ("#CC79A7", "X"),
    "paste": ("#8F8700", "<"),
    "fastflow": ("#777777", ">"),
}
LINES = {"naive": "--", "continual": "-"}
LEVELS = ("image", "pixel")

ROC_AUC = matplotlib.colormaps["viridis"].with_extremes(under="#E79AC0")
ROC_LIMITS = Normalize(0.5, 1.0)
MAPS = matplotlib.colormaps["magma"]
_styled = matplotlib.rc_context(STYLE)


# ---- matrices R


@_styled
def r_matrices(r: pd.DataFrame, detector: str) -> Figure:
    """The matrices R of one detector: naive beside continual, image above pixel level.

    `r` has the columns of r_matrix.csv for one stream. A level without any value is left out. Raises
    ValueError when `r` holds several streams, or nothing of the detector.
    """
    chosen = r[r["detector"] == detector]
    if chosen.empty:
        raise ValueError(
            f"no cells of detector {detector!r} (there are: {', '.join(r['detector'].unique())})"
        )
    return _r_panels(chosen, detector)


@_styled
def r_heatmaps_mean(r: pd.DataFrame) -> Figure:
    """`r_matrices` of the mean over the detectors; a cell is the mean of those that have it."""
    keys = ["dataset", "ordering", "protocol", "level", "step", "task"]
    mean = r.groupby(keys, sort=False, as_index=False)["roc_auc"].mean()
    names = list(r["detector"].unique())
    return _r_panels(mean, f"mean of {', '.join(names) if len(names) < 5 else f'{len(names)} detectors'}")


def _r_panels(r: pd.DataFrame, title: str) -> Figure:
    _one_stream(r)
    levels = [level for level in LEVELS if r.loc[r["level"] == level, "roc_auc"].notna().any()]
    levels = levels or [level for level in LEVELS if level in set(r["level"])]
    protocols = [protocol for protocol in LINES if protocol in set(r["protocol"])]
    matrices = {
        (level, protocol): to_matrix(r[(r["level"] == level) & (r["protocol"] == protocol)])
        for level in levels
        for protocol in protocols
    }
    tasks = max((tasks for _, tasks in matrices.values()), key=len)
    size = _name_size(2.4 * 72 / len(tasks))
    names = name_width(tasks, size)
    left, right, gap, head = names + 0.3, 0.75, 0.12, 0.24
    room = (WIDTH - left - right - gap * (len(protocols) - 1)) / len(protocols)
    side = min(room, 3.0, max(1.4, 0.6 * len(tasks)))
    width = left + side * len(protocols) + gap * (len(protocols) - 1) + right
    bottom = names + 0.32
    height = 0.22 + (head + side) * len(levels) + bottom
    fig = Figure(figsize=(width, height), facecolor="white")
    for row, level in enumerate(levels):
        for column, protocol in enumerate(protocols):
            x = left + column * (side + gap)
            y = bottom + (len(levels) - 1 - row) * (side + head)
            ax = fig.add_axes((x / width, y / height, side / width, side / height))
            R, _ = matrices[level, protocol]
            _draw_r(ax, R, tasks, side * 72)
            ax.set_title(f"{level} level, {protocol}", pad=3)
            _name_axes(ax, tasks, size, rows=column == 0, columns=row == len(levels) - 1)
    fig.text(0.5, 1 - 0.05 / height, title, ha="center", va="top", fontsize=9.5, weight="bold")
    tall = (head + side) * len(levels) - head
    tall, low = min(tall, 3.0), bottom + (tall - min(tall, 3.0)) / 2
    bar = fig.add_axes(((width - right + 0.15) / width, low / height, 0.13 / width, tall / height))
    roc_bar(fig, bar)
    return fig


def _draw_r(ax: Axes, R: np.ndarray, tasks: Sequence[str], points: float, *, filled: int = 0) -> None:
    """One matrix R in a square of `points`; rows after `filled` (0 = all) are still to come."""
    count = len(tasks)
    lower = np.tril(np.ones((count, count), dtype=bool))
    lower[filled or count :] = False
    R = np.where(lower, R, np.nan)
    ax.imshow(R, cmap=ROC_AUC, norm=ROC_LIMITS, interpolation="nearest")
    cell = points / count
    for i, j in np.argwhere(lower):
        value = R[i, j]
        if np.isnan(value):
            _hatch(ax, i, j)
        elif count <= 15:
            ink = _ink(ROC_AUC(ROC_LIMITS(value)))
            ax.text(j, i, _short(value), ha="center", va="center", color=ink, fontsize=min(8.5, 0.52 * cell))
        elif value < 0.5:  # without numbers a dot tells it in grey print
            ax.plot(j, i, "o", color="black", markersize=0.25 * cell)
    blocks = [name.split(":")[0] if ":" in name else "" for name in tasks]
    end = filled or count
    for k in range(1, end):
        if blocks[k] != blocks[k - 1]:
            ax.plot([-0.5, k - 0.5, k - 0.5], [k - 0.5, k - 0.5, end - 0.5], color="black", linewidth=0.8)
    ax.spines[:].set_visible(False)
    ax.set_xlim(-0.5, count - 0.5)
    ax.set_ylim(count - 0.5, -0.5)
    ax.tick_params(length=0, pad=2)


def _name_axes(ax: Axes, tasks: Sequence[str], size: float, *, rows: bool, columns: bool) -> None:
    ax.set_yticks(range(len(tasks)), tasks if rows else [], fontsize=size)
    ax.set_xticks(range(len(tasks)), tasks if columns else [], fontsize=size, rotation=90)
    if not rows:
        ax.set_yticks([])
    if not columns:
        ax.set_xticks([])
    ax.set_ylabel("after learning" if rows else "")
    ax.set_xlabel("tested on" if columns else "")


def roc_bar(fig: Figure, bar: Axes, *, horizontal: bool = False) -> None:
    """The colour bar of ROC-AUC, drawn into the axes `bar`."""
    where = "horizontal" if horizontal else "vertical"
    mappable = ScalarMappable(ROC_LIMITS, ROC_AUC)
    fig.colorbar(mappable, cax=bar, extend="min", orientation=where, label="ROC-AUC")
    ticks = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    bar.set(**{"xticks" if horizontal else "yticks": ticks})
    spot = {"x": 0, "y": -0.07, "ha": "left", "va": "top"}
    if horizontal:
        spot = {"x": -0.07, "y": 0.5, "ha": "right", "va": "center"}
    bar.text(s="< 0.5", transform=bar.transAxes, fontsize=7, **spot)


def _hatch(ax: Axes, row: int, column: int) -> None:
    ax.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5), 1, 1, facecolor="white", edgecolor="#888888", hatch="/////", lw=0.3
        )
    )


# ---- experts and orders


@_styled
def experts(experts: pd.DataFrame) -> Figure:
    """Single-task ROC-AUC of every detector, image beside pixel level, easiest task first.

    `experts` has the columns of experts.csv for the tasks of one stream. Tasks are sorted by their average
    rank at image level, which stands at the right; a level without any value is left out.
    """
    image = _pivot(experts, "image_roc_auc")
    # The reverse of scenarios.consensus_ranks, but a missing score leaves the task out of that detector only.
    rank = image.rank(method="first").mean(axis=1).sort_values(kind="stable")[::-1]
    levels = [level for level in LEVELS if experts[f"{level}_roc_auc"].notna().any()]
    tasks, detectors = list(rank.index), list(image.columns)
    columns = len(detectors) + (len(detectors) > 1)
    size = 8 if len(tasks) <= 15 else 7
    left, right, gap, head = name_width(tasks, size) + 0.1, 0.95, 0.2, 0.36
    bottom = 0.75 * name_width(detectors, 8) + 0.58
    room = (WIDTH - left - right - gap * (len(levels) - 1)) / len(levels)
    across = min(room, 0.62 * columns)
    width = max(left + across * len(levels) + gap * (len(levels) - 1) + right, 4.2)
    tall = 0.23 * len(tasks)
    height = head + tall + bottom
    fig = Figure(figsize=(width, height), facecolor="white")
    for number, level in enumerate(levels):
        scores = _pivot(experts, f"{level}_roc_auc").reindex(index=tasks, columns=detectors)
        if len(detectors) > 1:
            scores = scores.assign(mean=scores.mean(axis=1))
        x = left + number * (across + gap)
        ax = fig.add_axes((x / width, bottom / height, across / width, tall / height))
        ax.imshow(scores, cmap=ROC_AUC, norm=ROC_LIMITS, aspect="auto", interpolation="nearest")
        for (i, j), value in np.ndenumerate(scores.to_numpy()):
            if np.isnan(value):
                _hatch(ax, i, j)
            else:
                ink = _ink(ROC_AUC(ROC_LIMITS(value)))
                ax.text(j, i, _short(value), ha="center", va="center", color=ink, fontsize=7.5)
        if len(detectors) > 1:
            ax.axvline(len(detectors) - 0.5, color="white", linewidth=3)
        ax.set_title(f"{level} level", pad=4)
        ax.set_xticks(range(columns), scores.columns, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(len(tasks)), tasks if number == 0 else [], fontsize=size)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        if number > 0:
            ax.set_yticks([])
    for i, value in enumerate(rank):
        ax.text(columns - 0.4, i, f"{value:.2f}", va="center", fontsize=7.5)
    ax.text(columns - 0.4, -0.62, "average rank\n(1 = hardest)", va="bottom", fontsize=7)
    bar = fig.add_axes(
        ((left + 0.3) / width, 0.24 / height, min(2.6, width - left - 0.6) / width, 0.1 / height)
    )
    roc_bar(fig, bar, horizontal=True)
    bar.set_xlabel("")
    bar.set_title("ROC-AUC", fontsize=7, pad=2)
    return fig


@_styled
def orders(orders: pd.DataFrame) -> Figure:
    """The orders of one data set side by side, a ribbon a task; `orders` has the columns of orders.csv.

    Shades follow the first ordering from its first task (dark) to its last (light); names stand at both ends.
    """
    table = orders.pivot(index="task", columns="ordering", values="position")
    table = table[list(orders["ordering"].drop_duplicates())].sort_values(orders["ordering"].iloc[0])
    count, columns = table.shape
    size = _name_size(0.24 * 72)
    names = name_width(table.index, size) + 0.45
    width, height = min(WIDTH, 2 * names + max(1, columns - 1) * 1.6), 0.58 + 0.24 * count
    fig = Figure(figsize=(width, height), facecolor="white")
    ax = fig.add_axes((names / width, 0.1 / height, 1 - 2 * names / width, 1 - 0.58 / height))
    for number, (task, positions) in enumerate(table.iterrows()):
        colour = matplotlib.colormaps["viridis"](0.92 * number / max(1, count - 1))
        x, y = ribbon(positions.to_numpy(float))
        ax.plot(x, y, color=colour, linewidth=4.5, alpha=0.75, solid_capstyle="round", clip_on=False)
        ax.plot(range(columns), positions, "o", color=colour, ms=6, markeredgecolor="white", clip_on=False)
        ends = ((0, -0.06, "right"), (columns - 1, 0.06, "left")) if columns > 1 else ((0, -0.06, "right"),)
        for end, shift, side in ends:
            ax.text(end + shift, positions.iloc[end], task, ha=side, va="center", fontsize=size)
    ax.set_xlim(-0.02, max(columns - 1, 0.1) + 0.02)
    ax.set_ylim(count + 0.6, 0.4)
    ax.xaxis.tick_top()
    ax.set_xticks(range(columns), [name.replace("_", " ") for name in table.columns], fontsize=8.5)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    fig.text(0.5, 1 - 0.04 / height, "order of learning, first task at the top", ha="center", va="top")
    return fig


def ribbon(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A smooth line through the positions that leaves and meets each of them level."""
    t = np.linspace(0, 1, 40)
    ease = 3 * t**2 - 2 * t**3
    pairs = list(pairwise(positions))
    x = [step + t for step in range(len(pairs))] or [np.zeros(1)]
    y = [a + (b - a) * ease for a, b in pairs] or [positions]
    return np.concatenate(x), np.concatenate(y)


# ---- curves


@_styled
def seen_average(r: pd.DataFrame, level: str) -> Figure:
    """Mean ROC-AUC over the tasks seen so far, after each step; a panel an ordering.

    `r` has the columns of r_matrix.csv for one data set; `level` is image or pixel. Missing cells are
    left out of their mean. Raises ValueError when the level has no value.
    """
    rows = lower_triangle(r[r["level"] == level])
    if not rows["roc_auc"].notna().any():
        raise ValueError(f"no values at {level!r} level to draw")
    _one_stream(rows, "dataset")
    facets = list(rows["ordering"].drop_duplicates())
    fig = Figure(figsize=(WIDTH if len(facets) > 1 else 5.4, 3.3), facecolor="white", layout="constrained")
    axes = fig.subplots(1, len(facets), sharey=True, squeeze=False)[0]
    lowest = 0.5
    for ax, ordering in zip(axes, facets):
        for (detector, protocol), stream in rows[rows["ordering"] == ordering].groupby(
            ["detector", "protocol"], sort=False
        ):
            means = stream.groupby("step")["roc_auc"].mean()
            ax.plot(means.index, means, **detector_style(detector, protocol))
            lowest = min(lowest, means.min())
        ax.axhline(0.5, color="#999999", linewidth=0.8, zorder=0)
        ax.set_title(ordering.replace("_", " "))
        ax.set_xlabel("tasks learned")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].annotate("chance", (1, 0.5), (-2, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right", fontsize=7, color="#666666")  # fmt: skip
    axes[0].set_ylim(lowest - 0.03, 1.01)
    axes[0].set_ylabel(f"mean {level} ROC-AUC\nover the tasks seen")
    _legend(fig, rows)
    return fig


@_styled
def costs(costs: pd.DataFrame) -> Figure:
    """What each step cost: seconds to learn, seconds to score, MiB kept; one stream, columns of costs.csv."""
    _one_stream(costs)
    panels = {
        "learning (s)": costs["train_s"],
        "scoring the tasks seen (s)": costs["score_s"],
        "kept afterwards (MiB)": costs["kept_bytes"] / 2**20,
    }
    fig = Figure(figsize=(WIDTH, 3.0), facecolor="white", layout="constrained")
    for ax, (title, values) in zip(fig.subplots(1, 3), panels.items()):
        for (detector, protocol), group in costs.groupby(["detector", "protocol"], sort=False):
            ax.plot(group["step"], values[group.index], **detector_style(detector, protocol))
        if values.min() > 0 and values.max() > 30 * values.min():
            ax.set_yscale("log")
            log_ticks(ax.yaxis)
        else:
            ax.set_ylim(bottom=0)
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(fig, costs)
    return fig


@_styled
def speedups(results: pd.DataFrame) -> Figure:
    """How many times faster than the plain way each benchmark is, its target marked; a log axis.

    `results` has the columns of benchmarks/results.csv. Rows whose target is an upper bound (`<= 6`) have a
    panel of their own below. A row that misses its target is hollow and says so.
    """
    target = results["target"].astype("string").str.extract(r"(?P<kind>[<>]=) *(?P<value>[\d.]+)")
    rows = results.assign(kind=target["kind"], bound=target["value"].astype(float))
    below = rows[rows["kind"] == "<="]
    panels = [(rows.drop(below.index), "plain seconds / our seconds", "target: at least")]
    if len(below):
        panels.append((below, "GiB at the peak", "target: at most"))
    heights = [0.3 + 0.3 * len(panel) for panel, _, _ in panels]
    fig = Figure(figsize=(WIDTH, sum(heights) + 0.75 * len(panels)), facecolor="white", layout="constrained")
    axes = fig.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (panel, unit, meaning) in zip(axes, panels):
        values = [*panel["ratio"], *panel["bound"].dropna(), 1.0]
        for y, row in enumerate(panel.itertuples()):
            missed = str(row.holds) == "False"
            colour = "#D55E00" if missed else "#0072B2"
            ax.plot(
                [1, row.ratio],
                [y, y],
                color=colour,
                linewidth=1.2,
                linestyle=":" if missed else "-",
                zorder=1,
            )
            ax.plot(
                row.ratio, y, "o", color=colour, markerfacecolor="white" if missed else colour, markersize=6
            )
            ax.plot(row.bound, y, "|", color="black", markersize=13, markeredgewidth=1.6)
            label = f"{row.ratio:.3g}" + (" misses its target" if missed else "")
            ax.annotate(label, (row.ratio, y), (0, 5), textcoords="offset points", fontsize=7,
                        ha="left" if missed else "center", color=colour if missed else "black")  # fmt: skip
        ax.axvline(1, color="#999999", linewidth=0.8, zorder=0)
        ax.set_xscale("log")
        ax.set_xlim(min(values) / 1.6, max(values) * 1.8)
        log_ticks(ax.xaxis)
        ax.set_yticks(range(len(panel)), panel["name"])
        ax.set_ylim(len(panel) - 0.5, -0.7)
        ax.set_xlabel(unit)
        mark = Line2D([], [], color="black", marker="|", linestyle="", markersize=10, markeredgewidth=1.6)
        ax.legend([mark], [meaning], loc="lower right", bbox_to_anchor=(1, 1), borderpad=0, fontsize=7)
    return fig


@_styled
def scaling(scaling: pd.DataFrame) -> Figure:
    """Seconds of one scoring pass against tasks, images and patches; dotted: the slope that theory gives.

    `scaling` has the columns of benchmarks/scaling.csv. A theory line is laid through the last point, as
    small inputs pay for what every call costs.
    """
    kinds = list(scaling["against"].drop_duplicates())
    fig = Figure(figsize=(WIDTH, 3.0), facecolor="white", layout="constrained")
    for ax, kind in zip(fig.subplots(1, len(kinds), sharey=True, squeeze=False)[0], kinds):
        rows = scaling[scaling["against"] == kind]
        for detector, points in rows.groupby("detector", sort=False):
            value, seconds = points["value"].to_numpy(float), points["seconds"].to_numpy(float)
            look = detector_style(detector, "continual")
            ax.plot(value, seconds, **look)
            theory = seconds[-1] * (value / value[-1]) ** points["slope"].iloc[0]
            ax.plot(value, theory, color=look["color"], linestyle=":", linewidth=1.0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        if rows["value"].nunique() <= 5:
            ax.set_xticks(sorted(rows["value"].unique()), sorted(rows["value"].unique()))
            ax.xaxis.set_minor_locator(NullLocator())
        ax.tick_params(axis="x", labelsize=7)
        ax.set_xlabel(
            {"tasks": "tasks learned", "images": "images scored", "patches": "positions an image"}.get(
                kind, kind
            )
        )
    fig.axes[0].set_ylabel("seconds to score")
    names = list(scaling["detector"].drop_duplicates())
    handles = [Line2D([], [], **detector_style(name, "continual"), label=name) for name in names]
    handles.append(Line2D([], [], color="black", linestyle=":", linewidth=1.0, label="slope of the theory"))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=2.6)
    return fig


def log_ticks(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 of every decade of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def detector_style(detector: str, protocol: str) -> dict:
    """Colour, marker and line of a detector, hollow when naive, for `Axes.plot` and `Line2D`."""
    colour, marker = DETECTORS.get(detector, ("#444444", "*"))
    hollow = {"markerfacecolor": "white"} if protocol == "naive" else {}
    style = {"color": colour, "marker": marker, "linestyle": LINES.get(protocol, ":")}
    return style | hollow | {"linewidth": 1.4, "markersize": 4.5}


def _legend(fig: Figure, rows: pd.DataFrame) -> None:
    names = list(rows["detector"].drop_duplicates())
    protocols = [protocol for protocol in LINES if protocol in set(rows["protocol"])]
    handles = [
        Line2D([], [], **detector_style(name, "continual") | {"linestyle": ""}, label=name) for name in names
    ]
    handles += [
        Line2D([], [], **detector_style("", name) | {"marker": "o"}, label=name) for name in protocols
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), handlelength=2.6)


# ---- images and maps


@_styled
def anomaly_maps(
    images: Sequence[np.ndarray],
    masks: Sequence[np.ndarray | None],
    maps: Sequence[np.ndarray],
    titles: Sequence[str],
    vmin: float | None = None,
    vmax: float | None = None,
    threshold: float | None = None,
) -> Figure:
    """Images with the outline of their defect, and below them their maps; six a row.

    `images` uint8 (H, W, 3), `masks` bool (H, W) or None, `maps` float (H, W), higher = more anomalous. One
    colour scale for all, from `vmin` to `vmax`, by default from the lowest to the highest value shown; a
    dashed contour stands at `threshold`.
    """
    vmin = min(float(np.min(m)) for m in maps) if vmin is None else vmin
    vmax = max(float(np.max(m)) for m in maps) if vmax is None else vmax
    columns = min(len(images), 6)
    bands = -(-len(images) // columns)
    side, head, right = min((WIDTH - 0.7) / columns, 1.9), 0.22, 0.7
    width, height = side * columns + right, bands * (2 * side + head)
    fig = Figure(figsize=(width, height), facecolor="white")

    def square(column: int, top: float) -> Axes:
        x, y, across = 0.03 + column * side, height - top - side, side - 0.05
        ax = fig.add_axes((x / width, y / height, across / width, across / height))
        ax.axis("off")
        return ax

    for k, (image, mask, scores, title) in enumerate(zip(images, masks, maps, titles, strict=True)):
        band, column = divmod(k, columns)
        top = band * (2 * side + head) + head - 0.05
        above, below = square(column, top), square(column, top + side)
        above.imshow(image)
        _outline(above, mask)
        above.set_title(title, fontsize=_fit(title, side), pad=2)
        _draw_map(below, image, scores, vmin, vmax)
        _outline(below, mask)
        if threshold is not None and scores.min() < threshold < scores.max():
            below.contour(scores, [threshold], colors="white", linewidths=0.9, linestyles="--")
    tall = min(2 * side - 0.05, 3.0)
    x, y = (width - right + 0.05) / width, (height - head - tall) / height
    bar = fig.add_axes((x, y, 0.12 / width, tall / height))
    fig.colorbar(_map_scale(vmin, vmax), cax=bar, alpha=0.65, label="anomaly score, one scale for all")
    return fig


@_styled
def forgetting_frame(
    image: np.ndarray,
    mask: np.ndarray | None,
    map_naive: np.ndarray,
    map_continual: np.ndarray,
    R_naive: np.ndarray,
    R_continual: np.ndarray,
    step: int,
    tasks: Sequence[str],
    vmax: float,
    vmin: float = 0.0,
    shown: str = "",
) -> Figure:
    """One test image after `step` tasks (1-based): its two maps, and the matrices R filled so far.

    `image` uint8 (H, W, 3), `mask` bool (H, W) or None, maps float (H, W), higher = more anomalous, drawn on
    one scale from `vmin` to `vmax`: give the same in every frame. R (N, N) may be complete, only `step` rows
    are drawn. `shown` is the task the image belongs to.
    """
    size = _name_size(1.9 * 72 / len(tasks))
    names = min(name_width(tasks, size), 1.3)
    side, top, gap = 1.9, 0.52, 0.32
    width, height = WIDTH, top + 2 * side + gap + names + 0.3
    left = WIDTH - 0.62 - 2 * side - 0.12
    fig = Figure(figsize=(width, height), facecolor="white")

    def square(column: int, row: int) -> Axes:
        x = (left + (column - 1) * (side + 0.12)) if column else 0.08
        y = height - top - side - row * (side + gap)
        across = side if column else min(side, left - 0.2)
        return fig.add_axes((x / width, y / height, across / width, side / height))

    head = f"after task {step} of {len(tasks)}: {tasks[step - 1]}"
    fig.text(0.08 / width, 1 - 0.06 / height, head, va="top", fontsize=10.5, weight="bold")
    ax = square(0, 0)
    ax.imshow(image)
    _outline(ax, mask)
    ax.set_title(f"test image of {shown}" if shown else "test image", fontsize=8)
    ax.axis("off")
    for column, (protocol, scores) in enumerate(
        (("naive", map_naive), ("continual", map_continual)), start=1
    ):
        ax = square(column, 0)
        _draw_map(ax, image, scores, vmin, vmax)
        _outline(ax, mask)
        ax.set_title(f"map, {protocol}")
        ax.axis("off")
    for column, (protocol, R) in enumerate((("naive", R_naive), ("continual", R_continual)), start=1):
        ax = square(column, 1)
        _draw_r(ax, R, tasks, side * 72, filled=step)
        _name_axes(ax, tasks, size, rows=False, columns=True)
        ax.set_title(f"R, {protocol}", pad=3)
        ax.plot([-0.5, len(tasks) - 0.5], [len(tasks) - 0.5] * 2, color="#BBBBBB", linewidth=0.6)
        ax.plot([-0.5, -0.5], [-0.5, len(tasks) - 0.5], color="#BBBBBB", linewidth=0.6)
        if shown in tasks:
            k = list(tasks).index(shown)
            ax.get_xticklabels()[k].set_weight("bold")
    lines = square(0, 1)
    lines.axis("off")
    lines.set_ylim(len(tasks) - 0.5, -0.5)
    lines.set_xlim(0, 1)
    for i, task in enumerate(tasks):
        now = i == step - 1
        ink, weight = "black" if i < step else "#767676", "bold" if now else "normal"
        lines.text(1, i, task, ha="right", va="center", fontsize=size, color=ink, weight=weight)
        if now:
            lines.text(1.03, i, "▸", ha="left", va="center", fontsize=size)
    lines.set_title("after learning", loc="right", fontsize=8, pad=3)
    x = (WIDTH - 0.56) / width
    bar = fig.add_axes((x, (height - top - side + 0.1) / height, 0.1 / width, (side - 0.2) / height))
    fig.colorbar(_map_scale(vmin, vmax), cax=bar, alpha=0.65, label="anomaly score")
    bar = fig.add_axes(
        (x, (height - top - 2 * side - gap + 0.2) / height, 0.1 / width, (side - 0.3) / height)
    )
    roc_bar(fig, bar)
    return fig


@_styled
def contact_sheet(rows: Sequence[tuple[str, Sequence[tuple[np.ndarray, np.ndarray | None, str]]]]) -> Figure:
    """Example images, a row a task: `rows` holds (name, cells), a cell is (image, mask or None, title).

    `image` uint8 (H, W, 3), `mask` bool (H, W), outlined.
    """
    columns = max(len(cells) for _, cells in rows)
    names = name_width([name for name, _ in rows], 8) + 0.1
    side = min((WIDTH - names) / columns, 1.3)
    width, height = names + side * columns, (side + 0.17) * len(rows)
    fig = Figure(figsize=(width, height), facecolor="white")
    for i, (name, cells) in enumerate(rows):
        y = height - (i + 1) * (side + 0.17)
        fig.text((names - 0.08) / width, (y + side / 2) / height, name, ha="right", va="center", fontsize=8)
        for j, (image, mask, title) in enumerate(cells):
            x = names + j * side
            ax = fig.add_axes((x / width, y / height, (side - 0.05) / width, (side - 0.05) / height))
            ax.imshow(image)
            _outline(ax, mask)
            ax.set_title(title, fontsize=_fit(title, side), pad=2)
            ax.axis("off")
    return fig


@_styled
def last_maps(
    images: np.ndarray, masks: np.ndarray, names: Sequence[str], maps: dict[str, np.ndarray], detector: str
) -> Figure:
    """A row a part: its followed image with the defect outlined, and its map from each protocol at the end.

    `maps` holds (steps, images, H, W) by "detector.protocol". Every map has its own colour scale, from its
    lowest to its highest value: what matters is where it is brightest.
    """
    protocols = [protocol for protocol in LINES if f"{detector}.{protocol}" in maps]
    columns = 1 + len(protocols)
    label = name_width(names, 8) + 0.1
    side = min((WIDTH - label) / columns, 1.25)
    width, height = label + side * columns, 0.25 + side * len(images)
    fig = Figure(figsize=(width, height), facecolor="white")
    for i, (image, mask, name) in enumerate(zip(images, masks, names, strict=True)):
        last = [maps[f"{detector}.{protocol}"][-1, i].astype(np.float32) for protocol in protocols]
        y = height - 0.25 - (i + 1) * side
        fig.text((label - 0.08) / width, (y + side / 2) / height, name, ha="right", va="center", fontsize=8)
        for j, title in enumerate(["image", *(f"{detector}, {protocol}" for protocol in protocols)]):
            place = ((label + j * side) / width, y / height, (side - 0.05) / width, (side - 0.05) / height)
            ax = fig.add_axes(place)
            ax.axis("off")
            if j:
                _draw_map(ax, image, last[j - 1], last[j - 1].min(), last[j - 1].max())
            else:
                ax.imshow(image)
            _outline(ax, mask)
            if i == 0:
                ax.set_title(title, fontsize=_fit(title, side), pad=3)
    return fig


@_styled
def gains(summary: pd.DataFrame) -> Figure:
    """roc_auc_cl of the naive (hollow) and the continual form (filled), a line a detector and ordering.

    `summary` has the columns of summary.csv for one data set; a panel a level that has values.
    """
    _one_stream(summary, "dataset")
    levels = [name for name in LEVELS if summary.loc[summary["level"] == name, "roc_auc_cl"].notna().any()]
    rows = list(summary[["ordering", "detector"]].drop_duplicates().itertuples(index=False, name=None))
    fig = Figure(figsize=(WIDTH, 0.9 + 0.24 * len(rows)), facecolor="white", layout="constrained")
    for ax, level in zip(fig.subplots(1, len(levels), sharey=True, squeeze=False)[0], levels):
        values = summary[summary["level"] == level].set_index(["ordering", "detector", "protocol"])[
            "roc_auc_cl"
        ]
        for y, (ordering, detector) in enumerate(rows):
            ends = [values.get((ordering, detector, protocol), np.nan) for protocol in LINES]
            look = detector_style(detector, "continual")
            ax.plot(ends, [y, y], color=look["color"], linewidth=1.2, zorder=1)
            for protocol, value in zip(LINES, ends):
                ax.plot(value, y, **detector_style(detector, protocol) | {"linestyle": "", "markersize": 6})
        ax.set_title(f"{level} level")
        ax.set_xlabel("roc_auc_cl")
        ax.axvline(0.5, color="#999999", linewidth=0.8, zorder=0)
        ax.set_yticks(range(len(rows)), [f"{o.replace('_', ' ')}, {d}" for o, d in rows])
        ax.invert_yaxis() if not ax.yaxis_inverted() else None
    return fig


@_styled
def first_maps(
    image: np.ndarray, mask: np.ndarray, maps: dict[str, np.ndarray], vmax: float, title: str
) -> Figure:
    """One image, where its defect is, and maps of it by their titles, on one scale from 0 to `vmax`."""
    columns = 2 + len(maps)
    side, right, head = min((WIDTH - 0.65) / columns, 1.9), 0.65, 0.25
    width, height = side * columns + right, side + head
    fig = Figure(figsize=(width, height), facecolor="white")
    panels = [(title, None), ("where the defect is", None), *maps.items()]
    for column, (name, scores) in enumerate(panels):
        place = ((0.03 + column * side) / width, 0.02, (side - 0.06) / width, (side - 0.06) / height)
        ax = fig.add_axes(place)
        ax.axis("off")
        ax.set_title(name, fontsize=_fit(name, side), pad=3)
        if scores is not None:
            _draw_map(ax, image, scores, 0.0, vmax)
        elif column:
            ax.imshow(mask, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        else:
            ax.imshow(image)
        if scores is not None:
            _outline(ax, mask)
    bar = fig.add_axes(((width - right + 0.05) / width, 0.06, 0.1 / width, (side - 0.25) / height))
    fig.colorbar(_map_scale(0.0, vmax), cax=bar, alpha=0.65, extend="max", label="anomaly score")
    return fig


def _draw_map(ax: Axes, image: np.ndarray, scores: np.ndarray, vmin: float, vmax: float) -> None:
    """The map in colour over the image in grey: every colour then tells a score."""
    ax.imshow(image.mean(axis=2), cmap="gray", vmin=0, vmax=255)
    ax.imshow(scores, cmap=MAPS, norm=Normalize(vmin, vmax), alpha=0.65, interpolation="nearest")


def _map_scale(vmin: float, vmax: float) -> ScalarMappable:
    return ScalarMappable(Normalize(vmin, vmax), MAPS)


def _outline(ax: Axes, mask: np.ndarray | None) -> None:
    """The border of the defect, white on black: seen on every ground."""
    if mask is None or not mask.any() or mask.all():
        return
    for colour, width in (("black", 2.2), ("white", 1.0)):
        ax.contour(np.asarray(mask, dtype=float), [0.5], colors=colour, linewidths=width)


# ---- tables, and what a page shows


def table(frame: pd.DataFrame, caption: str) -> Styler:
    """The table with its caption: numbers right-aligned, three decimals, a dash where one is missing."""
    floats = [column for column in frame if pd.api.types.is_float_dtype(frame[column])]
    numbers = [column for column in frame if pd.api.types.is_numeric_dtype(frame[column])]
    align = {
        column: [{"selector": "", "props": f"text-align: {'right' if column in numbers else 'left'}"}]
        for column in frame
    }
    return (
        # The same caption gives the same id: a page that is made again stays the same.
        Styler(frame, uuid=hashlib.sha256(caption.encode()).hexdigest()[:8], cell_ids=False, caption=caption)
        .format(dict.fromkeys(floats, "{:.3f}"), na_rep="–", escape="html")
        .format_index(axis="columns", escape="html")
        .hide(axis="index")
        .set_table_styles(align)
    )


def show(fig: Figure, alt: str, caption: str) -> None:
    """Display the figure as a PNG with its alt text, then the caption (Markdown); once a cell.

    Raises ValueError for an empty alt text: a reader who cannot see the figure has nothing else.
    """
    _show_png(png(fig), alt, caption)


def slider(
    figures: Sequence[Figure], labels: Sequence[str], description: str, alt: str, caption: str
) -> None:
    """Display figures behind a slider that works in a page without a kernel, then a still of first and last.

    `labels` name the states, `description` the slider; arrow keys move it. The still carries `alt`.
    """
    if not figures or len(figures) != len(labels):
        raise ValueError(f"slider needs a label a figure, got {len(figures)} figures, {len(labels)} labels")
    frames = [png(fig, FRAME_BYTES) for fig in figures]
    handle = widgets.SelectionSlider(
        options=[(label, number) for number, label in enumerate(labels)],
        description=description,
        tooltip=description,
        style={"description_width": "initial"},
        layout={"width": "100%", "max_width": "44em"},
    )
    # Below its natural width the picture scrolls inside its box, and the page does not.
    fit = {"width": "100%", "min_width": "36em", "max_width": "66em"}
    stack = widgets.Stack(
        [widgets.Image(value=frame, format="png", layout=fit) for frame in frames],
        selected_index=0,
        layout={"width": "100%", "overflow": "auto"},
    )
    widgets.jslink((handle, "index"), (stack, "selected_index"))
    display(widgets.VBox([handle, stack]))
    ends = sorted({0, len(frames) - 1})
    states = " and ".join(str(labels[end]) for end in ends)
    _show_png(_stacked([frames[end] for end in ends]), f"{alt} Shown: {states}.", caption)


def _show_png(data: bytes, alt: str, caption: str) -> None:
    if not alt.strip():
        raise ValueError("a figure needs an alt text that says what it shows")
    bundle = {"image/png": base64.b64encode(data).decode(), "text/plain": alt}
    display(bundle, raw=True, metadata={"image/png": {"alt": alt}})
    display(Markdown(caption))


def _stacked(frames: Sequence[bytes]) -> bytes:
    """The frames below each other as one PNG within the size of a figure."""
    pictures = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    width = max(picture.width for picture in pictures)
    sheet = Image.new("RGB", (width, sum(picture.height for picture in pictures)), "white")
    y = 0
    for picture in pictures:
        sheet.paste(picture, (0, y))
        y += picture.height
    while True:
        buffer = io.BytesIO()
        sheet.quantize(256, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
        if buffer.tell() <= FIGURE_BYTES:
            return buffer.getvalue()
        sheet = sheet.resize((sheet.width * 4 // 5, sheet.height * 4 // 5), Image.Resampling.LANCZOS)


# ---- small things


def _one_stream(frame: pd.DataFrame, *keys: str) -> None:
    for key in keys or ("dataset", "ordering"):
        values = list(frame[key].unique())
        if len(values) > 1:
            raise ValueError(f"a figure shows one {key}, got {', '.join(map(str, values))}: choose one first")


def _pivot(experts: pd.DataFrame, column: str) -> pd.DataFrame:
    scores = experts.pivot(index="task", columns="detector", values=column).sort_index()
    return scores[list(experts["detector"].drop_duplicates())]


def _ink(colour: Sequence[float]) -> str:
    """Black or white, whichever is read better on the colour."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3])
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def _short(value: float) -> str:
    """Two decimals without the leading zero: .97 and 1.0; a matrix of them can be printed larger."""
    return "1.0" if value >= 0.995 else f"{value:.2f}"[1:]


def _name_size(points: float) -> float:
    """Font size of names that stand `points` apart."""
    return float(np.clip(0.85 * points, 4.5, 7.5))


def _fit(title: str, width: float) -> float:
    """Font size at which the title is no wider than `width` inches."""
    return min(8.0, width * 72 / (0.62 * max(len(title), 1)))


def name_width(names: Sequence[str], size: float) -> float:
    """Room that the longest of the names takes."""
    return max((len(name) for name in names), default=0) * size * 0.6 / 72 + 0.06
