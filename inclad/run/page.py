"""A run becomes a page: today's prose, the outputs of the run, and how to make it again."""

import json
import re
import shutil
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from inclad.files import write_atomic
from inclad.run.parameters import declared
from inclad.run.plan import Run, executed_mark, read_notebook
from inclad.run.safe import html_problems, markdown_problems, output_problems, widget_problems

WIDGETS = "application/vnd.jupyter.widget-state+json"
COPIED = (".png", ".svg", ".md")


def publish(run: Run, title: str = "") -> bool:
    """Write book/runs/<run>.ipynb and copy the run's pictures beside it; whether anything changed.

    `title` is put behind the heading. The run must be current. Raises ValueError with everything on the page
    that must not be published, each with notebook and cell.
    """
    text = nbformat.writes(page(run, title)) + "\n"
    folder = run.project / "book" / "runs"
    wanted = {path.name: path for path in sorted(run.results.iterdir()) if path.suffix in COPIED}
    problems = []
    for name, path in wanted.items():
        if path.suffix != ".png":
            check = markdown_problems if path.suffix == ".md" else html_problems
            found = check(path.read_text(encoding="utf-8"))
            problems += [f"build/results/{run.name}/{name}: {problem}" for problem in found]
    if problems:
        raise ValueError("\n".join(problems))
    changed = _write(folder / f"{run.name}.ipynb", text.encode())
    for path in (folder / run.name).glob("*"):
        if path.name not in wanted:
            path.unlink()
            changed = True
    for name, path in wanted.items():
        changed |= _write(folder / run.name / name, path.read_bytes())
    return changed


def _write(path: Path, content: bytes) -> bool:
    """Write what differs only: Sphinx looks at times."""
    if path.is_file() and path.read_bytes() == content:
        return False
    write_atomic(path, content)
    return True


def withdraw(project: Path, names: set[str]) -> bool:
    """Remove the pages of runs that are not in `names`; whether there were any."""
    old = [
        path
        for path in (project / "book" / "runs").glob("*")
        if path.name.removesuffix(".ipynb") not in names
    ]
    for path in old:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return bool(old)


def page(run: Run, title: str = "") -> nbformat.NotebookNode:
    """The page as a notebook; see `publish`."""
    template, executed = read_notebook(run.template), read_notebook(run.executed)
    where = run.template.relative_to(run.project).as_posix()
    done = [cell for cell in executed.cells if cell.cell_type == "code"]
    done = iter([cell for cell in done if "injected-parameters" not in cell.metadata.get("tags", [])])
    labels = _labels(template)
    problems: list[str] = []
    cells = []
    for number, cell in enumerate(template.cells, start=1):
        if cell.cell_type == "code":
            new, found = _code_cell(cell, next(done, None), run, where, labels)
            new.execution_count = sum(each.cell_type == "code" for each in cells) + 1
            cells += _one_picture_a_cell(new)
        else:
            cells.append(new_markdown_cell(_prose(cell.source, labels, run.name), metadata=cell.metadata))
            found = markdown_problems(cell.source)
        problems += [f"{where} ({run.name}), cell {number}: {problem}" for problem in found]
    for cell in cells:
        if title and cell.cell_type == "markdown" and re.search(r"^# ", cell.source, re.M):
            cell.source = re.sub(
                r"^# (.*)$", lambda m: f"# {m[1].rstrip()}: {title}", cell.source, count=1, flags=re.M
            )
            break
    cells.append(new_markdown_cell(_colophon(run)))
    for number, cell in enumerate(cells):
        cell["id"] = f"{run.name[-55:].strip('-')}-{number:03d}"
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    widgets = executed.metadata.get("widgets", {}).get(WIDGETS)
    if widgets:
        problems += [f"{where} ({run.name}), widgets: {problem}" for problem in widget_problems(widgets)]
        metadata["widgets"] = {WIDGETS: _clean(widgets, run)}
    if problems:
        raise ValueError("\n".join(problems))
    return new_notebook(cells=cells, metadata=metadata)


def _code_cell(
    cell: nbformat.NotebookNode, done: nbformat.NotebookNode | None, run: Run, where: str, labels: set[str]
) -> tuple[nbformat.NotebookNode, list[str]]:
    """The template's cell with the outputs of the run, and what is wrong with those."""
    if done is None or cell.source != done.source:
        raise ValueError(f"{where}: code differs from what was executed as {run.name} (run it again)")
    metadata = json.loads(json.dumps(cell.metadata))
    tags = metadata.get("tags", [])
    source = cell.source
    if "parameters" in tags:
        known = declared(nbformat.from_dict({"cells": [cell]}), where)
        source = "\n".join(parameter.line(run.parameters[name]) for name, parameter in known.items())
    problems = [problem for output in done.outputs for problem in output_problems(output)]
    outputs = [nbformat.from_dict(_clean(output, run)) for output in done.outputs]
    for output in outputs:
        if "execution_count" in output:
            output["execution_count"] = None
    figure = metadata.get("mystnb", {}).get("figure", {})
    if "name" in figure:
        figure["name"] = f"{figure['name']}-{run.name}"
    if "caption" in figure:
        figure["caption"] = _prose(figure["caption"], labels, run.name)
    return new_code_cell(source, metadata=metadata, outputs=outputs), problems


