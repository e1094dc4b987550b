"""Learners by detector and protocol."""

import inspect
from collections.abc import Sequence

from inclad.continual.cfa import ContinualCFA
from inclad.continual.learner import Learner, Naive
from inclad.continual.padim import ContinualPaDiM
from inclad.continual.patchcore import ContinualPatchCore
from inclad.detectors.catalog import DETECTORS, check_options, look_up

CONTINUAL: dict[str, type[Learner]] = {
    "patchcore": ContinualPatchCore,
    "padim": ContinualPaDiM,
    "cfa": ContinualCFA,
}
PROTOCOLS = ("naive", "continual")


def make_learner(name: str, protocol: str, options: dict | None = None, seed: int = 0) -> Learner:
    """A fresh learner of a stream; `seed` is its seed where it has one and `options` name no other.

    Options of the continual form that the naive one does not have (a history or buffer ratio) are left out
    there. ValueError names an unknown detector, protocol or option.
    """
    detector, continual = look_up(name, DETECTORS), look_up(name, CONTINUAL)
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r} (known: {', '.join(PROTOCOLS)})")
    options = check_options(name, continual, options or {})
    cls = continual if protocol == "continual" else detector
    known = inspect.signature(cls).parameters
    learner = cls(**{key: value for key, value in ({"seed": seed} | options).items() if key in known})
    return learner if protocol == "continual" else Naive(learner)


def check_learners(detectors: Sequence[str], protocols: Sequence[str], options: dict[str, dict]) -> None:
    """Refuse unknown detectors, protocols and options before anything is read or trained.

    ValueError names the first that is unknown or named twice, or that no detector is asked for.
    """
    for kind, names in (("detectors", detectors), ("protocols", protocols)):
        twice = [name for name in names if list(names).count(name) > 1]
        if twice:
            raise ValueError(f"{kind}: {twice[0]!r} is named twice")
    if not detectors or not protocols:
        raise ValueError("detectors and protocols: name at least one of each")
    for name, own in options.items():
        look_up(name, CONTINUAL)
        if not isinstance(own, dict):
            raise ValueError(f"options: {name}: expected a dictionary of hyperparameters, got {own!r}")
    for name in detectors:
        for protocol in protocols:
            make_learner(name, protocol, options.get(name))


def least_images(detectors: Sequence[str]) -> int:
    """Normal images a task must have for every one of these detectors to learn it."""
    return max(DETECTORS[name].least_images for name in detectors)
