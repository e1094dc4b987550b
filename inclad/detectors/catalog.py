"""The detectors by name."""

import inspect

from inclad.detectors.cfa import CFA
from inclad.detectors.detector import Detector
from inclad.detectors.padim import PaDiM
from inclad.detectors.patchcore import PatchCore

DETECTORS: dict[str, type[Detector]] = {"patchcore": PatchCore, "padim": PaDiM, "cfa": CFA}


def look_up(name: str, catalog: dict[str, type]) -> type:
    """The catalog's entry; ValueError lists the known names."""
    if name not in catalog:
        raise ValueError(f"unknown detector {name!r} (known: {', '.join(catalog)})")
    return catalog[name]


def check_options(name: str, cls: type, options: dict) -> dict:
    """The options, checked against the constructor's names and types."""
    known = inspect.signature(cls).parameters
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"{name}: unknown option {key!r} (known: {', '.join(known)})")
        wanted = known[key].annotation
        if wanted is float and type(value) is int:
            continue
        if type(value) is not wanted:
            raise ValueError(
                f"{name}: {key}: expected {wanted.__name__}, got {type(value).__name__} {value!r}"
            )
        if wanted is int and value < 0:
            raise ValueError(f"{name}: {key}: {value} is negative")
    return options
