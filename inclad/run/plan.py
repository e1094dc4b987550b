"""What is to be run: a notebook with its parameters, its name, its files, and whether it is current."""

import hashlib
import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from inclad.run.key import differences, key_parts, needed_run, texts
from inclad.run.parameters import (
    ParameterError,
    declared,
    parse_settings,
    read_parameters,
    read_yaml,
    resolve,
    to_json,
)

NAME = re.compile(r"[a-z][a-z0-9_-]{0,99}")
BOOK = "params/book.yml"


@dataclass(frozen=True)
class Run:
    """One notebook with resolved parameters. `params` and `settings` are where those came from."""

    project: Path
    notebook: str
    name: str
    parameters: dict[str, object] = field(hash=False)
    params: str = ""
    settings: tuple[str, ...] = ()
    title: str = ""

    @property
    def template(self) -> Path:
        return self.project / "notebooks" / f"{self.notebook}.ipynb"

    @property
    def executed(self) -> Path:
        return self.project / "build" / "executed" / f"{self.name}.ipynb"

    @property
    def results(self) -> Path:
        return self.project / "build" / "results" / self.name

    @property
    def failed(self) -> Path:
        return self.project / "build" / "failed" / f"{self.name}.ipynb"

    @property
    def needs(self) -> set[str]:
        """Names of the runs whose results its parameters name."""
        found = {needed_run(text) for text in texts(self.parameters, skip="results")}
        return {name for name in found if name and name != self.name}

    @property
    def command(self) -> str:
        """The one command that makes this run."""
        words = ["inclad", "run", self.notebook]
        words += ["--params", self.params] if self.params else []
        words += [word for setting in self.settings for word in ("--set", setting)]
        words += (
            ["--name", self.name]
            if self.name != default_name(self.notebook, self.params, self.settings)
            else []
        )
        return shlex.join(words)

    def parts(self) -> dict[str, str]:
        """The parts of its key as things stand now."""
        where = self.template.relative_to(self.project).as_posix()
        return key_parts(read_notebook(self.template), where, self.parameters, self.project)


def plan(
    project: Path, notebook: str, params: str = "", settings: list[str] = (), name: str = "", title: str = ""
) -> Run:
    """A run from the words of the command line or of params/book.yml; `params` is a path.

    Raises ValueError, one line a problem, before anything is executed.
    """
    template = template_path(project, notebook)
    known = declared(read_notebook(template), template.relative_to(project).as_posix())
    given, shown = {}, ""
    if params:
        path = project / params if (project / params).exists() else Path(params)
        path = path.resolve()
        shown = path.relative_to(project).as_posix() if path.is_relative_to(project) else str(path)
        given = read_parameters(path, shown)
        resolve(known, given, shown)
    given |= parse_settings(known, list(settings))
    name = name or default_name(notebook, shown, settings)
    _check_name("run", name)
    parameters = resolve(known, given, shown or notebook) | {"results": f"build/results/{name}"}
    return Run(project, notebook, name, parameters, shown, tuple(settings), title)


def default_name(notebook: str, params: str, settings: list[str] | tuple[str, ...]) -> str:
    """`<notebook>--<stem of the parameter file>`, with six digits that stand for overrides."""
    stem = Path(params).stem if params else "default"
    digits = "-" + hashlib.sha256(to_json(sorted(settings)).encode()).hexdigest()[:6] if settings else ""
    return f"{notebook}--{stem}{digits}"


def template_path(project: Path, notebook: str) -> Path:
    """notebooks/<name>.ipynb; a ValueError that lists the notebooks when there is none of that name."""
    _check_name("notebook", notebook)
    path = project / "notebooks" / f"{notebook}.ipynb"
    if not path.is_file():
        raise ValueError(f"no notebook {notebook!r} (known: {', '.join(notebooks(project)) or 'none'})")
    return path


def _check_name(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{what} name {name!r}: use a-z, 0-9, _ and -, a letter first, 100 characters at most"
        )


def notebooks(project: Path) -> list[str]:
    """Names of the notebooks, sorted."""
    return sorted(path.stem for path in (project / "notebooks").glob("*.ipynb"))


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook file in format 4; ValueError naming the file when it is none."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such notebook") from None
    except Exception as error:  # nbformat raises its own kinds, json's and AttributeErrors
        raise ValueError(f"{path}: not a notebook ({str(error).splitlines()[0][:120]})") from None


