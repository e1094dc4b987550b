import pytest
import torch

from inclad.continual.learner import Naive, best_memory, maps_and_scores
from inclad.detectors.catalog import DETECTORS
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
