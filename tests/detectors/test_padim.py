import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn.functional import interpolate

from inclad.detectors.padim import PaDiM, embed, fit_gaussians, mahalanobis

WIDTH = 8 + 12 + 16


def plain_embeddings(batch, channels: int, seed: int) -> np.ndarray:
    """(B, d, P) float64: everything up-sampled and joined, then the channels chosen."""
    stages = [interpolate(maps.double(), size=(16, 16)) for maps in batch.features((1, 2, 3))]
    whole = torch.cat(stages, 1).flatten(2).numpy()
    order = torch.randperm(whole.shape[1], generator=torch.Generator().manual_seed(seed))
    return whole[:, np.sort(order[:channels].numpy())]


def plain_distances(train: np.ndarray, test: np.ndarray, regularization: float) -> np.ndarray:
    """(B, P): the inverse of numpy's covariance at every location by itself, in float64."""
    result = np.empty((len(test), train.shape[2]))
    for place in range(train.shape[2]):
        covariance = np.cov(train[:, :, place], rowvar=False) + regularization * np.eye(train.shape[1])
        difference = test[:, :, place] - train[:, :, place].mean(0)
        result[:, place] = np.sqrt(
            np.einsum("bi,ij,bj->b", difference, np.linalg.inv(covariance), difference)
        )
    return result


@pytest.mark.parametrize("channels", [1, 3, 20, WIDTH, 100])
def test_embeddings_equal_choosing_after_upsampling(extractor, tasks, channels):
    (batch,) = extractor.images(tasks[0].test)
    ours = embed(batch, channels, 1024)
    assert ours.shape == (256, 8, min(channels, WIDTH))
    assert np.array_equal(ours.double().permute(1, 2, 0).numpy(), plain_embeddings(batch, channels, 1024))


# Six images for twenty channels: the covariance has rank 5, only the regularization makes it invertible.
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_distances_equal_numpys_with_fewer_images_than_channels(make_extractor, tasks, scale):
    extractor = make_extractor(scale=scale)
    (train,), (test,) = extractor.images(tasks[0].train), extractor.images(tasks[0].test)
    mean, whitening = fit_gaussians(extractor.images(tasks[0].train, 4), 20, 1024, 0.01)
    ours = mahalanobis(embed(test, 20, 1024), mean, whitening).numpy()
    expected = plain_distances(plain_embeddings(train, 20, 1024), plain_embeddings(test, 20, 1024), 0.01)
    assert np.abs(ours / expected - 1).max() <= 1e-4


def test_distances_equal_numpys_on_the_real_network(real_extractor, tasks):
    (train,), (test,) = real_extractor.images(tasks[0].train), real_extractor.images(tasks[0].test)
    mean, whitening = fit_gaussians(real_extractor.images(tasks[0].train), 100, 1024, 0.01)
    ours = mahalanobis(embed(test, 100, 1024), mean, whitening).numpy()
    expected = plain_distances(plain_embeddings(train, 100, 1024), plain_embeddings(test, 100, 1024), 0.01)
    assert np.abs(ours / expected - 1).max() <= 1e-3


def test_maps_and_scores_are_smoothed_distances(extractor, tasks):
    detector = PaDiM(channels=20)
    detector.fit(extractor.images(tasks[0].train))
    (train,), (test,) = extractor.images(tasks[0].train), extractor.images(tasks[0].test)
    maps, scores = detector.score(test)
    expected = plain_distances(plain_embeddings(train, 20, 1024), plain_embeddings(test, 20, 1024), 0.01)
    coarse = torch.from_numpy(expected).view(-1, 1, 16, 16)
    up = interpolate(coarse, size=(64, 64), mode="bilinear", align_corners=False)[:, 0].numpy()
    smooth = np.stack([gaussian_filter(m, 4.0, mode="reflect", truncate=4.0) for m in up])
    assert np.abs(maps.numpy() / smooth - 1).max() <= 1e-4
    assert np.array_equal(scores.numpy(), maps.numpy().max((1, 2)))


def test_the_channels_are_the_same_for_every_task(extractor, tasks):
    detector = PaDiM(channels=20)
    means = []
    for task in tasks[:2]:
        detector.fit(extractor.images(task.train))
        (batch,) = extractor.images(task.train)
        means.append(np.abs(detector.mean.T.numpy() - plain_embeddings(batch, 20, 1024).mean(0)).max())
    assert max(means) <= 1e-5


def test_the_gaussians_do_not_depend_on_the_batch_size(extractor, tasks):
    whole = fit_gaussians(extractor.images(tasks[0].train), 20, 1024, 0.01)
    single = fit_gaussians(extractor.images(tasks[0].train, 1), 20, 1024, 0.01)
    for a, b in zip(whole, single):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-4)


def test_one_image_has_no_covariance(extractor, tasks):
    with pytest.raises(ValueError, match=r"at least 2 normal training images.*got 1"):
        PaDiM(channels=20).fit(extractor.images(tasks[0].train[:1]))


@pytest.mark.parametrize("options", [{"regularization": 0.0}, {"channels": 0}])
def test_options_that_make_no_gaussian_are_refused(options):
    with pytest.raises(ValueError, match=f"^padim: {next(iter(options))}: "):
        PaDiM(**options)
