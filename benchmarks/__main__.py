"""Run the benchmarks and write benchmarks/results.csv and scaling.csv: `make bench`, `make bench ONLY=name`."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.rows import ROWS, Row
from inclad.backbones import ALLOCATOR
from inclad.files import write_atomic
from inclad.run.notebook import child_environment

COLUMNS = ["name", "ours_s", "plain_s", "ratio", "target", "holds", "size", "machine"]
LIMIT_S = 3600  # of one child; on a quiet machine with two cores none takes three minutes


def main() -> int:
    """Measure, print a line a row, write the tables; the exit status is 1 when the two sides of a row differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", default="", help="rows whose name contains this; `scaling` for scaling.csv")
    parser.add_argument("--quick", action="store_true", help="small sizes: do the two sides agree?")
    parser.add_argument("--out", default=str(Path(__file__).parent), help="folder of the two tables")
    chosen = parser.parse_args()
    names = [row.name for row in ROWS] + ["scaling"]
    wanted = [name for name in names if chosen.only.lower() in name.lower()]
    if not wanted:
        print(f"no benchmark is called {chosen.only!r} (there are: {', '.join(names)})", file=sys.stderr)
        return 1
    if chosen.quick and chosen.out == str(Path(__file__).parent):
        chosen.out = str(Path(__file__).parents[1] / "build" / "benchmarks")
    folder = Path(chosen.out)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if chosen.quick:
        threads = 1  # small steps gain nothing by a second thread, and on a busy machine they wait for it
    where = machine(threads)
    print(where)
    failed = False
    scratch = Path(tempfile.mkdtemp(prefix="inclad-bench-"))
    try:
        for name in wanted:
            try:
                failed |= not measure(name, scratch, chosen.quick, threads, folder, where)
            except RuntimeError as error:
                print(error, file=sys.stderr)
                failed = True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return int(failed)


def measure(name: str, scratch: Path, quick: bool, threads: int, folder: Path, where: str) -> bool:
    """One benchmark into its table in `folder`, and its line printed; False when the two sides differ."""
    if name == "scaling":
        # One thread: how time grows should not depend on who else is on the machine.
        _child({"row": name, "folder": str(scratch), "quick": quick}, 1)
        rows = json.loads((scratch / "scaling.json").read_text())
        table = pd.DataFrame(rows).assign(machine=machine(1))
        write_atomic(folder / "scaling.csv", table.to_csv(index=False, lineterminator="\n"))
        print(f"{name}: {len(table)} points", flush=True)
        return True
    kind = next(row for row in ROWS if row.name == name)
    row, sound = compare(kind(scratch, quick), threads)
    print(line(row), flush=True)
    merge(folder / "results.csv", row | {"machine": where})
    return sound


def compare(row: Row, threads: int) -> tuple[dict, bool]:
    """The row's line of results.csv, and whether the two sides agree."""
    for stale in ("ours", "plain"):
        for suffix in (".npz", ".json"):
            (row.folder / f"{stale}{suffix}").unlink(missing_ok=True)
    job = {"row": row.name, "folder": str(row.folder), "quick": row.quick}
    if row.default_allocator:
        _child(job | {"sides": ["ours"]}, threads)
        _child(job | {"sides": ["plain"]}, threads, default_allocator=True)
    else:
        _child(job | {"sides": ["ours", "plain"]}, threads)
    ours, seconds = _answer(row.folder, "ours")
    plain, plain_seconds = _answer(row.folder, "plain")
    extra = json.loads((row.folder / "extra.json").read_text())
    checks = row.checks(ours, plain, extra)
    sound = all(checks.values())
    value = extra["peak_gib"] if row.at_most else plain_seconds / seconds
    reached = row.target is None or (value <= row.target if row.at_most else value >= row.target)
    told = "; ".join([row.about(), *checks])
    found = {
        "name": row.name,
        "ours_s": float(f"{seconds:.4g}"),
        "plain_s": float(f"{plain_seconds:.4g}"),
        "ratio": float(f"{value:.4g}"),
        "target": "" if row.target is None else f"{'<=' if row.at_most else '>='} {row.target:g}",
        "holds": "" if row.target is None else bool(reached and sound),
        "size": told,
    }
    return found, sound


def _child(job: dict, threads: int, default_allocator: bool = False) -> None:
    """Run a job in a process with the environment of a run; without its allocator settings where asked."""
    environment = child_environment(threads)
    if default_allocator:
        environment = {name: value for name, value in environment.items() if name not in ALLOCATOR}
    file = Path(job["folder"]) / "job.json"
    file.write_text(json.dumps(job))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "benchmarks.child", str(file)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{job['row']}: not done after {LIMIT_S} s") from None
    if done.returncode:
        last = done.stdout.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise RuntimeError(f"{job['row']}: failed: {last[0]}\n{done.stdout}")


def _answer(folder: Path, side: str) -> tuple[dict[str, np.ndarray] | None, float]:
    if not (folder / f"{side}.json").is_file():
        return None, float("nan")
    with np.load(folder / f"{side}.npz", allow_pickle=False) as arrays:
        return dict(arrays), json.loads((folder / f"{side}.json").read_text())


def merge(path: Path, row: dict) -> None:
    """Put a row into the table at `path`, in place of an older one of its name; written whole."""
    old = pd.read_csv(path, keep_default_na=False, dtype=str) if path.is_file() else pd.DataFrame()
    rows = {each["name"]: each for each in old.to_dict("records")}
    rows[row["name"]] = {name: "" if value != value else value for name, value in row.items()}
    order = [kind.name for kind in ROWS]
    listed = sorted(
        rows.values(), key=lambda each: order.index(each["name"]) if each["name"] in order else 99
    )
    write_atomic(path, pd.DataFrame(listed, columns=COLUMNS).to_csv(index=False, lineterminator="\n"))


def line(row: dict) -> str:
    """One row for people."""
    kept = {True: "holds", False: "MISSED", "": "no target"}[row["holds"]]
    return (
        f"{row['name']:<26} {row['ours_s']:>9} s  plain {row['plain_s']:>9} s  ratio {row['ratio']:>7} "
        f"{row['target']:>7} {kept:<9} {row['size']}"
    )


def machine(threads: int) -> str:
    """CPU model, cores, threads and torch version; nothing that names a host or a person."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = [row.split(":", 1)[1].strip() for row in info.read_text().splitlines() if "model name" in row]
        model = found[0] if found else model
    return f"{model}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
