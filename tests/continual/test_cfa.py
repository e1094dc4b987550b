import pytest
import torch

from inclad.continual.catalog import make_learner
from inclad.continual.cfa import ContinualCFA
from inclad.continual.replay import ReplayBuffer
from inclad.detectors.cfa import CFA, features, mean_features
from inclad.maps import position_maps

OPTIONS = {"epochs": 2, "batch_size": 4, "seed": 3}


def learned(extractor, tasks, **options) -> ContinualCFA:
    learner = make_learner("cfa", "continual", OPTIONS | options)
    for task in tasks:
        learner.learn(extractor.images(task.train))
    return learner


def test_banks_from_mean_maps_equal_banks_from_all_images(extractor, tasks):
    learner = learned(extractor, tasks)
    assert len(learner.banks) == 3
    for task, bank in zip(tasks, learner.banks):
        (batch,) = extractor.images(task.train)
        with torch.no_grad():
            every = torch.stack([learner.detector.descriptor(image) for image in features(batch)]).mean(0)
        assert (bank - every).abs().max() <= 1e-5


def test_each_step_trains_on_current_and_replayed_images_against_the_earlier_descriptors_bank(
    extractor, tasks
):
    learner = learned(extractor, tasks, buffer_ratio=0.5)
    plain, buffer = CFA(**OPTIONS), ReplayBuffer(0.5, OPTIONS["seed"])
    for task in tasks:
        images = extractor.images([*task.train, *buffer.samples()])
        centre = mean_features(images)
        plain.start(centre)
        plain.train(images, plain.describe(centre))
        buffer.add(task.train)
    assert torch.equal(learner.detector.descriptor.weight, plain.descriptor.weight)
    assert learner.buffer.samples() == buffer.samples()
    assert len(buffer.samples()) == 3


def test_the_lowest_image_score_wins(extractor, tasks):
    learner = learned(extractor, tasks)
    for task in tasks:
        (batch,) = extractor.images(task.test)
        values = learner.detector.describe(features(batch))
        each = [position_maps(learner.detector.to_bank(values, bank), 64, 4.0) for bank in learner.banks]
        peaks = torch.stack([maps.amax((1, 2)) for maps in each])
        maps, scores = learner.score(batch)
        assert torch.allclose(scores, peaks.min(0).values)
        for image, best in enumerate(peaks.argmin(0)):
            assert torch.allclose(maps[image], each[best][image], atol=1e-6)


def test_the_training_after_the_first_task_is_that_of_the_detector(extractor, tasks):
    learner, detector = learned(extractor, tasks[:1]), CFA(**OPTIONS)
    detector.fit(extractor.images(tasks[0].train))
    assert torch.equal(learner.detector.descriptor.weight, detector.descriptor.weight)
    # The continual form rebuilds its bank with the trained descriptor, the detector keeps the one it trained to.
    centre = mean_features(extractor.images(tasks[0].train))
    assert torch.equal(learner.banks[0], detector.describe(centre))


def test_kept_bytes_grow_by_a_mean_map_and_a_bank_a_task(extractor, tasks):
    sizes = [learned(extractor, tasks[:count]).kept_bytes() for count in (1, 2, 3)]
    replayed = 64 * 64 * 3 + 8  # a copy of the pixels of one image, and the number of its task
    assert [size - 8 * count - replayed for count, size in enumerate(sizes, start=1)] == [
        4 * (36 * 38 + 36) + count * 256 * (38 + 36) * 4 for count in (1, 2, 3)
    ]


def test_without_replay_nothing_is_kept(extractor, tasks):
    assert learned(extractor, tasks, buffer_ratio=0.0).buffer.samples() == []


def test_a_negative_buffer_is_refused():
    with pytest.raises(ValueError, match=r"^buffer_ratio: -0\.2 is negative"):
        ContinualCFA(CFA(), buffer_ratio=-0.2)
