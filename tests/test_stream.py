import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from inclad.continual.catalog import make_learner
from inclad.evaluate import evaluate
from inclad.experts import experts_table, missing_table, run_experts
from inclad.stream import StreamRecord, pick_examples, run_stream

OPTIONS = {"patchcore": {}, "padim": {"channels": 20}, "cfa": {"epochs": 2, "batch_size": 4}}


def r_matrix(tasks, extractor, name, protocol) -> list[list[tuple[float, float]]]:
    learner = make_learner(name, protocol, OPTIONS[name])
    return [[(e.image, e.pixel) for e in step.evaluations] for step in run_stream(tasks, learner, extractor)]


class Recorder:
    """Learns nothing, writes down what it is given."""

    def __init__(self):
        self.events = []

    def learn(self, images):
        self.events.append(("learn", images.samples))

    def score(self, batch):
        self.events.append(("score", batch.samples))
        maps = batch.pixels().mean(1)
        return maps, maps.flatten(1).amax(1)

    def kept_bytes(self):
        return 7 * sum(kind == "learn" for kind, _ in self.events)


def test_only_tasks_seen_are_scored_each_once(extractor, tasks):
    learner = Recorder()
    steps = list(run_stream(tasks, learner, extractor))
    expected = []
    for count in (1, 2, 3):
        expected.append(("learn", tasks[count - 1].train))
        expected += [("score", task.test) for task in tasks[:count]]
    assert learner.events == expected
    assert [len(step.evaluations) for step in steps] == [1, 2, 3]
    assert [step.task for step in steps] == tasks
    assert [step.kept_bytes for step in steps] == [7, 14, 21]
    assert all(step.train_seconds >= 0 and step.score_seconds > 0 for step in steps)


def test_a_step_is_there_before_the_next_task_is_learned(extractor, tasks):
    learner = Recorder()
    stream = run_stream(tasks, learner, extractor)
    next(stream)
    assert [kind for kind, _ in learner.events] == ["learn", "score"]


def test_followed_images_are_scored_after_every_task(extractor, tasks):
    follow = [task.test[-1] for task in tasks]
    for step in run_stream(tasks, Recorder(), extractor, follow):
        assert step.maps.shape == (3, 64, 64)
        assert step.scores.shape == (3,)
        assert np.allclose(step.scores, step.maps.max((1, 2)))


def test_following_nothing_gives_empty_arrays(extractor, tasks):
    step = next(run_stream(tasks, Recorder(), extractor))
    assert step.maps.shape == (0, 64, 64)
    assert step.scores.shape == (0,)


def test_following_changes_no_result(extractor, tasks):
    results = [
        [
            step.evaluations
            for step in run_stream(tasks, make_learner("patchcore", "continual"), extractor, follow)
        ]
        for follow in ([], [tasks[2].test[0]])
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["patchcore", "padim"])
def test_naive_r_is_the_table_of_experts_on_tests(extractor, tasks, name):
    experts = []
    for task in tasks:
        expert = make_learner(name, "naive", OPTIONS[name])
        expert.learn(extractor.images(task.train))
        experts.append(expert)
    pairs = [[evaluate(expert.score, task, extractor) for task in tasks] for expert in experts]
    expected = [[(e.image, e.pixel) for e in row[: i + 1]] for i, row in enumerate(pairs)]
    assert r_matrix(tasks, extractor, name, "naive") == expected


def test_naive_r_does_not_depend_on_the_order(extractor, tasks):
    forward = r_matrix(tasks, extractor, "patchcore", "naive")
    backward = r_matrix(tasks[::-1], extractor, "patchcore", "naive")
    assert [forward[i][i] for i in range(3)] == [backward[2 - i][2 - i] for i in range(3)]


@pytest.mark.parametrize("name", ["patchcore", "padim", "cfa"])
@pytest.mark.parametrize("protocol", ["naive", "continual"])
def test_the_same_seed_gives_the_same_r(make_extractor, tasks, name, protocol):
    first, second = (r_matrix(tasks, make_extractor(), name, protocol) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["patchcore", "padim", "cfa"])
def test_the_limit_of_the_memory_changes_no_r(make_extractor, tasks, name):
    plenty = r_matrix(tasks, make_extractor(), name, "continual")
    scarce = r_matrix(tasks, make_extractor(memory_gib=0), name, "continual")
    assert np.allclose(np.concatenate(plenty), np.concatenate(scarce), atol=1e-3)


@pytest.mark.parametrize("name", ["patchcore", "padim"])
def test_continual_r_on_the_real_network(real_extractor, tasks, name):
    r = r_matrix(tasks, real_extractor, name, "continual")
    assert r == r_matrix(tasks, real_extractor, name, "continual")
    assert all(0 <= value <= 1 for row in r for cell in row for value in cell)
    assert r[2][0][0] >= 0.9


def test_experts_are_the_diagonal_of_naive(extractor, tasks):
    found = {(task.name, name): e for task, name, e in run_experts(tasks, ["patchcore", "padim"], extractor)}
    assert list(found) == [(t.name, d) for t in tasks for d in ("patchcore", "padim")]
    for i, row in enumerate(r_matrix(tasks, extractor, "patchcore", "naive")):
        expert = found[tasks[i].name, "patchcore"]
        assert row[-1] == (expert.image, expert.pixel)