def book_runs(project: Path) -> list[Run]:
    """The runs of params/book.yml in order: `notebook`, and optionally `params`, `name`, `title`, `set`.

    Raises ParameterError with all problems of all entries.
    """
    if not (project / BOOK).is_file():
        raise ParameterError(BOOK, ["no such file (it lists the book's runs)"])
    entries = read_yaml(project / BOOK, BOOK) or []
    if not isinstance(entries, list):
        raise ParameterError(BOOK, ["expected a list of runs, each '- notebook: ...'"])
    runs: list[Run] = []
    problems: list[str] = []
    for number, entry in enumerate(entries, start=1):
        try:
            run = _book_run(project, entry)
            if run.name in {each.name for each in runs}:
                raise ValueError(f"the name {run.name!r} is used twice (give one of them a name:)")
            runs.append(run)
        except ValueError as error:
            problems += [f"run {number}: {line}" for line in str(error).splitlines()]
    if problems:
        raise ParameterError(BOOK, problems)
    return runs


def _book_run(project: Path, entry: object) -> Run:
    if not isinstance(entry, dict) or "notebook" not in entry:
        raise ValueError("expected a mapping with at least 'notebook'")
    settings = entry.get("set", {})
    if not isinstance(settings, dict):
        raise ValueError("set: expected a mapping of parameters")
    for name, value in entry.items():
        if name not in ("notebook", "params", "name", "title", "set"):
            raise ValueError(f"unknown key {name!r} (known: notebook, params, name, title, set)")
        if name != "set" and not isinstance(value, str):
            raise ValueError(f"{name}: expected text, got {value!r}")
    words = [
        f"{name}={value if isinstance(value, str) else to_json(value)}" for name, value in settings.items()
    ]
    texts_of = {name: entry.get(name, "") for name in ("params", "name", "title")}
    return plan(project, entry["notebook"], settings=words, **texts_of)


def state(run: Run, parts: dict[str, str] | None = None) -> tuple[str, str]:
    """(`current` | `stale` | `missing` | `failed`, why). `current` means executed whole, with this key."""
    parts = parts or run.parts()
    mark = executed_mark(run.executed)
    failed = executed_mark(run.failed)
    if mark:
        if "parts" not in mark:
            change = "executed notebook is damaged"
        else:
            change = differences(mark["parts"], parts)
        if not change and mark.get("results") != results_digest(run.results):
            change = "results folder was changed" if run.results.is_dir() else "results folder is gone"
        if not change:
            return "current", ""
    if failed and failed.get("parts") == parts:
        return "failed", failed.get("error", "")
    return ("stale", change) if mark else ("missing", "")


def executed_mark(path: Path) -> dict:
    """What the runner wrote into an executed notebook; {} when there is none."""
    if not path.is_file():
        return {}
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))["metadata"]["inclad"]
        return mark if isinstance(mark, dict) and mark else {"damaged": True}
    except (OSError, ValueError, KeyError, TypeError):
        return {"damaged": True}


def results_digest(folder: Path) -> str:
    """Digest of every file of a results folder; "" when there is no whole one."""
    if not (folder / "run.json").is_file():
        return ""
    names = sorted(path for path in folder.rglob("*") if path.is_file())
    content = [
        [path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()] for path in names
    ]
    return hashlib.sha256(to_json(content).encode()).hexdigest()


def known_runs(project: Path) -> list[tuple[str, Run | None, str]]:
    """(name, run, problem) of the book's runs, then of every other run that was executed or failed."""
    listed = book_runs(project) if (project / BOOK).is_file() else []
    found: list[tuple[str, Run | None, str]] = [(run.name, run, "") for run in listed]
    names = {run.name for run in listed}
    for folder in ("executed", "failed"):
        for path in sorted((project / "build" / folder).glob("*.ipynb")):
            if path.stem in names:
                continue
            names.add(path.stem)
            mark = executed_mark(path)
            try:
                run = plan(project, mark["notebook"], mark["params"], mark["settings"], path.stem)
                found.append((path.stem, run, ""))
            except KeyError:
                found.append((path.stem, None, "notebook is damaged"))
            except ValueError as error:
                found.append((path.stem, None, str(error).splitlines()[0]))
    return found
