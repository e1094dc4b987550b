"""What the InCLAD paper prints, computed again from its own tables and heatmaps; no model and no image.

Everything is made from `inclad.reference`. Protocols are called naive and continual as in the rest of this
project; the paper's figures and tables say NCL and CL.
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd

from inclad import metrics, published
from inclad.published import PUBLISHED_TIES, published_experts, published_scenario
from inclad.reference import reference_table
from inclad.results import to_matrix
from inclad.scenarios import ORDERINGS as ALL_ORDERINGS
from inclad.scenarios import consensus_ranks, spearman

DATASETS = ("BTAD", "MPDD", "DAGM", "VisA", "MVTec")
ORDERINGS = ALL_ORDERINGS[:3]  # without "given"
SCENARIOS = [
    *((name, ordering) for name in DATASETS for ordering in ORDERINGS),
    ("MultiDataset", "easy_to_hard"),
    ("MultiDataset", "hard_to_easy"),
]
BACKBONES = ("resnet18", "wide_resnet50_2")
EXPERTS = ["patchcore", "padim", "cfa"]
PROTOCOLS = {"ncl": "naive", "cl": "continual"}
KEYS = ["dataset", "ordering", "level", "protocol"]

# Section 4.4, image then pixel level: means over the fifteen single-dataset rows of Table 2.
CLAIMS = [
    ("roc_auc", "image", "naive", "", 0.588),
    ("roc_auc", "image", "continual", "", 0.737),
    ("bwt", "image", "naive", "", -0.088),
    ("bwt", "image", "continual", "", -0.027),
    ("roc_auc", "pixel", "naive", "", 0.718),
    ("roc_auc", "pixel", "continual", "", 0.860),
    ("bwt", "pixel", "naive", "", -0.074),
    ("bwt", "pixel", "continual", "", -0.010),
    ("roc_auc", "image", "continual", "easy_to_hard", 0.764),
    ("roc_auc", "image", "continual", "random", 0.738),
    ("roc_auc", "image", "continual", "hard_to_easy", 0.708),
    ("roc_auc", "pixel", "continual", "lowest order", 0.849),
    ("roc_auc", "pixel", "continual", "highest order", 0.870),
]


@cache
def _heatmaps() -> pd.DataFrame:
    return reference_table("heatmaps")  # 12,768 rows: read once, never changed


# ---- heatmaps and Table 2


def published_r(dataset: str, ordering: str) -> pd.DataFrame:
    """The published matrices of one scenario in the columns of r_matrix.csv, the backbone as its detector.

    A cell is the paper's mean over methods, two decimals (Figures 3-28). Names are those after the correction
    of the one block whose labels contradict its values; those of the multi-dataset stream are
    "dataset:concept". Raises ValueError for a scenario that the paper does not have.
    """
    if (dataset, ordering) not in SCENARIOS:
        known = ", ".join(f"{name} {order}" for name, order in SCENARIOS)
        raise ValueError(f"no published scenario {dataset} {ordering} (there are: {known})")
    cells = _heatmaps()
    cells = cells[(cells["dataset"] == dataset) & (cells["ordering"] == ordering)]
    return pd.DataFrame(
        {
            "dataset": dataset,
            "ordering": ordering,
            "detector": cells["backbone"],
            "protocol": cells["protocol"].map(PROTOCOLS),
            "level": cells["level"],
            "step": cells["step"],
            "task": _with_colon(dataset, cells["eval_task_checked"]),
            "roc_auc": cells["roc_auc"],
        }
    ).reset_index(drop=True)


def published_mean(dataset: str, ordering: str, backbones: Sequence[str] = BACKBONES) -> pd.DataFrame:
    """`published_r` averaged over these backbones, under the scenario's name as its detector.

    Raises ValueError for an unknown scenario or backbone, and when none is named.
    """
    unknown = [name for name in backbones if name not in BACKBONES]
    if unknown or not backbones:
        raise ValueError(
            f"backbones: choose from {', '.join(BACKBONES)}, got {', '.join(backbones) or 'none'}"
        )
    r = published_r(dataset, ordering)
    keys = ["dataset", "ordering", "protocol", "level", "step", "task"]
    mean = r[r["detector"].isin(backbones)].groupby(keys, sort=False, as_index=False)["roc_auc"].mean()
    return mean.assign(detector=scenario_name(dataset, ordering))


def scenario_name(dataset: str, ordering: str) -> str:
    """The scenario in words: "MVTec, easy to hard"."""
    return f"{dataset}, {ordering.replace('_', ' ')}"


def published_matrix(dataset: str, ordering: str, protocol: str, level: str, backbone: str) -> np.ndarray:
    """One published matrix R (N, N), float64 in 0 to 1, NaN above the diagonal; rows are steps.

    `protocol` is naive or continual, `level` image or pixel. Raises ValueError for what is not published.
    """
    r = published_r(dataset, ordering)
    chosen = r[(r["protocol"] == protocol) & (r["level"] == level) & (r["detector"] == backbone)]
    if chosen.empty:
        raise ValueError(f"no published matrix {protocol}, {level}, {backbone} of {dataset} {ordering}")
    return to_matrix(chosen)[0]


def table2() -> pd.DataFrame:
    """Every ROC-AUC and BWT of Table 2 beside the figures of the heatmaps, averaged over the two backbones.

    68 rows: dataset, ordering, level, protocol; roc_auc_printed and roc_auc_cl; bwt_printed and, made from
    the same matrices, bwt (Eq. 2), bwt_stepwise and bwt_final.
    """
    printed = reference_table("table2_summary").replace({"protocol": PROTOCOLS})
    printed = printed.pivot_table("mean", KEYS, "metric", sort=False).add_suffix("_printed").reset_index()
    rows = []
    for key in printed[KEYS].itertuples(index=False):
        matrices = [
            published_matrix(key.dataset, key.ordering, key.protocol, key.level, b) for b in BACKBONES
        ]
        figures = ("roc_auc_cl", "bwt", "bwt_stepwise", "bwt_final")
        rows.append({name: np.mean([getattr(metrics, name)(R) for R in matrices]) for name in figures})
    return printed.join(pd.DataFrame(rows))


def gaps(table: pd.DataFrame, figure: str, printed: str) -> pd.DataFrame:
    """Mean, mean absolute and largest absolute difference, figure minus printed, a row a dataset.

    `table` is `table2()`; the columns are dataset, rows, mean, mean_abs, max_abs.
    """
    difference = (table[figure] - table[printed]).groupby(table["dataset"], sort=False)
    columns = {
        "rows": difference.size(),
        "mean": difference.mean(),
        "mean_abs": difference.agg(lambda d: d.abs().mean()),
        "max_abs": difference.agg(lambda d: d.abs().max()),
    }
    return pd.DataFrame(columns).reset_index()


def implied_rest(table: pd.DataFrame) -> pd.DataFrame:
    """What the two methods outside the heatmaps would have to average for Table 2 to be a mean of nine.

    The heatmaps average the seven methods with two backbones; Table 2 says nine. (9 x printed - 7 x
    recomputed) / 2 is the mean ROC-AUC of GANomaly and EfficientAD, column `implied`. Single-dataset rows.
    """
    single = table[table["dataset"] != "MultiDataset"]
    implied = (9 * single["roc_auc_printed"] - 7 * single["roc_auc_cl"]) / 2
    return single[KEYS].assign(implied=implied).reset_index(drop=True)


def claims(table: pd.DataFrame) -> pd.DataFrame:
    """The averages that section 4.4 states, and the same from the single-dataset rows of Table 2."""
    single = table[table["dataset"] != "MultiDataset"]
    rows = []
    for metric, level, protocol, ordering, stated in CLAIMS:
        chosen = single[(single["level"] == level) & (single["protocol"] == protocol)]
        by_order = chosen.groupby("ordering")[f"{metric}_printed"].mean()
        found = {"": by_order.mean(), "lowest order": by_order.min(), "highest order": by_order.max()}
        value = found.get(ordering, by_order.get(ordering))
        order = ordering.replace("_", " ") or "all orders"
        rows.append((metric, level, protocol, order, stated, value))
    return pd.DataFrame(rows, columns=["metric", "level", "protocol", "order", "stated", "recomputed"])


def improvements(table: pd.DataFrame) -> pd.DataFrame:
    """Table 2's continual minus naive, ROC-AUC and BWT, a row a dataset, ordering and level."""
    wide = table.pivot_table(["roc_auc_printed", "bwt_printed"], KEYS[:3], "protocol", sort=False)
    change = {name: wide[f"{name}_printed"] for name in ("roc_auc", "bwt")}
    return pd.DataFrame(
        {name: each["continual"] - each["naive"] for name, each in change.items()}
    ).reset_index()


