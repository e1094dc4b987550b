"""Processes by name and by family: who is alive, what the dead left, and how to end a run whole."""

import json
import shutil
from pathlib import Path

import psutil


def process_mark(pid: int) -> str:
    """`<pid>-<start time>`: names a process for good, as numbers are used again."""
    return f"{pid}-{int(psutil.Process(pid).create_time())}"


def is_alive(mark: str) -> bool:
    """Whether the process of a `process_mark` still runs (its clock may have been set by a second)."""
    pid, _, started = mark.partition("-")
    try:
        return abs(psutil.Process(int(pid)).create_time() - int(started)) < 3
    except (psutil.Error, ValueError):
        return False


def sweep(project: Path) -> None:
    """Remove temporary folders of processes that are gone."""
    for folder in (project / "build" / "tmp").glob("*.*-*"):
        if not is_alive(folder.name.rpartition(".")[2]):
            try:
                sockets = Path(json.loads((folder / "job.json").read_text())["sockets"])
                if sockets.name.startswith("inclad-"):
                    shutil.rmtree(sockets, ignore_errors=True)
            except (OSError, ValueError, KeyError):
                pass
            shutil.rmtree(folder, ignore_errors=True)


def kill_tree(pid: int, *, itself: bool = True) -> None:
    """SIGKILL a process and all that descend from it (a kernel leads a session of its own)."""
    try:
        process = psutil.Process(pid)
        family = process.children(recursive=True) + ([process] if itself else [])
    except psutil.Error:
        return
    for member in family:
        try:
            member.kill()
        except psutil.Error:
            continue
