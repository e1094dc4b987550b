"""Against the plain forms: a full table of distances in float64, and a loop that makes one pick at a time."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from inclad import neighbors
from inclad.neighbors import farthest_first, nearest, nearest_k, weighted_farthest_first


def draw(count: int, dims: int, seed: int, offset: float = 0.0) -> torch.Tensor:
    return torch.randn(count, dims, generator=torch.Generator().manual_seed(seed)) + offset


# --- nearest


@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 4097, 8200])
def test_nearest_equals_the_full_table(size, offset):
    bank, queries = draw(size, 5, 1, offset), draw(70, 5, 2, offset)
    distance, index = nearest(queries, bank)
    table = cdist(queries.double(), bank.double())
    assert np.abs(distance.numpy() - table.min(1)).max() <= 1e-5
    # Where two are equally near up to rounding either may be named, but it must be that near.
    assert np.abs(table[np.arange(70), index] - table.min(1)).max() <= 1e-5


@pytest.mark.parametrize("queries", [1, 1023, 1024, 1025, 2500])
def test_nearest_takes_queries_in_pieces(queries, monkeypatch):
    bank, points = draw(60, 4, 3), draw(queries, 4, 4)
    monkeypatch.setattr(neighbors, "CHUNK", 7)
    distance, index = nearest(points, bank)
    table = cdist(points.double(), bank.double())
    assert np.array_equal(index.numpy(), table.argmin(1))
    assert distance.shape == (queries,)
    assert np.abs(distance.numpy() - table.min(1)).max() <= 1e-5


def test_nearest_of_a_member_is_itself_at_distance_zero():
    bank = draw(500, 6, 5, 1000.0)
    distance, index = nearest(bank, bank)
    assert torch.equal(index, torch.arange(500))
    assert distance.abs().max() == 0


def test_nearest_of_a_query_that_is_not_a_number_is_not_a_number():
    queries = draw(3, 4, 6)
    queries[1, 2] = torch.nan
    distance, _ = nearest(queries, draw(20, 4, 7))
    assert distance.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("queries", [1, 4096, 4099])
def test_nearest_k_equals_the_sorted_table(queries, offset):
    bank, points = draw(40, 6, 8, offset), draw(queries, 6, 9, offset)
    squares, index = nearest_k(points, bank, 6)
    table = cdist(points.double(), bank.double())
    found = np.take_along_axis(table, index.numpy(), 1)
    assert np.abs(found - np.sort(table, 1)[:, :6]).max() <= 1e-5
    assert np.allclose(squares.sqrt(), found, atol=1e-3 if offset else 1e-5)
    assert all(len(set(row)) == 6 for row in index.tolist())


def test_nearest_k_can_name_the_whole_bank():
    assert sorted(nearest_k(draw(1, 3, 1), draw(5, 3, 2), 5)[1][0].tolist()) == list(range(5))


# --- farthest first


def plain_greedy(points: np.ndarray, weights: np.ndarray, distance: np.ndarray, count: int) -> list[int]:
    """One pick at a time: argmax of weight times distance to the nearest pick; the picked are out."""
    distance, out, picks = distance.copy(), np.zeros(len(points), bool), []
    for _ in range(count):
        picks.append(int(np.where(out, -1, weights * distance).argmax()))
        out[picks[-1]] = True
        distance = np.minimum(distance, np.linalg.norm(points - points[picks[-1]], axis=1))
    return picks


def plain_farthest_first(points: torch.Tensor, count: int, seed: int, starts: int = 10) -> list[int]:
    points = points.double().numpy()
    chosen = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:starts].numpy()
    first = cdist(points, points[chosen]).mean(1)
    return plain_greedy(points, np.ones(len(points)), first, count)


def plain_weighted(points: torch.Tensor, weights: torch.Tensor, count: int) -> list[int]:
    points, weights = points.double().numpy(), weights.double().numpy()
    # Before the first pick all distances are alike: the largest weight wins.
    first = int(weights.argmax())
    distance = np.linalg.norm(points - points[first], axis=1)
    out = np.zeros(len(points), bool)
    out[first] = True
    picks = [first]
    while len(picks) < count:
        picks.append(int(np.where(out, -1, weights * distance).argmax()))
        out[picks[-1]] = True
        distance = np.minimum(distance, np.linalg.norm(points - points[picks[-1]], axis=1))
    return picks


def check_greedy(points: torch.Tensor, weights: torch.Tensor, distance: np.ndarray, picks: list[int]) -> None:
    """Every pick is, up to rounding, the best at its time."""
    points, weights = points.double().numpy(), weights.double().numpy()
    out = np.zeros(len(points), bool)
    for pick in picks:
        value = np.where(out, -1, weights * distance)
        assert value[pick] >= value.max() - 1e-5 * max(1.0, value.max())
        out[pick] = True
        distance = np.minimum(distance, np.linalg.norm(points - points[pick], axis=1))


SIZES = [(1, 1), (5, 5), (255, 60), (256, 256), (257, 100), (700, 300), (1500, 150)]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("size", "count"), SIZES)
def test_farthest_first_picks_what_the_loop_picks(size, count, seed):
    points = draw(size, 8, seed)
    picks = farthest_first(points, count, torch.Generator().manual_seed(seed)).tolist()
    assert len(set(picks)) == count
    assert set(picks) == set(plain_farthest_first(points, count, seed))


@pytest.mark.parametrize("block", [1, 2, 16])
def test_the_size_of_the_block_changes_nothing(block, monkeypatch):
    points = draw(400, 8, 3)
    monkeypatch.setattr(neighbors, "BLOCK", block)
    picks = farthest_first(points, 120, torch.Generator().manual_seed(3)).tolist()
    assert set(picks) == set(plain_farthest_first(points, 120, 3))


def test_farthest_first_far_from_the_origin():
    points = draw(600, 8, 4, 1000.0)
    picks = farthest_first(points, 200, torch.Generator().manual_seed(4)).tolist()
    assert set(picks) == set(plain_farthest_first(points, 200, 4))


def test_every_pick_is_the_farthest_at_its_time():
    points, seed = draw(800, 8, 5), 5
    picks = farthest_first(points, 400, torch.Generator().manual_seed(seed)).tolist()
    starts = torch.randperm(800, generator=torch.Generator().manual_seed(seed))[:10]
    check_greedy(points, torch.ones(800), cdist(points.double(), points[starts].double()).mean(1), picks)


@pytest.mark.parametrize("seed", [0, 1])
def test_farthest_first_with_points_that_coincide(seed):
    distinct = draw(300, 6, seed)
    points = torch.cat([distinct, distinct, distinct[:100]])
    picks = farthest_first(points, 280, torch.Generator().manual_seed(seed)).tolist()
    assert len(set(picks)) == 280
    # Any copy may stand for a point, but no point is taken twice before all are taken once.
    assert {pick % 300 if pick < 600 else pick - 600 for pick in picks} == {
        pick % 300 if pick < 600 else pick - 600 for pick in plain_farthest_first(points, 280, seed)
    }
    assert sorted(farthest_first(points, 700, torch.Generator().manual_seed(seed)).tolist()) == list(
        range(700)
    )


def test_farthest_first_where_all_points_coincide():
    picks = farthest_first(torch.full((600, 4), 7.3), 500, torch.Generator().manual_seed(0)).tolist()
    assert len(set(picks)) == 500


def test_farthest_first_gives_no_more_than_there_are():
    assert sorted(farthest_first(draw(20, 3, 0), 50, torch.Generator().manual_seed(0)).tolist()) == list(
        range(20)
    )


def test_farthest_first_repeats_with_its_seed():
    points = draw(500, 8, 6)
    first, again, other = (
        farthest_first(points, 50, torch.Generator().manual_seed(seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


# --- weighted


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("size", "count"), SIZES)
def test_weighted_picks_what_the_loop_picks(size, count, seed):
    points = draw(size, 8, seed)
    weights = torch.rand(size, generator=torch.Generator().manual_seed(seed + 10))
    picks = weighted_farthest_first(points, weights, count).tolist()
    assert len(set(picks)) == count
    assert set(picks) == set(plain_weighted(points, weights, count))
    assert picks[0] == int(weights.argmax())


def test_every_weighted_pick_is_the_best_at_its_time():
    points, weights = draw(800, 8, 7), torch.rand(800, generator=torch.Generator().manual_seed(8))
    picks = weighted_farthest_first(points, weights, 300).tolist()
    distance = np.linalg.norm(points.double().numpy() - points[picks[0]].double().numpy(), axis=1)
    check_greedy(points, weights, distance, picks[1:])


@pytest.mark.parametrize("zeros", [100, 350, 399, 400])
def test_points_of_weight_zero_come_last_and_none_twice(zeros):
    points = draw(400, 8, 9)
    weights = torch.rand(400, generator=torch.Generator().manual_seed(9)) + 0.01
    weights[torch.randperm(400, generator=torch.Generator().manual_seed(10))[:zeros]] = 0
    for count in (50, 300, 400):
        picks = weighted_farthest_first(points, weights, count).tolist()
        assert len(set(picks)) == count
        kept = sum(weights[picks] > 0).item() if picks else 0
        assert kept == min(count, 400 - zeros)


def test_weighted_with_points_that_coincide():
    distinct = draw(200, 6, 11)
    points, weights = (
        distinct.repeat(3, 1),
        torch.rand(200, generator=torch.Generator().manual_seed(12)).repeat(3),
    )
    picks = weighted_farthest_first(points, weights, 150).tolist()
    assert len({pick % 200 for pick in picks}) == 150
    assert {pick % 200 for pick in picks} == {pick % 200 for pick in plain_weighted(points, weights, 150)}
    assert len(set(weighted_farthest_first(points, weights, 600).tolist())) == 600


def test_weighted_where_all_weights_are_zero():
    assert len(set(weighted_farthest_first(draw(300, 4, 13), torch.zeros(300), 280).tolist())) == 280


def test_points_that_are_not_numbers_do_not_keep_the_selection_from_ending():
    points = draw(3000, 4, 3)
    points[::5] = torch.nan
    # What is picked is as meaningless as the points; the scores, not numbers either, name the image.
    assert len(farthest_first(points, 900, torch.Generator().manual_seed(0))) == 900