# ---- experts, ranks, orders


def experts_of(dataset: str) -> pd.DataFrame:
    """The rows of `published_experts` of one dataset, under the name that the paper gives it."""
    experts = published_experts()
    return experts[experts["dataset"] == dataset.lower()]


def tie_rules() -> pd.DataFrame:
    """How many of the printed average ranks each way to treat equal scores gives, a row a way.

    The ways are shared ranks (average, lowest, highest), ordinal ranks by name, and ordinal ranks with
    `PUBLISHED_TIES`.
    """
    table = reference_table("table9_13_orderings").set_index("concept")
    shared = {"shared, average": "average", "shared, lowest": "min", "shared, highest": "max"}
    ordinal = {"by name": (), "as published": PUBLISHED_TIES}
    scores = table.groupby("dataset")[EXPERTS]
    found = {way: scores.rank(method=method).mean(axis=1) for way, method in shared.items()}
    for way, ties in ordinal.items():
        ranks = pd.concat(consensus_ranks(experts_of(name), ties) for name in DATASETS)
        found[way] = ranks.set_index("task")["average_rank"]
    right = [int(((ranks - table["avg_rank"]).abs() < 0.006).sum()) for ranks in found.values()]
    return pd.DataFrame({"equal_scores": list(found), "reproduced": right, "concepts": len(table)})


