import pytest

from inclad.continual.catalog import PROTOCOLS, check_learners, make_learner
from inclad.detectors.catalog import DETECTORS
from inclad.detectors.profiles import PROFILES, with_profile


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_can_be_run(profile):
    check_learners(list(DETECTORS), PROTOCOLS, with_profile(profile, {}))


def test_the_mini_profile_shortens_every_training_and_the_paper_profile_changes_nothing():
    settings = with_profile("mini", {})
    for name, detector in DETECTORS.items():
        if hasattr(detector(), "epochs"):
            own, paper = (make_learner(name, "naive", options).detector for options in (settings[name], None))
            assert own.epochs < paper.epochs
    assert with_profile("paper", {}) == {}


def test_options_go_over_those_of_the_profile():
    settings = with_profile("mini", {"cfa": {"epochs": 9}, "padim": {"channels": 7}})
    assert settings["cfa"] == PROFILES["mini"]["cfa"] | {"epochs": 9}
    assert settings["padim"] == {"channels": 7}
    assert settings["stfpm"] == PROFILES["mini"]["stfpm"]


def test_what_is_no_profile_or_no_options_is_refused():
    with pytest.raises(ValueError, match=r"profile: 'fast' is unknown \(known: paper, mini\)"):
        with_profile("fast", {})
    with pytest.raises(ValueError, match="options: cfa: expected a dictionary of hyperparameters, got 3"):
        with_profile("mini", {"cfa": 3})
