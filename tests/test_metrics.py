import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from inclad import metrics

NAN = float("nan")
VECTORS = Path(__file__).resolve().parents[1] / ".." / "shared" / "reference" / "vectors.json"


def square(rows):
    """Rows of a lower triangle -> N x N with NaN above the diagonal."""
    R = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        R[i, : len(row)] = row
    return R


def slow_auc(labels, scores):
    wins = [
        1.0 if p > n else 0.5 if p == n else 0.0
        for p, a in zip(scores, labels)
        if a
        for n, b in zip(scores, labels)
        if not b
    ]
    return sum(wins) / len(wins)


# ---- ROC-AUC


def test_roc_auc_by_hand():
    # pairs (positive, negative): 3>1, 3>2, 2>1, 2=2 -> (1 + 1 + 1 + 0.5) / 4
    assert metrics.roc_auc([0, 0, 1, 1], [1.0, 2.0, 3.0, 2.0]) == 0.875


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_roc_auc_with_many_ties_equals_all_pairs(dtype):
    rng = np.random.default_rng(0)
    labels = rng.random(150) < 0.3
    scores = rng.integers(-4, 5, 150).astype(dtype)
    assert metrics.roc_auc(labels, scores) == pytest.approx(slow_auc(labels, scores), abs=1e-15)
    assert metrics.roc_auc(labels.astype(int), list(scores)) == metrics.roc_auc(labels, scores)


