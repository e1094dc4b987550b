"""The 17 streams that InCLAD publishes, as things to list, build and run; and streams from a manifest."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from inclad.data import manifest
from inclad.data.sources import Source
from inclad.reference import reference_table
from inclad.scenarios import ORDERINGS

# Who comes first, as the harder one, where scores or average ranks are equal in the paper. No rule gives these
# orders (digits that are not printed may have), so they are data: with them `consensus_ranks` returns the
# average ranks of Tables 9-13, the correlations of Table 8, and the orders of Figure 2 and of all heatmaps. The
# tables themselves list four of the pairs the other way round: Class2 before Class1, metal_nut before hazelnut,
# pcb2 before candle, cashew before pipe_fryum. There the figures count, as the streams ran in their order.
PUBLISHED_TIES = (
    *("Class1", "Class2", "Class7", "Class10", "Class6"),
    *("tubes", "bracket_white"),
    *("bottle", "tile", "leather", "hazelnut", "metal_nut"),
    *("candle", "pcb2", "pipe_fryum", "cashew", "chewinggum", "pcb4"),
)


class Scenario(NamedTuple):
    """A stream: the dataset by its reader's name ("mixed" for several), its tasks in order, and what it is called."""

    name: str
    dataset: str
    ordering: str
    tasks: list[str]


def scenario_names() -> list[str]:
    """Names of the 17 published scenarios, such as visa_easy_to_hard."""
    return list(reference_table("scenarios")["scenario"].drop_duplicates())


def published_scenario(name: str) -> Scenario:
    """The published stream `name`, in the order of the paper's heatmaps (Figures 3-28).

    In the two streams over several datasets a task is `dataset:task`. Raises ValueError for other names.
    """
    table = reference_table("scenarios")
    rows = table[table["scenario"] == name].sort_values("position")
    if rows.empty:
        raise ValueError(f"no scenario {name!r} (known: {', '.join(scenario_names())}, or a manifest.json)")
    datasets = rows["source_dataset"].str.lower()
    mixed = datasets.nunique() > 1
    tasks = list(datasets + ":" + rows["concept"] if mixed else rows["concept"])
    return Scenario(name, "mixed" if mixed else datasets.iloc[0], rows["ordering"].iloc[0], tasks)


def scenario_table() -> pd.DataFrame:
    """A row a published scenario: tasks, samples (training and test images) and anomaly_pct_test, in percent.

    Summed from the datasets' public counts; the paper's Table 1 prints the same.
    """
    counts = reference_table("dataset_counts").set_index(["dataset", "category"])
    rows = []
    for name in scenario_names():
        scenario = published_scenario(name)
        pairs = [
            tuple(each.split(":")) if ":" in each else (scenario.dataset, each) for each in scenario.tasks
        ]
        own = counts.loc[pairs, ["train_normal", "test_normal", "test_anomalous"]].sum()
        tested = own["test_normal"] + own["test_anomalous"]
        rows.append((name, len(pairs), own["train_normal"] + tested, 100 * own["test_anomalous"] / tested))
    return pd.DataFrame(rows, columns=["scenario", "tasks", "samples", "anomaly_pct_test"])


def published_experts() -> pd.DataFrame:
    """The paper's single-task scores (Tables 9-13) as a table of experts: dataset, task, detector, image_roc_auc."""
    table = reference_table("table9_13_orderings").rename(columns={"concept": "task"})
    scores = table.melt(
        ["dataset", "task"], ["patchcore", "padim", "cfa"], var_name="detector", value_name="image_roc_auc"
    )
    return scores.assign(dataset=scores["dataset"].str.lower())


def own_scenario(
    dataset: str, tasks: str, folder: str, licence: str = "", homepage: str = ""
) -> tuple[Scenario, Source | None]:
    """A stream of one's own, its `tasks` in the order of a text "a,b,c", called like the `folder` it goes to.

    With it what is known of the data, where that is not the dataset's: the layout of MVTec AD holds anybody's
    parts.
    """
    name = Path(folder).resolve().name
    if tasks and not any(each.strip() for each in tasks.split(",")):
        raise ValueError(f"--tasks: {tasks!r} names no task; leave it out for all")
    source = None
    if licence or homepage or dataset == "mvtec":
        source = Source(name, homepage, licence)
    return Scenario(
        name, dataset, "given", [each.strip() for each in tasks.split(",") if each.strip()]
    ), source


def check_scenario(scenario: str, tasks: list[str], ordering: str, experts: str) -> None:
    """Refuse, in one line, what contradicts a scenario, which already says the tasks and their order."""
    given = {"tasks": tasks, "experts": experts, "ordering": ordering if ordering != "given" else ""}
    against = [name for name, value in given.items() if scenario and value]
    if against:
        raise ValueError(
            f"scenario {scenario} says which tasks come in which order: leave out {', '.join(against)}, or "
            "leave out scenario and set dataset, ordering and experts"
        )


def open_scenario(text: str, root: str = "", roots: Mapping[str, str] | None = None) -> Scenario:
    """A published scenario by its name, or that of a manifest file (`....json`), whose files must be there.

    Raises ValueError for an unknown name, DataError (a ValueError) where the data are not the manifest's.
    """
    if not text.endswith(".json"):
        return published_scenario(text.replace("-", "_"))
    content = manifest.check(text, root, roots)
    tasks = [entry["task"] for entry in content["tasks"]]
    if content["ordering"] not in ORDERINGS:
        raise ValueError(f"{text}: unknown ordering {content['ordering']!r} (known: {', '.join(ORDERINGS)})")
    return Scenario(content["scenario"], content["dataset"], content["ordering"], tasks)
