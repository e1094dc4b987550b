"""The real notebooks, from images to pages, at a size that takes a minute: what a reader would run, run small."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from nbclient import NotebookClient

from inclad import metrics
from inclad.results import to_matrix
from inclad.run.parameters import declared

ORDERS = ("easy-to-hard", "hard-to-easy", "random")


@pytest.fixture(scope="session")
def project(tiny_project: Path) -> Path:
    return tiny_project


def inclad(project: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(project)}
    command = [sys.executable, "-m", "inclad.cli", *words]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{name}.csv", dtype={"task": str})


def test_tables_have_the_promised_columns(project):
    results = project / "build" / "results"
    columns = {
        ("experts--mini", "experts"): "dataset task detector image_roc_auc pixel_roc_auc",
        ("stream--mini-random", "r_matrix"): "dataset ordering detector protocol level step task roc_auc",
        (
            "stream--mini-random",
            "summary",
        ): "dataset ordering detector protocol level roc_auc_cl bwt bwt_stepwise bwt_final final_avg cells",
        ("curricula--mini", "orders"): "dataset ordering position task",
    }
    for (run, name), names in columns.items():
        assert list(table(results / run, name).columns) == names.split(), run


def test_a_stream_holds_every_cell_of_the_lower_triangle_once(project):
    for order in ORDERS:
        cells = table(project / "build/results" / f"stream--mini-{order}", "r_matrix")
        keys = ["detector", "protocol", "level"]
        assert len(cells.groupby(keys)) == 3 * 2 * 2
        for _, group in cells.groupby(keys):
            assert sorted(group["step"]) == [1, 2, 2, 3, 3, 3]
            assert group["roc_auc"].between(0, 1).all()


def test_the_summary_is_made_from_the_matrix(project):
    folder = project / "build/results/stream--mini-easy-to-hard"
    cells, summary = table(folder, "r_matrix"), table(folder, "summary")
    for row in summary.itertuples():
        chosen = cells[
            (cells["detector"] == row.detector)
            & (cells["protocol"] == row.protocol)
            & (cells["level"] == row.level)
        ]
        R, _ = to_matrix(chosen)
        assert row.cells == 6
        assert row.roc_auc_cl == pytest.approx(metrics.roc_auc_cl(R))
        assert row.bwt == pytest.approx(metrics.bwt(R))
        assert row.bwt_stepwise == pytest.approx(metrics.bwt_stepwise(R))


def test_streams_follow_the_curricula(project):
    orders = table(project / "build/results/curricula--mini", "orders")
    for order in ORDERS:
        cells = table(project / "build/results" / f"stream--mini-{order}", "r_matrix")
        wanted = orders[orders["ordering"] == order.replace("-", "_")].sort_values("position")["task"]
        assert list(dict.fromkeys(cells["task"])) == list(wanted)


def test_the_first_row_of_naive_streams_is_the_expert(project):
    experts = table(project / "build/results/experts--mini", "experts").set_index(["task", "detector"])
    for order in ORDERS:
        cells = table(project / "build/results" / f"stream--mini-{order}", "r_matrix")
        first = cells[(cells["step"] == 1) & (cells["protocol"] == "naive") & (cells["level"] == "image")]
        for row in first.itertuples():
            assert row.roc_auc == pytest.approx(experts.loc[(row.task, row.detector), "image_roc_auc"])


def test_a_dataset_without_masks_has_no_pixel_level_and_says_why(project):
    cells = table(project / "build/results/stream--elpv-easy-to-hard", "r_matrix")
    assert cells[cells["level"] == "pixel"]["roc_auc"].isna().all()
    reasons = table(project / "build/results/stream--elpv-easy-to-hard", "missing")
    assert set(reasons["reason"]) == {"no masks"}


def test_run_json_names_what_made_the_numbers(project):
    info = json.loads((project / "build/results/stream--mini-random/run.json").read_text())
    assert {
        "notebook",
        "parameters",
        "seeds",
        "versions",
        "weights",
        "device",
        "seconds",
        "peak_memory_mib",
    } <= set(info)
    assert re.fullmatch(r"[0-9a-f]{64}", info["weights"]["sha256"])
    assert info["parameters"]["image_size"] == 64


def test_every_picture_of_a_run_is_on_its_page(project):
    for path in sorted((project / "build/executed").glob("*.ipynb")):
        outputs = [o for cell in nbformat.read(path, 4).cells for o in cell.get("outputs", [])]
        drawn = sum("image/png" in output.get("data", {}) for output in outputs)
        html = (project / f"_build/html/book/runs/{path.stem}.html").read_text()
        article = html[html.index("<article") : html.index("</article>")]
        assert article.count("<img ") == drawn, path.stem


def test_nothing_current_is_run_again(project):
    said = inclad(project, "book").stdout
    runs = yaml.safe_load((project / "params/book.yml").read_text())
    assert said.count("] current  ") == len(runs) and "] done  " not in said, said
    assert "current  _build/html/index.html" in said


def test_an_edit_of_prose_executes_nothing(project):
    for path in (project / "book/protocol.md", project / "notebooks/stream.ipynb"):
        text = path.read_text()
        if path.suffix == ".md":
            path.write_text(text + "\nA sentence more.\n")
        else:
            notebook = nbformat.reads(text, 4)
            notebook.cells[0].source += "\n\nA sentence more."
            path.write_text(nbformat.writes(notebook))
    states = [line.split()[0] for line in inclad(project, "status").stdout.splitlines()]
    assert set(states) == {"current"}


def test_an_edit_of_a_detector_makes_stale_what_depends_on_it(project):
    path = project / "inclad/detectors/cfa.py"
    text = path.read_text()
    path.write_text(text + "\n\nEDITED = True\n")
    try:
        said = inclad(project, "status").stdout.splitlines()
    finally:
        path.write_text(text)
    stale = {line.split()[1] for line in said if line.split()[0] == "stale" and "cfa.py" in line}
    assert {"experts--mini", "stream--mini-random", "stream--elpv-easy-to-hard"} <= stale
    assert not {"curricula--mini", "report--mini", "forgetting--mini"} & stale


def test_papermill_and_jupyter_give_the_same_tables(project, tmp_path):
    """The other two ways to run a notebook: papermill by hand, and cell by cell in its own folder."""
    source, results = project / "notebooks/experts.ipynb", tmp_path / "experts"
    command = [sys.executable, "-m", "papermill", source, tmp_path / "out.ipynb", "-p", "results", results]
    command += ["-f", project / "params/mini/experts.yml", "-k", "python3"]
    environment = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    ours = table(project / "build/results/experts--mini", "experts")
    # Another number of threads adds floats in another order; four training images make PaDiM feel it.
    pd.testing.assert_frame_equal(table(results, "experts"), ours, check_exact=False, rtol=0, atol=5e-4)

    notebook = nbformat.read(project / "notebooks/curricula.ipynb", 4)
    NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(project / "notebooks")}},
    ).execute(env=environment)
    ours = table(project / "build/results/curricula--mini", "orders")
    pd.testing.assert_frame_equal(table(project / "build/results/curricula", "orders"), ours)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("detectors=[patchcor]", "unknown detector 'patchcor' (known: patchcore, padim, cfa, "),
        ("backbone=resnt18", "backbone 'resnt18' is not a timm model (close: resnet18"),
        ("ordering=easiest", "unknown ordering 'easiest' (known: easy_to_hard, hard_to_easy, random, given)"),
        ("scenario=visa_easy", "no scenario 'visa_easy' (known: btad_easy_to_hard,"),
        ("scenario=mvtec_random", "mvtec: no root given; name the folder that holds"),
        ("image_size=16", "image_size: 16 is too small"),
        ("options={cfa: {epoch: 3}}", "cfa: unknown option 'epoch'"),
    ],
)
def test_bad_input_is_one_clear_line(project, setting, said):
    done = inclad(project, "run", "stream", "--set", setting, "--name", "bad", status=1)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (project / "build/results/bad").exists()


def test_all_problems_of_a_folder_in_one_message(project, tmp_path):
    from PIL import Image

    for name in ("a", "b"):
        for part in ("train/good", "test/good", "test/cut", "ground_truth/cut"):
            (tmp_path / "data" / name / part).mkdir(parents=True)
        for part in ("train/good/0.png", "test/good/0.png", "test/cut/0.png"):
            Image.fromarray(np.zeros((80, 80, 3), np.uint8)).save(tmp_path / "data" / name / part)
        Image.fromarray(np.zeros((40, 40), np.uint8)).save(
            tmp_path / "data" / name / "ground_truth/cut/0_mask.png"
        )
    whole = (tmp_path / "data/a/train/good/0.png").read_bytes()
    (tmp_path / "data/a/train/good/0.png").write_bytes(whole[: len(whole) // 2])
    words = (
        "run",
        "experts",
        "--set",
        "dataset=mvtec",
        "--set",
        f"root={tmp_path / 'data'}",
        "--name",
        "bad",
    )
    done = inclad(project, *words, status=1)
    said = done.stdout + done.stderr
    assert said.count("0_mask.png") == 2 and "train/good/0.png" in said


def test_notebooks_are_stored_clean():
    root = Path(__file__).resolve().parents[2]
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, 4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in code), path.name
        assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1, path.name
        assert notebook.metadata.kernelspec.name == "python3", path.name
        for name, parameter in declared(notebook, path.name).items():
            assert parameter.comment, f"{path.name}: {name} has no comment"


def test_every_params_file_belongs_to_a_notebook():
    root = Path(__file__).resolve().parents[2]
    if shutil.which("git") and (root / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "params"], cwd=root, capture_output=True, text=True
        ).stdout
        assert "params/book.yml" in listed.split()
    done = subprocess.run(
        [sys.executable, "-m", "inclad.cli", "status"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
