"""Executes one run in a process of its own, so that it can be killed whole and can fail without harm.

The child (`python -m inclad.run.notebook JOB.json`) works in build/tmp/<run>.<pid>-<start>/ only. The parent
looks at what is there when the child has ended and renames a complete run into place: results first, the
executed notebook with its key last, as that is the proof.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import nbformat

from inclad.files import publish_folder, write_atomic
from inclad.run.key import KERNEL, key
from inclad.run.plan import Run, read_notebook, results_digest
from inclad.run.processes import kill_tree, process_mark

START_TIMEOUT = 120
MESSAGE_LINES = 30


@dataclass
class Outcome:
    """How a run ended: `done`, `current`, `failed` or `skipped`; `message` says why."""

    run: Run
    status: str
    message: str = ""
    seconds: float = 0.0


class Child:
    """A run being executed. Once `poll` says that the process has ended, `finish` publishes or buries it."""

    def __init__(self, run: Run, parts: dict[str, str], threads: int, timeout: float | None):
        self.run, self.parts, self.threads, self.timeout = run, parts, threads, timeout
        self.attempt = 1
        self.killed = ""
        self.folder = run.project / "build" / "tmp" / f"{run.name}.{process_mark(os.getpid())}"
        self.started = time.monotonic()
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        template = read_notebook(self.run.template)
        # An author's machine may have left another kernel's name; ours is the only one.
        template.metadata["kernelspec"] = {"name": KERNEL, "display_name": "Python 3", "language": "python"}
        nbformat.write(template, self.folder / "in.ipynb")
        # Short, private and outside the project: socket names must fit in about 100 characters.
        self.sockets = Path(tempfile.mkdtemp(prefix="inclad-"))
        results = (self.folder / "results").relative_to(self.run.project).as_posix()
        job = {
            "project": str(self.run.project),
            "sockets": str(self.sockets),
            "parameters": self.run.parameters | {"results": results},
        }
        (self.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "inclad.run.notebook", str(self.folder / "job.json")],
                stdin=subprocess.PIPE,  # closed when this process dies, however it does: the child then ends
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.run.project,
                env=child_environment(self.threads),
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def poll(self) -> int | None:
        """The exit status once the process has ended; kills it when its time is over."""
        if self.timeout and self.seconds > self.timeout and not self.killed:
            self.kill(f"over its time limit of {self.timeout:g} s")
        return self.process.poll()

    def kill(self, reason: str) -> None:
        """End the process, its kernel and all their children at once."""
        self.killed = reason
        kill_tree(self.process.pid)
        self.process.wait()

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def finish(self) -> Outcome | None:
        """Publish a complete run or keep a failed one for inspection; None when it was started once more."""
        self.process.stdin.close()
        problem = self._problem()
        if problem and problem.get("retry") and self.attempt == 1 and not self.killed:
            self.attempt += 1
            self.discard()
            self._start()
            return None
        try:
            if problem is None:
                self._publish()
                return Outcome(self.run, "done", "", self.seconds)
            self._bury(problem)
            return Outcome(self.run, "failed", problem["message"], self.seconds)
        except OSError as error:
            return Outcome(self.run, "failed", f"{type(error).__name__}: {error}", self.seconds)
        finally:
            self.discard()

    def _problem(self) -> dict | None:
        """Why this run must not be believed; None when all the evidence of a complete one is there."""
        if self.killed:
            return {"message": self.killed}
        try:
            problem = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {
                "message": f"process ended without a word (status {self.process.returncode}; out of memory?)"
            }
        if problem["message"]:
            return problem
        try:
            notebook = read_notebook(self.folder / "out.ipynb")
            run_info = json.loads(
                (self.folder / "results" / "run.json").read_text("utf-8"), parse_constant=_refuse
            )
            if not isinstance(run_info, dict):
                raise ValueError("not a mapping")
        except FileNotFoundError:
            return {
                "message": "wrote no results (the last cell must write run.json into the folder `results`)"
            }
        except (OSError, ValueError) as error:
            return {"message": f"wrote no valid run.json ({error})"}
        pending = [cell for cell in notebook.cells if cell.cell_type == "code" and not _completed(cell)]
        return {"message": "not all cells were executed"} if pending else None

    def _publish(self) -> None:
        results, run_json = self.folder / "results", self.folder / "results" / "run.json"
        # The folder it was written to is gone after the rename: say where it is now.
        text = run_json.read_text(encoding="utf-8")
        temporary = results.relative_to(self.run.project).as_posix()
        write_atomic(
            run_json, text.replace(temporary, self.run.results.relative_to(self.run.project).as_posix())
        )
        notebook = self._marked({"results": results_digest(results)})
        publish_folder(results, self.run.results)
        write_atomic(self.run.executed, notebook)
        for old in (self.run.failed, self.run.failed.with_suffix(".log")):
            old.unlink(missing_ok=True)

    def _bury(self, problem: dict) -> None:
        self.run.failed.parent.mkdir(parents=True, exist_ok=True)
        log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        text = f"{problem['message']}\n\n{problem.get('traceback', '')}\n{log}"
        write_atomic(self.run.failed.with_suffix(".log"), _plain(text))
        for candidate in ("out.ipynb", "in.ipynb"):
            if (self.folder / candidate).is_file():
                try:
                    write_atomic(self.run.failed, self._marked({"error": problem["message"]}, candidate))
                    return
                except ValueError:  # killed while it was being written
                    continue

    def _marked(self, extra: dict, source: str = "out.ipynb") -> str:
        """The notebook's text with what `inclad status` needs in its metadata."""
        notebook = read_notebook(self.folder / source)
        notebook.metadata.pop("papermill", None)
        notebook.metadata["inclad"] = {
            "notebook": self.run.notebook,
            "params": self.run.params,
            "settings": list(self.run.settings),
            "key": key(self.parts),
            "parts": self.parts,
            "seconds": round(self.seconds, 1),
            **extra,
        }
        return nbformat.writes(notebook) + "\n"


