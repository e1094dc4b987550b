import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import inclad.continual.padim
import inclad.continual.patchcore
import inclad.detectors.cfa
import inclad.detectors.padim
import inclad.detectors.patchcore
import inclad.evaluate
from inclad import metrics
from inclad.cache import Cache
from inclad.continual.catalog import make_learner
from inclad.evaluate import evaluate
from inclad.experts import experts_table, missing_table, run_experts
from inclad.features import Extractor
from inclad.results import summary, to_matrix
from inclad.stream import StreamRecord, pick_examples, run_stream

OPTIONS = {"patchcore": {}, "padim": {"channels": 20}, "cfa": {"epochs": 2, "batch_size": 4}}


def r_matrix(tasks, extractor, name, protocol, **options) -> list[list[tuple[float, float]]]:
    learner = make_learner(name, protocol, OPTIONS[name])
    steps = run_stream(tasks, learner, extractor, **options)
    return [[(e.image, e.pixel) for e in step.evaluations] for step in steps]


class Recorder:
    """Learns nothing, writes down what it is given."""

    key = ""

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
    assert [step.tested for step in steps] == [["01"], ["01", "bolt"], ["01", "bolt", "cable"]]
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
        assert stack.dtype == np.float32
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


# --- the upper triangle


def test_upper_scores_the_tasks_to_come_as_well(extractor, tasks):
    learner = Recorder()
    steps = list(run_stream(tasks, learner, extractor, upper=True))
    assert [step.tested for step in steps] == [[task.name for task in tasks]] * 3
    assert [e for e in learner.events if e[0] == "score"] == [("score", task.test) for task in tasks] * 3


@pytest.mark.parametrize("protocol", ["naive", "continual"])
@pytest.mark.parametrize("name", ["patchcore", "padim", "cfa"])
def test_upper_changes_no_cell_below(make_extractor, tasks, name, protocol):
    lower = r_matrix(tasks, make_extractor(), name, protocol)
    whole = r_matrix(tasks, make_extractor(), name, protocol, upper=True)
    assert [len(row) for row in whole] == [3, 3, 3]
    assert [row[: i + 1] for i, row in enumerate(whole)] == lower


def test_the_tables_take_the_upper_triangle(extractor, tasks):
    records = {}
    for upper in (False, True):
        records[upper] = StreamRecord("drawn", "random")
        learner = make_learner("patchcore", "naive")
        for number, step in enumerate(run_stream(tasks[::-1], learner, extractor, upper=upper), start=1):
            records[upper].add("patchcore", "naive", number, step)
    lower, whole = (records[upper].r_matrix() for upper in (False, True))
    assert list(whole) == list(lower) == [*PLACE, "roc_auc"]
    assert (len(lower), len(whole)) == (12, 18)
    assert list(records[True].costs()) == list(records[False].costs())
    pd.testing.assert_frame_equal(summary(lower), summary(whole))
    image = whole[whole.level == "image"]
    R, names = to_matrix(image)
    assert names == ["cable", "bolt", "01"]
    assert np.isfinite(R).all()
    cells = image.set_index(["step", "task"]).roc_auc
    expected = (cells[1, "bolt"] + cells[1, "01"] + cells[2, "01"]) / 3
    assert metrics.forward_transfer(R) == pytest.approx(expected)
    assert math.isnan(metrics.forward_transfer(to_matrix(lower[lower.level == "image"])[0]))


# --- with a cache on disk


class Calls:
    """Counts the calls of a function that it stands in for."""

    def __init__(self, monkeypatch, module, name):
        self.count, self._call = 0, getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *given, **named):
        self.count += 1
        return self._call(*given, **named)

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.mark.parametrize("protocol", ["naive", "continual"])
@pytest.mark.parametrize("name", ["patchcore", "padim", "cfa"])
@pytest.mark.parametrize("memory_gib", [0, 1])
def test_the_cache_changes_no_r(make_extractor, tasks, cache, name, protocol, memory_gib):
    plain = r_matrix(tasks, make_extractor(), name, protocol, upper=True)
    for _ in ("cold", "warm"):
        extractor = make_extractor(memory_gib, Cache(cache.folder, 1))
        assert r_matrix(tasks, extractor, name, protocol, upper=True) == plain
    assert extractor.backbone.calls == 0


@pytest.mark.parametrize("name", ["patchcore", "padim"])
@pytest.mark.parametrize("protocol", ["naive", "continual"])
def test_the_cache_changes_no_r_on_the_real_network(
    real_backbone, real_extractor, tasks, cache, name, protocol
):
    plain = r_matrix(tasks, real_extractor, name, protocol)
    for _ in ("cold", "warm"):
        assert r_matrix(tasks, Extractor(real_backbone, 64, cache=cache), name, protocol) == plain