def spearman_table() -> pd.DataFrame:
    """Table 8 beside the same correlation from ordinal ranks and from shared (average) ranks."""
    table = reference_table("table8_spearman")
    scores = reference_table("table9_13_orderings").groupby("dataset")[EXPERTS]
    ordinal = pd.concat({name: spearman(experts_of(name), PUBLISHED_TIES) for name in DATASETS})
    ordinal = ordinal.droplevel(1).set_index(["detector_a", "detector_b"], append=True)["spearman"]
    pairs = list(table[["dataset", "expert_a", "expert_b"]].itertuples(index=False, name=None))
    shared = scores.corr("spearman").stack()
    return table.rename(columns={"spearman": "printed"}).assign(
        ordinal=ordinal.loc[pairs].to_numpy(), shared=shared.loc[pairs].to_numpy()
    )


def swapped_pairs() -> pd.DataFrame:
    """Pairs of concepts that stand in one order in Tables 9-13 and in the other in Figure 2."""
    rows = []
    table = reference_table("table9_13_orderings")
    figure = reference_table("figure2_experts").set_index(["dataset", "concept"])["position_easy_to_hard"]
    for dataset, concepts in table.groupby("dataset", sort=False):
        for a, b in combinations(concepts.itertuples(), 2):
            if figure[dataset, a.concept] < figure[dataset, b.concept]:  # in the tables a is the harder one
                rows.append((dataset, a.concept, b.concept, a.avg_rank, b.avg_rank))
    return pd.DataFrame(rows, columns=["dataset", "harder_in_the_table", "easier", "rank", "rank_of_easier"])


