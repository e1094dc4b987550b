"""MPDD, painted and bare metal parts (Jezek et al. 2021), in the layout of MVTec AD; the archive wraps it in MPDD/."""

from pathlib import Path

from inclad.data import mvtec
from inclad.data.folder import unwrap
from inclad.data.task import Task


def read(root: Path | str | None, names: list[str] | None = None) -> list[Task]:
    """Read the named parts (None: all) below `root` or its MPDD, one task each; errors as `mvtec.read`."""
    return mvtec.read(unwrap(root, "MPDD"), names, dataset="mpdd")
