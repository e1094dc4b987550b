"""Runs many: a few child processes at a time, what depends on what, one line for each that ends."""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from inclad.files import restore_folder, write_atomic
from inclad.run.notebook import MESSAGE_LINES, Child, Outcome
from inclad.run.plan import Run, state
from inclad.run.processes import is_alive, sweep

TICK = 0.1  # seconds between two looks at the children


class Interrupted(Exception):
    """SIGINT or SIGTERM came; every child is dead and nothing half-written was left."""


def execute(
    runs: list[Run],
    *,
    jobs: int = 0,
    force: bool = False,
    timeout: float | None = None,
    report: Callable[[str], None] = print,
) -> list[Outcome]:
    """Bring every run up to date and return how each ended, in the order given.

    `jobs` runs at a time (0: as many as cores); one that fails stops only those that need its results. Raises
    ValueError before anything runs when a needed run is neither in the list nor already there, and when a
    folder of `build/` can't be written.
    """
    check_needs(runs)
    if not runs:
        return []
    _check_writable(runs[0].project)
    jobs = min(jobs or cores(), len(runs))
    return _Engine(runs, jobs, force, timeout, report).work()


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_needs(runs: list[Run]) -> None:
    """ValueError when a run needs one that is neither listed nor executed, or when needs go in a circle."""
    names = {run.name for run in runs}
    problems = [
        f"{run.name}: needs build/results/{need}, which is not there (run it first)"
        for run in runs
        for need in sorted(run.needs - names)
        if not (run.project / "build" / "results" / need / "run.json").is_file()
    ]
    if problems:
        raise ValueError("\n".join(problems))
    waiting = {run.name: run.needs & names for run in runs}
    while waiting:
        ready = {name for name, needs in waiting.items() if not needs & waiting.keys()}
        if not ready:
            raise ValueError(f"these runs need each other: {', '.join(sorted(waiting))}")
        waiting = {name: needs for name, needs in waiting.items() if name not in ready}


def _check_writable(project: Path) -> None:
    """ValueError, a line a folder, when what a run leaves could not be written at its end."""
    problems = []
    for name in ("tmp", "results", "executed"):
        folder = project / "build" / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problems.append(f"build/{name}: not a folder that can be written ({error.strerror})")
    if problems:
        raise ValueError("\n".join(problems))


