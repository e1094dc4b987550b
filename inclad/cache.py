"""Tensors on disk, by the content they were made from: frozen features and decoded images, computed once."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import warnings
import zlib
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from inclad.data.task import DataError
from inclad.files import write_atomic

FOLDER = "build/cache/features"  # in the project folder
SUFFIX = ".safetensors"
OLD = 24 * 3600  # seconds after which a temporary file has no writer any more

# Read with the package: an edit made while a program runs is not what that program computes with.
_PACKAGE = Path(__file__).parent
SOURCES = {
    ".".join(path.relative_to(_PACKAGE).with_suffix("").parts): path.read_bytes()
    for path in _PACKAGE.rglob("*.py")
}
# What features, Gaussians, coresets, maps and ROC-AUCs are computed with.
VERSIONS = {"torch": torch.__version__} | {
    name: metadata.version(name) for name in ("timm", "numpy", "scipy", "pillow")
}


class Cache:
    """Named tensors under content keys in `folder`, at most `limit_gib` of them; 0 keeps nothing.

    Entries are memory-mapped when read. An entry is one file, renamed into place when it is complete, so
    several processes may share the folder and a killed writer leaves nothing that could be read. What was
    used least recently is dropped first; processes that write at the same time may go over the limit by a
    sixteenth each. An entry that is torn, or lies under a key that is not its own, is never returned: it is
    removed, with a warning, and made again.
    """

    def __init__(self, folder: str | Path, limit_gib: float):
        if not 0 <= limit_gib < float("inf"):
            raise ValueError(f"cache_gib: {limit_gib} is no size; give GiB on disk, or 0 for none")
        self.folder = Path(folder)
        self.limit = int(limit_gib * 2**30)
        self._held = self.size() if self.limit else 0
        self._written = 0  # since all entries were last looked at

    def __bool__(self) -> bool:
        return self.limit > 0

    def get(self, key: str) -> dict[str, Tensor] | None:
        """The tensors kept under `key`, or None."""
        if not self.limit:
            return None
        path = self._path(key)
        try:
            with safe_open(path, framework="pt") as file:
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                told = file.metadata() or {}
        except (FileNotFoundError, RuntimeError):  # torch opens it again: dropped by another process just now
            return None
        except (SafetensorError, OSError) as error:
            return self._refuse(path, str(error).splitlines()[0] if str(error) else "unreadable")
        if told.get("key") != key:
            return self._refuse(path, "made from something else")
        # Whole files are renamed into place, but a crash of the machine can leave one with holes.
        if told.get("crc32") != str(_checksum(named)):
            return self._refuse(path, "its bytes changed")
        with contextlib.suppress(OSError):  # dropped by another process just now: what was read stays mapped
            os.utime(path)
        return named

    def put(self, key: str, tensors: dict[str, Tensor]) -> None:
        """Keep the tensors under `key`. Raises OSError, in one line, when the disk is full."""
        if not self.limit:
            return
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        content = save(tensors, {"key": key, "crc32": str(_checksum(tensors))})
        if len(content) > self.limit:
            return
        try:
            write_atomic(self._path(key), content, sync=False)
        except FileNotFoundError:  # the folder was removed just now: nothing is kept, nothing is lost
            return
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                f"{self.folder}: no space left for the cache; free some, set cache_gib lower, or clear it with "
                "`inclad cache --clear`"
            ) from error
        self._held += len(content)
        self._written += len(content)
        if self._held > self.limit or self._written > self.limit / 16:
            self._drop()

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size, _ in self._entries())

    def count(self) -> int:
        """Number of entries."""
        return len(self._entries())

    def clear(self) -> None:
        """Remove every entry."""
        for path, _, _ in self._entries():
            _remove(path)
        self._held = 0

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{SUFFIX}"

    def _refuse(self, path: Path, reason: str) -> None:
        warnings.warn(f"{path}: cache entry not used ({reason}); made again", stacklevel=3)
        _remove(path)

    def _entries(self) -> list[tuple[Path, int, float]]:
        """Path, bytes and time of last use of every entry; sweeps what killed writers left."""
        found = []
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            try:
                status = path.lstat()
            except FileNotFoundError:  # another process was faster
                continue
            if path.suffix == SUFFIX:
                found.append((path, status.st_size, status.st_mtime))
            elif path.suffix == ".tmp" and status.st_mtime < time.time() - OLD:
                path.unlink(missing_ok=True)
        return found

    def _drop(self) -> None:
        """When over the limit, down to nine tenths of it; other processes' entries count.

        The least recently used go first, the last one never.
        """
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        self._held, self._written = sum(size for _, size, _ in entries), 0
        if self._held <= self.limit:
            return
        for path, size, _ in entries[:-1]:
            if self._held <= 0.9 * self.limit:
                break
            _remove(path)
            self._held -= size


def content_key(**parts: object) -> str:
    """Hexadecimal key of what an entry is made from; parts are numbers, text, or lists of them."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def source_digest(*modules: str) -> str:
    """sha256 of the source of modules of this package ("data.images") and the versions they compute with.

    Part of every key: an edit of the code that makes an entry makes another entry.
    """
    parts = {name: hashlib.sha256(SOURCES[name]).hexdigest() for name in modules}
    return content_key(sources=parts, versions=VERSIONS)


def device_name(device: torch.device) -> str:
    """The kind of device, part of the keys: they round differently, and some graphics cards to fewer bits."""
    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def file_digest(path: Path) -> str:
    """sha256 of a file's content; read again only when the file was touched. Raises DataError."""
    try:
        status = path.stat()
        # The time of change of the inode too: the time of the content can be set back by hand.
        return _digest(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except FileNotFoundError:
        raise DataError([f"{path}: no such file; restore it or read the folder again"]) from None
    except OSError as error:
        raise DataError([f"{path}: unreadable ({error.strerror}); copy it again from its source"]) from None


@lru_cache(maxsize=1 << 17)
def _digest(path: Path, *_mark: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(tensors: dict[str, Tensor]) -> int:
    """CRC-32 of names, shapes, types and bytes."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        if tensor.numel():
            # A dimension of length 1 may have any stride, which a view as bytes refuses.
            flat = tensor.reshape(-1).as_strided((tensor.numel(),), (1,))
            value = zlib.crc32(flat.view(torch.uint8).numpy(), value)
    return value


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
