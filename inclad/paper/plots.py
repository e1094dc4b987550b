"""Figures of the paper's own numbers, and each of them in words; drawn from `inclad.paper.tables`."""

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from inclad import plots
from inclad.paper import tables
from inclad.plots import ROC_AUC, ROC_LIMITS, WIDTH, styled
from inclad.published import PUBLISHED_TIES
from inclad.scenarios import consensus_ranks, kept_positions

# Okabe-Ito and a marker, so that grey print works.
DATASETS = {
    "BTAD": ("#009E73", "^"),
    "MPDD": ("#E69F00", "D"),
    "DAGM": ("#CC79A7", "v"),
    "VisA": ("#D55E00", "s"),
    "MVTec": ("#0072B2", "o"),
    "MultiDataset": ("#000000", "P"),
}
FORMS = {"naive": -0.15, "continual": 0.15}  # how far off the line of their row the two forms stand


@styled
def against_print(table: pd.DataFrame) -> Figure:
    """Table 2 against the heatmaps: ROC-AUC, BWT by Eq. 2 and step-wise BWT; `table` is `tables.table2()`.

    A point a row of Table 2, hollow for naive. On the diagonal the two agree.
    """
    panels = [
        ("roc_auc_cl", "roc_auc_printed", "ROC-AUC (Equation 1)"),
        ("bwt", "bwt_printed", "BWT (Equation 2)"),
        ("bwt_stepwise", "bwt_printed", "BWT, step-wise"),
    ]
    fig = Figure(figsize=(WIDTH, 3.05), facecolor="white", layout="constrained")
    for ax, (ours, printed, title) in zip(fig.subplots(1, 3), panels):
        low, high = (0.48, 0.95) if ours == "roc_auc_cl" else (-0.48, 0.03)
        ax.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=0)
        for row in table.itertuples():
            _point(ax, row, getattr(row, ours), getattr(row, printed), size=4.5)
        ax.set_xlim(low, high)
        ax.set_ylim(low, high)
        ax.set_aspect("equal")
        ax.set_title(title)
        ax.set_xlabel("from the heatmaps")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.yaxis.set_major_locator(MaxNLocator(4))
    fig.axes[0].set_ylabel("printed in Table 2")
    _dataset_legend(fig, list(dict.fromkeys(table["dataset"])))
    return fig


def describe_against_print(table: pd.DataFrame) -> str:
    """Largest gap of each panel of `against_print`."""
    said = [
        f"{title} up to {(table[ours] - table[printed]).abs().max():.3f}"
        for ours, printed, title in (
            ("roc_auc_cl", "roc_auc_printed", "ROC-AUC"),
            ("bwt", "bwt_printed", "BWT by Equation 2"),
            ("bwt_stepwise", "bwt_printed", "step-wise BWT"),
        )
    ]
    return (
        f"Three panels of {len(table)} points, printed against recomputed, with the diagonal. "
        f"Distance from it: {'; '.join(said)}."
    )


