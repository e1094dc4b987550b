"""Results in, figures out: matrices, experts and orders, curves and costs. Reads tables, runs no model."""

from collections.abc import Sequence
from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from inclad.display import show, slider, table  # noqa: F401  for pages that need one import
from inclad.results import lower_triangle, to_matrix

WIDTH = 7.0  # inches
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
styled = matplotlib.rc_context(STYLE)


# ---- matrices R


@styled
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


@styled
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
    size = name_size(2.4 * 72 / len(tasks))
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
            draw_r(ax, R, tasks, side * 72)
            ax.set_title(f"{level} level, {protocol}", pad=3)
            name_axes(ax, tasks, size, rows=column == 0, columns=row == len(levels) - 1)
    fig.text(0.5, 1 - 0.05 / height, title, ha="center", va="top", fontsize=9.5, weight="bold")
    tall = (head + side) * len(levels) - head
    tall, low = min(tall, 3.0), bottom + (tall - min(tall, 3.0)) / 2
    bar = fig.add_axes(((width - right + 0.15) / width, low / height, 0.13 / width, tall / height))
    roc_bar(fig, bar)
    return fig


def draw_r(ax: Axes, R: np.ndarray, tasks: Sequence[str], points: float, *, filled: int = 0) -> None:
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


def name_axes(ax: Axes, tasks: Sequence[str], size: float, *, rows: bool, columns: bool) -> None:
    """Task names at the left of a matrix (`rows`) and below it (`columns`), or none."""
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


@styled
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


@styled
def orders(orders: pd.DataFrame) -> Figure:
    """The orders of one data set side by side, a ribbon a task; `orders` has the columns of orders.csv.

    Shades follow the first ordering from its first task (dark) to its last (light); names stand at both ends.
    """
    places = orders.pivot(index="task", columns="ordering", values="position")
    places = places[list(orders["ordering"].drop_duplicates())].sort_values(orders["ordering"].iloc[0])
    count, columns = places.shape
    size = name_size(0.24 * 72)
    names = name_width(places.index, size) + 0.45
    width, height = min(WIDTH, 2 * names + max(1, columns - 1) * 1.6), 0.58 + 0.24 * count
    fig = Figure(figsize=(width, height), facecolor="white")
    ax = fig.add_axes((names / width, 0.1 / height, 1 - 2 * names / width, 1 - 0.58 / height))
    for number, (task, positions) in enumerate(places.iterrows()):
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
    ax.set_xticks(range(columns), [name.replace("_", " ") for name in places.columns], fontsize=8.5)
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


@styled
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


@styled
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


@styled
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
                        ha="right" if missed else "center", color=colour if missed else "black")  # fmt: skip
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


@styled
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


@styled
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


def name_size(points: float) -> float:
    """Font size of names that stand `points` apart."""
    return float(np.clip(0.85 * points, 4.5, 7.5))


def name_width(names: Sequence[str], size: float) -> float:
    """Room that the longest of the names takes."""
    return max((len(name) for name in names), default=0) * size * 0.6 / 72 + 0.06
