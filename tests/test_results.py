import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from inclad import results
from inclad.results import Results, read_table, summary, to_matrix

NAN = float("nan")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder to work in, with a home folder beside it."""
    folder = tmp_path / "home" / "ada" / "book"
    (folder / "inclad").mkdir(parents=True)
    (folder / "_toc.yml").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "ada"))
    monkeypatch.chdir(folder)
    return folder


def stream(rows, tasks="abcdef", **keys):
    keys = {
        "dataset": "d",
        "ordering": "given",
        "detector": "padim",
        "protocol": "naive",
        "level": "image",
    } | keys
    return pd.DataFrame(
        [
            {**keys, "step": i, "task": tasks[j], "roc_auc": value}
            for i, row in enumerate(rows, start=1)
            for j, value in enumerate(row)
        ]
    )


def finish_one(value):
    made = Results("build/results/demo", "demo", {"seed": 0})
    made.table("t", pd.DataFrame({"task": ["01"], "roc_auc": [value]}))
    return made.finish()


# ---- whole or not at all


def test_nothing_is_there_before_finish_and_everything_after(project):
    made = Results("build/results/demo", "demo", {"seed": 0})
    made.table("t", pd.DataFrame({"task": ["01", "02"], "roc_auc": [0.1 + 0.2, NAN]}))
    made.array("maps", maps=np.arange(6, dtype=np.float32).reshape(2, 3), names=np.array(["a", "b"]))
    made.figure("f", Figure(figsize=(2, 1)))
    assert not (project / "build/results/demo").exists()
    folder = made.finish(weights={"sha256": "ab"})
    assert folder == project / "build/results/demo"
    assert sorted(p.name for p in folder.iterdir()) == ["f.png", "maps.npz", "run.json", "t.csv"]
    assert [p.name for p in folder.parent.iterdir()] == ["demo"]
    assert (folder / "t.csv").read_bytes() == b"task,roc_auc\n01,0.30000000000000004\n02,\n"
    with np.load(folder / "maps.npz", allow_pickle=False) as stored:
        assert stored["maps"].dtype == np.float32 and stored["names"].tolist() == ["a", "b"]


def test_a_finished_result_stays_until_the_new_one_is_whole(project):
    folder = finish_one(0.5)
    made = Results("build/results/demo", "demo", {})
    made.table("t", pd.DataFrame({"task": ["01"], "roc_auc": [0.9]}))
    assert read_table(folder, "t")["roc_auc"].tolist() == [0.5]
    made.finish()
    assert read_table(folder, "t")["roc_auc"].tolist() == [0.9]


def test_a_run_killed_at_any_write_leaves_the_old_result_and_is_swept(project):
    finish_one(0.5)
    code = (
        "import os, signal\nimport pandas as pd\nfrom inclad.results import Results\n"
        "made = Results('build/results/demo', 'demo', {})\n"
        "made.table('t', pd.DataFrame({'task': ['01'], 'roc_auc': [0.1]}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(results.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == -9
    left = [p.name for p in (project / "build/results").iterdir() if p.name.startswith(".")]
    assert len(left) == 1 and re.fullmatch(r"\.demo\.\d+-[0-9a-f]{8}\.tmp", left[0])
    assert read_table("build/results/demo", "t")["roc_auc"].tolist() == [0.5]
    finish_one(0.7)
    assert [p.name for p in (project / "build/results").iterdir()] == ["demo"]


def test_a_kill_between_the_two_renames_loses_nothing(project):
    folder = finish_one(0.5)
    folder.rename(folder.parent / ".demo.old")
    Results("build/results/demo", "demo", {})
    assert read_table("build/results/demo", "t")["roc_auc"].tolist() == [0.5]


def test_a_file_where_the_folder_belongs_is_replaced_for_good(project):
    (project / "build/results").mkdir(parents=True)
    (project / "build/results/demo").touch()
    for value in (0.5, 0.7):
        finish_one(value)
    assert read_table("build/results/demo", "t")["roc_auc"].tolist() == [0.7]
    assert [path.name for path in (project / "build/results").iterdir()] == ["demo"]


def test_folders_of_living_runs_and_other_results_are_left_alone(project):
    first = Results("build/results/demo", "demo", {})
    first.table("t", pd.DataFrame({"a": [1]}))
    parent = project / "build/results"
    others = [parent / f".demo.{os.getppid()}-00000000.tmp", parent / ".demo.more.1-00000000.tmp"]
    dead = parent / ".demo.4194305-00000000.tmp"  # above the largest process number of Linux
    earlier = parent / f".demo.{os.getpid()}-00000000.tmp"  # an earlier process that had our number
    for folder in (*others, dead, earlier):
        folder.mkdir()
    second = Results("build/results/demo", "demo", {})
    assert all(folder.exists() for folder in others) and not dead.exists() and not earlier.exists()
    first.finish()
    second.finish()


def test_writing_after_finish_is_refused(project):
    made = Results("build/results/demo", "demo", {})
    made.finish()
    with pytest.raises(RuntimeError, match="comes too late"):
        made.table("t", pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize("name", ["../t", "a/b", "", ".hidden", "a b"])
def test_names_that_are_no_file_names_are_refused(project, name):
    with pytest.raises(ValueError, match="no name"):
        Results("build/results/demo", "demo", {}).table(name, pd.DataFrame({"a": [1]}))


def test_pickles_and_empty_tables_are_refused(project):
    made = Results("build/results/demo", "demo", {})
    with pytest.raises(ValueError, match="Python objects"):
        made.array("a", things=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="no columns"):
        made.table("missing", pd.DataFrame())


# ---- run.json


def test_run_json_is_strict_and_tells_how_it_was_made(project):
    made = Results("build/results/demo", "demo", {"seed": np.int64(3), "sizes": (1, 2), "rate": 0.1})
    folder = made.finish(loss=NAN, loss_reason="nothing was trained", best=np.float32("inf"))

    def refuse(text):
        raise AssertionError(f"{text} is no strict JSON")

    info = json.loads((folder / "run.json").read_text(), parse_constant=refuse)
    assert info["notebook"] == "demo" and info["parameters"] == {"seed": 3, "sizes": [1, 2], "rate": 0.1}
    assert info["loss"] is None and info["loss_reason"] == "nothing was trained" and info["best"] is None
    assert {"python", "torch", "timm", "numpy", "pandas", "inclad"} <= set(info["versions"])
    assert info["peak_memory_mib"] > 10 and info["seconds"] >= 0 and info["device"] == "cpu"


def test_no_place_of_this_machine_is_written(project):
    home = project.parent
    parameters = {
        "root": f"{home}/data/mvtec",
        "roots": {"mtd": str(project / "data")},
        "other": "/data/ada/visa",
        "text": "ada/adages stay",
    }
    made = Results("build/results/demo", "demo", parameters)
    made.table("missing", pd.DataFrame({"task": ["a"], "reason": [f"cannot read {home}/x.png"], "n": [1]}))
    folder = made.finish(path=home / "y")
    info = json.loads((folder / "run.json").read_text())
    assert info["parameters"] == {
        "root": "~/data/mvtec",
        "roots": {"mtd": "./data"},
        "other": "/data/~/visa",
        "text": "ada/adages stay",
    }
    assert info["path"] == "~/y"
    assert (folder / "missing.csv").read_text() == "task,reason,n\na,cannot read ~/x.png,1\n"


# ---- reading


def test_names_are_text_and_numbers_come_back_exactly(project):
    frame = stream([[1 / 3], [NAN, 0.1 + 0.2]], tasks=["01", "NA"])
    made = Results("build/results/demo", "demo", {})
    made.table("r_matrix", frame)
    made.finish()
    back = read_table("build/results/demo", "r_matrix")
    assert back["task"].tolist() == ["01", "01", "NA"]
    np.testing.assert_array_equal(back["roc_auc"], frame["roc_auc"])
    assert back["step"].dtype.kind == "i" and back["roc_auc"].dtype == np.float64


def test_a_table_that_is_not_there_is_told_in_one_line(project):
    with pytest.raises(FileNotFoundError) as caught:
        read_table("build/results/experts--mini", "experts")
    message = str(caught.value)
    assert (
        "build/results/experts--mini" in message and "inclad run experts" in message and "\n" not in message
    )


EXPERTS = "dataset,task,detector,image_roc_auc,pixel_roc_auc\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "last line does not end"),
        (b"\xff\xfe\n", "not UTF-8"),
        (f"{EXPERTS}mini,wood,padim,0.9,0.9".encode(), "last line does not end"),
        (f"{EXPERTS}mini,wood,padim,x,0.9\n".encode(), "image_roc_auc holds text"),
        (b"a,b\n1,2\n", "lacks the columns dataset, task"),
    ],
)
def test_a_damaged_table_is_told_with_its_path(project, content, reason):
    folder = project / "experts--mine"
    folder.mkdir()
    (folder / "experts.csv").write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"^experts--mine/experts.csv: .*{reason}.*inclad run experts"
    ) as caught:
        read_table("experts--mine", "experts")
    assert "\n" not in str(caught.value)


def test_the_notebook_that_makes_a_table_is_named_whatever_the_folder(project):
    with pytest.raises(
        FileNotFoundError, match=r"^nowhere has no experts.csv: make it with `inclad run experts`"
    ):
        read_table("nowhere", "experts")


def test_relative_folders_start_at_the_project_folder(project, monkeypatch, tmp_path):
    finish_one(0.5)
    (project / "notebooks").mkdir()
    monkeypatch.chdir(project / "notebooks")
    assert results.project_folder() == project
    assert len(read_table("build/results/demo", "t")) == 1
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="not in the project"):
        read_table("build/results/demo", "t")
    assert len(read_table(project / "build/results/demo", "t")) == 1


# ---- matrices and their summary


def test_to_matrix_puts_tasks_in_the_order_of_learning():
    rows = stream([[0.8], [NAN, 1.0], [0.4, 0.8, 0.9]], tasks="cab").sample(frac=1, random_state=0)
    R, tasks = to_matrix(rows)
    assert tasks == ["c", "a", "b"]
    np.testing.assert_array_equal(R, [[0.8, NAN, NAN], [NAN, 1.0, NAN], [0.4, 0.8, 0.9]])


def test_to_matrix_refuses_what_is_no_single_stream():
    with pytest.raises(ValueError, match="twice"):
        to_matrix(pd.concat([stream([[0.8]]), stream([[0.8]], level="pixel")]))
    holes = stream([[0.8], [0.5, 1.0]])
    with pytest.raises(ValueError, match="keep missing cells"):
        to_matrix(holes[holes["step"] > 1])
    with pytest.raises(ValueError, match="keep missing cells"):
        to_matrix(holes[holes["task"] != "a"])


def test_summary_has_a_row_a_stream_with_figures_by_hand():
    frame = pd.concat(
        [
            stream([[0.8], [0.5, 1.0], [0.4, 0.8, 0.9]], protocol="naive"),
            stream([[0.8], [0.8, 1.0], [0.7, NAN, 0.9]], protocol="continual"),
        ]
    )
    table = summary(frame)
    keys = ["dataset", "ordering", "detector", "protocol", "level"]
    assert list(table.columns) == [
        *keys,
        "roc_auc_cl",
        "bwt",
        "bwt_stepwise",
        "bwt_final",
        "final_avg",
        "cells",
    ]
    naive, continual = table.to_dict("records")
    assert naive["protocol"] == "naive" and naive["cells"] == 6
    assert naive["bwt"] == pytest.approx(-0.3) and naive["bwt_stepwise"] == pytest.approx(-0.2)
    assert naive["bwt_final"] == pytest.approx(-0.3) and naive["final_avg"] == pytest.approx(0.7)
    assert continual["cells"] == 5 and continual["bwt"] == pytest.approx(-0.05)
    assert continual["roc_auc_cl"] == pytest.approx((0.8 + 0.8 + 1.0 + 0.7 + 0.9) / 5)
    assert len(summary(frame.assign(seed=0))) == 2 and "seed" in summary(frame.assign(seed=0))


# ---- figures


def test_png_has_the_same_bytes_each_time_white_ground_and_no_date():
    def draw():
        fig = Figure(figsize=(3, 2))
        fig.subplots().plot([0, 1])
        return results.png(fig)

    assert draw() == draw()
    assert b"tEXt" not in draw() and b"tIME" not in draw()

    image = Image.open(io.BytesIO(draw()))
    assert image.size == (450, 300) and image.mode == "RGB" and image.getpixel((0, 0)) == (255, 255, 255)


def test_png_keeps_to_its_limit():
    fig = Figure(figsize=(4, 4))
    fig.add_axes((0, 0, 1, 1)).imshow(np.random.default_rng(0).random((400, 400, 3)))
    assert len(results.png(fig)) <= results.FIGURE_BYTES


def test_means_over_detectors_count_who_is_complete():
    columns = ["dataset", "ordering", "detector", "protocol", "level"]
    figures = ["roc_auc_cl", "bwt", "bwt_stepwise", "bwt_final", "final_avg", "cells"]
    rows = [
        ("d", "random", name, "naive", "image", value, -0.1, -0.1, -0.1, value, 6)
        for name, value in (("a", 0.5), ("b", 0.7))
    ]
    rows += [
        ("d", "random", "a", "naive", "pixel", 0.6, 0, 0, 0, 0.6, 6),
        ("d", "random", "b", "naive", "pixel", 0.8, 0, 0, 0, 0.8, 5),
    ]
    means = results.mean_over_detectors(pd.DataFrame(rows, columns=columns + figures)).set_index("level")
    assert means.loc["image", "roc_auc_cl"] == pytest.approx(0.6)
    assert means.loc["image", "roc_auc_cl_std"] == pytest.approx(np.sqrt(0.02))
    assert means.loc["image", "n"] == "2/2"
    assert means.loc["pixel", "n"] == "1/2"  # one detector lacks a cell: no mean that could not be compared
    assert np.isnan(means.loc["pixel", "roc_auc_cl"])
    shown = results.with_spread(means.reset_index())
    assert list(shown["roc_auc_cl"]) == ["0.600 ± 0.141", "–"]


def test_streams_of_a_report_are_checked(project):
    cells = pd.DataFrame(
        [("d", "random", "a", "naive", "image", 1, "t", 0.5)],
        columns=["dataset", "ordering", "detector", "protocol", "level", "step", "task", "roc_auc"],
    )
    for name, detector in (("one", "a"), ("two", "a"), ("other", "b")):
        out = results.Results(f"build/results/{name}", "stream", {"detectors": ["a", "b"], "profile": "mini"})
        own = cells.assign(detector=detector)
        out.table("r_matrix", own)
        out.table("summary", results.summary(own))
        out.finish()
    with pytest.raises(ValueError, match="name at least one"):
        results.read_streams([])
    with pytest.raises(ValueError, match="both hold a in the order random"):
        results.read_streams(["build/results/one", "build/results/two"])
    assert len(results.read_streams(["build/results/one"])[0]) == 1
    table = results.settings_table(["build/results/one"])
    assert table.loc[0, ["run", "detectors", "profile"]].tolist() == ["one", "a, b", "mini"]
    with pytest.raises(
        ValueError, match=r"none.run\.json: can't be read \(FileNotFoundError\): run it again"
    ):
        results.settings_table(["build/results/none"])
    both, _ = results.read_streams(["build/results/one", "build/results/other"])
    assert list(both["detector"]) == ["a", "b"]


def test_the_lower_triangle_leaves_out_what_is_still_to_come():
    cells = pd.DataFrame(
        [
            ("d", o, step, task)
            for o, tasks in (("x", "abc"), ("y", "cab"))
            for step in (1, 2, 3)
            for task in tasks
        ],
        columns=["dataset", "ordering", "step", "task"],
    )
    kept = results.lower_triangle(cells)
    assert [tuple(row)[1:] for row in kept[kept["ordering"] == "y"].itertuples(index=False)] == [
        ("y", 1, "c"), ("y", 2, "c"), ("y", 2, "a"), ("y", 3, "c"), ("y", 3, "a"), ("y", 3, "b"),
    ]  # fmt: skip
    assert results.lower_triangle(kept).equals(kept)
