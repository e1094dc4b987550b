import torch

from inclad.continual.padim import ContinualPaDiM
from inclad.detectors.padim import PaDiM


def experts(extractor, tasks) -> list[PaDiM]:
    found = [PaDiM(channels=20) for _ in tasks]
    for detector, task in zip(found, tasks):
        detector.fit(extractor.images(task.train))
    return found


def learned(extractor, tasks) -> ContinualPaDiM:
    learner = ContinualPaDiM(channels=20)
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
    learner = ContinualPaDiM(channels=20)
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