@styled
def implied(rest: pd.DataFrame) -> Figure:
    """What the two methods outside the heatmaps would average; `rest` is `tables.implied_rest()`.

    A row a dataset, a panel a level, naive hollow; 0.5 is guessing.
    """
    names = list(dict.fromkeys(rest["dataset"]))
    fig = Figure(figsize=(WIDTH, 0.95 + 0.26 * len(names)), facecolor="white", layout="constrained")
    for ax, level in zip(fig.subplots(1, 2, sharey=True), plots.LEVELS):
        for row in rest[rest["level"] == level].itertuples():
            _point(ax, row, row.implied, names.index(row.dataset) + FORMS[row.protocol])
        ax.axvline(0.5, color="#999999", linewidth=0.8, zorder=0)
        ax.set_title(f"{level} level")
        ax.set_xlabel("implied mean ROC-AUC of the two other methods")
        ax.set_xlim(0.2, 0.95)
    ax.annotate("guessing", (0.5, 1), (2, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=7, color="#666666")  # fmt: skip
    fig.axes[0].set_yticks(range(len(names)), names)
    fig.axes[0].set_ylim(len(names) - 0.5, -0.6)
    fig.legend(handles=_forms(), loc="outside lower center", ncols=2)
    return fig


def describe_implied(rest: pd.DataFrame) -> str:
    """The range of every dataset, naive and continual."""
    said = [
        f"{dataset} {protocol} {values.min():.2f} to {values.max():.2f}"
        for (dataset, protocol), values in rest.groupby(["dataset", "protocol"], sort=False)["implied"]
    ]
    return f"Points a dataset, both levels, with a line at 0.5: {'; '.join(said)}."


@styled
def retained(positions: pd.DataFrame) -> Figure:
    """Which positions the multi-dataset stream keeps of a dataset, under two orders.

    `positions` is `tables.retained_positions()`. A panel a dataset of more than six concepts; filled = in the
    stream, a ring = where the rule's six are.
    """
    big = positions[positions["tasks"] > 6]
    names = list(dict.fromkeys(big["dataset"]))
    fig = Figure(figsize=(WIDTH, 0.75 * len(names) + 0.75), facecolor="white", layout="constrained")
    for ax, dataset in zip(fig.subplots(len(names), 1), names):
        rows = big[big["dataset"] == dataset]
        count = int(rows["tasks"].iloc[0])
        rule = kept_positions(count)
        for y, column in enumerate(("by_rank", "by_roc_auc")):
            kept = rows.loc[rows["retained"], column]
            ax.plot(range(1, count + 1), [y] * count, "o", color="#BBBBBB", markersize=4)
            ax.plot(rule, [y] * 6, "o", color="#444444", markerfacecolor="none", markersize=11)
            ax.plot(kept, [y] * len(kept), "o", color=DATASETS[dataset][0], markersize=6)
        ax.set_yticks([0, 1], ["average rank", "average ROC-AUC"])
        ax.set_ylim(1.6, -0.6)
        ax.set_title(dataset, loc="left", pad=2)
        ax.set_xlim(0.4, big["tasks"].max() + 0.6)
        ax.set_xticks(range(1, count + 1))
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=7)
    fig.axes[-1].set_xlabel("position in the dataset, 1 = hardest")
    handles = [
        _key("in the stream", "#444444", size=6),
        _key("two ends and middle, by this order", "#444444", face="none", size=11),
        _key("left out", "#BBBBBB", size=4),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def describe_retained(positions: pd.DataFrame) -> str:
    """The positions kept of each dataset of more than six concepts, under both orders."""
    said = []
    for dataset, rows in positions[positions["retained"] & (positions["tasks"] > 6)].groupby("dataset"):
        rank, score = (", ".join(map(str, sorted(rows[c]))) for c in ("by_rank", "by_roc_auc"))
        said.append(f"{dataset}: by average rank {rank}; by average ROC-AUC {score}")
    return f"Dots along the order from hard to easy, those in the stream filled. {'. '.join(said)}."


@styled
def time_ratios(times: pd.DataFrame) -> Figure:
    """Evaluation over training time, a point a dataset and form; `times` is `tables.times()`."""
    median = times.groupby("model")["ratio"].median().sort_values()
    names = list(median.index)
    fig = Figure(figsize=(WIDTH, 0.9 + 0.27 * len(names)), facecolor="white", layout="constrained")
    ax = fig.subplots()
    for row in times.itertuples():
        _point(ax, row, row.ratio, names.index(row.model) + FORMS[row.protocol])
    ax.axvline(1, color="#999999", linewidth=0.8, zorder=0)
    ax.set_xscale("log")
    plots.log_ticks(ax.xaxis)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("time to evaluate / time to train (left of 1: training takes longer)")
    _dataset_legend(fig, list(dict.fromkeys(times["dataset"])))
    return fig


def describe_times(times: pd.DataFrame) -> str:
    """Range of the ratio of every method."""
    said = [
        f"{model} {ratios.min():.2g} to {ratios.max():.2g}"
        for model, ratios in sorted(times.groupby("model")["ratio"], key=lambda pair: pair[1].median())
    ]
    return f"Points on a log axis, evaluation over training time: {'; '.join(said)}."


@styled
def scenario_strips(orders: pd.DataFrame) -> Figure:
    """Every scenario as a strip of its tasks in order, coloured by how the experts do on them.

    `orders` is `tables.all_orders()`. Blocks of one source dataset are ruled.
    """
    scenarios = orders.groupby(["dataset", "ordering"], sort=False)
    longest = int(orders["position"].max())
    height = 0.2 * len(scenarios) + 0.07 * (orders["dataset"].nunique() - 1) + 0.97
    left, bottom = 1.85, 0.92
    fig = Figure(figsize=(WIDTH, height), facecolor="white")
    place = (left / WIDTH, bottom / height, 1 - (left + 0.1) / WIDTH, 1 - (bottom + 0.05) / height)
    ax = fig.add_axes(place)
    y, before, ticks, labels = 0.0, "", [], []
    for (dataset, ordering), tasks in scenarios:
        y += 0.35 if before and dataset != before else 0.0
        for x, score in zip(tasks["position"] - 1, tasks["average_roc_auc"]):
            colour = ROC_AUC(ROC_LIMITS(score))
            ax.add_patch(
                Rectangle((x, y + 0.06), 1, 0.88, facecolor=colour, edgecolor="white", linewidth=0.6)
            )
        source = tasks["source_dataset"]
        for x in tasks.loc[source != source.shift(fill_value=source.iloc[0]), "position"] - 1:
            ax.plot([x, x], [y, y + 1], color="black", linewidth=1.4)
        ticks.append(y + 0.5)
        labels.append(f"{dataset}, {ordering.replace('_', ' ')}")
        y, before = y + 1, dataset
    ax.set_xlim(0, longest)
    ax.set_ylim(y, 0)
    ax.set_yticks(ticks, labels)
    ax.set_xticks(np.arange(4, longest, 5) + 0.5, np.arange(4, longest, 5) + 1)
    ax.set_xlabel("position in the stream", labelpad=1)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    bar = fig.add_axes((3.2 / WIDTH, 0.42 / height, 2.6 / WIDTH, 0.09 / height))
    plots.roc_bar(fig, bar, horizontal=True)
    bar.set_xlabel("mean image ROC-AUC of the three experts: bright = easy", fontsize=7, labelpad=1)
    return fig


@styled
def scenario(dataset: str, orders: pd.DataFrame) -> Figure:
    """One dataset: what each expert makes of its tasks, and where each of its orders puts them.

    `orders` is `tables.all_orders()`. The first order is that of the rows at the left.
    """
    experts = tables.experts_of(dataset)
    ranks = consensus_ranks(experts, PUBLISHED_TIES).set_index("task")["average_rank"]
    orders = orders[orders["dataset"] == dataset]
    table = orders.pivot(index="concept", columns="ordering", values="position")
    table = table[list(dict.fromkeys(orders["ordering"]))]
    table = table.sort_values(table.columns[0])
    count, columns = table.shape
    step, head, foot = 0.23, 0.62, 0.62
    height = head + step * count + foot
    names = plots.name_width(table.index, 8)
    fig = Figure(figsize=(WIDTH, height), facecolor="white")
    left, wide = names + 0.1, 2.35

    def panel(x: float, across: float) -> Axes:
        ax = fig.add_axes((x / WIDTH, foot / height, across / WIDTH, step * count / height))
        ax.set_ylim(count + 0.5, 0.5)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        return ax

    ax = panel(left, wide)
    scores = experts.pivot(index="task", columns="detector", values="image_roc_auc").loc[table.index]
    for y, (_, row) in enumerate(scores.iterrows(), start=1):
        ax.plot([0.48, 1.0], [y, y], color="#E5E5E5", linewidth=0.8, zorder=0)
        ax.plot([row.mean()] * 2, [y - 0.32, y + 0.32], color="black", linewidth=1.4, zorder=1)
        for name in experts["detector"].drop_duplicates():
            colour, marker = plots.DETECTORS[name]
            ax.plot(row[name], y, marker, color=colour, markersize=4.5, alpha=0.9)
    ax.axvline(0.5, color="#999999", linewidth=0.8, zorder=0)
    ax.set_xlim(0.44, 1.02)
    ax.set_yticks(range(1, count + 1), table.index, fontsize=8)
    ax.set_xlabel("image ROC-AUC of the expert", labelpad=2)
    handles = [
        Line2D([], [], **plots.detector_style(name, "") | {"linestyle": ""}, label=name)
        for name in experts["detector"].drop_duplicates()
    ]
    handles.append(Line2D([], [], color="black", linewidth=1.4, label="mean"))
    fig.legend(handles=handles, loc="lower left", ncols=4, fontsize=7, handlelength=1,
               bbox_to_anchor=(0.0, 0.0), columnspacing=1.0)  # fmt: skip
    start = left + wide + 0.85
    for y, value in enumerate(ranks[table.index], start=1):
        fig.text((left + wide + 0.28) / WIDTH, (foot + step * (count - y + 0.5)) / height, f"{value:.2f}",
                 ha="center", va="center", fontsize=7.5)  # fmt: skip
    above = (height - head + 0.06) / height
    fig.text((left + wide + 0.28) / WIDTH, above, "average\nrank", ha="center", va="bottom", fontsize=7)
    ax = panel(start, WIDTH - start - names - 0.15)
    for number, positions in enumerate(table.to_numpy(float)):
        colour = matplotlib.colormaps["viridis"](0.92 * number / max(1, count - 1))
        ax.plot(*plots.ribbon(positions), color=colour, linewidth=4.0, alpha=0.75, clip_on=False)
        ax.plot(
            range(columns),
            positions,
            "o",
            color=colour,
            markersize=5.5,
            markeredgecolor="white",
            clip_on=False,
        )
        ax.text(columns - 1 + 0.06, positions[-1], table.index[number], va="center", fontsize=8)
    ax.set_xlim(-0.03, columns - 1)
    ax.xaxis.tick_top()
    ax.set_xticks(range(columns), [name.replace("_", "\n", 1).replace("_", " ") for name in table.columns])
    ax.tick_params(axis="x", labelsize=7)
    ax.set_yticks([])
    fig.text(0.5, 1 - 0.05 / height, dataset, ha="center", va="top", fontsize=9.5, weight="bold")
    return fig


@styled
def multi_stream(orders: pd.DataFrame) -> Figure:
    """The multi-dataset stream, easy to hard: the mean expert ROC-AUC of the task at each position.

    `orders` is `tables.all_orders()`.
    """
    stream = orders[(orders["dataset"] == "MultiDataset") & (orders["ordering"] == "easy_to_hard")]
    fig = Figure(figsize=(WIDTH, 3.2), facecolor="white", layout="constrained")
    ax = fig.subplots()
    for dataset, block in stream.groupby("source_dataset", sort=False):
        colour, marker = DATASETS[dataset]
        ax.plot(block["position"], block["average_roc_auc"], marker=marker, color=colour, linewidth=1.2)
        ax.text(block["position"].mean(), 1.02, dataset, ha="center", color=colour, weight="bold")
    ax.set_xticks(stream["position"], stream["concept"], rotation=90, fontsize=7)
    ax.set_xlim(0.3, len(stream) + 0.7)
    ax.set_ylim(0.6, 1.06)
    ax.set_yticks([0.6, 0.7, 0.8, 0.9, 1.0])
    ax.set_ylabel("mean image ROC-AUC\nof the three experts")
    return fig


def describe_strips(orders: pd.DataFrame) -> str:
    """First and last mean ROC-AUC of every scenario."""
    said = [
        f"{dataset} {ordering.replace('_', ' ')} {tasks['average_roc_auc'].iloc[0]:.2f} to "
        f"{tasks['average_roc_auc'].iloc[-1]:.2f}"
        for (dataset, ordering), tasks in orders.groupby(["dataset", "ordering"], sort=False)
    ]
    return f"Strips of coloured cells, a cell a task. Mean ROC-AUC of first and last task: {'; '.join(said)}."


def describe_multi_stream(orders: pd.DataFrame) -> str:
    """Range of every block of the multi-dataset stream, easy to hard."""
    stream = orders[(orders["dataset"] == "MultiDataset") & (orders["ordering"] == "easy_to_hard")]
    said = [
        f"{dataset} from {block['average_roc_auc'].iloc[0]:.2f} to {block['average_roc_auc'].iloc[-1]:.2f}"
        for dataset, block in stream.groupby("source_dataset", sort=False)
    ]
    return f"Five curves one after another, each falling and the next starting anew: {'; '.join(said)}."


def _point(ax: Axes, row: tuple, x: float, y: float, size: float = 5.0) -> None:
    """The `row`'s dataset in its colour and marker, hollow when naive."""
    colour, marker = DATASETS[row.dataset]
    face = "white" if row.protocol == "naive" else colour
    ax.plot(x, y, marker, color=colour, markerfacecolor=face, markersize=size)


def _forms() -> list[Line2D]:
    return [_key(name, "#444444", "o", face) for name, face in (("naive", "white"), ("continual", "#444444"))]


def _key(label: str, colour: str, marker: str = "o", face: str | None = None, size: float = 5.0) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=size, label=label,
                  markerfacecolor=face or colour)  # fmt: skip


def _dataset_legend(fig: Figure, names: Sequence[str]) -> None:
    handles = [_key(name, *DATASETS[name]) for name in names] + _forms()
    fig.legend(handles=handles, loc="outside lower center", ncols=8, columnspacing=1.0, handletextpad=0.3)