def _completed(cell: nbformat.NotebookNode) -> bool:
    # papermill also says `completed` of cells it never reached; `exception` is then neither true nor false
    return cell.metadata.get("papermill", {}).get("exception") is False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _fewer(asked: str, threads: int) -> int:
    """The number a user set, where it is smaller: the machine may be shared."""
    return min(int(asked), threads) if asked.isdecimal() and int(asked) > 0 else threads


def child_environment(threads: int) -> dict[str, str]:
    """The environment of a run: its share of the cores, and an allocator that keeps large buffers.

    The default allocator gives every large buffer back to the system and pays page faults for it again;
    keeping them makes a network's forward pass on CPUs two to four times faster. These variables act only
    when a process starts.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    share = {name: str(_fewer(os.environ.get(name, ""), threads)) for name in THREADS}
    return os.environ | share | {
        "THP_MEM_ALLOC_ENABLE": "1",
        "MALLOC_TOP_PAD_": str(256 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(4 * 2**30),
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "TQDM_DISABLE": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": package_root,
    }  # fmt: skip


# --- the child ---------------------------------------------------------------------------------------------


def main(job_file: str) -> None:
    """Execute one job and write outcome.json beside it; `message` is empty when no cell failed."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    outcome = {"message": ""}
    try:
        _execute(folder, job)
    except BaseException as error:
        outcome = _explain(error, folder)
    write_atomic(folder / "outcome.json", json.dumps(outcome))


def _die_with_parent() -> None:
    while os.read(0, 1024):
        pass
    kill_tree(os.getpid(), itself=False)
    os.kill(os.getpid(), signal.SIGKILL)


def _execute(folder: Path, job: dict) -> None:
    import papermill
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(KernelSpecManager):
        """The kernel of this environment, whatever kernels a user has installed under the same name."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(**get_kernel_dict())

    os.environ["PYTHONPATH"] = job["project"]
    manager = AsyncKernelManager(
        kernel_name=KERNEL,
        transport="ipc",  # no TCP ports: none to collide on, none open to others
        connection_file=str(Path(job["sockets"]) / "kernel.json"),
        kernel_spec_manager=ThisPython(),
    )
    # papermill formats its paths with str.format, so braces in a folder's name are doubled.
    source, target = (
        str(folder / name).replace("{", "{{").replace("}", "}}") for name in ("in.ipynb", "out.ipynb")
    )
    papermill.execute_notebook(
        source,
        target,
        job["parameters"],
        kernel_name=KERNEL,
        language="python",
        km=manager,
        progress_bar=False,
        cwd=job["project"],
        start_timeout=START_TIMEOUT,
    )


def _explain(error: BaseException, folder: Path) -> dict:
    """What to tell: the message of the cell's error as it is, else the name of what went wrong outside."""
    trace = "".join(traceback.format_exception(error))
    if hasattr(error, "ename"):
        text = f"{error.ename}: {error.evalue}" if error.evalue else error.ename
        return {"message": _plain(text).strip(), "traceback": _plain("\n".join(error.traceback))}
    began = False
    try:
        cells = read_notebook(folder / "out.ipynb").cells
        began = any(cell.metadata.get("papermill", {}).get("start_time") for cell in cells)
    except ValueError:
        pass
    if type(error).__name__ == "DeadKernelError" and began:
        text = "the kernel was killed (out of memory?)"
    else:
        text = f"{type(error).__name__}: {error}".strip()
    return {"message": text, "traceback": trace, "retry": not began and isinstance(error, Exception)}


if __name__ == "__main__":
    main(sys.argv[1])
