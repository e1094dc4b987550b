"""Many runs: order, one owner a name, interruption; and nobody outside can reach a kernel."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from runner_project import WORK, notebook, pretend

from inclad.run.engines import Durations, check_needs, duration, execute
from inclad.run.plan import plan


def test_needs_are_checked_before_anything_runs(project):
    lost = plan(project.root, "tiny", settings=["source=build/results/tiny--lost"], name="a")
    with pytest.raises(ValueError, match=r"^a: needs build/results/tiny--lost, which is not there \(run"):
        execute([plan(project.root, "tiny"), lost])
    assert not (project.root / "build").exists()
    pretend(plan(project.root, "tiny", name="tiny--lost"))
    check_needs([lost])


@pytest.mark.parametrize("name", ["tmp", "results", "executed"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(project, name):
    (project.root / "build").mkdir()
    (project.root / "build" / name).touch()
    with pytest.raises(
        ValueError, match=rf"^build/{name}: not a folder that can be written \(File exists\)$"
    ):
        execute([plan(project.root, "tiny")])


def test_runs_that_need_each_other(project):
    first = plan(project.root, "tiny", settings=["source=build/results/b"], name="a")
    second = plan(project.root, "tiny", settings=["source=build/results/a/table.csv"], name="b")
    with pytest.raises(ValueError, match="need each other: a, b"):
        check_needs([first, second])


def test_current_runs_start_nothing(project):
    runs = [plan(project.root, "tiny", name=name) for name in ("a", "b")]
    for run in runs:
        pretend(run)
    lines: list[str] = []
    assert [each.status for each in execute(runs, report=lines.append)] == ["current", "current"]
    assert lines == [
        "[1/2] current  a (nothing to do; --force runs it again)",
        "[2/2] current  b (nothing to do; --force runs it again)",
    ]


def test_two_at_the_same_moment_execute_once(project):
    log = project.root / "ran"
    project.notebook(
        "tiny", notebook(WORK, f"import time\nopen({str(log)!r}, 'a').write('x')\ntime.sleep(1)")
    )
    both = [project.start("run", "tiny") for _ in range(2)]
    said = [process.communicate(timeout=90)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert log.read_text() == "x"
    assert sorted("current" in text for text in said) == [False, True]
    assert sum("waiting  tiny--default  is being run by process" in text for text in said) == 1
    assert {text.splitlines()[-1] for text in said} == {"build/results/tiny--default"}


def test_interrupted_and_unreachable(project):
    """While a cell runs, nothing listens beyond loopback; SIGTERM then ends the whole family."""
    marker = project.root / "started"
    code = f"import pathlib, time\npathlib.Path({str(marker)!r}).touch()\ntime.sleep(100)"
    project.notebook("tiny", notebook(WORK, code))
    process = project.start("run", "tiny")
    end = time.monotonic() + 60
    while not marker.exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(family) >= 3  # the command, the child, the kernel
    assert listening(family) == []
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in told
    assert [each for each in family if each.is_running() and each.status() != "zombie"] == []
    assert project.files("build/tmp") == ["tiny--default.lock"]
    assert project.files("build/executed") == project.files("build/results") == []


def listening(family: list[psutil.Process]) -> list[str]:
    """Addresses beyond loopback on which any of these processes accepts connections."""
    found = []
    for process in family:
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.startswith(
                ("127.", "::1")
            ):
                found.append(f"{connection.laddr.ip}:{connection.laddr.port}")
    return found


def test_listening_sees_an_open_port():
    with socket.create_server(("0.0.0.0", 0)):
        assert len(listening([psutil.Process()])) == 1


def test_threads_are_shared(project, monkeypatch):
    from inclad.run import engines
    from inclad.run.notebook import child_environment

    monkeypatch.setattr(engines, "cores", lambda: 8)
    runs = [plan(project.root, "tiny", name=name) for name in "abc"]
    assert engines._Engine(runs, 3, False, None, print).threads == 2
    environment = child_environment(2)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"
    assert environment["TQDM_DISABLE"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


def test_a_lock_of_a_dead_process_is_free(project):
    run = plan(project.root, "tiny")
    pretend(run)
    lock = project.root / "build/tmp/tiny--default.lock"
    code = f"from filelock import FileLock; FileLock({str(lock)!r}).acquire()"
    (project.root / "build/tmp").mkdir()
    code += "; print(flush=True); import time; time.sleep(60)"
    owner = subprocess.Popen([psutil.Process().exe(), "-c", code], stdout=subprocess.PIPE)
    owner.stdout.readline()
    owner.kill()
    owner.wait()
    assert execute([run], report=str)[0].status == "current"


def test_durations_survive_a_torn_file(tmp_path: Path):
    known = Durations(tmp_path)
    known.add("a", 12.34)
    assert Durations(tmp_path).known == {"a": 12.3}
    for text in ('{"a": 1', "[]", '{"a": "x"}', '{"a": null}'):
        known.file.write_text(text)
        assert Durations(tmp_path).known == {}
    Durations(tmp_path).add("b", 1)
    assert json.loads(known.file.read_text()) == {"b": 1}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (41, "41 s"), (99.6, "2 min"), (119, "2 min"), (4800, "80 min"), (6600, "1 h 50 min")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_time_left(project):
    from inclad.run import engines

    runs = [plan(project.root, "tiny", name=name) for name in "abcd"]
    known = Durations(project.root)
    known.add("a", 10)
    known.add("b", 30)
    engine = engines._Engine(runs, 2, False, None, print)
    assert engine._seconds_left() == (10 + 30 + 20 + 20) / 2