def test_a_cache_too_small_for_anything_to_stay_changes_no_r(make_extractor, tasks, tmp_path):
    plain = r_matrix(tasks, make_extractor(), "patchcore", "continual")
    tight = Cache(tmp_path, 40_000 / 2**30)
    assert r_matrix(tasks, make_extractor(0, tight), "patchcore", "continual") == plain
    assert 0 < tight.size() <= 40_000


@pytest.mark.parametrize(
    ("name", "module", "work"),
    [
        ("patchcore", inclad.detectors.patchcore, "farthest_first"),
        ("padim", inclad.detectors.padim, "fit_gaussians"),
    ],
)
def test_orders_protocols_and_experts_share_their_work(
    make_extractor, tasks, cache, monkeypatch, name, module, work
):
    fits, scored = Calls(monkeypatch, module, work), Calls(monkeypatch, inclad.evaluate, "_evaluate")

    def run(tasks, protocol, **options):
        r = r_matrix(tasks, make_extractor(cache=Cache(cache.folder, 1)), name, protocol, **options)
        return r, fits.since(), scored.since()

    forward, *work = run(tasks, "naive")
    assert work == [3, 6]
    backward, *work = run(tasks[::-1], "naive")
    assert work == [0, 3]  # the diagonal is known, the pairs above it are not
    for order in (tasks, tasks[::-1], [tasks[1], tasks[2], tasks[0]]):
        r, *work = run(order, "naive", upper=True)
        assert work == [0, 0]
        assert r == r_matrix(order, make_extractor(), name, "naive", upper=True)
        fits.since(), scored.since()
    assert run(tasks, "continual")[1:] == (0, 6)
    experts = list(run_experts(tasks, [name], make_extractor(cache=cache), OPTIONS))
    assert (fits.since(), scored.since()) == (0, 0)
    assert [(e.image, e.pixel) for _, _, e in experts] == [row[-1] for row in forward]
    assert [row[-1] for row in backward] == [row[-1] for row in forward][::-1]


@pytest.mark.parametrize(
    ("name", "module", "function", "left"),
    [
        # Thinned banks, one more a step, in every cell of the step: the newest is the naive learner's.
        ("patchcore", inclad.continual.patchcore, "patch_distances", 0 + 1 + 1 + 2 + 2 + 2),
        # Gaussians on tasks that came after them.
        ("padim", inclad.continual.padim, "mahalanobis", 3),
    ],
)
def test_naive_and_continual_learners_share_the_distances_to_a_memory(
    make_extractor, tasks, cache, monkeypatch, name, module, function, left
):
    r_matrix(tasks, make_extractor(cache=cache), name, "naive")
    computed = Calls(monkeypatch, module, function)
    shared = r_matrix(tasks, make_extractor(cache=cache), name, "continual")
    assert computed.since() == left
    assert shared == r_matrix(tasks, make_extractor(), name, "continual")


def test_options_are_not_mixed_up(make_extractor, tasks, cache):
    extractor = make_extractor(cache=cache)
    for options in ({"coreset_ratio": 0.05}, {"coreset_ratio": 0.5}, {"sigma": 1.0}, {"seed": 3}):
        (_, _, plain), (_, _, cached) = (
            next(run_experts(tasks[:1], ["patchcore"], each, {"patchcore": options}))
            for each in (make_extractor(), extractor)
        )
        assert plain == cached


def test_what_starts_from_its_last_state_is_not_kept(make_extractor, tasks, cache, monkeypatch):
    trained, scored = (
        Calls(monkeypatch, inclad.detectors.cfa, "loss"),
        Calls(monkeypatch, inclad.evaluate, "_evaluate"),
    )
    counts = []
    for order in (tasks, tasks, tasks[::-1]):
        r = r_matrix(order, make_extractor(cache=cache), "cfa", "naive")
        counts.append((trained.since(), scored.since()))
        assert r == r_matrix(order, make_extractor(), "cfa", "naive")
        trained.since(), scored.since()
    assert counts == [(12, 6)] * 3  # 3 tasks, 2 epochs, 2 batches


def test_missing_cells_of_a_stream_keep_their_reasons(make_extractor, tasks, make_task, cache):
    odd = [tasks[0], make_task("02", anomalous=0), make_task("03", masks=False)]
    found = []
    for each in (None, cache, cache):
        learner = make_learner("patchcore", "naive")
        steps = run_stream(odd, learner, make_extractor(cache=each))
        found.append([e.reasons for step in steps for e in step.evaluations])
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0])) == 5


def test_a_damaged_cache_changes_no_r(make_extractor, tasks, cache):
    plain = r_matrix(tasks, make_extractor(cache=cache), "padim", "naive")
    for number, path in enumerate(sorted(cache.folder.glob("*/*"))):
        content = bytearray(path.read_bytes())
        content[-1 - number % 7] ^= 1
        path.write_bytes(content if number % 2 else content[: len(content) // 2])
    with pytest.warns(UserWarning, match="made again"):
        assert r_matrix(tasks, make_extractor(cache=Cache(cache.folder, 1)), "padim", "naive") == plain