def test_experts_take_their_options(extractor, tasks, monkeypatch):
    import inclad.experts

    asked = []
    monkeypatch.setattr(
        inclad.experts,
        "make_learner",
        lambda *given: asked.append(given) or make_learner("patchcore", "naive"),
    )
    list(run_experts(tasks[:1], ["cfa"], extractor, {"cfa": {"epochs": 3}}, 7))
    assert asked == [("cfa", "naive", {"epochs": 3}, 7)]


def test_tables_of_experts(extractor, tasks, make_task):
    odd = [tasks[0], make_task("02", masks=False), make_task("03", anomalous=0)]
    experts = list(run_experts(odd, ["patchcore"], extractor))
    table, missing = experts_table("drawn", experts), missing_table("drawn", experts)
    assert list(table) == ["dataset", "task", "detector", "image_roc_auc", "pixel_roc_auc"]
    assert table.task.tolist() == ["01", "02", "03"]
    assert table.image_roc_auc.isna().tolist() == [False, False, True]
    assert table.pixel_roc_auc.isna().tolist() == [False, True, True]
    assert list(zip(missing.task, missing.level)) == [("02", "pixel"), ("03", "image"), ("03", "pixel")]
    assert set(missing.detector) == {"patchcore"}


# --- examples to follow


def sample(label=0, mask=None, name="x"):
    return SimpleNamespace(label=label, mask=mask, name=name)


def test_examples_are_defective_and_have_a_mask_if_there_is_one():
    plain, bad, masked, other = (
        sample(),
        sample(1, name="bad"),
        sample(1, "m", "masked"),
        sample(1, "m", "other"),
    )
    tests = [(plain, bad, masked, other), (plain, bad), (plain,), ()]
    found = pick_examples([SimpleNamespace(test=test) for test in tests])
    assert [s.name for s in found] == ["masked", "bad"]


# --- tables

PLACE = ["dataset", "ordering", "detector", "protocol", "level", "step", "task"]


@pytest.fixture
def record(extractor, tasks, make_task):
    odd = [tasks[0], replace(make_task("02", anomalous=0), name="02"), make_task("03", masks=False)]
    record = StreamRecord("drawn", "easy_to_hard")
    for protocol in ("naive", "continual"):
        learner = make_learner("patchcore", protocol)
        follow = pick_examples(odd)
        for number, step in enumerate(run_stream(odd, learner, extractor, follow), start=1):
            record.add("patchcore", protocol, number, step)
    return record


def test_cells_are_the_lower_triangle(record):
    frame = record.r_matrix()
    assert list(frame) == [*PLACE, "roc_auc"]
    assert len(frame) == 2 * 2 * 6
    assert set(frame.dataset) == {"drawn"}
    assert set(frame.ordering) == {"easy_to_hard"}
    one = frame[(frame.protocol == "naive") & (frame.level == "image")]
    assert list(zip(one.step, one.task)) == [
        (1, "01"), (2, "01"), (2, "02"), (3, "01"), (3, "02"), (3, "03")
    ]  # fmt: skip
    assert pd.api.types.is_integer_dtype(frame.step)


def test_missing_cells_are_empty_and_have_a_reason(record):
    frame, missing = record.r_matrix(), record.missing()
    assert list(missing) == [*PLACE, "reason"]
    empty = frame[frame.roc_auc.isna()]
    assert sorted(map(tuple, empty[PLACE].values)) == sorted(map(tuple, missing[PLACE].values))
    assert set(zip(missing.task, missing.level, missing.reason)) == {
        ("02", "image", "one class only: no anomalous test images"),
        ("02", "pixel", "no masks"),
        ("03", "pixel", "no masks"),
    }


def test_nothing_missing_gives_an_empty_table(extractor, tasks):
    record = StreamRecord("drawn", "random")
    for number, step in enumerate(run_stream(tasks[:1], Recorder(), extractor), start=1):
        record.add("patchcore", "naive", number, step)
    assert record.missing().empty
    assert not record.r_matrix().roc_auc.isna().any()


def test_costs_have_a_row_a_step(record):
    frame = record.costs()
    places = [name for name in PLACE if name != "level"]
    assert list(frame) == [*places, "train_s", "score_s", "kept_bytes"]
    assert list(zip(frame.protocol, frame.step, frame.task)) == [
        (protocol, step, f"0{step}") for protocol in ("naive", "continual") for step in (1, 2, 3)
    ]
    assert (frame.kept_bytes > 0).all() and (frame.train_s > 0).all()


def test_followed_maps_are_stacked_by_step(record):
    maps = record.maps()
    assert set(maps) == {"patchcore.naive", "patchcore.continual"}
    for stack in maps.values():
        assert stack.shape == (3, 2, 64, 64)
        assert stack.dtype == np.float16
        assert np.isfinite(stack).all()


def test_r_of_the_record_is_that_of_the_evaluations(extractor, tasks):
    record = StreamRecord("drawn", "random")
    expected = {}
    for number, step in enumerate(run_stream(tasks, Recorder(), extractor), start=1):
        record.add("patchcore", "naive", number, step)
        for task, evaluation in zip(tasks, step.evaluations):
            expected[number, task.name, "image"] = evaluation.image
            expected[number, task.name, "pixel"] = evaluation.pixel
    frame = record.r_matrix()
    assert dict(zip(zip(frame.step, frame.task, frame.level), frame.roc_auc)) == expected
    assert not any(map(math.isnan, expected.values()))
