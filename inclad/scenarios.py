"""From single-task scores to the order of a stream: ranks, their consensus, curricula (InCLAD, section 3)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

ORDERINGS = ("easy_to_hard", "hard_to_easy", "random", "given")


def consensus_ranks(experts: pd.DataFrame, ties: Sequence[str] = ()) -> pd.DataFrame:
    """Rank the tasks by difficulty for each detector, and average; hardest first.

    `experts` has a row a task and detector with `image_roc_auc`. All its tasks are ranked together, so give
    the tasks of one stream. Each detector's tasks get ordinal ranks, 1 = lowest ROC-AUC = hardest: shared
    ranks do not give the averages that InCLAD prints (Tables 9-13). Equal scores and equal average ranks go
    by name, or by the order in `ties`, which holds the tasks to come first.
    Returns `dataset` where there is one, `task`, a column of ranks a detector, `average_rank` and
    `average_roc_auc`, sorted by average rank. Raises ValueError for scores that are missing, NaN
    or there twice.
    """
    scores = _scores(experts, ties)
    ranks = scores.rank(method="first").astype(int)  # rows are in the order that splits ties
    table = ranks.assign(average_rank=ranks.mean(axis=1), average_roc_auc=scores.mean(axis=1))
    # Means of whole numbers can differ in the last bit, sums cannot.
    order = ranks.sum(axis=1).sort_values(kind="stable").index
    table = table.loc[order].rename_axis(columns=None).reset_index()
    if "dataset" in experts:
        dataset = experts.drop_duplicates("task").set_index("task")["dataset"]
        table.insert(0, "dataset", table["task"].map(dataset))
    return table


def spearman(experts: pd.DataFrame, ties: Sequence[str] = ()) -> pd.DataFrame:
    """Rank correlation of every two detectors over the tasks (InCLAD, Table 8); -1 to 1, 1 = same order.

    Made from the ordinal ranks of `consensus_ranks`. Columns detector_a, detector_b, spearman; NaN for a
    single task. Raises ValueError like `consensus_ranks`.
    """
    ranks = _scores(experts, ties).rank(method="first")
    correlation = ranks.corr() if len(ranks) > 1 else ranks.corr() * np.nan
    names = list(ranks.columns)
    rows = [(a, b, correlation.loc[a, b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    return pd.DataFrame(rows, columns=["detector_a", "detector_b", "spearman"])


def order_tasks(
    ordering: str, names: list[str], experts: pd.DataFrame | None = None, seed: int = 0
) -> list[str]:
    """The order in which a stream takes its tasks.

    easy_to_hard sorts by the average rank over the detectors of `experts`, equal averages by name, easiest
    first; hard_to_easy is its exact reverse; random shuffles the sorted names with `seed`; given keeps
    `names`. Only the tasks in `names` are ranked. Raises ValueError, in one line, for an unknown ordering, a
    name given twice, and a task without scores.
    """
    if ordering not in ORDERINGS:
        raise ValueError(f"unknown ordering {ordering!r} (known: {', '.join(ORDERINGS)})")
    names = list(names)
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"task {name!r} is named twice in the stream")
    if ordering == "given" or not names:
        return names
    if ordering == "random":
        return [str(name) for name in np.random.default_rng(seed).permutation(sorted(names))]
    scored = set() if experts is None else set(experts["task"])
    missing = [name for name in names if name not in scored]
    if missing:
        raise ValueError(
            f"ordering {ordering} needs the experts' scores of {', '.join(missing)}: make them with "
            "`inclad run experts` for these tasks"
        )
    hard_to_easy = list(consensus_ranks(experts[experts["task"].isin(names)])["task"])
    return hard_to_easy if ordering == "hard_to_easy" else hard_to_easy[::-1]


def select_across(
    experts: pd.DataFrame, criterion: str = "average_rank", ties: Sequence[str] = ()
) -> pd.DataFrame:
    """Choose the tasks of a stream over several datasets; hardest first within each (InCLAD, section 3).

    Each dataset keeps its `kept_positions`. `criterion` average_rank sorts by the consensus of the experts
    and gives the paper's 27 tasks (with its ties); average_roc_auc is what the text says, and gives others.
    Returns dataset, task, average_rank, average_roc_auc, and `of`, the number of tasks that the dataset had.
    """
    if criterion not in ("average_rank", "average_roc_auc"):
        raise ValueError(f"unknown criterion {criterion!r} (known: average_rank, average_roc_auc)")
    chosen = []
    for _, own in experts.groupby("dataset", sort=False):
        table = consensus_ranks(own, ties)
        if criterion == "average_roc_auc":
            table = table.sort_values(criterion, kind="stable", ignore_index=True)
        count = len(table)
        table = table.iloc[[position - 1 for position in kept_positions(count)]]
        chosen.append(table.assign(of=count)[["dataset", "task", "average_rank", "average_roc_auc", "of"]])
    return pd.concat(chosen, ignore_index=True)


def kept_positions(count: int) -> list[int]:
    """Positions, 1 = hardest, that a stream over several datasets keeps of `count` tasks (InCLAD, section 3).

    All of up to six; else two at each end, and floor(count/2) and the one after it.
    """
    middle = count // 2
    return [1, 2, middle, middle + 1, count - 1, count] if count > 6 else list(range(1, count + 1))


def order_across(chosen: pd.DataFrame, ordering: str, rule: str = "blocks") -> list[str]:
    """The order of the tasks that `select_across` chose, each as `dataset:task`.

    blocks is what the paper ran: easy_to_hard takes the datasets one after another, by the number of tasks
    they had (BTAD, MPDD, DAGM, VisA, MVTec), each from easy to hard. global is what its text says: one sort
    by average ROC-AUC over all tasks. hard_to_easy is the exact reverse of either.
    """
    if ordering not in ("easy_to_hard", "hard_to_easy"):
        raise ValueError(f"unknown ordering {ordering!r} (known: easy_to_hard, hard_to_easy)")
    if rule == "blocks":
        # Reversed first: hardest-first becomes easiest-first within each dataset.
        table = chosen[::-1].sort_values(["of", "dataset"], kind="stable")
    elif rule == "global":
        table = chosen[::-1].sort_values("average_roc_auc", ascending=False, kind="stable")
    else:
        raise ValueError(f"unknown rule {rule!r} (known: blocks, global)")
    names = list(table["dataset"] + ":" + table["task"])
    return names if ordering == "easy_to_hard" else names[::-1]


def check_ordering(ordering: str, experts: str) -> None:
    """Refuse an unknown ordering, or one by difficulty without a table of experts, before any work.

    `experts` is the results folder that holds it. Raises ValueError in one line.
    """
    if ordering not in ORDERINGS:
        raise ValueError(f"unknown ordering {ordering!r} (known: {', '.join(ORDERINGS)})")
    if ordering in ("easy_to_hard", "hard_to_easy") and not experts:
        raise ValueError(
            f"ordering {ordering} needs experts: run `inclad run experts` for these tasks and set "
            "experts to its results folder"
        )


def select_experts(experts: pd.DataFrame, detectors: list[str]) -> pd.DataFrame:
    """The rows of these detectors, or all when none is named; ValueError for one that is not there."""
    there = list(experts["detector"].drop_duplicates())
    for name in detectors:
        if name not in there:
            raise ValueError(f"detectors: no expert {name!r} in the table (there are: {', '.join(there)})")
    return experts[experts["detector"].isin(detectors)] if detectors else experts


def orders_table(experts: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Rows of orders.csv (dataset, ordering, position from 1, task) for the three orderings."""
    names = list(experts["task"].drop_duplicates())
    dataset = experts["dataset"].iloc[0]
    return pd.DataFrame(
        [
            (dataset, ordering, position, task)
            for ordering in ("easy_to_hard", "hard_to_easy", "random")
            for position, task in enumerate(order_tasks(ordering, names, experts, seed), start=1)
        ],
        columns=["dataset", "ordering", "position", "task"],
    )


def _scores(experts: pd.DataFrame, ties: Sequence[str] = ()) -> pd.DataFrame:
    """Image ROC-AUC: a row a task, those in `ties` first and in that order, then by name; a column a detector,
    as first met; no cell missing."""
    twice = experts[experts.duplicated(["task", "detector"])]
    if len(twice):
        task, detector = twice.iloc[0][["task", "detector"]]
        raise ValueError(f"experts hold task {task!r}, detector {detector!r} twice: give those of one stream")
    detectors = list(experts["detector"].drop_duplicates())
    scores = experts.pivot(index="task", columns="detector", values="image_roc_auc")[detectors].sort_index()
    for task, detector in scores.isna().stack().loc[lambda missing: missing].index:
        raise ValueError(
            f"expert {detector!r} has no image ROC-AUC for task {task!r}: it was not run, or the test "
            "set lacks normal or anomalous images"
        )
    place = {task: index for index, task in enumerate(ties)}
    return scores.loc[sorted(scores.index, key=lambda task: (place.get(task, len(place)), task))]
