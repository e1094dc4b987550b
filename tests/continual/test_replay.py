from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_options import OPTIONS

from inclad.continual.catalog import CONTINUAL, make_learner
from inclad.continual.replay import Replay, ReplayBuffer, fair_quotas
from inclad.data.task import Sample


def samples(task: str, count: int) -> tuple[Sample, ...]:
    return tuple(Sample(Path(task) / str(i)) for i in range(count))


def kept(buffer: ReplayBuffer) -> dict[str, set[Sample]]:
    found: dict[str, set[Sample]] = {}
    for sample in buffer.samples():
        found.setdefault(sample.image.parent.name, set()).add(sample)
    return found


def counts(buffer: ReplayBuffer) -> dict[str, int]:
    return {task: len(these) for task, these in kept(buffer).items()}


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=8))
def test_quotas_are_as_even_as_what_there_is(budget, available):
    quotas = fair_quotas(budget, available)
    assert sum(quotas) == min(budget, sum(available))
    assert all(quota <= there for quota, there in zip(quotas, available))
    for quota, there in zip(quotas, available):
        # Who got less than another by two or more had no more to give.
        assert quota == there or quota >= max(quotas) - 1


@pytest.mark.parametrize(
    ("budget", "available", "expected"),
    [
        (7, [9, 9, 9], [3, 2, 2]),
        (9, [1, 9, 9], [1, 4, 4]),
        (10, [1, 2, 9], [1, 2, 7]),
        (2, [5, 5, 5], [1, 1, 0]),
        (100, [3, 4], [3, 4]),
        (0, [3, 4], [0, 0]),
        (5, [], []),
    ],
)
def test_quotas_by_hand(budget, available, expected):
    assert fair_quotas(budget, available) == expected


def test_one_budget_is_shared_by_the_tasks_seen():
    buffer = ReplayBuffer(0.2)
    for number, expected in enumerate(
        [{"a": 10}, {"a": 5, "b": 5}, {"a": 4, "b": 3, "c": 3}, {"a": 3, "b": 3, "c": 2, "d": 2}]
    ):
        buffer.add(samples("abcd"[number], 50))
        assert counts(buffer) == expected


@pytest.mark.parametrize("ratio", [0.01, 0.2, 0.5, 1.0])
def test_the_budget_follows_the_mean_size_of_the_tasks(ratio):
    buffer, sizes = ReplayBuffer(ratio), [40, 10, 25, 60, 7]
    for number, size in enumerate(sizes, start=1):
        buffer.add(samples(str(number), size))
        budget = max(1, round(ratio * sum(sizes[:number]) / number))
        assert len(buffer.samples()) <= budget
        assert len(set(buffer.samples())) == len(buffer.samples())
        if number == 1:
            assert len(buffer.samples()) == budget


def test_what_a_small_task_cannot_fill_goes_to_the_others():
    buffer = ReplayBuffer(0.5)
    for task, size in (("small", 2), ("large", 38), ("other", 38)):
        buffer.add(samples(task, size))
    # The budget is round(0.5 x 26) = 13; the first was cut to 1 when it was alone.
    assert counts(buffer) == {"small": 1, "large": 6, "other": 6}


def test_the_smallest_budget_is_one_image():
    buffer = ReplayBuffer(0.001)
    for task in "ab":
        buffer.add(samples(task, 20))
        assert len(buffer.samples()) == 1


def test_a_quota_that_shrinks_keeps_some_of_what_was_kept():
    buffer = ReplayBuffer(0.5)
    before: dict[str, set[Sample]] = {}
    for task in "abcde":
        buffer.add(samples(task, 30))
        now = kept(buffer)
        assert all(now[old] <= before[old] for old in before)
        before = now


def test_ratio_zero_keeps_nothing():
    buffer = ReplayBuffer(0.0)
    for task in "abc":
        buffer.add(samples(task, 30))
    assert buffer.samples() == []


def test_the_choice_repeats_with_its_seed_and_is_in_task_order():
    chosen = []
    for seed in (1, 1, 2):
        buffer = ReplayBuffer(0.4, seed)
        for task in "abc":
            buffer.add(samples(task, 30))
        chosen.append(buffer.samples())
        tasks = [sample.image.parent.name for sample in chosen[-1]]
        assert tasks == sorted(tasks)
    assert chosen[0] == chosen[1]
    assert chosen[0] != chosen[2]
    assert chosen[0] != [*samples("a", 4), *samples("b", 4), *samples("c", 4)], "chosen at random"


TRAINED = [name for name, cls in CONTINUAL.items() if cls is Replay]


@pytest.mark.parametrize("name", TRAINED)
def test_without_a_buffer_replay_is_the_naive_learner_bit_for_bit(name, make_extractor, tasks):
    states = []
    for protocol, more in (("naive", {}), ("continual", {"buffer_ratio": 0.0})):
        learner, extractor = make_learner(name, protocol, OPTIONS[name] | more), make_extractor()
        for task in tasks[:2]:
            learner.learn(extractor.images(task.train))
        states.append(learner.state())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", TRAINED)
def test_replay_grows_by_its_budget_of_pixels_and_no_more(name, extractor, tasks):
    learner = make_learner(name, "continual", OPTIONS[name] | {"buffer_ratio": 0.5})
    sizes = []
    for task in tasks:
        learner.learn(extractor.images(task.train))
        sizes.append(learner.kept_bytes() - learner.detector.kept_bytes())
    # 3 images of 64 x 64 pixels and their task; 8 bytes a task for its size.
    assert sizes == [3 * (64 * 64 * 3 + 8) + 8 * count for count in (1, 2, 3)]


def test_replayed_images_are_read_from_their_copies(make_extractor, make_task, tasks):
    """A task whose files are gone is still trained on."""
    gone, extractor = make_task("gone"), make_extractor()
    learner = make_learner("stfpm", "continual", OPTIONS["stfpm"] | {"buffer_ratio": 1.0})
    learner.learn(extractor.images(gone.train))
    for sample in gone.train:
        sample.image.unlink()
    fresh = make_extractor()
    learner.learn(fresh.images(tasks[0].train))
    with pytest.raises((OSError, ValueError)):
        make_extractor().pixels(gone.train[:1])


def test_a_capacity_takes_the_place_of_the_ratio(extractor, tasks):
    learner = make_learner("stfpm", "continual", OPTIONS["stfpm"] | {"buffer_capacity": 2})
    for task, kept_now in zip(tasks, (2, 2, 2)):
        learner.learn(extractor.images(task.train))
        assert len(learner.buffer.samples()) == kept_now


def test_the_farthest_images_are_kept_by_their_mean_features(extractor, tasks):
    buffer = ReplayBuffer(0.5, selection="farthest")
    buffer.take(extractor.images(tasks[0].train))
    chosen = [tasks[0].train.index(sample) for sample in buffer.samples()]
    means = extractor.features(tasks[0].train, (3,))[0].mean((2, 3))
    distances = torch.cdist(means, means)
    # The second and the third are each the farthest from those before.
    for count in (1, 2):
        assert chosen[count] == int(distances[:, chosen[:count]].amin(1).argmax())


def test_an_unknown_selection_is_refused():
    with pytest.raises(ValueError, match="buffer_selection: 'best' is unknown"):
        ReplayBuffer(0.5, selection="best")