class _Engine:
    def __init__(self, runs, jobs, force, timeout, report):
        self.runs, self.jobs, self.force, self.timeout, self.report = runs, jobs, force, timeout, report
        self.threads = max(1, cores() // jobs)
        self.project = runs[0].project
        self.waiting = list(runs)
        self.children: dict[str, Child] = {}
        self.locks: dict[str, FileLock] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.told: set[str] = set()
        self.durations = Durations(self.project)

    def work(self) -> list[Outcome]:
        sweep(self.project)
        with _signals() as stop:
            try:
                while self.waiting or self.children:
                    if stop:
                        raise Interrupted
                    if not (self._reap() | self._launch()):
                        time.sleep(TICK)
            finally:
                for child in self.children.values():
                    child.kill("interrupted")
                    child.discard()
                for lock in self.locks.values():
                    lock.release()
        return [self.outcomes[run.name] for run in self.runs]

    def _reap(self) -> bool:
        """Close the books on the children that have ended."""
        ended = [name for name, child in self.children.items() if child.poll() is not None]
        for name in ended:
            outcome = self.children[name].finish()
            if outcome is None:
                continue
            del self.children[name]
            if outcome.status == "done":
                self.durations.add(name, outcome.seconds)
            self._end(outcome)
        return bool(ended)

    def _launch(self) -> bool:
        """Start what is ready, as far as there is room."""
        moved = False
        for run in list(self.waiting):
            bad = [
                n
                for n in sorted(run.needs)
                if n in self.outcomes and self.outcomes[n].status in ("failed", "skipped")
            ]
            if bad:
                self._end(Outcome(run, "skipped", f"needs {', '.join(bad)}"))
            elif len(self.children) >= self.jobs or run.needs & {each.name for each in self._unfinished()}:
                continue
            elif self._lock(run):
                self._begin(run)
            else:
                continue
            moved = True
        return moved

    def _begin(self, run: Run) -> None:
        restore_folder(run.results)
        try:
            parts = run.parts()
            if not self.force and state(run, parts)[0] == "current":
                self._end(Outcome(run, "current"))
                return
            self.children[run.name] = Child(run, parts, self.threads, self.timeout)
            self.waiting.remove(run)
        except (OSError, ValueError) as error:
            self._end(Outcome(run, "failed", str(error)))

    def _end(self, outcome: Outcome) -> None:
        name = outcome.run.name
        if outcome.run in self.waiting:
            self.waiting.remove(outcome.run)
        if name in self.locks:
            self.locks.pop(name).release()
        self.outcomes[name] = outcome
        self.report(self._line(outcome))

    def _unfinished(self) -> list[Run]:
        return [run for run in self.runs if run.name not in self.outcomes]

    def _lock(self, run: Run) -> bool:
        """Own the run's name; the system frees the lock of a process that dies, so none is left behind."""
        folder = self.project / "build" / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{run.name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if run.name not in self.told:
                self.told.add(run.name)
                marks = [path.name.rpartition(".")[2] for path in folder.glob(f"{run.name}.*-*")]
                owners = [mark.partition("-")[0] for mark in marks if is_alive(mark)]
                self.report(
                    f"waiting  {run.name}  is being run by process {', '.join(owners) or '(just started)'}"
                )
            return False
        self.locks[run.name] = lock
        return True

    def _line(self, outcome: Outcome) -> str:
        run, count = outcome.run, len(self.runs)
        number = f"[{len(self.outcomes):>{len(str(count))}}/{count}] " if count > 1 else ""
        head = f"{number}{outcome.status:<8} {run.name}"
        if outcome.status == "current":
            return f"{head} (nothing to do; --force runs it again)"
        if outcome.status == "skipped":
            return f"{head} ({outcome.message})"
        if outcome.status == "done":
            left = self._seconds_left()
            return f"{head}  {duration(outcome.seconds)}" + (f", {duration(left)} left" if left >= 1 else "")
        lines = outcome.message.splitlines() or ["unknown reason"]
        if len(lines) > MESSAGE_LINES:
            lines = [*lines[:MESSAGE_LINES], f"... and {len(lines) - MESSAGE_LINES} lines more"]
        see = f"   see {run.failed.relative_to(self.project).as_posix()}" if run.failed.exists() else ""
        first, *rest = lines
        return "\n    ".join([f"{head}  after {duration(outcome.seconds)}: {first}", *rest]) + see

    def _seconds_left(self) -> float:
        """Estimate from past durations; an unknown run counts as the median of the known ones."""
        left = self._unfinished()
        known = [self.durations.known[run.name] for run in self.runs if run.name in self.durations.known]
        if not left or not known:
            return 0.0
        typical = statistics.median(known)
        total = sum(self.durations.known.get(run.name, typical) for run in left)
        total -= sum(
            min(child.seconds, self.durations.known.get(n, typical)) for n, child in self.children.items()
        )
        return total / self.jobs


def duration(seconds: float) -> str:
    """`41 s`, `2 min`, `1 h 20 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Durations:
    """Seconds each run took last, in build/cache/durations.json; losing it costs the estimate only."""

    def __init__(self, project: Path):
        self.file = project / "build" / "cache" / "durations.json"
        self.known: dict[str, float] = {}
        self._read()

    def _read(self) -> None:
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
            self.known |= {name: float(seconds) for name, seconds in known.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return

    def add(self, name: str, seconds: float) -> None:
        """Remember one duration."""
        self._read()
        self.known[name] = round(seconds, 1)
        try:
            write_atomic(self.file, json.dumps(self.known, indent=1, sort_keys=True))
        except OSError as error:
            print(f"{self.file}: {error.strerror}", file=sys.stderr)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that fills when SIGINT or SIGTERM comes, so that no file operation is cut in two; a second
    signal acts at once."""
    came: list[int] = []
    old = {}

    def note(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(number, signal.default_int_handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: signals go to somebody else
        pass
    try:
        yield came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
