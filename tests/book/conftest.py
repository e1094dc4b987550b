"""A small book: the project's own pages and configuration, with stand-ins for the executed notebooks."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PROJECT = Path(__file__).resolve().parents[2]

FIGURE = """
import matplotlib.pyplot as plt
from inclad import plots

def figure(step):
    fig, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    axes.bar(range(3), [step + 1, 2, 3])
    plt.close(fig)
    return fig

plots.show(figure(0), "Three bars that rise to the right", "*Three bars, the last one is the highest.*")
"""
SLIDER = """
labels = ["after task 1", "after task 2", "after task 3"]
figures = [figure(step) for step in range(3)]
plots.slider(figures, labels, "step", "Three bars of which one grows.", "It grows.")
"""
TABLE = """
import pandas as pd

wide = pd.DataFrame([[0.5] * 12] * 3, columns=[f"a_long_column_{i}" for i in range(12)])
wide.style.set_caption("A wide table.")
"""


def stand_in() -> nbformat.NotebookNode:
    """An executed notebook with what a run page may hold: figure, slider, wide table, formula."""
    cells = [
        new_markdown_cell("# TITLE\n\nA stand-in for an executed notebook; $R_{i,j}$ is a ROC-AUC."),
        *(new_code_cell(source) for source in (FIGURE, SLIDER, TABLE)),
    ]
    notebook = new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(PROJECT)}}
    ).execute()
    for cell in notebook.cells[1:]:
        for output in cell.outputs:
            if alt := output.get("metadata", {}).get("image/png", {}).get("alt"):
                cell.metadata["mystnb"] = {"image": {"alt": alt}}  # as the publishing step does
    return notebook


@pytest.fixture(scope="session")
def offline_assets() -> Path:
    """build/vendor of the project, from the npm registry; skipped where that can't be had."""
    folder = PROJECT / "build" / "vendor"
    subprocess.run([sys.executable, PROJECT / "tools" / "vendor.py"], check=True)
    if json.loads((folder / "vendor" / "assets.json").read_text())["origin"] != "npm":
        pytest.skip("no npm registry here: the book cannot be made to read offline")
    return folder


@pytest.fixture(scope="session")
def book_html(offline_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a built book: what INCLAD_BOOK names, else the small book, built without a warning."""
    if os.environ.get("INCLAD_BOOK"):
        built = (PROJECT / os.environ["INCLAD_BOOK"]).resolve()
        assert (built / "index.html").is_file(), f"INCLAD_BOOK: {built} holds no built book"
        return built
    copy = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(PROJECT / name, copy)
    shutil.copytree(PROJECT / "book", copy / "book", ignore=shutil.ignore_patterns("runs"))
    shutil.copytree(offline_assets, copy / "build" / "vendor")
    write_stand_ins(copy)
    program = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command = [*program, "build", copy, "--all", "-W", "-n", "--keep-going"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy / "_build" / "html"


def write_stand_ins(copy: Path) -> None:
    """A stand-in for each run of the contents, and what the written pages take from runs."""
    runs = copy / "book" / "runs"
    runs.mkdir()
    notebook = stand_in()
    parts = yaml.safe_load((copy / "_toc.yml").read_text())["parts"]
    files = [chapter["file"] for part in parts for chapter in part["chapters"]]
    for file in files:
        if file.startswith("book/runs/"):
            notebook.cells[0].source = f"# {Path(file).name}\n" + notebook.cells[0].source.split("\n", 1)[1]
            nbformat.write(notebook, copy / f"{file}.ipynb")
    png = next(o.data["image/png"] for o in notebook.cells[1].outputs if "image/png" in o.get("data", {}))
    for picture in ("forgetting--mini/forgetting.png", "experts--mini/contact.png"):
        (runs / picture).parent.mkdir()
        (runs / picture).write_bytes(base64.b64decode(png))
    (runs / "forgetting--mini" / "finding.md").write_text(
        "A stand-in for the sentence that the run writes.\n"
    )
