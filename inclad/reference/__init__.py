"""What the InCLAD paper prints, as tables: its orders, experts, heatmaps, summary and hyperparameters.

Source: InCLAD, a continual learning benchmark for industrial visual anomaly detection, arXiv 2610.15032v1;
table and figure numbers are in the files' names. `dataset_counts` holds the public image counts of the five
datasets, which the paper does not print; their sums give every row of its Table 1.
"""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent
TEXT = (
    "task",
    "concept",
    "category",
    "trained_task",
    "eval_task",
    "trained_task_checked",
    "eval_task_checked",
)


def reference_table(name: str) -> pd.DataFrame:
    """The table `name` (a file of this folder without .csv); names of tasks are text: `01` stays `01`.

    In `heatmaps` the columns `task` and `step` are positions, whole numbers from 1. ValueError lists the
    names there are.
    """
    path = FOLDER / f"{name}.csv"
    known = sorted(file.stem for file in FOLDER.glob("*.csv"))
    if name not in known:
        raise ValueError(f"no reference table {name!r} (there are: {', '.join(known)})")
    text = TEXT[1:] if name == "heatmaps" else TEXT
    return pd.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=True)
