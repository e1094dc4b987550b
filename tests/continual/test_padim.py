import pytest
import torch

import inclad.continual.padim
from inclad.continual.learner import best_memory
from inclad.continual.padim import ContinualPaDiM
from inclad.detectors.detector import maps_and_scores
from inclad.detectors.padim import PaDiM, embed, mahalanobis
from inclad.evaluate import evaluate
from inclad.stream import run_stream


def experts(extractor, tasks) -> list[PaDiM]:
    found = [PaDiM(channels=20) for _ in tasks]
    for detector, task in zip(found, tasks):
        detector.fit(extractor.images(task.train))
    return found


def learned(extractor, tasks) -> ContinualPaDiM:
    learner = ContinualPaDiM(PaDiM(channels=20))
    for task in tasks:
        learner.learn(extractor.images(task.train))
    return learner


def test_every_gaussian_is_kept_as_it_was(extractor, tasks):
    learner = learned(extractor, tasks)
    assert len(learner.gaussians) == 3
    for (mean, whitening), expert in zip(learner.gaussians, experts(extractor, tasks)):
        assert torch.equal(mean, expert.mean)
        assert torch.equal(whitening, expert.whitening)
    assert learner.kept_bytes() == 3 * 256 * (20 + 20 * 20) * 4


def test_the_lowest_image_score_wins_with_its_map(extractor, tasks):
    learner, single = learned(extractor, tasks), experts(extractor, tasks)
    for task in tasks:
        (batch,) = extractor.images(task.test)
        pairs = [expert.score(batch) for expert in single]
        maps, scores = learner.score(batch)
        for image in range(len(batch)):
            # `min` keeps the first of equals: the earliest task.
            best = min(range(3), key=lambda t: pairs[t][1][image].item())
            assert torch.allclose(scores[image], pairs[best][1][image], rtol=1e-6)
            assert torch.allclose(maps[image], pairs[best][0][image], rtol=1e-5)


def test_scores_never_rise_as_tasks_are_added(extractor, tasks):
    learner = ContinualPaDiM(PaDiM(channels=20))
    (batch,) = extractor.images(tasks[1].test)
    last = torch.full((8,), torch.inf)
    for task in tasks:
        learner.learn(extractor.images(task.train))
        scores = learner.score(batch)[1]
        assert (scores <= last).all()
        last = scores


def test_learning_a_task_again_changes_no_score(extractor, tasks):
    learner = learned(extractor, tasks)
    (batch,) = extractor.images(tasks[0].test)
    before = learner.score(batch)
    learner.learn(extractor.images(tasks[0].train))
    for a, b in zip(before, learner.score(batch)):
        assert torch.equal(a, b)


# --- what won so far is remembered


def plain_score(learner: ContinualPaDiM, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Every Gaussian tried again."""
    embeddings = embed(batch, 20, 1024)
    distances = [mahalanobis(embeddings, *gaussian) for gaussian in learner.gaussians]
    best = best_memory(distances, [maps_and_scores(d, batch.size, 4.0)[1] for d in distances])
    return maps_and_scores(best, batch.size, 4.0)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_batch_and_a_gaussian_meet_once(extractor, make_task, monkeypatch, count):
    tasks = [make_task(f"{number}") for number in range(count)]
    met = []

    def counted(embeddings, mean, whitening):
        met.append((embeddings.sum().item(), mean.sum().item()))
        return mahalanobis(embeddings, mean, whitening)

    monkeypatch.setattr(inclad.continual.padim, "mahalanobis", counted)
    list(run_stream(tasks, ContinualPaDiM(PaDiM(channels=20)), extractor))
    assert len(met) == len(set(met)) == count**2


def test_every_step_equals_trying_all_gaussians_again(extractor, tasks):
    learner = ContinualPaDiM(PaDiM(channels=20))
    for step, task in enumerate(tasks):
        learner.learn(extractor.images(task.train))
        for seen in [*tasks[: step + 1], tasks[2]]:
            (batch,) = extractor.images(seen.test)
            assert all(map(torch.equal, learner.score(batch), plain_score(learner, batch)))


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_ties_go_to_the_earliest_gaussian(extractor, tasks, monkeypatch, first, at_once):
    """Two Gaussians of equal image scores and unequal maps: the map tells which one won."""
    distances = [torch.ones(8, 256), torch.ones(8, 256)]
    distances[1][:, -1] = 0
    (one, two), (score_one, score_two) = zip(*(maps_and_scores(d, 64, 4.0) for d in distances))
    assert torch.equal(score_one, score_two) and not torch.equal(one, two)
    monkeypatch.setattr(inclad.continual.padim, "mahalanobis", lambda _, mean, __: distances[mean])
    (batch,) = extractor.images(tasks[0].test)
    learner = ContinualPaDiM(PaDiM(channels=20))
    for gaussian in (first, 1 - first):
        learner.gaussians.append((gaussian, None))
        learner.keys.append("")
        if not at_once:
            learner.score(batch)
    assert torch.equal(learner.score(batch)[0], (one, two)[first])


def test_the_composition_of_batches_changes_no_score(extractor, tasks):
    learner = ContinualPaDiM(PaDiM(channels=20))
    for task in tasks:
        learner.learn(extractor.images(task.train))
        learner.score(next(iter(extractor.images(tasks[0].test))))
    test = tasks[0].test
    maps, scores = learner.score(next(iter(extractor.images(test))))
    for order in ([3], [7, 0], [5, 4, 3, 2, 1, 0, 6, 7]):
        (batch,) = extractor.images([test[i] for i in order])
        for ours, whole in zip(learner.score(batch), (maps[order], scores[order])):
            assert torch.allclose(ours, whole, rtol=1e-5, atol=1e-5)


def test_what_is_remembered_is_a_coarse_map_an_image(extractor, tasks):
    learner = ContinualPaDiM(PaDiM(channels=20))
    list(run_stream(tasks, learner, extractor))
    remembered = [part for _, *parts in learner._best.values() for part in parts]
    assert sum(part.untyped_storage().nbytes() for part in remembered) == 3 * 8 * (16 * 16 + 1) * 4


def test_a_learner_remembers_nothing_of_another(extractor, tasks):
    first, second = learned(extractor, tasks), learned(extractor, tasks[1:])
    (batch,) = extractor.images(tasks[0].test)
    first.score(batch)
    assert all(map(torch.equal, second.score(batch), plain_score(second, batch)))


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_a_gaussian_that_is_not_finite_is_not_passed_over(extractor, tasks, spoiled):
    learner = learned(extractor, tasks)
    mean, whitening = learner.gaussians[spoiled]
    learner.gaussians[spoiled] = (mean * torch.nan, whitening)
    with pytest.raises(ValueError, match="not finite"):
        evaluate(learner.score, tasks[0], extractor)


def test_another_order_takes_over_the_distances_from_the_cache(make_extractor, tasks, cache, monkeypatch):
    def matrix(order) -> dict:
        steps = run_stream(order, ContinualPaDiM(PaDiM(channels=20)), make_extractor(cache=cache), upper=True)
        return {(s.task.name, t): e.image for s in steps for t, e in zip(s.tested, s.evaluations)}

    met = []
    monkeypatch.setattr(
        inclad.continual.padim, "mahalanobis", lambda *given: met.append(1) or mahalanobis(*given)
    )
    first = matrix(tasks)
    assert len(met) == 9
    again = matrix(tasks[::-1])
    assert len(met) == 9
    assert first[tasks[2].name, tasks[0].name] == again[tasks[0].name, tasks[0].name]
