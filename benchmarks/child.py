"""One row, or the scaling, in a process of its own: `python -m benchmarks.child JOB.json`."""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.rows import ROWS
from benchmarks.scaling import measure


def main(job_file: str) -> None:
    """Run the sides of a row in turn, `repeats` times; answers and the fastest seconds into the job's folder."""
    job = json.loads(Path(job_file).read_text())
    folder, quick = Path(job["folder"]), job["quick"]
    if job["row"] == "scaling":
        (folder / "scaling.json").write_text(json.dumps(measure(folder, quick)))
        return
    row = next(row for row in ROWS if row.name == job["row"])(folder, quick)
    row.prepare()
    seconds: dict[str, float] = {}
    for repeat in range(1 if quick else row.repeats):
        for side in job["sides"]:
            started = time.perf_counter()
            answer = getattr(row, side)()
            taken = time.perf_counter() - started
            if answer is None:
                continue
            seconds[side] = min(taken, seconds.get(side, taken))
            if repeat == 0:
                np.savez(folder / f"{side}.npz", **answer)
    if "ours" in job["sides"]:
        unit = 2**20 if sys.platform == "darwin" else 2**10  # Linux counts in KiB, macOS in bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit / 1024
        (folder / "extra.json").write_text(json.dumps({"peak_gib": peak} | row.extra()))
    for side, taken in seconds.items():
        (folder / f"{side}.json").write_text(json.dumps(taken))


if __name__ == "__main__":
    main(sys.argv[1])
