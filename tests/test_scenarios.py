import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from inclad.scenarios import ORDERINGS, consensus_ranks, order_tasks, spearman

REFERENCE = Path(__file__).resolve().parents[1] / ".." / "shared" / "reference"


def tidy(scores, dataset="d"):
    """{task: {detector: image ROC-AUC}} -> experts table."""
    return pd.DataFrame(
        [
            {
                "dataset": dataset,
                "task": task,
                "detector": detector,
                "image_roc_auc": value,
                "pixel_roc_auc": 0.5,
            }
            for task, row in scores.items()
            for detector, value in row.items()
        ]
    )


def vectors(key):
    path = REFERENCE / "vectors.json"
    if not path.exists():
        pytest.skip("the reference vectors are not here")
    return json.loads(path.read_text())[key]


SMALL = tidy({"c": {"p": 0.9, "q": 0.6}, "a": {"p": 0.5, "q": 0.7}, "b": {"p": 0.7, "q": 0.9}})


def test_ranks_by_hand():
    table = consensus_ranks(SMALL)
    # p: a 1, b 2, c 3; q: c 1, a 2, b 3 -> a 1.5, c 2, b 2.5
    assert table.to_dict("list") == {
        "dataset": ["d", "d", "d"],
        "task": ["a", "c", "b"],
        "p": [1, 3, 2],
        "q": [2, 1, 3],
        "average_rank": [1.5, 2.0, 2.5],
        "average_roc_auc": [pytest.approx(0.6), pytest.approx(0.75), pytest.approx(0.8)],
    }


def test_equal_scores_and_equal_average_ranks_go_by_name_whatever_the_row_order():
    experts = tidy({"b": {"p": 1.0, "q": 0.2}, "a": {"p": 1.0, "q": 0.9}, "c": {"p": 0.3, "q": 0.95}})
    for seed in range(4):
        table = consensus_ranks(experts.sample(frac=1, random_state=seed)).set_index("task")
        assert table["p"].to_dict() == {"c": 1, "a": 2, "b": 3}
        assert table["q"].to_dict() == {"b": 1, "a": 2, "c": 3}
        assert list(table.index) == ["a", "b", "c"]  # all three average ranks are 2


def test_published_ranks_of_mpdd():
    vector = vectors("ranking_mpdd")
    experts = tidy(vector["roc_auc"])
    table = consensus_ranks(experts).set_index("task")
    for task, ranks in vector["ranks"].items():
        assert table.loc[task, list(ranks)].to_dict() == ranks
        assert table.loc[task, "average_rank"] == pytest.approx(vector["average_rank"][task], abs=1e-6)
        assert table.loc[task, "average_roc_auc"] == pytest.approx(vector["average_roc_auc"][task], abs=1e-6)
    expected = list(vector["hard_to_easy"])
    i = expected.index("tubes")  # the one tie: the paper has tubes first, our rule goes by name
    expected[i : i + 2] = ["bracket_white", "tubes"]
    assert order_tasks("hard_to_easy", sorted(expected), experts) == expected
    assert order_tasks("easy_to_hard", sorted(expected), experts) == expected[::-1]


def test_spearman_equals_scipy():
    rng = np.random.default_rng(0)
    scores = {f"t{i}": dict(zip("pqr", rng.random(3))) for i in range(9)}
    table = spearman(tidy(scores))
    assert list(zip(table["detector_a"], table["detector_b"])) == [("p", "q"), ("p", "r"), ("q", "r")]
    columns = {d: [row[d] for row in scores.values()] for d in "pqr"}
    for a, b, value in table.itertuples(index=False):
        assert value == pytest.approx(spearmanr(columns[a], columns[b]).statistic)


def test_spearman_of_one_task_is_nan():
    assert math.isnan(spearman(tidy({"a": {"p": 0.5, "q": 0.6}}))["spearman"].item())


def test_orders():
    names = ["c", "b", "a"]
    assert order_tasks("given", names) == names
    assert order_tasks("hard_to_easy", names, SMALL) == ["a", "c", "b"]
    assert order_tasks("easy_to_hard", names, SMALL) == ["b", "c", "a"]
    assert order_tasks("easy_to_hard", ["a", "b"], SMALL) == ["b", "a"]  # c takes no part in the ranks
    assert set(ORDERINGS) == {"easy_to_hard", "hard_to_easy", "random", "given"}
    assert all(order_tasks(ordering, [], SMALL) == [] for ordering in ORDERINGS)


def test_random_depends_on_the_seed_and_not_on_the_listing_order():
    names = [f"t{i}" for i in range(10)]
    orders = {tuple(order_tasks("random", names, seed=seed)) for seed in range(5)}
    assert len(orders) == 5 and all(sorted(order) == sorted(names) for order in orders)
    assert order_tasks("random", names[::-1], seed=3) == order_tasks("random", names, seed=3)
    assert all(type(name) is str for name in order_tasks("random", names))


@pytest.mark.parametrize(
    ("ordering", "names", "experts", "message"),
    [
        ("easy", ["a"], SMALL, "unknown ordering 'easy' .known: easy_to_hard, hard_to_easy, random, given"),
        ("easy_to_hard", ["a", "z"], SMALL, "scores of z: .*inclad run experts"),
        ("hard_to_easy", ["a"], None, "scores of a: .*inclad run experts"),
        ("given", ["a", "a"], None, "'a' is named twice"),
        ("hard_to_easy", ["a", "b", "c"], SMALL.iloc[:-1], "'q' has no image ROC-AUC for task 'b'"),
        ("hard_to_easy", ["a", "b", "c"], SMALL.replace({"image_roc_auc": {0.7: np.nan}}), "for task 'a'"),
        ("hard_to_easy", ["a"], pd.concat([SMALL, SMALL]), "twice"),
    ],
)
def test_what_cannot_be_ordered_is_told_in_one_line(ordering, names, experts, message):
    with pytest.raises(ValueError, match=message) as caught:
        order_tasks(ordering, names, experts)
    assert "\n" not in str(caught.value)
