"""Tensors on disk, by the content they were made from: frozen features and decoded images, computed once."""

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import warnings
import zlib
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from inclad.files import write_atomic

FOLDER = "build/cache/features"  # in the project folder
SUFFIX = ".safetensors"


class Cache:
    """Named tensors under content keys in `folder`, at most `limit_gib` of them; 0 keeps nothing.

    Entries are memory-mapped when read. An entry is one file, renamed into place when it is complete, so
    several processes may share the folder and a killed writer leaves nothing that could be read. What was
    used least recently is dropped first. An entry that is torn, or lies under a key that is not its own, is
    never returned: it is removed, with a warning, and made again.
    """

    def __init__(self, folder: str | Path, limit_gib: float):
        if limit_gib < 0:
            raise ValueError(f"cache_gib: {limit_gib} is negative; give GiB on disk, or 0 for none")
        self.folder = Path(folder)
        self.limit = int(limit_gib * 2**30)
        self._held = self.size() if self.limit else 0
        self._checked: set[str] = set()

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
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError) as error:
            return self._refuse(path, str(error).splitlines()[0] if str(error) else "unreadable")
        if told.get("key") != key:
            return self._refuse(path, "made from something else")
        # Whole files are renamed into place, but a crash of the machine can leave one with holes.
        if key not in self._checked and told.get("crc32") != str(_checksum(named)):
            return self._refuse(path, "its bytes changed")
        self._checked.add(key)
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
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                f"{self.folder}: no space left for the cache; free some, set cache_gib lower, or clear it with "
                "`inclad cache --clear`"
            ) from error
        self._held += len(content)
        if self._held > self.limit:
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
            path.unlink(missing_ok=True)
        self._held = 0

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{SUFFIX}"

    def _refuse(self, path: Path, reason: str) -> None:
        warnings.warn(f"{path.name}: cache entry not used ({reason}); made again", stacklevel=3)
        path.unlink(missing_ok=True)

    def _entries(self) -> list[tuple[Path, int, float]]:
        found = []
        for path in self.folder.glob(f"*/*{SUFFIX}"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process was faster
                continue
            found.append((path, status.st_size, status.st_mtime))
        return found

    def _drop(self) -> None:
        """Down to nine tenths of the limit, the least recently used first; other processes' entries count."""
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        self._held = sum(size for _, size, _ in entries)
        for path, size, _ in entries:
            if self._held <= 0.9 * self.limit:
                break
            path.unlink(missing_ok=True)
            self._held -= size


def content_key(**parts: object) -> str:
    """Hexadecimal key of what an entry is made from; parts are numbers, text, or lists of them."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def source_digest(*modules: str) -> str:
    """sha256 of the source of modules of this package and the versions of what they compute with.

    Part of every key: an edit of the code that makes an entry makes another entry.
    """
    return _source_digest(tuple(sorted(modules)))


@lru_cache(maxsize=64)
def _source_digest(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256(f"torch {torch.__version__} timm {metadata.version('timm')}".encode())
    for name in modules:
        digest.update(Path(importlib.util.find_spec(f"inclad.{name}").origin).read_bytes())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's content; read again only when its size or time of change differ."""
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1 << 17)
def _digest(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(tensors: dict[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        data = (
            tensors[name].contiguous().view(torch.uint8) if tensors[name].dim() else tensors[name].reshape(1)
        )
        value = zlib.crc32(memoryview(np.ascontiguousarray(data.numpy()).view(np.uint8).reshape(-1)), value)
    return value
