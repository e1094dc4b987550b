"""The book: pages of current runs only, built offline, whole or not at all."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from filelock import FileLock

from inclad.files import publish_folder, restore_folder, write_atomic
from inclad.run.key import Hashes, key
from inclad.run.page import publish, withdraw
from inclad.run.plan import Run, state
from inclad.run.processes import kill_tree, process_mark, sweep

SOURCES = ("_config.yml", "_toc.yml", "book", "build/vendor", "inclad", "params")
BUILDERS = ("jupyter-book", "sphinx", "myst-nb", "sphinx-book-theme", "sphinxcontrib-bibtex")


def make(project: Path, runs: list[Run]) -> int:
    """Publish the current runs and build _build/html; the exit status.

    Raises ValueError when a run is not current or a page must not be published; the last good book stays.
    """
    (project / "build" / "tmp").mkdir(parents=True, exist_ok=True)
    with FileLock(project / "build" / "tmp" / "_book.lock"):
        sweep(project)
        publish_all(project, runs)
        vendor = project / "tools" / "vendor.py"
        if vendor.is_file():
            subprocess.run([sys.executable, str(vendor)], cwd=project, check=False)
        return build(project, runs)


def publish_all(project: Path, runs: list[Run]) -> bool:
    """Pages of exactly these runs in book/runs/; whether anything changed."""
    conditions = [(run, *state(run)) for run in runs]
    problems = [
        f"{run.name} is {word}{f' ({why})' if why else ''}"
        for run, word, why in conditions
        if word != "current"
    ]
    if problems:
        raise ValueError("\n".join([*problems, "bring them up to date first: inclad run --book"]))
    changed = withdraw(project, {run.name for run in runs})
    for run in runs:
        try:
            changed |= publish(run, page_title(run, runs))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return changed


def page_title(run: Run, runs: list[Run]) -> str:
    """What is put behind the heading: the `title` of params/book.yml, else the end of the run's name where
    one notebook makes several pages."""
    several = Counter(each.notebook for each in runs)[run.notebook] > 1
    return run.title or (run.name.partition("--")[2] if several else "")


def build(project: Path, runs: list[Run]) -> int:
    """Build the HTML in a temporary folder with warnings as errors, then rename it into place.

    Sphinx keeps numbers of old pages in its memory, so a change anywhere means a build from nothing; without
    any change there is nothing to do.
    """
    target, stamp = project / "_build" / "html", project / "_build" / "stamp"
    restore_folder(target)
    fingerprint = _fingerprint(project, runs)
    if (target / "index.html").is_file() and stamp.is_file() and stamp.read_text() == fingerprint:
        print("current  _build/html/index.html")
        return 0
    started = time.monotonic()
    log = project / "build" / "book.log"
    temporary = project / "build" / "tmp" / f"_book.{process_mark(os.getpid())}"
    try:
        status = _jupyter_book(project, temporary, log)
        text = log.read_text(encoding="utf-8", errors="replace")
        if status or not (temporary / "_build" / "html" / "index.html").is_file():
            told = [line for line in text.splitlines() if re.search(r"WARNING|ERROR|Error:|error:", line)]
            print("\n".join(dict.fromkeys(told[:30])) or text[-2000:], file=sys.stderr)
            print(f"failed   the book was not built (status {status})   see build/book.log", file=sys.stderr)
            return 1
        stamp.unlink(missing_ok=True)
        publish_folder(temporary / "_build" / "html", target)
        write_atomic(stamp, fingerprint)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"done     _build/html/index.html  {time.monotonic() - started:.0f} s, {len(runs)} pages of runs")
    return 0


def _jupyter_book(project: Path, output: Path, log: Path) -> int:
    words = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "."]
    words += ["--path-output", str(output), "--all", "-W", "-n", "--keep-going"]
    output.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, cwd=project, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait()
        except BaseException:
            kill_tree(process.pid)
            raise


def _fingerprint(project: Path, runs: list[Run]) -> str:
    hashes = Hashes(project)
    files = [project / name for name in SOURCES] + [run.results for run in runs]
    parts = {str(path.relative_to(project)): hashes.digest(path) for path in files if path.exists()}
    hashes.save()
    for name in BUILDERS:
        try:
            parts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            parts[name] = "missing"
    return key(parts)
