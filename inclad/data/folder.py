"""What every reader of a folder needs: safe listings in natural order, and the choice of tasks by name."""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from inclad.data.sources import how_to_get
from inclad.data.task import DataError

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".pgm", ".ppm"}
)
LONGEST_NAME, LONGEST_PATH = 255, 2048  # bytes, characters; file systems take no more, or hardly
# What archives and file browsers leave behind, beside dot files.
LEFTOVERS = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorting key that reads digits as numbers: `Class2` comes before `Class10`."""
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]


def existing_root(root: Path | str | None, dataset: str, expected: str) -> Path:
    """Return `root` as a path to a folder; DataError that says what is `expected` there when it is none."""
    if not root:
        raise DataError(
            [f"{dataset}: no root given; name the folder that holds {expected}{how_to_get(dataset)}"]
        )
    root = Path(root)
    if not root.is_dir():
        found = "is not a folder" if root.exists() else "does not exist"
        raise DataError([f"{root}: {found}; {dataset} expects there {expected}{how_to_get(dataset)}"])
    return root


def unwrap(root: Path | str | None, *wrappers: str) -> Path | str | None:
    """The folder inside `root` that an archive wraps everything in, or `root` where there is none of them."""
    for name in wrappers if root else ():
        if (Path(root) / name).is_dir():
            return Path(root) / name
    return root


def subfolders(folder: Path, root: Path, problems: list[str]) -> list[Path]:
    """List the visible folders in `folder`, naturally ordered; what leaves `root` goes into `problems`."""
    return [path for path in visible(folder, root, problems) if path.is_dir()]


def image_files(folder: Path, root: Path, problems: list[str]) -> list[Path]:
    """List the image files in `folder` (suffix in any case), naturally ordered; [] when it is absent."""
    found = []
    for path in visible(folder, root, problems):
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir():
            if path.is_file():
                found.append(path)
            else:
                problems.append(f"{path}: a link to nothing; restore its target or remove it")
    return found


def choose(names: list[str] | None, known: list[str], where: str) -> list[str]:
    """Return the task names asked for, in that order (None: all known); DataError for unknown or repeated."""
    if names is None:
        return list(known)
    problems = [
        f"{where}: no task {name!r}; known: {', '.join(known) or 'none'}"
        for name in dict.fromkeys(names)
        if name not in known
    ]
    problems += [
        f"{where}: task {name!r} is listed {names.count(name)} times; list it once"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if problems:
        raise DataError(problems)
    return list(names)


def visible(folder: Path, root: Path, problems: list[str]) -> list[Path]:
    """List what `folder` holds, naturally ordered; a link that leaves `root` goes into `problems` instead."""
    if not folder.is_dir():
        return []
    home = root.resolve()
    if not _resolves_inside(folder, home):
        problems.append(_leaves(folder, root))
        return []
    try:
        paths = sorted(folder.iterdir(), key=lambda path: natural(path.name))
    except OSError as error:
        problems.append(f"{folder}: cannot be listed ({error.strerror}); check its permissions")
        return []
    inside = []
    for path in paths:
        if path.name.startswith(".") or path.name in LEFTOVERS:
            continue
        if path.is_symlink() and not _resolves_inside(path, home):
            problems.append(_leaves(path, root))
            continue
        if not path.name.isprintable():
            problems.append(f"{folder}: holds the name {path.name!a}, which can't be printed; rename it")
            continue
        inside.append(path)
    return inside


def _leaves(path: Path, root: Path) -> str:
    return f"{path}: a link that leaves {root}; copy the file into the folder instead"


def _resolves_inside(path: Path, home: Path) -> bool:
    try:
        return path.resolve().is_relative_to(home)
    except (OSError, RuntimeError):  # a loop of links
        return False


def listed_path(root: Path, text: str) -> Path | None:
    """The path below `root` that a list names, or None when it is absolute, climbs out or is not POSIX."""
    if hostile(text) or not _resolves_inside(root / text, root.resolve()):
        return None
    return root / PurePosixPath(text)


def hostile(text: str) -> bool:
    """Whether some machine would take a listed path as absolute, on a drive, climbing out, or not POSIX."""
    posix, windows = PurePosixPath(text), PureWindowsPath(text)
    strange = not text or "\\" in text or "\0" in text or ".." in posix.parts
    try:
        too_long = any(len(part.encode()) > LONGEST_NAME for part in posix.parts) or len(text) > LONGEST_PATH
    except UnicodeEncodeError:
        return True
    return bool(strange or too_long or posix.is_absolute() or windows.drive)
