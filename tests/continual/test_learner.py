import pytest
import torch

from inclad.cache import SOURCES
from inclad.continual.learner import Naive, best_memory, fit_once
from inclad.detectors.catalog import DETECTORS
from inclad.detectors.detector import maps_and_scores
from inclad.detectors.patchcore import PatchCore
from inclad.maps import to_image_size


def test_the_memory_of_lowest_score_explains_each_image():
    distances = [torch.full((3, 4), float(memory)) for memory in range(3)]
    scores = [torch.tensor(row) for row in ([3.0, 1.0, 2.0], [2.0, 2.0, 1.0], [1.0, 3.0, 3.0])]
    best = best_memory(distances, scores)
    assert best.shape == (3, 4)
    assert best[:, 0].tolist() == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("memories", [2, 5, 40])
def test_ties_go_to_the_earliest_memory(memories):
    distances = [torch.full((6, 4), float(memory)) for memory in range(memories)]
    scores = [torch.full((6,), 9.0)] + [torch.ones(6)] * (memories - 1)
    assert best_memory(distances, scores).unique().tolist() == [1.0]
    assert best_memory(distances, [torch.ones(6)] * memories).unique().tolist() == [0.0]


def test_one_memory_is_passed_through():
    distances = torch.rand(5, 16)
    assert torch.equal(best_memory([distances], [distances.mean(1)]), distances)


def test_scores_are_the_maxima_of_the_maps():
    distances = torch.rand(5, 16)
    maps, scores = maps_and_scores(distances, 64, 2.0)
    assert torch.equal(maps, to_image_size(distances.view(5, 4, 4), 64, 2.0))
    assert torch.equal(scores, maps.amax((1, 2)))


@pytest.mark.parametrize("name", ["patchcore", "padim"])
def test_naive_forgets_all_but_the_last_task(extractor, tasks, name):
    options = {"channels": 20} if name == "padim" else {}
    learner, fresh = Naive(DETECTORS[name](**options)), DETECTORS[name](**options)
    for task in tasks:
        learner.learn(extractor.images(task.train))
    fresh.fit(extractor.images(tasks[2].train))
    (batch,) = extractor.images(tasks[0].test)
    for a, b in zip(learner.score(batch), fresh.score(batch)):
        assert torch.equal(a, b)
    assert learner.stages == fresh.stages
    assert learner.kept_bytes() == fresh.kept_bytes() > 0


# --- learned once


class OwnDetector(PatchCore):
    """Not of the package: no key can tell that its code changed."""


def test_a_detector_from_elsewhere_is_fitted_every_time(make_extractor, tasks, cache):
    images = make_extractor(cache=cache).images(tasks[0].train)
    before = cache.count()
    assert fit_once(OwnDetector(), images) == ""
    assert fit_once(PatchCore(), images) != ""
    assert cache.count() == before + 2 * len(images) + 1  # pixels, features and one bank


@pytest.mark.parametrize("name", ["patchcore", "padim"])
def test_the_key_of_what_is_learned_follows_all_it_depends_on(
    make_extractor, tasks, cache, monkeypatch, name
):
    extractor, cls = make_extractor(cache=cache), DETECTORS[name]

    def key(detector, task=tasks[0], extractor=extractor):
        return fit_once(detector, extractor.images(task.train))

    first = key(cls())
    assert first == key(cls()) == key(cls(), extractor=make_extractor(0, cache))
    other_class = type("Other", (cls,), {"__module__": cls.__module__})
    named = type("Named", (cls,), {"__module__": cls.__module__})()
    named.kind = "x"
    keys = [first, key(other_class()), key(named), key(cls(), tasks[1]), key(cls(sigma=2.0))]
    keys.append(key(cls(), extractor=make_extractor(cache=cache, sha256="1" * 64)))
    for module in (f"detectors.{name}", "detectors.detector", "neighbors", "features"):
        with monkeypatch.context() as patch:
            patch.setitem(SOURCES, module, b"edited")
            keys.append(key(cls(), extractor=make_extractor(cache=cache)))
    named.kind = "y"
    keys.append(key(named))
    assert len(set(keys)) == len(keys) == 11


@pytest.mark.parametrize("name", ["patchcore", "padim"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_what_was_learned_before_scores_the_same_to_the_bit(make_extractor, tasks, cache, name, batch_size):
    """Also where an image comes alone: products of matrices in another layout would round differently."""
    detectors = [DETECTORS[name]() for _ in range(3)]
    keys = []
    for detector, kept in zip(detectors, (None, cache, cache)):
        keys.append(
            fit_once(detector, make_extractor(cache=kept, widths=(24, 40, 112)).images(tasks[0].train))
        )
    assert keys[0] == "" and keys[1] == keys[2]
    for batch in make_extractor(widths=(24, 40, 112)).images(tasks[0].test, batch_size):
        plain, cold, warm = (detector.score(batch) for detector in detectors)
        assert all(map(torch.equal, plain, cold)) and all(map(torch.equal, plain, warm))


def test_a_learner_without_a_cache_has_no_key(extractor, tasks):
    learner = Naive(PatchCore())
    assert learner.key == ""
    learner.learn(extractor.images(tasks[0].train))
    assert learner.key == ""
