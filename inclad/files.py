"""Where the project is; files and folders that are either whole or not there."""

import os
import shutil
import uuid
from pathlib import Path


def project_folder(start: Path | None = None) -> Path:
    """The folder with _toc.yml and inclad/ in it, at `start` (the working directory) or above it.

    Raises ValueError, in one line, when there is none.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "_toc.yml").is_file() and (folder / "inclad").is_dir():
            return folder
    raise ValueError(f"{here} is not in the project (a folder with _toc.yml and inclad/): go there")


def write_atomic(path: Path, content: bytes | str, *, sync: bool = True) -> None:
    """Write `content` to `path` so that a reader, a crash or a full disk never meets half of it.

    A temporary file beside the target is written, flushed to disk and renamed. Raises OSError and leaves the
    old file as it was when that fails. Without `sync` it is not flushed: a crash of the machine, though not
    of the program, may then leave a file with holes.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    data = content.encode() if isinstance(content, str) else content
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def publish_folder(temporary: Path, target: Path) -> None:
    """Rename a finished folder into place; an older folder of that name is set aside, then removed.

    If the process dies between the two renames, `restore_folder` brings the older one back.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    old = target.parent / f".{target.name}.old"
    _remove(old)
    if target.exists():
        os.replace(target, old)
    os.replace(temporary, target)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a folder, or a file that stood where a folder belongs."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def restore_folder(target: Path) -> None:
    """Undo a `publish_folder` that was killed half way: the set-aside folder returns to its name."""
    target = Path(target)
    old = target.parent / f".{target.name}.old"
    if old.exists() and not target.exists():
        os.replace(old, target)
