"""Two sets of hyperparameters: the paper's, and one that trains in seconds on two cores."""

from collections.abc import Mapping

from inclad.detectors.catalog import check_dictionaries

# `paper` is what the detectors' constructors have (InCLAD, Tables 6 and 7), so it changes nothing.
PROFILES: dict[str, dict[str, dict]] = {
    "paper": {},
    "mini": {
        "cfa": {"epochs": 5, "batch_size": 4},
        "stfpm": {"epochs": 6, "batch_size": 4},
        "paste": {"epochs": 6, "batch_size": 4},
        "rd4ad": {"epochs": 8, "batch_size": 4},
        "fastflow": {"epochs": 5, "learning_rate": 5e-3},
        # Thinner networks and higher learning rates; more than a tenth of a percent of the differences have to
        # teach where there are some hundred steps, not 70,000.
        "efficientad": {
            "epochs": 4,
            "batch_size": 1,
            "learning_rate": 2e-3,
            "width": 16,
            "teacher_out_channels": 48,
            "teacher_steps": 20,
            "teacher_batch_size": 8,
            "hard_quantile": 0.9,
        },
        "ganomaly": {"epochs": 6, "batch_size": 4, "learning_rate": 1e-3, "width": 8},
    },
}


def with_profile(profile: str, options: Mapping[str, dict]) -> dict[str, dict]:
    """Hyperparameters by detector: those of `profile`, and over them what `options` names.

    ValueError names an unknown profile, and options that are no dictionary.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile: {profile!r} is unknown (known: {', '.join(PROFILES)})")
    check_dictionaries(options)
    chosen = PROFILES[profile]
    return {name: chosen.get(name, {}) | options.get(name, {}) for name in {**chosen, **options}}