@pytest.mark.parametrize("share", [0.0001, 0.02, 0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("kind", ["smooth", "ties", "float64", "outliers", "tiny", "huge", "narrow"])
def test_roc_auc_equals_sklearn_on_many_pixels(share, kind, monkeypatch):
    monkeypatch.setattr(metrics, "_MANY", 1000)  # the histogram and several chunks, without the size
    monkeypatch.setattr(metrics, "_CHUNK", 1500)
    rng = np.random.default_rng(1)
    n = 20_000
    labels = rng.random(n) < share
    scores = rng.standard_normal(n) + labels
    if kind == "ties":
        scores = scores.round(2)
    if kind == "outliers":
        scores[rng.integers(0, n, 20)] *= 1e6
    if kind == "narrow":
        scores = 1000 + 1e-3 * scores
    scores = scores * {"tiny": 1e-35, "huge": 1e37}.get(kind, 1)
    scores = scores if kind == "float64" else scores.astype(np.float32)
    assert metrics.roc_auc(labels, scores) == pytest.approx(
        roc_auc_score(labels, scores.astype(float)), abs=1e-12
    )


def test_the_histogram_decides_most_pixels_and_changes_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    few, many = rng.normal(1, 1, 300).astype(np.float32), rng.normal(0, 1, 30_000).astype(np.float32)
    expected = sum(2 * int((many < p).sum()) + int((many == p).sum()) for p in few)
    assert metrics._twice_wins(few.copy(), many.copy()) == expected
    monkeypatch.setattr(metrics, "_MANY", 1000)
    assert metrics._settle(np.sort(few), many.copy())[1].size < 0.2 * many.size
    assert metrics._twice_wins(few.copy(), many.copy()) == expected


def test_roc_auc_below_half_is_reported_as_it_is():
    assert metrics.roc_auc([1, 1, 0, 0], [0.0, 1.0, 2.0, 3.0]) == 0.0


@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1]])
def test_roc_auc_is_nan_without_two_classes(labels):
    assert np.isnan(metrics.roc_auc(labels, np.arange(len(labels), dtype=float)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_roc_auc_refuses_scores_that_are_not_finite(bad):
    with pytest.raises(ValueError, match="1 of 3 scores"):
        metrics.roc_auc([0, 1, 1], [0.1, bad, 0.2])


def test_roc_auc_refuses_other_labels_and_shapes():
    with pytest.raises(ValueError, match="labels must be 0"):
        metrics.roc_auc([0, 255], [0.1, 0.2])
    with pytest.raises(ValueError, match="3 and 2"):
        metrics.roc_auc([0, 1, 1], [0.1, 0.2])


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_roc_auc_leaves_its_input_alone_and_needs_little_memory(share):
    rng = np.random.default_rng(2)
    n = 2_000_000
    labels, scores = rng.random(n) < share, rng.random(n, dtype=np.float32)
    before = labels.copy(), scores.copy()
    tracemalloc.start()
    metrics.roc_auc(labels, scores)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 8 * n
    assert np.array_equal(labels, before[0]) and np.array_equal(scores, before[1])


def test_roc_auc_is_faster_than_sklearn():
    rng = np.random.default_rng(3)
    n = 1_500_000
    labels = rng.random(n) < 0.03
    scores = rng.random(n, dtype=np.float32)

    def seconds(function):
        start = time.process_time()
        function(labels, scores)
        return time.process_time() - start

    # More than 10 times on an idle machine; the bound leaves room for a busy one.
    assert 3 * min(seconds(metrics.roc_auc) for _ in range(3)) < seconds(roc_auc_score)


def test_pixel_roc_auc_pools_the_pixels_of_all_images():
    rng = np.random.default_rng(4)
    masks = rng.random((3, 8, 8)) < 0.2
    maps = rng.random((3, 8, 8)).astype(np.float32)
    assert metrics.pixel_roc_auc(masks, maps) == pytest.approx(slow_auc(masks.ravel(), maps.ravel()))
    assert metrics.pixel_roc_auc(masks[:, ::2], maps[:, ::2]) == pytest.approx(
        slow_auc(masks[:, ::2].ravel(), maps[:, ::2].ravel())
    )
    with pytest.raises(ValueError, match="one shape"):
        metrics.pixel_roc_auc(masks, maps[:, :4])


# ---- figures made from R

HAND = square([[0.8], [0.5, 1.0], [0.4, 0.8, 0.9]])


def test_figures_by_hand():
    assert metrics.roc_auc_cl(HAND) == pytest.approx((0.8 + 0.5 + 1.0 + 0.4 + 0.8 + 0.9) / 6)
    assert metrics.bwt(HAND) == pytest.approx(-0.3)  # (-0.3 - 0.4 - 0.2) / 3
    assert metrics.bwt_stepwise(HAND) == pytest.approx(-0.2)  # (-0.3 - 0.1 - 0.2) / 3
    assert metrics.bwt_final(HAND) == pytest.approx(-0.3)  # (-0.4 - 0.2) / 2
    assert metrics.final_average(HAND) == pytest.approx(0.7)
    assert metrics.diagonal_mean(HAND) == pytest.approx(0.9)
    assert metrics.forgetting(HAND) == pytest.approx(0.3)  # (0.8 - 0.4 + 1.0 - 0.8) / 2
    assert metrics.valid_cells(HAND) == 6


def test_the_best_earlier_cell_counts_in_forgetting_and_the_diagonal_in_bwt():
    R = square([[0.6], [0.9, 0.7], [0.5, 0.8, 0.7]])
    assert metrics.forgetting(R) == pytest.approx(((0.9 - 0.5) + (0.7 - 0.8)) / 2)
    assert metrics.bwt(R) == pytest.approx((0.3 - 0.1 + 0.1) / 3)


def test_the_three_backward_transfers_differ_and_relate():
    rng = np.random.default_rng(5)
    R = rng.random((7, 7))
    assert metrics.bwt_stepwise(R) == pytest.approx(2 / 7 * metrics.bwt_final(R))
    assert abs(metrics.bwt(R) - metrics.bwt_final(R)) > 1e-3


def test_the_upper_triangle_is_ignored():
    filled = np.where(np.isnan(HAND), 0.123, HAND)
    percent_above = np.where(np.isnan(HAND), 93.0, HAND)
    for name in (
        "roc_auc_cl",
        "bwt",
        "bwt_stepwise",
        "bwt_final",
        "final_average",
        "diagonal_mean",
        "forgetting",
    ):
        figure = getattr(metrics, name)
        assert figure(filled) == figure(percent_above) == figure(HAND)
    assert metrics.valid_cells(filled) == 6


def test_a_missing_cell_drops_only_its_terms():
    R = square([[0.8], [NAN, 1.0], [0.4, 0.8, 0.9]])
    assert metrics.valid_cells(R) == 5
    assert metrics.roc_auc_cl(R) == pytest.approx((0.8 + 1.0 + 0.4 + 0.8 + 0.9) / 5)
    assert metrics.bwt(R) == pytest.approx((-0.4 - 0.2) / 2)
    assert metrics.bwt_stepwise(R) == pytest.approx(-0.2)  # only R[3, 2] - R[2, 2] has both its cells
    assert metrics.bwt_final(R) == pytest.approx(-0.3)
    assert metrics.forgetting(R) == pytest.approx(0.3)


def test_a_missing_column_leaves_the_other_tasks():
    R = square([[NAN], [NAN, 1.0], [NAN, 0.8, 0.9]])
    assert metrics.bwt(R) == metrics.bwt_final(R) == pytest.approx(-0.2)
    assert metrics.forgetting(R) == pytest.approx(0.2)
    assert metrics.final_average(R) == pytest.approx(0.85)


def test_one_task_has_no_past(recwarn):
    R = [[0.7]]
    assert metrics.roc_auc_cl(R) == metrics.final_average(R) == metrics.diagonal_mean(R) == pytest.approx(0.7)
    for figure in (metrics.bwt, metrics.bwt_stepwise, metrics.bwt_final, metrics.forgetting):
        assert np.isnan(figure(R))
        assert np.isnan(figure(np.full((3, 3), NAN)))
        assert np.isnan(figure(np.zeros((0, 0))))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("R", "message"),
    [
        ([[0.8], [0.5, 1.0]], "N x N"),
        (np.zeros((2, 3)), "square"),
        (np.zeros(4), "square"),
        ([["a"]], "numbers"),
        ([[93.7]], "between 0 and 1, got 93.7"),
        ([[np.inf]], "between 0 and 1"),
    ],
)
def test_a_wrong_matrix_is_refused_in_one_line(R, message):
    with pytest.raises(ValueError, match=message) as caught:
        metrics.bwt(R)
    assert "\n" not in str(caught.value)


def test_forward_transfer_by_hand():
    R = [[0.8, 0.6, 0.4], [0.5, 1.0, 0.7], [0.4, 0.8, 0.9]]
    assert metrics.forward_transfer(R) == pytest.approx((0.6 + 0.4 + 0.7) / 3)
    R[0][2] = NAN
    assert metrics.forward_transfer(R) == pytest.approx((0.6 + 0.7) / 2)
    for row, column in ((0, 0), (2, 1)):  # what is below or on the diagonal has no part in it
        R[row][column] = NAN
    assert metrics.forward_transfer(R) == pytest.approx((0.6 + 0.7) / 2)


def test_no_forward_transfer_without_an_upper_triangle(recwarn):
    for R in (HAND, [[0.7]], np.zeros((0, 0))):
        assert np.isnan(metrics.forward_transfer(R))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("R", "message"),
    [
        ([[0.8], [0.5, 1.0]], "N x N"),
        (np.zeros((2, 3)), "square"),
        ([["a"]], "numbers"),
        ([[0.9, 93.7], [0.5, 0.5]], "between 0 and 1, got 93.7"),
        ([[0.9, 0.5], [-1, 0.5]], "between 0 and 1, got -1"),
    ],
)
def test_a_wrong_matrix_has_no_forward_transfer(R, message):
    with pytest.raises(ValueError, match=message):
        metrics.forward_transfer(R)


def test_published_matrices():
    if not VECTORS.exists():
        pytest.skip("the reference vectors are not here")
    vectors = json.loads(VECTORS.read_text())["continual_metrics"]
    assert vectors
    for vector in vectors:
        R = square(vector["R"])
        assert metrics.roc_auc_cl(R) == pytest.approx(vector["roc_auc_cl"], abs=1e-6)
        assert metrics.bwt(R) == pytest.approx(vector["bwt_equation_2"], abs=1e-6)
        assert metrics.bwt_stepwise(R) == pytest.approx(vector["bwt_stepwise"], abs=1e-6)
        assert metrics.bwt_final(R) == pytest.approx(vector["bwt_final_step"], abs=1e-6)
