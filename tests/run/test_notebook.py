"""A run is taken for whole only when it is: killed kernels, killed runners, broken results, failed cells."""

import io
import json
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from runner_project import FINISH, WORK, Project, notebook, pretend

from inclad.files import restore_folder
from inclad.run import notebook as notebook_module
from inclad.run.engines import execute
from inclad.run.notebook import Child
from inclad.run.plan import Run, plan, state
from inclad.run.processes import is_alive, process_mark, sweep

RAISE = "raise ValueError(\"unknown detector 'patchcor' (known: cfa, padim, patchcore)\")"
MANY = "raise ValueError('3 problems:\\na.png: no mask\\nb.png: cut in half\\nc.png: empty')"
KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
LAUNCHER = """\
import pathlib, sys
marker = pathlib.Path("{marker}")
if not marker.exists():
    marker.touch()
    sys.exit("no kernel today")
from ipykernel import kernelapp
kernelapp.launch_new_instance()
"""


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Runs that end in every way there is, executed together."""
    project = Project(tmp_path_factory.mktemp("a {braced} folder"))
    project.notebook("bad", notebook(RAISE))
    project.notebook("many", notebook(MANY))
    project.notebook("dead", notebook(KILL))
    project.notebook("silent", notebook(finish="pass"))
    project.notebook("infinite", notebook(finish=FINISH.replace('"seconds": 1.0', '"seconds": float("nan")')))
    project.notebook("slow", notebook("import time\ntime.sleep(100)"))
    runs = {name: plan(project.root, name) for name in ("bad", "many", "dead", "silent", "infinite", "tiny")}
    runs["after bad"] = plan(project.root, "tiny", settings=["source=build/results/bad--default"])
    runs["after tiny"] = plan(project.root, "tiny", settings=["source=build/results/tiny--default"])
    lines: list[str] = []
    outcomes = dict(zip(runs, execute([*runs.values()][::-1], jobs=3, report=lines.append)[::-1]))
    late = execute([plan(project.root, "slow")], timeout=3, report=lines.append)
    return project, runs, outcomes | {"slow": late[0]}, lines


def line(batch, name):
    found = [text for text in batch[3] if f" {name}--default " in text]
    assert len(found) == 1
    return found[0]


def test_a_complete_run_is_published(batch):
    project, runs, outcomes, _ = batch
    assert outcomes["tiny"].status == "done"
    assert state(runs["tiny"]) == ("current", "")
    assert (project.root / "build/results/tiny--default/table.csv").read_text() == "size,word\n3,a\n"
    info = json.loads((project.root / "build/results/tiny--default/run.json").read_text())
    assert info["parameters"]["results"] == "build/results/tiny--default"
    executed = nbformat.read(runs["tiny"].executed, 4)
    assert "43" in [
        output.get("text", "").strip() for cell in executed.cells for output in cell.get("outputs", [])
    ]
    assert "papermill" not in executed.metadata


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "bad",
            "ValueError: unknown detector 'patchcor' (known: cfa, padim, patchcore)   see build/failed/bad--",
        ),
        (
            "many",
            "ValueError: 3 problems:\n    a.png: no mask\n    b.png: cut in half\n    c.png: empty   see",
        ),
        ("dead", "the kernel was killed (out of memory?)   see"),
        ("silent", "wrote no results (the last cell must write run.json into the folder `results`)   see"),
        ("infinite", "wrote no valid run.json (NaN is not JSON)   see"),
        ("slow", "over its time limit of 3 s   see"),
    ],
)
def test_a_failed_run_is_not(batch, name, told):
    project, _, outcomes, _ = batch
    assert outcomes[name].status == "failed"
    assert told in line(batch, name)
    assert "failed" in line(batch, name)
    assert f"{name}--default.ipynb" not in project.files("build/executed")
    assert f"{name}--default" not in project.files("build/results")
    failed = project.root / "build/failed" / f"{name}--default.ipynb"
    assert nbformat.read(failed, 4).metadata["inclad"]["error"] in failed.with_suffix(".log").read_text()
    assert state(plan(project.root, name))[0] == "failed"


def test_only_what_needs_a_failed_run_is_skipped(batch):
    _, runs, outcomes, lines = batch
    assert outcomes["after bad"].status == "skipped"
    assert any(text.endswith(f"skipped  {runs['after bad'].name} (needs bad--default)") for text in lines)
    assert outcomes["after tiny"].status == "done"


def test_nothing_is_left_behind(batch):
    project, *_ = batch
    assert all(name.endswith(".lock") for name in project.files("build/tmp"))
    children = [child for child in psutil.Process().children(recursive=True) if child.status() != "zombie"]
    # A browser of other tests may be open.
    assert [child for child in children if not child.name().startswith("chrom")] == []


def test_the_traceback_is_in_the_log(batch):
    log = (batch[0].root / "build/failed/bad--default.log").read_text()
    assert log.splitlines()[0].startswith("ValueError: unknown detector")
    assert "raise ValueError" in log
    assert "\x1b" not in log


def test_a_kernel_that_does_not_start_is_tried_once_more(project, tmp_path):
    project.write("ipykernel_launcher.py", LAUNCHER.format(marker=tmp_path / "tried"))
    outcome = execute([plan(project.root, "tiny")], report=str)[0]
    assert (tmp_path / "tried").exists()
    assert outcome.status == "done", outcome.message


def test_a_later_failure_takes_nothing_away(project):
    run = plan(project.root, "tiny")
    pretend(run, results={"table.csv": "old"})
    executed = run.executed.read_bytes()
    project.notebook("tiny", notebook(WORK, RAISE))
    assert state(run) == ("stale", "code: notebooks/tiny.ipynb")
    assert execute([run], report=str)[0].status == "failed"
    assert run.executed.read_bytes() == executed
    assert (run.results / "table.csv").read_text() == "old"
    project.notebook("tiny", notebook())
    assert state(run) == ("current", "")


# --- without kernels: what the parent makes of what a child left ---


def finished_child(run: Run, table: str) -> Child:
    """A child whose process has ended with everything done."""
    child = Child.__new__(Child)
    child.run, child.parts, child.attempt, child.killed, child.timeout = run, run.parts(), 1, "", None
    child.folder = run.project / "build/tmp" / f"{run.name}.{process_mark(os.getpid())}"
    child.sockets = child.folder / "sockets"
    child.started = time.monotonic()
    child.process = SimpleNamespace(stdin=io.BytesIO(), returncode=0)
    (child.folder / "results").mkdir(parents=True, exist_ok=True)
    done = {"papermill": {"status": "completed", "exception": False}}
    cells = [new_code_cell("1", metadata=done)]
    nbformat.write(new_notebook(cells=cells), child.folder / "out.ipynb")
    (child.folder / "log").write_text("")
    (child.folder / "outcome.json").write_text('{"message": ""}')
    (child.folder / "results/run.json").write_text('{"seconds": 1}')
    (child.folder / "results/table.csv").write_text(table)
    return child


class _Deadly:
    """os.replace that ends the process at its n-th call."""

    def __init__(self, steps: int):
        self.steps, self.rename = steps, os.replace

    def __call__(self, *paths: Path) -> None:
        self.steps -= 1
        if not self.steps:
            os._exit(137)
        self.rename(*paths)


def test_killed_at_every_step_of_publishing(project):
    """The process is killed before its n-th rename, n = 1, 2, ...: old or new results are there, never a mix,
    and `current` means the new ones."""
    steps = 0
    while True:
        steps += 1
        run = plan(project.root, "tiny", settings=[f"size={100 + steps}"], name="tiny--x")
        pretend(plan(project.root, "tiny", name="tiny--x"), results={"table.csv": "old"})
        pid = os.fork()
        if not pid:
            os.replace = _Deadly(steps)
            status = 1
            try:
                status = 0 if finished_child(run, "new").finish().status == "done" else 1
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sweep(project.root)
        restore_folder(run.results)
        table = (run.results / "table.csv").read_text()
        current = state(run)[0] == "current"
        assert table in ("old", "new")
        assert current == (status == 0)
        assert not current or table == "new"
        old = plan(project.root, "tiny", name="tiny--x")
        assert state(old)[0] != "current" or table == "old"
        if status == 0:
            break
        assert status == 137
    assert steps > 4


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda f: (f / "outcome.json").unlink(), "process ended without a word"),
        (lambda f: (f / "outcome.json").write_text('{"mess'), "process ended without a word"),
        (lambda f: (f / "out.ipynb").write_text('{"cells": ['), "wrote no valid run.json"),
        (lambda f: (f / "results/run.json").write_text('{"sec'), "wrote no valid run.json"),
        (lambda f: (f / "results/run.json").write_text("[]"), "wrote no valid run.json (not a mapping)"),
        (lambda f: (f / "results/run.json").unlink(), "wrote no results"),
        (
            lambda f: nbformat.write(new_notebook(cells=[new_code_cell("1")]), f / "out.ipynb"),
            "not all cells",
        ),
    ],
)
def test_evidence_that_is_missing(project, break_it, told):
    run = plan(project.root, "tiny")
    child = finished_child(run, "new")
    break_it(child.folder)
    outcome = child.finish()
    assert (outcome.status, told in outcome.message) == ("failed", True), outcome.message
    assert not run.executed.exists()
    assert not run.results.exists()


def test_full_disk_while_publishing(project, monkeypatch):
    run = plan(project.root, "tiny")
    pretend(run, results={"table.csv": "old"})

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    child = finished_child(run, "new")
    monkeypatch.setattr(notebook_module, "write_atomic", full)
    outcome = child.finish()
    assert outcome.status == "failed"
    assert "No space left" in outcome.message
    assert (run.results / "table.csv").read_text() == "old"
    assert state(run)[0] == "current"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda run: (run.results / "table.csv").write_text("edited"),
            ("stale", "results folder was changed"),
        ),
        (lambda run: (run.results / "run.json").unlink(), ("stale", "results folder was changed")),
        (lambda run: run.executed.write_text('{"cells'), ("stale", "executed notebook is damaged")),
        (lambda run: run.executed.write_text('{"metadata": {}}'), ("stale", "executed notebook is damaged")),
        (lambda run: run.executed.unlink(), ("missing", "")),
    ],
)
def test_damage_after_the_fact(project, change, told):
    run = plan(project.root, "tiny")
    pretend(run, results={"table.csv": "old"})
    assert state(run) == ("current", "")
    change(run)
    assert state(run) == told


def test_folders_of_dead_processes_are_swept(project, tmp_path):
    mine = project.root / "build/tmp" / f"a--b.{process_mark(os.getpid())}"
    dead = project.root / "build/tmp" / f"a--c.{os.getpid()}-12345"
    gone = project.root / "build/tmp/a--d.4194300-1"
    for folder in (mine, dead, gone):
        folder.mkdir(parents=True)
    sweep(project.root)
    assert project.files("build/tmp") == [mine.name]
    assert is_alive(process_mark(os.getpid()))
    assert not is_alive("junk")


def _wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.mark.parametrize("attempt", range(2))
def test_runner_killed_at_a_random_moment(project, attempt):
    seed = random.randrange(10**6)
    print("seed", seed)
    log = project.root / "ran"
    project.notebook("tiny", notebook(WORK, f"open({str(log)!r}, 'a').write('x')"))
    process = project.start("run", "tiny")
    time.sleep(random.Random(seed).uniform(0.3, 4.0))
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _wait_until(lambda: not [each for each in family if each.is_running() and each.status() != "zombie"])
    run = plan(project.root, "tiny")
    whole = state(run)[0] == "current"
    assert whole or not run.executed.exists()
    outcome = execute([run], report=str)[0]
    assert outcome.status == ("current" if whole else "done"), outcome.message
    assert (run.results / "table.csv").read_text() == "size,word\n3,a\n"
    assert [name for name in project.files("build/tmp") if not name.endswith(".lock")] == []
