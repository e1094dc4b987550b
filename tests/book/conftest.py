"""A small book: a copy of the project whose runs are a minute long, built like the real one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from inclad.detectors.catalog import DETECTORS

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = (
    "_config.yml", "_toc.yml", "pyproject.toml", "benchmarks", "book", "inclad", "notebooks", "params", "tools",
)  # fmt: skip
SMALL = {
    "image_size": 64,
    "max_train": 4,
    "max_test": 6,
    "options": {name: {"epochs": 1} for name in DETECTORS if name not in ("patchcore", "padim")},
    "cache_gib": 1.0,
}


@pytest.fixture(scope="session")
def offline_assets() -> Path:
    """build/vendor of the project, from the npm registry; skipped where that can't be had."""
    folder = PROJECT / "build" / "vendor"
    subprocess.run([sys.executable, PROJECT / "tools" / "vendor.py"], check=True)
    if json.loads((folder / "vendor" / "assets.json").read_text())["origin"] != "npm":
        pytest.skip("no npm registry here: the book cannot be made to read offline")
    return folder


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with every run of the book made small, executed and built into _build/html."""
    copy = tmp_path_factory.mktemp("project")
    for name in SOURCES:
        source = PROJECT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("runs", "__pycache__", ".ipynb_checkpoints")
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            shutil.copy(source, copy)
    for kept in ("build/data/mini", "build/vendor"):  # made again where they are not there yet
        if (PROJECT / kept).is_dir():
            shutil.copytree(PROJECT / kept, copy / kept)
    for run in yaml.safe_load((copy / "params/book.yml").read_text()):
        file = copy / run["params"]
        parameters = yaml.safe_load(file.read_text())
        if run["notebook"] in ("experts", "stream"):
            three = {"tasks": ["fabric", "gear", "wood"]} if parameters["dataset"] == "mini" else {}
            file.write_text(yaml.safe_dump(parameters | SMALL | three))
    command = [sys.executable, "-m", "inclad.cli", "book"]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy


@pytest.fixture(scope="session")
def book_html(offline_assets: Path, request: pytest.FixtureRequest) -> Path:
    """Folder of a built book: what INCLAD_BOOK names, else the small one."""
    if os.environ.get("INCLAD_BOOK"):
        built = (PROJECT / os.environ["INCLAD_BOOK"]).resolve()
        assert (built / "index.html").is_file(), f"INCLAD_BOOK: {built} holds no built book"
        return built
    return request.getfixturevalue("tiny_project") / "_build" / "html"
