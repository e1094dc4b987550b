import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist
from torch.nn.functional import avg_pool2d, interpolate

from inclad.detectors.patchcore import PatchCore, embed


def plain_embeddings(batch) -> np.ndarray:
    """(B, P, D) float64, one patch after the other."""
    fine, coarse = (avg_pool2d(maps.double(), 3, 1, 1) for maps in batch.features((2, 3)))
    coarse = interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
    both = torch.cat([fine, coarse], 1).numpy()
    return np.stack([[b[:, i, j] for i in range(b.shape[1]) for j in range(b.shape[2])] for b in both])


def plain_maps(distances: np.ndarray, size: int, sigma: float) -> np.ndarray:
    side = int(distances.shape[1] ** 0.5)
    coarse = torch.from_numpy(distances).view(-1, 1, side, side)
    up = interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)[:, 0].numpy()
    return np.stack([gaussian_filter(m, sigma, mode="reflect", truncate=4.0) for m in up])


def test_embeddings_put_both_stages_side_by_side(extractor, tasks):
    (batch,) = extractor.images(tasks[0].train)
    ours = embed(batch)
    assert ours.shape == (6, 64, 28)
    assert np.abs(ours.numpy() - plain_embeddings(batch)).max() <= 1e-5


def test_scores_equal_brute_force(extractor, tasks):
    detector = PatchCore(coreset_ratio=0.2)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].test)
    maps, scores = detector.score(batch)
    bank = detector.bank.double().numpy()
    distances = np.stack([cdist(e, bank).min(1) for e in plain_embeddings(batch)])
    expected = plain_maps(distances, 64, 4.0)
    assert np.abs(maps.numpy() - expected).max() <= 1e-5
    assert np.abs(scores.numpy() - expected.max((1, 2))).max() <= 1e-5


def test_the_bank_is_a_subset_of_the_training_patches(extractor, tasks):
    detector = PatchCore()
    detector.fit(extractor.images(tasks[0].train))
    assert detector.bank.shape == (int(0.1 * 6 * 64), 28)
    (batch,) = extractor.images(tasks[0].train)
    patches = {tuple(row) for row in embed(batch).flatten(0, 1).tolist()}
    rows = [tuple(row) for row in detector.bank.tolist()]
    assert set(rows) <= patches
    assert len(set(rows)) == len(rows)


def test_with_all_patches_kept_training_images_score_zero(extractor, tasks):
    detector = PatchCore(coreset_ratio=1.0)
    detector.fit(extractor.images(tasks[0].train))
    (batch,) = extractor.images(tasks[0].train)
    assert len(detector.bank) == 6 * 64
    assert detector.score(batch)[1].abs().max() == 0


def test_a_coreset_is_never_empty():
    assert PatchCore(coreset_ratio=0.001).coreset(torch.rand(5, 3)).shape == (1, 3)


@pytest.mark.parametrize("projection", [0, 4, 128])
def test_the_selection_follows_the_projection_and_keeps_whole_rows(projection):
    patches = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    bank = PatchCore(projection=projection, seed=3).coreset(patches)
    rows = {tuple(row) for row in patches.tolist()}
    assert {tuple(row) for row in bank.tolist()} <= rows
    generator = torch.Generator().manual_seed(3)
    points = patches.double()
    if 0 < projection < 8:
        points = points @ torch.randn(8, projection, generator=generator).double() / projection**0.5
    starts = torch.randperm(300, generator=generator)[:10].numpy()
    distance, picks = cdist(points, points.numpy()[starts]).mean(1), []
    for _ in range(30):
        picks.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points.numpy() - points.numpy()[picks[-1]], axis=1))
    assert {tuple(row) for row in bank.tolist()} == {tuple(row) for row in patches[picks].tolist()}


@pytest.mark.parametrize("options", [{"coreset_ratio": 0.0}, {"coreset_ratio": 1.5}, {"starts": 0}])
def test_options_that_make_no_coreset_are_refused(options):
    with pytest.raises(ValueError, match=f"^patchcore: {next(iter(options))}: "):
        PatchCore(**options)


def test_kept_bytes_are_those_of_the_bank(extractor, tasks):
    detector = PatchCore()
    detector.fit(extractor.images(tasks[0].train))
    assert detector.kept_bytes() == 38 * 28 * 4
