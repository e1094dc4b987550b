"""The detectors by name."""

import inspect
import math
from collections.abc import Mapping

from inclad.detectors.cfa import CFA
from inclad.detectors.detector import Detector
from inclad.detectors.efficientad import EfficientAD
from inclad.detectors.fastflow import FastFlow
from inclad.detectors.ganomaly import GANomaly
from inclad.detectors.padim import PaDiM
from inclad.detectors.paste import PaSTe
from inclad.detectors.patchcore import PatchCore
from inclad.detectors.rd4ad import RD4AD
from inclad.detectors.stfpm import STFPM

DETECTORS: dict[str, type[Detector]] = {
    "patchcore": PatchCore,
    "padim": PaDiM,
    "cfa": CFA,
    "stfpm": STFPM,
    "paste": PaSTe,
    "rd4ad": RD4AD,
    "fastflow": FastFlow,
    "efficientad": EfficientAD,
    "ganomaly": GANomaly,
}


# Lowest and highest value of options with a range of their own; all others are not negative.
RANGES = {
    "sigma": (0, 100),
    "learning_rate": (1e-12, 1),
    "momentum": (0, 1),
    "weight_decay": (0, 1),
    "bootstrap_layer": (0, 2),
    "nu": (1e-9, 1e9),
    "alpha": (0, 1e9),
    "beta1": (0, 1),
    "hard_quantile": (0, 1),
    "low_quantile": (0, 1),
    "high_quantile": (0, 1),
    "validation_share": (0, 1),
}


def look_up(name: str, catalog: dict[str, type]) -> type:
    """The catalog's entry; ValueError lists the known names."""
    if name not in catalog:
        raise ValueError(f"unknown detector {name!r} (known: {', '.join(catalog)})")
    return catalog[name]


def check_dictionaries(options: Mapping[str, dict]) -> None:
    """ValueError for a detector whose options are no dictionary."""
    for name, own in options.items():
        if not isinstance(own, dict):
            raise ValueError(f"options: {name}: expected a dictionary of hyperparameters, got {own!r}")


def known_options(*classes: type) -> dict[str, inspect.Parameter]:
    """The keyword options that the constructors of a detector and its continual form take, by name."""
    return {
        name: option
        for cls in classes
        for name, option in inspect.signature(cls).parameters.items()
        if option.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_options(name: str, known: dict[str, inspect.Parameter], options: dict) -> dict:
    """The options, checked against the names and types that are known, and the ranges above."""
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"{name}: unknown option {key!r} (known: {', '.join(known)})")
        wanted = known[key].annotation
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ValueError(
                f"{name}: {key}: expected {wanted.__name__}, got {type(value).__name__} {value!r}"
            )
        if wanted is str:
            continue
        low, high = RANGES.get(key, (0, math.inf))
        if value < 0:
            raise ValueError(f"{name}: {key}: {value} is negative")
        if not low <= value <= high:
            raise ValueError(f"{name}: {key}: {value} is not between {low} and {high}")
    return options
