"""Figures in words: alt texts made from the tables that the figures are drawn from."""

import numpy as np
import pandas as pd

from inclad.results import lower_triangle, to_matrix


def describe_r(r: pd.DataFrame, detector: str = "") -> str:
    """What the panels of a results matrix show: diagonal and last row of each protocol and level.

    `r` has the columns of r_matrix.csv for one stream; without `detector`, the mean over all of them.
    """
    if detector:
        r = r[r["detector"] == detector]
    keys = ["protocol", "level", "step", "task"]
    r = r.groupby(keys, sort=False, as_index=False)["roc_auc"].mean()
    said = []
    for (protocol, level), rows in r.groupby(["protocol", "level"], sort=False):
        matrix, _ = to_matrix(rows)
        if np.isfinite(matrix).any():
            said.append(
                f"{protocol} at {level} level {_mean(matrix.diagonal())} right after learning a part "
                f"and {_mean(matrix[-1])} over all parts at the end"
            )
    name = f"Results matrices of {detector}" if detector else "Results matrices, mean over detectors"
    return f"{name}. Mean ROC-AUC: {'; '.join(said)}."


def describe_experts(experts: pd.DataFrame) -> str:
    """The easiest and the hardest part at image level, by mean ROC-AUC over detectors."""
    means = experts.groupby("task")["image_roc_auc"].mean().sort_values()
    return (
        f"Heat map of the ROC-AUC of {experts['detector'].nunique()} detectors on {len(means)} parts; "
        f"mean at image level from {means.iloc[0]:.2f} ({means.index[0]}) to {means.iloc[-1]:.2f} ({means.index[-1]})."
    )


def describe_seen(r: pd.DataFrame, level: str) -> str:
    """First and last value of every curve of the mean over the parts seen."""
    rows = lower_triangle(r[r["level"] == level])
    said = []
    for (detector, protocol), stream in rows.groupby(["detector", "protocol"], sort=False):
        means = stream.groupby("step")["roc_auc"].mean()
        said.append(f"{detector} {protocol} from {means.iloc[0]:.2f} to {means.iloc[-1]:.2f}")
    return f"Curves of the mean {level} ROC-AUC over the parts seen, first to last step: {'; '.join(said)}."


def describe_costs(costs: pd.DataFrame) -> str:
    """Total seconds and final mebibytes of every learner."""
    said = []
    for (detector, protocol), rows in costs.groupby(["detector", "protocol"], sort=False):
        kept = rows["kept_bytes"].iloc[-1] / 2**20
        said.append(
            f"{detector} {protocol} {rows['train_s'].sum():.0f} s, {rows['score_s'].sum():.0f} s, "
            f"{kept:.1f} MiB"
        )
    return (
        f"Curves of costs over the steps. In all, to learn, to score and kept at the end: {'; '.join(said)}."
    )


def describe_orders(orders: pd.DataFrame) -> str:
    """Every order, spelt out."""
    said = [
        f"{ordering.replace('_', ' ')}: {', '.join(rows.sort_values('position')['task'])}"
        for ordering, rows in orders.groupby("ordering", sort=False)
    ]
    return f"Ribbons that lead each part from its place in one order to the next. {'; '.join(said)}."


def describe_gains(summary: pd.DataFrame) -> str:
    """The range of what the continual form gains, a level at a time."""
    return f"A line a detector and order, from the naive to the continual form. {gains_in_words(summary)}"


def gains_in_words(summary: pd.DataFrame) -> str:
    """What the continual form adds to roc_auc_cl: range and number of gains above zero, a level at a time."""
    wide = summary.pivot_table("roc_auc_cl", ["level", "ordering", "detector"], "protocol")
    gain = (wide["continual"] - wide["naive"]).dropna()
    said = [
        f"{level} level from {values.min():+.2f} to {values.max():+.2f}, "
        f"above zero in {(values > 0).sum()} of {len(values)} cases"
        for level, values in gain.groupby("level")
    ]
    return f"roc_auc_cl of the continual form minus that of the naive one: {'; '.join(said)}."


def describe_speedups(results: pd.DataFrame) -> str:
    """Every ratio with its target, and which miss it; `results` has the columns of benchmarks/results.csv."""
    said = []
    for row in results.itertuples():
        target = f", target {row.target}" if isinstance(row.target, str) else ""
        missed = ", missed" if str(row.holds) == "False" else ""
        said.append(f"{row.name} {row.ratio:.3g}{target}{missed}")
    return f"Points on a log axis, one a benchmark, each beside the mark of its target: {'; '.join(said)}."


def describe_scaling(scaling: pd.DataFrame) -> str:
    """Measured and expected slope of every curve, from its first to its last point."""
    said = []
    for (kind, detector), rows in scaling.groupby(["against", "detector"], sort=False):
        first, last = rows.iloc[0], rows.iloc[-1]
        slope = np.log(last["seconds"] / first["seconds"]) / np.log(last["value"] / first["value"])
        said.append(f"{detector} against {kind} {slope:.1f} (theory {first['slope']:g})")
    return f"Curves of seconds on log axes, with slopes from first to last point: {'; '.join(said)}."


def _mean(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    return f"{values.mean():.2f}" if values.size else "not measured"
