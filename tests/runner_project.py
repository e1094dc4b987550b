"""A small project in a temporary folder: its own package, notebooks that take a second, the real runner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from inclad.run.plan import Run, read_notebook, results_digest

REPOSITORY = Path(__file__).parents[1]

PARAMETERS = """\
size: int = 3  # how many numbers
word: str = "a"
source: str = ""  # a file or a folder
results: str = "build/results/tiny"
"""
WORK = """\
import inclad.outer
from pathlib import Path
print(inclad.outer.answer() + size)
"""
FINISH = """\
from pathlib import Path
import json
folder = Path(results)
folder.mkdir(parents=True)
(folder / "table.csv").write_text(f"size,word\\n{size},{word}\\n")
info = {"parameters": {"results": results, "size": size}, "seconds": 1.0}
(folder / "run.json").write_text(json.dumps(info))
"""


def notebook(*code: str, parameters: str = PARAMETERS, finish: str = FINISH) -> nbformat.NotebookNode:
    """A notebook of a heading, the parameters cell, some code and the cell that writes the results."""
    cells = [
        new_markdown_cell("# A tiny notebook\n\nIt counts."),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *map(new_code_cell, code or (WORK,)),
        new_code_cell(finish),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


class Project:
    """The folder, and the command `inclad` in it."""

    def __init__(self, root: Path):
        self.root = root
        self.write("_toc.yml", "root: book/index\n")
        self.write("inclad/__init__.py", "")
        self.write(
            "inclad/outer.py", "from inclad import inner\n\ndef answer():\n    return inner.number()\n"
        )
        self.write("inclad/inner.py", "def number():\n    return 40\n")
        self.write("inclad/unused.py", "")
        self.notebook("tiny", notebook())

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def notebook(self, name: str, content: nbformat.NotebookNode) -> None:
        (self.root / "notebooks").mkdir(exist_ok=True)
        nbformat.write(content, self.root / "notebooks" / f"{name}.ipynb")

    def start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "inclad.cli", *words],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess:
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def files(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.root / folder).glob("*"))


def pretend(run: Run, *outputs: list[dict], results: dict[str, str] | None = None, **info: object) -> None:
    """Leave what a complete run leaves, without a kernel; `outputs` of the code cells in order."""
    template = read_notebook(run.template)
    given = iter(outputs)
    cells = [cell for cell in template.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs = [nbformat.from_dict(output) for output in next(given, [])]
    run.results.mkdir(parents=True, exist_ok=True)
    info = {"seconds": 2.0, "device": "cpu"} | info
    for name, text in ({"run.json": json.dumps(info)} | (results or {})).items():
        (run.results / name).write_text(text)
    template.metadata["inclad"] = {
        "notebook": run.notebook,
        "params": run.params,
        "settings": list(run.settings),
        "parts": run.parts(),
        "results": results_digest(run.results),
    }
    run.executed.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(template, run.executed)