def figure2_gaps() -> dict[str, float]:
    """Largest absolute difference of Figure 2 to Tables 9-13, and of its averages to its own cells."""
    figure = reference_table("figure2_experts").set_index(["dataset", "concept"])
    table = reference_table("table9_13_orderings").set_index(["dataset", "concept"]).loc[figure.index]
    means = figure[EXPERTS].mean(axis=1)
    return {
        "experts": float((figure[EXPERTS] - table[EXPERTS]).abs().to_numpy().max()),
        "averages": float((figure["avg"] - table["avg_roc_auc"]).abs().max()),
        "own_mean": float((figure["avg"] - means).abs().max()),
        "below_chance": int((figure[EXPERTS] < 0.5).to_numpy().sum()),
    }


# ---- the 27 tasks, Table 1


def retained_positions() -> pd.DataFrame:
    """Where the tasks of the multi-dataset stream stand in their own dataset, 1 = hardest, under two orders.

    A row a concept of the five datasets: by_rank, its position by average rank, by_roc_auc, its position by
    average ROC-AUC, of tasks, and whether it was retained; in the order of Figure 2.
    """
    kept = published_scenario("multidataset_easy_to_hard").tasks
    rows = []
    for name in DATASETS:
        table = consensus_ranks(experts_of(name), PUBLISHED_TIES)
        by_roc_auc = table["average_roc_auc"].rank(method="first").astype(int)
        for by_rank, (task, by_score) in enumerate(zip(table["task"], by_roc_auc), start=1):
            rows.append((name, task, by_rank, by_score, len(table), f"{name.lower()}:{task}" in kept))
    return pd.DataFrame(rows, columns=["dataset", "concept", "by_rank", "by_roc_auc", "tasks", "retained"])[
        ::-1
    ]


def all_orders() -> pd.DataFrame:
    """The tasks of all 17 scenarios in order, each with its mean ROC-AUC over the three experts as printed.

    Columns dataset, ordering, position, source_dataset, concept, average_roc_auc.
    """
    table = reference_table("scenarios")
    columns = ["dataset", "ordering", "position", "source_dataset", "concept"]
    means = reference_table("table9_13_orderings").set_index(["dataset", "concept"])["avg_roc_auc"]
    table = table[columns].join(means.rename("average_roc_auc"), on=["source_dataset", "concept"])
    return table.sort_values(
        "dataset", key=lambda names: names.map([*DATASETS, "MultiDataset"].index), kind="stable"
    )


def inversions() -> tuple[int, int]:
    """Pairs of the multi-dataset easy-to-hard stream in the wrong order by average ROC-AUC, and all pairs."""
    stream = all_orders()
    stream = stream[(stream["dataset"] == "MultiDataset") & (stream["ordering"] == "easy_to_hard")]
    values = stream.sort_values("position")["average_roc_auc"]
    wrong = [bool(first < later) for first, later in combinations(values, 2)]
    return sum(wrong), len(wrong)


def table1() -> pd.DataFrame:
    """Table 1 beside `published.scenario_table`: tasks, samples, percent anomalous in test.

    Columns scenario, tasks, samples, anomalous, each also with `_printed`.
    """
    names = {"anomaly_pct_test": "anomalous"}
    printed = reference_table("table1_scenarios").set_index("scenario").rename(columns=names)
    ours = published.scenario_table().set_index("scenario").rename(columns=names)
    ours = ours.loc[[f"{name}_easy_to_hard".lower() for name in printed.index]].set_index(printed.index)
    both = printed.add_suffix("_printed").join(ours)
    return both[[f"{name}{of}" for name in printed for of in ("_printed", "")]].reset_index()


def scenario_table() -> pd.DataFrame:
    """The 17 scenarios, a row each, with what `table1` says of their tasks and images."""
    table = table1().set_index("scenario").drop(columns="tasks_printed")
    rows = [{"scenario": scenario_name(*each), **table.loc[each[0]].to_dict()} for each in SCENARIOS]
    return pd.DataFrame(rows).astype(dict.fromkeys(("tasks", "samples", "samples_printed"), int))


