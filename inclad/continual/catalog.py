"""Learners by detector and protocol."""

from collections.abc import Sequence

from inclad.continual.cfa import ContinualCFA
from inclad.continual.learner import Learner, Naive
from inclad.continual.padim import ContinualPaDiM
from inclad.continual.patchcore import ContinualPatchCore
from inclad.continual.replay import Replay
from inclad.detectors.catalog import DETECTORS, check_dictionaries, check_options, known_options, look_up

CONTINUAL: dict[str, type[Learner]] = {
    "patchcore": ContinualPatchCore,
    "padim": ContinualPaDiM,
    "cfa": ContinualCFA,
    "stfpm": Replay,
    "paste": Replay,
    "rd4ad": Replay,
    "fastflow": Replay,
    "efficientad": Replay,
    "ganomaly": Replay,
}
PROTOCOLS = ("naive", "continual")


def make_learner(name: str, protocol: str, options: dict | None = None, seed: int = 0) -> Learner:
    """A fresh learner of a stream; `seed` is its seed where it has one and `options` name no other.

    Options of the continual form (a history or buffer ratio) are left out of the naive one. ValueError names
    an unknown detector, protocol or option.
    """
    detector, continual = look_up(name, DETECTORS), look_up(name, CONTINUAL)
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r} (known: {', '.join(PROTOCOLS)})")
    check_options(name, known_options(detector, continual), options or {})

    def own(cls: type) -> dict:
        known = known_options(cls)
        return {key: value for key, value in ({"seed": seed} | (options or {})).items() if key in known}

    single = detector(**own(detector))
    return continual(single, **own(continual)) if protocol == "continual" else Naive(single)


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
    for name in options:
        look_up(name, CONTINUAL)
    check_dictionaries(options)
    for name, own in options.items():
        # Also those of detectors that do not run: a misspelt name there would go unseen.
        make_learner(name, "continual", own)
    for name in detectors:
        for protocol in protocols:
            make_learner(name, protocol, options.get(name))


def check_size(detectors: Sequence[str], image_size: int) -> None:
    """ValueError names the first of these detectors for which images of this size are too small."""
    for name in detectors:
        least = DETECTORS[name].least_size
        if image_size < least:
            raise ValueError(f"image_size: {image_size} is too small for {name}; use at least {least}")


def least_images(detectors: Sequence[str]) -> int:
    """Normal images a task must have for every one of these detectors to learn it."""
    return max(DETECTORS[name].least_images for name in detectors)
