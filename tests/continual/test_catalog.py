"""What holds for every learner."""

import pytest
import torch
from safetensors.torch import save
from small_options import OPTIONS

from inclad.continual.catalog import PROTOCOLS, check_learners, check_size, least_images, make_learner
from inclad.continual.learner import Naive, load_learner, save_learner
from inclad.detectors.catalog import DETECTORS, known_options

each = pytest.mark.parametrize("name", DETECTORS)
both = pytest.mark.parametrize("protocol", PROTOCOLS)


def learned(name, protocol, extractor, tasks, **more):
    learner = make_learner(name, protocol, OPTIONS[name] | more)
    for task in tasks:
        learner.learn(extractor.images(task.train))
    return learner


@pytest.mark.parametrize("name", ["patchcore", "padim"])
def test_both_protocols_agree_after_the_first_task(name, extractor, tasks):
    naive, continual = (learned(name, protocol, extractor, tasks[:1]) for protocol in PROTOCOLS)
    for task in tasks[:2]:
        (batch,) = extractor.images(task.test)
        for a, b in zip(naive.score(batch), continual.score(batch)):
            assert torch.equal(a, b)
    assert naive.kept_bytes() == continual.kept_bytes()


@each
@both
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_batch_size_does_not_change_scores(name, protocol, extractor, tasks, batch_size):
    learner = learned(name, protocol, extractor, tasks)
    for task in tasks:
        (whole,) = extractor.images(task.test)
        maps, scores = learner.score(whole)
        parts = [learner.score(batch) for batch in extractor.images(task.test, batch_size)]
        assert torch.allclose(torch.cat([part[0] for part in parts]), maps, atol=1e-5)
        assert torch.allclose(torch.cat([part[1] for part in parts]), scores, atol=1e-5)


@each
@both
def test_the_same_seed_keeps_the_same(name, protocol, make_extractor, tasks):
    first, second = (learned(name, protocol, make_extractor(), tasks).state() for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", ["patchcore", "cfa"])
def test_another_seed_learns_another_memory(name, extractor, tasks):
    learners = [make_learner(name, "continual", OPTIONS[name], seed) for seed in (0, 1)]
    for learner in learners:
        learner.learn(extractor.images(tasks[0].train))
    first, second = (learner.state() for learner in learners)
    assert any(not torch.equal(first[key], second[key]) for key in first)


@each
@both
def test_maps_are_finite_and_of_the_size_of_the_image(name, protocol, real_extractor, tasks):
    learner = learned(name, protocol, real_extractor, tasks[:2])
    (batch,) = real_extractor.images(tasks[0].test)
    maps, scores = learner.score(batch)
    assert maps.shape == (8, 64, 64)
    assert scores.shape == (8,)
    assert maps.dtype == scores.dtype == torch.float32
    assert maps.isfinite().all()
    assert name == "ganomaly" or torch.equal(scores, maps.amax((1, 2)))


@each
@both
def test_scoring_changes_nothing(name, protocol, extractor, tasks):
    learner = learned(name, protocol, extractor, tasks[:2])
    before = {key: value.clone() for key, value in learner.state().items()}
    (batch,) = extractor.images(tasks[0].test)
    for a, b in zip(learner.score(batch), learner.score(batch)):
        assert torch.equal(a, b)
    assert all(torch.equal(before[key], value) for key, value in learner.state().items())


@each
def test_the_continual_form_reads_the_stages_of_its_detector(name):
    assert make_learner(name, "continual").stages == DETECTORS[name].stages


@each
@both
def test_a_saved_learner_scores_the_same_and_goes_on_learning(
    name, protocol, make_extractor, tasks, tmp_path
):
    extractor = make_extractor()
    learner = learned(name, protocol, extractor, tasks[:2])
    save_learner(learner, tmp_path / "learner.safetensors")
    other = make_learner(name, protocol, OPTIONS[name])
    other_extractor = make_extractor()
    load_learner(other, tmp_path / "learner.safetensors", other_extractor)
    (batch,) = extractor.images(tasks[0].test)
    for a, b in zip(learner.score(batch), other.score(batch)):
        assert torch.equal(a, b)
    assert other.kept_bytes() == learner.kept_bytes() > 0
    other.learn(other_extractor.images(tasks[2].train))
    assert other.kept_bytes() >= learner.kept_bytes() * 0.5


@each
def test_the_state_of_another_learner_is_refused(name, extractor, tasks, tmp_path):
    path = tmp_path / "learner.safetensors"
    for content in (b"not tensors", save({"strange": torch.zeros(2)})):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path}: not the state of this learner"):
            load_learner(make_learner(name, "naive", OPTIONS[name]), path, extractor)


