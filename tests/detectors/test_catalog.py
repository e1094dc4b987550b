"""What holds for every detector."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_options import OPTIONS

from inclad.data.task import Sample
from inclad.detectors.catalog import DETECTORS, check_options, known_options, look_up

# What a few steps don't show yet takes more of them.
LONGER = {
    "stfpm": {"epochs": 25},
    "paste": {"epochs": 25},
    "rd4ad": {"epochs": 40},
    "fastflow": {"epochs": 40, "learning_rate": 1e-2},
    "efficientad": {"epochs": 8, "teacher_steps": 30},
}
# The lowest value a map can have, where that is not 0.
LOWEST = {"fastflow": -1}
SIGNED = {"efficientad"}  # maps are in units of quantiles and go below 0
SCORED_APART = {"ganomaly"}  # the image score is not the maximum of the map
WEAK = {"ganomaly"}  # near chance on these tasks

each = pytest.mark.parametrize("name", DETECTORS)


def fit(name, extractor, task, batch_size=32, **more):
    detector = DETECTORS[name](**(OPTIONS[name] | more))
    detector.fit(extractor.images(task.train, batch_size))
    return detector


@each
def test_maps_have_the_size_of_the_image_and_scores_are_their_maxima(name, extractor, tasks):
    (batch,) = extractor.images(tasks[0].test)
    maps, scores = fit(name, extractor, tasks[0]).score(batch)
    assert maps.shape == (8, 64, 64)
    assert maps.dtype == scores.dtype == torch.float32
    assert scores.shape == (8,)
    assert name in SCORED_APART or torch.equal(scores, maps.flatten(1).amax(1))
    assert name in SIGNED or maps.min() >= LOWEST.get(name, 0)


@each
def test_defects_score_higher(name, extractor, tasks):
    if name in WEAK:
        pytest.skip(f"{name} is near chance level on these tasks")
    (batch,) = extractor.images(tasks[0].test)
    maps, scores = fit(name, extractor, tasks[0], **LONGER.get(name, {})).score(batch)
    maps = maps - LOWEST.get(name, 0)
    labels = torch.tensor([sample.label for sample in batch.samples])
    assert scores[labels == 1].min() > scores[labels == 0].max()
    for sample, each_map in zip(batch.samples, maps):
        if sample.label:
            mask = torch.from_numpy(np.array(Image.open(sample.mask)) > 0)
            assert each_map[mask].mean() > 1.2 * each_map[~mask].mean()


@each
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_batch_size_does_not_change_scores(name, extractor, tasks, batch_size):
    detector = fit(name, extractor, tasks[0])
    (whole,) = extractor.images(tasks[0].test)
    maps, scores = detector.score(whole)
    parts = [detector.score(batch) for batch in extractor.images(tasks[0].test, batch_size)]
    assert torch.allclose(torch.cat([part[0] for part in parts]), maps, atol=1e-5)
    assert torch.allclose(torch.cat([part[1] for part in parts]), scores, atol=1e-5)


@each
def test_the_state_gives_the_same_scores(name, extractor, tasks, tmp_path):
    detector = fit(name, extractor, tasks[0])
    torch.save(detector.state(), tmp_path / "state.pth")
    other = DETECTORS[name](**OPTIONS[name])
    other.load(torch.load(tmp_path / "state.pth", weights_only=True), extractor)
    (batch,) = extractor.images(tasks[0].test)
    for a, b in zip(detector.score(batch), other.score(batch)):
        assert torch.equal(a, b)
    assert other.kept_bytes() == detector.kept_bytes() > 0


@each
def test_the_same_seed_learns_the_same(name, extractor, tasks):
    first, second = (fit(name, extractor, tasks[0]).state() for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@each
def test_learning_ignores_the_global_seed(name, extractor, tasks):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(fit(name, extractor, tasks[0]).state())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@each
def test_fitting_again_replaces_what_was_learned(name, extractor, tasks):
    detector = fit(name, extractor, tasks[0])
    before = {key: value.clone() for key, value in detector.state().items()}
    detector.fit(extractor.images(tasks[1].train))
    assert any(not torch.equal(before[key], value) for key, value in detector.state().items())
    if name == "cfa":  # its descriptor carries over, its bank does not
        assert len(detector.bank) == 256
    elif not DETECTORS[name].memoryless:  # trained on: other weights than from a fresh start
        fresh = fit(name, extractor, tasks[1]).state()
        assert any(not torch.equal(fresh[key], value) for key, value in detector.state().items())
    else:
        expected = fit(name, extractor, tasks[1]).state()
        assert all(torch.equal(expected[key], value) for key, value in detector.state().items())


@pytest.fixture(scope="module")
def odd_pictures(tmp_path_factory) -> list[Sample]:
    folder = tmp_path_factory.mktemp("odd")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    pictures = {"black": 0 * noise, "grey": 0 * noise + 127, "white": 0 * noise + 255, "noise": noise}
    for name, pixels in pictures.items():
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}.png")
    return [Sample(folder / f"{name}.png") for name in pictures]


@each
@pytest.mark.parametrize("trained_on", ["stripes", "odd", "black"])
def test_scores_of_odd_pictures_are_finite(name, real_extractor, tasks, odd_pictures, trained_on):
    detector = DETECTORS[name](**(OPTIONS[name] | ({} if DETECTORS[name].memoryless else {"epochs": 1})))
    normal = {"stripes": tasks[0].train, "odd": odd_pictures, "black": odd_pictures[:1] * 2}[trained_on]
    detector.fit(real_extractor.images(normal))
    (batch,) = real_extractor.images(odd_pictures)
    maps, scores = detector.score(batch)
    assert maps.isfinite().all()
    assert scores.isfinite().all()


def test_an_unknown_detector_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown detector 'patchcor' \(known: patchcore, padim, cfa, "):
        look_up("patchcor", DETECTORS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epoch": 3}, "cfa: unknown option 'epoch' .*epochs"),
        ({"epochs": "3"}, "cfa: epochs: expected int, got str '3'"),
        ({"epochs": 3.0}, "cfa: epochs: expected int, got float"),
        ({"epochs": True}, "cfa: epochs: expected int, got bool"),
        ({"learning_rate": True}, "cfa: learning_rate: expected float, got bool"),
        ({"epochs": -1}, "cfa: epochs: -1 is negative"),
    ],
)
def test_options_are_checked(options, says):
    with pytest.raises(ValueError, match=says):
        check_options("cfa", known_options(DETECTORS["cfa"]), options)


def test_whole_numbers_are_floats_too():
    assert check_options("cfa", known_options(DETECTORS["cfa"]), {"sigma": 4, "epochs": 3}) == {
        "sigma": 4,
        "epochs": 3,
    }