def _one_picture_a_cell(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cell, and a cell without code for each further picture: MyST-NB takes the alt text of a picture from
    the metadata of its cell, where there is room for one."""
    groups: list[list] = [[]]
    for output in cell.outputs:
        if _alt(output) and any(_alt(each) for each in groups[-1]):
            groups.append([])
        groups[-1].append(output)
    cells = []
    for number, outputs in enumerate(groups):
        if number:
            # MyST-NB leaves out a cell without source, and its outputs with it.
            new = new_code_cell("# the next picture", metadata={"tags": ["remove-input"]}, outputs=outputs)
        else:
            new = cell
            new.outputs = outputs
        if alt := next((_alt(output) for output in outputs if _alt(output)), None):
            new.metadata.setdefault("mystnb", {}).setdefault("image", {})["alt"] = alt
        cells.append(new)
    return cells


def _alt(output: nbformat.NotebookNode) -> str:
    kinds = ("image/png", "image/jpeg", "image/svg+xml")
    found = [output.get("metadata", {}).get(kind, {}).get("alt") for kind in kinds]
    return next((alt for alt in found if alt), "")


_DEFINED = (
    r"^\(([\w.-]+)\)=[ \t]*$",
    r"^[ \t]*:(?:name|label):[ \t]*([\w.-]+)[ \t]*$",
    r"\$\$[ \t]*\(([\w.-]+)\)",
)


def _labels(template: nbformat.NotebookNode) -> set[str]:
    """The labels a notebook defines: each of its pages needs its own."""
    found = set()
    for cell in template.cells:
        if cell.cell_type == "markdown":
            found |= {label for pattern in _DEFINED for label in re.findall(pattern, cell.source, re.M)}
        else:
            found.add(cell.metadata.get("mystnb", {}).get("figure", {}).get("name", ""))
    return found - {""}


def _prose(text: str, labels: set[str], suffix: str) -> str:
    """Markdown with the suffix on its own labels, and with links that start at book/runs/, not notebooks/."""
    before = r"(^\(|\]\(#?|\}`|<|:name:[ \t]*|:label:[ \t]*|\$\$[ \t]*\()"
    for label in labels:
        text = re.sub(
            rf"{before}{re.escape(label)}(?=\)|`|>`|[ \t]*$)", rf"\g<1>{label}-{suffix}", text, flags=re.M
        )
    return re.sub(r"(\]\(|\} ?)\.\./book/", r"\1../", text)


def _clean(value: object, run: Run) -> object:
    """Outputs without the paths of the machine they were made on; pictures and other base64 data are left."""
    if isinstance(value, dict):
        return {
            name: each if str(name) in ("image/png", "image/jpeg", "buffers") else _clean(each, run)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_clean(each, run) for each in value]
    if not isinstance(value, str):
        return value
    value = re.sub(rf"build/tmp/{re.escape(run.name)}\.\d+-\d+/results", f"build/results/{run.name}", value)
    value = (
        value.replace(f"{run.project}/", "").replace(str(run.project), ".").replace(sys.prefix, "<python>")
    )
    value = re.sub(r"/tmp/ipykernel_\d+/", "", value)
    if len(Path.home().parts) > 1:
        value = re.sub(rf"(?<![\w.-]){re.escape(str(Path.home()))}(?![\w.-])", "~", value)
    return re.sub(r"(?:/home|/Users|[A-Za-z]:\\+Users)[/\\]+[^/\\\s\"'<>&]+", "~", value)


def _colophon(run: Run) -> str:
    """How this page was made, and the one command that repeats it."""
    mark = executed_mark(run.executed)
    info = json.loads((run.results / "run.json").read_text(encoding="utf-8"))
    seconds = info.get("seconds", mark.get("seconds"))
    lines = [f"- {seconds:.0f} s" + (f" on {_plain(info['device'])}" if info.get("device") else "")]
    if info.get("peak_memory_mib"):
        lines[0] += f", {info['peak_memory_mib']:.0f} MiB of memory"
    weights = info.get("weights") or []
    for each in weights if isinstance(weights, list) else [weights]:
        words = [f"`{_plain(each[name])[:80]}`" for name in ("model", "source") if each.get(name)]
        words += [f"sha256 `{_plain(each['sha256'])[:16]}`"] if each.get("sha256") else []
        lines.append(f"- backbone weights: {', '.join(words)}")
    kept = {n.removeprefix("versions: "): v for n, v in mark["parts"].items() if n.startswith("versions: ")}
    kept.pop("kernel", None)
    names = ["python", *sorted(set(kept) - {"python"})]
    lines.append(f"- versions: {', '.join(f'{name} {_plain(kept[name])}' for name in names)}")
    command = f"```bash\n.venv/bin/{_clean(run.command, run)}\n```"
    body = "\n".join([*lines, "- repeat it:", "", command])
    return f"````{{admonition}} How this page was made\n:class: seealso dropdown\n{body}\n````"


def _plain(value: object) -> str:
    return re.sub(r"[`\n<>\[\]{}|]", " ", str(value)).strip()