@each
def test_options_reach_the_detector(name):
    others = {"patchcore": ("coreset_ratio", 0.3), "padim": ("channels", 7)}
    option, value = others.get(name, ("epochs", 4))
    sigma = {"sigma": 2} if "sigma" in known_options(DETECTORS[name]) else {}
    for protocol in PROTOCOLS:
        learner = make_learner(name, protocol, {option: value} | sigma)
        for key, wanted in ({option: value} | sigma).items():
            assert getattr(learner.detector, key) == wanted


@pytest.mark.parametrize(("name", "option"), [("patchcore", "history_ratio"), ("cfa", "buffer_ratio")])
def test_options_of_the_continual_form_are_left_out_of_the_naive_one(name, option):
    assert isinstance(make_learner(name, "naive", {option: 0.5}), Naive)
    make_learner(name, "continual", {option: 0.5})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("patchcor", "naive"), r"unknown detector 'patchcor' \(known: patchcore, padim, cfa, "),
        (("padim", "contunual"), r"unknown protocol 'contunual' \(known: naive, continual\)"),
        (("padim", "naive", {"chanels": 3}), "padim: unknown option 'chanels' .*channels"),
        (("padim", "naive", {"channels": "3"}), "padim: channels: expected int, got str '3'"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(given, says):
    with pytest.raises(ValueError, match=says) as error:
        make_learner(*given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("detectors", "protocols", "options", "says"),
    [
        ([], ["naive"], {}, "at least one"),
        (["cfa"], [], {}, "at least one"),
        (["cfa", "nope"], ["naive"], {}, "unknown detector 'nope'"),
        (["cfa"], ["naive", "nope"], {}, "unknown protocol 'nope'"),
        (["cfa"], ["naive"], {"nope": {}}, "unknown detector 'nope'"),
        (["cfa"], ["naive"], {"cfa": 3}, "options: cfa: expected a dictionary"),
        (["cfa"], ["naive"], {"cfa": {"neighbors": 0}}, "cfa: neighbors: 0 must be at least 1"),
    ],
)
def test_a_stream_is_checked_before_it_starts(detectors, protocols, options, says):
    with pytest.raises(ValueError, match=says):
        check_learners(detectors, protocols, options)


def test_a_stream_that_is_in_order_passes():
    check_learners(["patchcore", "cfa"], ["naive", "continual"], {"cfa": {"epochs": 1}, "padim": {}})


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match="detectors: 'padim' is named twice"):
        check_learners(["padim", "padim"], ["naive"], {})
    with pytest.raises(ValueError, match="protocols: 'naive' is named twice"):
        check_learners(["padim"], ["naive", "naive"], {})


def test_an_image_size_too_small_is_refused(monkeypatch):
    monkeypatch.setattr(DETECTORS["padim"], "least_size", 32)
    check_size(["padim"], 32)
    with pytest.raises(ValueError, match="image_size: 31 is too small for padim; use at least 32"):
        check_size(["padim"], 31)


def test_how_many_images_a_task_must_have():
    assert least_images(["patchcore", "cfa"]) == 1
    assert least_images(["patchcore", "padim"]) == 2


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("cfa", "learning_rate", -1.0),
        ("patchcore", "sigma", 1e9),
        ("padim", "sigma", -1.0),
        ("cfa", "nu", 0.0),
    ],
)
def test_an_option_out_of_its_range_is_refused(name, option, value):
    with pytest.raises(ValueError, match=f"{name}: {option}: .* is (not between|negative)"):
        check_learners([name], ["naive"], {name: {option: value}})


def test_options_of_detectors_that_do_not_run_are_checked_too():
    with pytest.raises(ValueError, match="stfpm: unknown option 'epochz'"):
        check_learners(["padim"], ["naive"], {"stfpm": {"epochz": 5}})
