from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from inclad.continual.catalog import make_learner
from inclad.continual.patchcore import ContinualPatchCore, thin
from inclad.detectors.patchcore import PatchCore, embed, patch_distances
from inclad.maps import position_maps


def learn(extractor, tasks, **options) -> tuple[ContinualPatchCore, list[list[torch.Tensor]]]:
    """The learner after all tasks, and its banks after each."""
    learner, history = make_learner("patchcore", "continual", options), []
    for task in tasks:
        learner.learn(extractor.images(task.train))
        history.append(list(learner.banks))
    return learner, history


def rows(bank: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in bank.tolist()}


@pytest.mark.parametrize("history_ratio", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("coreset_ratio", [0.02, 0.1])
def test_old_banks_share_a_quarter_of_the_newest(extractor, make_task, tasks, coreset_ratio, history_ratio):
    stream = [*tasks, make_task("large", train=12), make_task("small", train=2)]
    _, history = learn(extractor, stream, coreset_ratio=coreset_ratio, history_ratio=history_ratio)
    sizes: list[int] = []
    for banks, task in zip(history, stream):
        newest = max(1, int(coreset_ratio * 64 * len(task.train)))
        if sizes:
            share = max(1, int(history_ratio * newest) // len(sizes))
            # A bank that was once smaller than its share can't grow back.
            sizes = [min(size, share) for size in sizes]
        sizes.append(newest)
        assert [len(bank) for bank in banks] == sizes


def test_the_default_budget_by_hand(extractor, tasks):
    learner, history = learn(extractor, tasks)
    # 6 images x 64 patches x 0.1 = 38; floor(0.25 x 38) = 9, for one old task, then 4 each for two.
    assert [[len(bank) for bank in banks] for banks in history] == [[38], [9, 38], [4, 4, 38]]
    assert learner.kept_bytes() == 46 * 28 * 4


def test_an_old_bank_is_a_subset_of_what_it_was(extractor, tasks, make_task):
    _, history = learn(extractor, [*tasks, make_task("large", train=20)])
    for earlier, later in pairwise(history):
        for before, after in zip(earlier, later):
            assert rows(after) <= rows(before)
            assert len(rows(after)) == len(after)
            assert len(after) <= len(before)


def test_the_newest_bank_is_the_detectors_own(extractor, tasks):
    _, history = learn(extractor, tasks)
    for task, banks in zip(tasks, history):
        expert = make_learner("patchcore", "naive")
        expert.learn(extractor.images(task.train))
        assert torch.equal(banks[-1], expert.detector.bank)


@pytest.mark.parametrize("count", [1, 9, 30])
def test_thinning_keeps_by_distance_to_the_newest_times_distance_to_the_kept(count):
    generator = torch.Generator().manual_seed(count)
    bank, newest = torch.randn(60, 8, generator=generator), torch.randn(40, 8, generator=generator)
    weights = cdist(bank.double(), newest.double()).min(1)
    table = cdist(bank.double(), bank.double())
    picks = [int(weights.argmax())]
    while len(picks) < count:
        value = weights * table[:, picks].min(1)
        value[picks] = -1
        picks.append(int(value.argmax()))
    assert rows(thin(bank, newest, count)) == rows(bank[picks])


def test_thinning_leaves_a_small_bank_as_it_is():
    bank = torch.rand(5, 3)
    for count in (5, 6):
        assert torch.equal(thin(bank, torch.rand(9, 3), count), bank)


def test_thinning_a_bank_that_is_in_the_newest_keeps_distinct_patches():
    bank = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    assert len(rows(thin(bank, bank, 10))) == 10


def test_the_bank_of_lowest_mean_distance_gives_map_and_score(extractor, tasks):
    learner, _ = learn(extractor, tasks)
    chosen = []
    for task in tasks:
        (batch,) = extractor.images(task.test)
        embeddings = embed(batch).double()
        distances = np.stack(
            [[cdist(image, bank.double()).min(1) for image in embeddings] for bank in learner.banks]
        )
        choice = distances.mean(2).argmin(0)
        best = torch.from_numpy(distances[choice, np.arange(len(choice))]).float()
        maps, scores = learner.score(batch)
        expected = position_maps(best, 64, 4.0)
        assert torch.allclose(maps, expected, atol=1e-5)
        assert torch.allclose(scores, expected.amax((1, 2)), atol=1e-5)
        chosen.append(set(choice.tolist()))
    assert chosen == [{0}, {1}, {2}]


def test_the_mean_decides_not_the_maximum(extractor, tasks):
    (batch,) = extractor.images(tasks[0].test[-1:])
    patches = embed(batch)
    # One bank knows the sound patches but not the defect, the other is a little off everywhere.
    order = (patches[0] - patches[0].median(0).values).square().sum(1).argsort()
    known = patches[0, order[:56]]
    distance = patch_distances(patches, known)[0]
    between = (distance.mean() + distance.max()) / 2
    near = patches[0] + between / 28**0.5
    distances = [patch_distances(patches, bank)[0] for bank in (near, known)]
    assert distances[1].mean() < distances[0].mean()
    assert distances[1].max() > distances[0].max()
    learner = ContinualPatchCore(PatchCore())
    learner.banks = [near, known]
    assert torch.equal(learner.score(batch)[0], position_maps(distances[1][None], 64, 4.0))


def test_a_negative_history_is_refused():
    with pytest.raises(ValueError, match=r"^patchcore: history_ratio: -0\.1 is negative"):
        ContinualPatchCore(PatchCore(), history_ratio=-0.1)