def orders_in_words() -> pd.DataFrame:
    """Columns scenario and tasks: the names of each scenario's tasks in order, separated by commas."""
    table = reference_table("scenarios").sort_values("position").set_index(["dataset", "ordering"])["task"]
    rows = [(scenario_name(*each), ", ".join(_with_colon(each[0], table.loc[each]))) for each in SCENARIOS]
    return pd.DataFrame(rows, columns=["scenario", "tasks"])


def _with_colon(dataset: str, names: pd.Series) -> pd.Series:
    """Names of the multi-dataset stream, printed as dataset_concept, as dataset:concept."""
    return names.str.replace("_", ":", n=1) if dataset == "MultiDataset" else names


# ---- labels of the heatmaps, times


def first_cells() -> pd.DataFrame:
    """The first cell of every naive matrix beside that of its continual twin."""
    cells = _heatmaps()
    first = cells[cells["step"] == 1].replace({"protocol": PROTOCOLS})
    wide = first.pivot(
        index=["dataset", "ordering", "backbone", "level"], columns="protocol", values="roc_auc"
    )
    wide = wide.rename_axis(columns=None).reset_index()
    return wide.assign(difference=(wide["continual"] - wide["naive"]).abs())


def diagonal_agreement() -> pd.DataFrame:
    """Correlation of the mean image-level diagonal per task, by the printed names, between two orders.

    The diagonal is measured right after a task was learned and should depend mostly on the task. Columns
    easy_hard (easy to hard with hard to easy), easy_random, hard_random; BTAD, of three tasks, is left out.
    """
    cells = _heatmaps()
    cells = cells[(cells["step"] == cells["task"]) & (cells["level"] == "image")]
    rows = []
    for dataset in ("DAGM", "MPDD", "MVTec", "VisA"):
        table = cells[cells["dataset"] == dataset].pivot_table("roc_auc", "eval_task", "ordering")
        pairs = [(0, 1), (0, 2), (1, 2)]
        values = [table[ORDERINGS[a]].corr(table[ORDERINGS[b]]) for a, b in pairs]
        rows.append((dataset, *values))
    return pd.DataFrame(rows, columns=["dataset", "easy_hard", "easy_random", "hard_random"])


def btad_diagonals() -> pd.DataFrame:
    """BTAD's tasks right after they were learned (image level, naive), by the printed names.

    A row a figure, backbone and ordering, a column a task.
    """
    cells = _heatmaps()
    cells = cells[(cells["dataset"] == "BTAD") & (cells["level"] == "image") & (cells["protocol"] == "ncl")]
    cells = cells[cells["step"] == cells["task"]]
    table = cells.pivot(index=["figure", "backbone", "ordering"], columns="eval_task", values="roc_auc")
    return table.rename_axis(columns=None).reset_index()


def times() -> pd.DataFrame:
    """Tables 4 and 5 in hours: dataset, model, protocol, train, eval and their ratio eval / train."""
    table = reference_table("table4_5_times").dropna(subset="mean_s")
    wide = table.pivot(index=["dataset", "model", "protocol"], columns="phase", values="mean_s") / 3600
    wide = wide.rename_axis(columns=None).reset_index()
    return wide.assign(ratio=wide["eval"] / wide["train"])


def continual_takes() -> dict[str, int]:
    """Cells of Tables 4 and 5 in which the continual form takes longer, equally long or less."""
    table = reference_table("table4_5_times")
    wide = table.pivot(index=["dataset", "model", "phase"], columns="protocol", values="mean_s").dropna()
    change = wide["continual"] - wide["naive"]
    return {
        "longer": int((change > 0).sum()),
        "equal": int((change == 0).sum()),
        "shorter": int((change < 0).sum()),
    }
