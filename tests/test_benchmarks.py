"""The benchmarks at a small size: they compare what is the same, whatever the time it took."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import plain
from benchmarks.__main__ import COLUMNS, merge
from benchmarks.rows import ROWS, WholeSet, difference
from benchmarks.scaling import THEORY
from inclad import plots
from inclad.alt import describe_scaling, describe_speedups
from inclad.neighbors import farthest_first

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of the tables of `make bench QUICK=1`, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_both_sides_of_every_row_agree(quick):
    with (quick[0] / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [row.name for row in ROWS]
    assert list(rows[0]) == COLUMNS
    for row in rows:
        # The exit status says that all checks passed; here, that there were any.
        compared = row["name"] != "memory" and "anomalib" not in row["name"]
        assert not compared or any(word in row["size"] for word in ("agree", "the same", "equal")), row
        assert float(row["ours_s"]) > 0 and float(row["ratio"]) > 0
        assert row["name"] in quick[1]


def test_the_memory_row_has_no_plain_side(quick):
    table = pd.read_csv(quick[0] / "results.csv").set_index("name")
    assert np.isnan(table.loc["memory", "plain_s"])
    assert table.loc["memory", "target"] == "<= 6"
    assert 0.1 < table.loc["memory", "ratio"] < 6
    assert table.drop("memory")["plain_s"].notna().all()


def test_the_scaling_has_every_detector_against_everything(quick):
    table = pd.read_csv(quick[0] / "scaling.csv")
    assert set(zip(table["detector"], table["against"])) == set(THEORY)
    assert (table["seconds"] > 0).all()


def test_tables_name_the_processor_and_nobody(quick):
    for name in ("results.csv", "scaling.csv"):
        for machine in pd.read_csv(quick[0] / name)["machine"].unique():
            assert "1 threads" in machine and f"torch {torch.__version__}" in machine
            assert os.uname().nodename not in machine


def test_matrices_of_both_paths_agree_cell_by_cell(tmp_path):
    row = WholeSet(tmp_path, quick=True)
    row.prepare()
    ours, slow = row.ours(), row.plain()
    assert len(slow) == 3 * 3 * 2
    for name, R in slow.items():
        assert R.shape == (2, 3, 3)
        assert np.isfinite(R[:, *np.tril_indices(3)]).all()
        assert difference(ours[name], R) <= 1e-5, name


def test_the_tied_images_are_tied(tmp_path):
    row = WholeSet(tmp_path, quick=True)
    row.prepare()
    for task in row.orders[0]:
        images = {label: {s.image for s in task.test if s.label == label} for label in (0, 1)}
        assert len(images[0] & images[1]) == 1


def test_a_difference_is_seen():
    R = np.array([[0.9, np.nan], [0.8, 0.7]])
    assert difference(R, R) == 0
    assert difference(R + 2e-5, R) > 1e-5
    assert difference(np.nan_to_num(R), R) == float("inf")
    assert difference(np.ones(3), np.ones(4)) == float("inf")


def test_the_plain_loop_is_greedy():
    points = torch.tensor([[0.0], [1.0], [4.0], [10.0]])
    assert plain.farthest_first(points, 3, torch.tensor([0])) == [3, 2, 1]
    picks = farthest_first(points, 3, torch.Generator().manual_seed(0), starts=4)
    assert picks[0] == 3


def test_a_single_row_replaces_its_own_line_only(tmp_path):
    line = dict.fromkeys(COLUMNS, "x")
    for name, size in (("memory", "a"), ("farthest-first", "b"), ("memory", "c")):
        merge(tmp_path / "results.csv", line | {"name": name, "size": size})
    table = pd.read_csv(tmp_path / "results.csv")
    assert list(zip(table["name"], table["size"])) == [("farthest-first", "b"), ("memory", "c")]


def test_an_unknown_row_is_one_line():
    command = [sys.executable, "-m", "benchmarks", "--only", "nothing"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no benchmark is called 'nothing' (there are: farthest-first")
    assert done.stderr.count("\n") == 1


def results() -> pd.DataFrame:
    lines = [
        ("farthest-first", 1.0, 20.0, 20.0, ">= 10", True),
        ("continual PatchCore run", 10.0, 4.0, 0.4, ">= 0.5", False),
        ("memory", 5.0, np.nan, 3.0, "<= 6", True),
        ("PaDiM beside anomalib", 1.0, 2.0, 2.0, np.nan, np.nan),
    ]
    return pd.DataFrame(lines, columns=COLUMNS[:6])


def test_the_figure_of_ratios_tells_what_missed_its_target():
    fig = plots.speedups(results())
    above, below = fig.axes
    assert [tick.get_text() for tick in below.get_yticklabels()] == ["memory"]
    assert len(above.get_yticklabels()) == 3
    assert above.get_xscale() == below.get_xscale() == "log"
    assert sum("misses" in text.get_text() for ax in fig.axes for text in ax.texts) == 1
    points = {line.get_xdata()[0]: line for line in above.lines if line.get_marker() == "o"}
    assert points[0.4].get_markerfacecolor() == "white" != points[20.0].get_markerfacecolor()
    assert [line.get_xdata()[0] for line in above.lines if line.get_marker() == "|"][:2] == [10, 0.5]


def test_the_figure_of_growth_lays_the_theory_through_the_last_point():
    rows = [("padim", "tasks", value, 0.1 * value, 1) for value in (1, 2, 4)]
    rows += [("patchcore", "tasks", value, 0.2, 0) for value in (1, 2, 4)]
    fig = plots.scaling(pd.DataFrame(rows, columns=["detector", "against", "value", "seconds", "slope"]))
    theory = [line.get_ydata() for line in fig.axes[0].lines if line.get_linestyle() == ":"]
    assert theory[0] == pytest.approx([0.1, 0.2, 0.4])
    assert theory[1] == pytest.approx([0.2, 0.2, 0.2])


def test_the_figures_in_words():
    said = describe_speedups(results())
    assert "continual PatchCore run 0.4, target >= 0.5, missed" in said
    assert said.endswith("PaDiM beside anomalib 2.")
    rows = [("cfa", "patches", value, 0.1 * value**2, 2) for value in (1, 10)]
    frame = pd.DataFrame(rows, columns=["detector", "against", "value", "seconds", "slope"])
    assert "cfa against patches 2.0 (theory 2)" in describe_scaling(frame)
