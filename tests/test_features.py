import numpy as np
import pytest
import torch
from PIL import Image

from inclad.backbones import load_backbone
from inclad.data.task import Sample
from inclad.features import Extractor, Images

BYTES = 4 * (8 * 16 * 16 + 12 * 8 * 8 + 16 * 4 * 4)  # of one image's features in the fake network


def test_pixels_stay_between_zero_and_one(extractor, tmp_path):
    samples = []
    for name, pixels in {
        "black": np.zeros((50, 80, 3)),
        "white": np.full((64, 64, 3), 255),
        "noise": np.random.default_rng(0).integers(0, 256, (31, 200, 3)),
    }.items():
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{name}.png")
        samples.append(Sample(tmp_path / f"{name}.png"))
    pixels = extractor.pixels(samples)
    assert pixels.shape == (3, 3, 64, 64)
    assert pixels.dtype == torch.float32
    assert pixels.min() == 0 and pixels.max() == 1
    assert (pixels[0] == 0).all() and (pixels[1] == 1).all()


def test_pixels_keep_rows_columns_and_colours(extractor, tmp_path):
    array = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "image.png")
    pixels = extractor.pixels([Sample(tmp_path / "image.png")])
    assert torch.equal(pixels[0].permute(1, 2, 0), torch.from_numpy(array).float() / 255)


def test_batches_hold_all_samples_in_order(extractor, tasks):
    batches = list(extractor.images(tasks[0].train, 4))
    assert [len(batch) for batch in batches] == [4, 2]
    assert sum((batch.samples for batch in batches), ()) == tasks[0].train
    assert batches[1].pixels().shape == (2, 3, 64, 64)
    assert batches[1].size == 64
    assert len(extractor.images(tasks[0].train)) == 6


def test_shuffling_keeps_the_samples_and_repeats_with_its_seed(extractor, tasks):
    images = extractor.images(tasks[0].train)
    shuffled = [images.shuffled(torch.Generator().manual_seed(seed), 2) for seed in (3, 3, 4)]
    assert shuffled[0].samples == shuffled[1].samples
    assert len({s.samples for s in shuffled} | {images.samples}) == 3
    assert set(shuffled[0].samples) == set(images.samples)
    assert shuffled[0].batch_size == 2


def test_of_gives_other_samples_through_the_same_backbone(extractor, tasks):
    other = extractor.images(tasks[0].train, 5).of(tasks[1].train)
    assert isinstance(other, Images)
    assert (other.samples, other.extractor, other.batch_size) == (tasks[1].train, extractor, 5)


def test_features_come_in_the_stages_asked_for(extractor, tasks):
    maps = extractor.features(tasks[0].train, (3, 1))
    assert [tuple(m.shape) for m in maps] == [(6, 16, 4, 4), (6, 8, 16, 16)]
    expected = extractor.backbone(extractor.pixels(tasks[0].train))
    assert torch.equal(maps[0], expected[2]) and torch.equal(maps[1], expected[0])


def test_features_can_be_trained_on(extractor, tasks):
    (maps,) = extractor.features(tasks[0].train[:1], (3,))
    weight = torch.ones(16, requires_grad=True)
    (maps * weight[:, None, None]).sum().backward()
    assert weight.grad.isfinite().all()


def test_features_are_computed_once(extractor, tasks):
    samples = tasks[0].train
    first = extractor.features(samples, (1, 2, 3))
    assert extractor.backbone.calls == 1
    again = extractor.features(samples[::-1], (1, 2, 3))
    assert extractor.backbone.calls == 1
    assert all(torch.equal(a.flip(0), b) for a, b in zip(first, again))


def test_a_sample_named_twice_is_computed_once(extractor, tasks):
    sample = tasks[0].train[0]
    (maps,) = extractor.features([sample, sample], (1,))
    assert torch.equal(maps[0], maps[1])
    assert extractor.backbone.calls == 1


def test_beyond_the_limit_the_least_recently_used_go_and_come_back_the_same(make_extractor, tasks):
    extractor = make_extractor(memory_gib=3.5 * BYTES / 2**30)
    a, b, c, d, *_ = tasks[0].train
    before = extractor.features([a], (1, 2, 3))
    for sample in (b, c, a, d):  # d pushes out b, since a was used after it
        extractor.features([sample], (1,))
    assert extractor.backbone.calls == 4
    extractor.features([a, c, d], (1,))
    assert extractor.backbone.calls == 4
    extractor.features([b], (1,))
    assert extractor.backbone.calls == 5
    after = extractor.features([a], (1, 2, 3))
    assert all(torch.equal(x, y) for x, y in zip(before, after))
    assert extractor._held <= 3.5 * BYTES


@pytest.mark.parametrize("held", [0, 1.5, 2.5, 4.5])
def test_a_batch_that_does_not_fit_is_still_whole(make_extractor, tasks, held):
    extractor, plenty = make_extractor(memory_gib=held * BYTES / 2**30), make_extractor()
    samples = tasks[0].train
    extractor.features(samples[:2], (1,))
    # New ones first: keeping them pushes out the two that come after.
    mixed = [*samples[2:], *samples[:2]]
    for ours, expected in zip(extractor.features(mixed, (1, 2, 3)), plenty.features(mixed, (1, 2, 3))):
        assert torch.allclose(ours, expected, atol=1e-6)
    assert extractor._held <= max(held, 1) * BYTES


@pytest.mark.parametrize(("stages", "least"), [((1, 2, 3), 64), ((1, 2), 32), ((1, 2, 3, 4), 128)])
def test_an_image_size_too_small_is_refused(stages, least):
    backbone = load_backbone(stages=stages, device="cpu")
    with pytest.raises(
        ValueError, match=f"^image_size: {least - 1} is too small.*use at least {least}$"
    ) as error:
        Extractor(backbone, least - 1)
    assert "\n" not in str(error.value)
    assert Extractor(backbone, least).image_size == least
