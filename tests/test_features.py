import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import inclad.features
from inclad.backbones import load_backbone
from inclad.cache import SOURCES, Cache
from inclad.data.task import DataError, Sample
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
    assert extractor._recent.held <= 3.5 * BYTES


@pytest.mark.parametrize("held", [0, 1.5, 2.5, 4.5])
def test_a_batch_that_does_not_fit_is_still_whole(make_extractor, tasks, held):
    extractor, plenty = make_extractor(memory_gib=held * BYTES / 2**30), make_extractor()
    samples = tasks[0].train
    extractor.features(samples[:2], (1,))
    # New ones first: keeping them pushes out the two that come after.
    mixed = [*samples[2:], *samples[:2]]
    for ours, expected in zip(extractor.features(mixed, (1, 2, 3)), plenty.features(mixed, (1, 2, 3))):
        assert torch.allclose(ours, expected, atol=1e-6)
    assert extractor._recent.held <= max(held, 1) * BYTES


@pytest.mark.parametrize(("stages", "least"), [((1, 2, 3), 64), ((1, 2), 32), ((1, 2, 3, 4), 128)])
def test_an_image_size_too_small_is_refused(stages, least):
    backbone = load_backbone(stages=stages, device="cpu")
    with pytest.raises(
        ValueError, match=f"^image_size: {least - 1} is too small.*use at least {least}$"
    ) as error:
        Extractor(backbone, least - 1)
    assert "\n" not in str(error.value)
    assert Extractor(backbone, least).image_size == least


# --- with a cache on disk


def requests(extractor, tasks) -> list[torch.Tensor]:
    """Batches as a stream asks for them: some again, some in another order, mixed with new ones."""
    a, b = tasks[0].train, tasks[0].test
    asked = [a, b, a[::-1], (*a[2:4], *tasks[1].train), b, a]
    return [maps for samples in asked for maps in extractor.features(samples, (1, 2, 3))]


@pytest.mark.parametrize("memory_gib", [0, 7.5 * BYTES / 2**30, 1])
def test_the_cache_changes_no_bit(make_extractor, tasks, cache, memory_gib):
    plain = requests(make_extractor(), tasks)
    cold, warm = make_extractor(memory_gib, cache), make_extractor(memory_gib, Cache(cache.folder, 1))
    assert all(map(torch.equal, plain, requests(cold, tasks)))
    assert all(map(torch.equal, plain, requests(warm, tasks)))
    assert (cold.backbone.calls, warm.backbone.calls) == (3, 0)
    assert warm._recent.held <= max(memory_gib * 2**30, BYTES)


def test_the_cache_changes_no_bit_on_the_real_network(real_backbone, tasks, cache):
    plain, cold, warm = (
        requests(Extractor(real_backbone, 64, cache=each), tasks) for each in (None, cache, cache)
    )
    assert all(map(torch.equal, plain, cold)) and all(map(torch.equal, plain, warm))


def test_pixels_are_decoded_once(make_extractor, tasks, cache, monkeypatch):
    plain = make_extractor().pixels(tasks[0].train)
    assert torch.equal(make_extractor(cache=cache).pixels(tasks[0].train), plain)
    monkeypatch.setattr(inclad.features, "read_image", None)
    warm = make_extractor(cache=cache)
    assert torch.equal(warm.pixels(tasks[0].train), plain)
    warm.features(tasks[0].train, (1,))


def test_the_same_picture_under_two_paths_is_one_entry(make_extractor, tasks, cache, tmp_path):
    sample = tasks[0].train[0]
    shutil.copy(sample.image, tmp_path / "copy.png")
    make_extractor(cache=cache).features([sample], (1,))
    entries, other = cache.count(), make_extractor(cache=cache)
    other.features([Sample(tmp_path / "copy.png", 1)], (1,))
    assert other.backbone.calls == 0
    assert cache.count() == entries == 2  # pixels and features


def edited(name):
    return lambda patch: patch.setitem(SOURCES, name, b"edited")


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "1" * 64},
        {"size": 80},
        edited("backbones"),
        edited("features"),
        edited("data.images"),
        lambda patch: patch.setattr(inclad.features, "device_name", lambda device: "cuda Some Card"),
    ],
)
def test_what_changes_features_makes_other_entries(make_extractor, tasks, cache, monkeypatch, change):
    samples = tasks[0].train
    first = make_extractor(cache=cache)
    key = first.key(samples)
    first.features(samples, (1,))
    if callable(change):
        change(monkeypatch)
        change = {}
    other = make_extractor(cache=cache, **change)
    other.features(samples, (1,))
    assert other.backbone.calls == 1
    assert other.key(samples) != key


def test_other_stages_make_other_entries(real_backbone, tasks, cache):
    keys, stages = set(), [(1, 2, 3), (1, 2)]
    for each in stages:
        extractor = Extractor(load_backbone(stages=each, device="cpu"), 64, cache=cache)
        keys.add(extractor.key(tasks[0].train))
        expected = Extractor(load_backbone(stages=each, device="cpu"), 64).features(tasks[0].train[:2], each)
        assert all(map(torch.equal, extractor.features(tasks[0].train[:2], each), expected))
    assert len(keys) == 2


def test_keys_follow_the_pictures_and_their_order(make_extractor, tasks, cache):
    cached, samples = make_extractor(cache=cache), tasks[0].train
    keys = [cached.key(given) for given in (samples, samples[::-1], samples[:-1], tasks[1].train)]
    assert len(set(keys)) == 4
    assert cached.key(samples) == make_extractor(cache=Cache(cache.folder, 1)).key(samples)
    assert make_extractor().key(samples) == make_extractor(cache=Cache(cache.folder, 0)).key(samples) == ""


def test_an_edited_picture_is_another_one_whatever_its_time_says(make_extractor, make_task, cache):
    task = make_task(train=2, normal=1, anomalous=1)
    first, second = (sample.image for sample in task.train)
    small, large = sorted((first, second), key=lambda path: path.stat().st_size)
    padded = small.read_bytes() + bytes(large.stat().st_size - small.stat().st_size)
    status = large.stat()
    before = make_extractor(cache=cache).features([Sample(large)], (1,))[0]
    large.write_bytes(padded)
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = large.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
    )
    found = make_extractor(cache=cache).features([Sample(large)], (1,))[0]
    assert torch.equal(found, make_extractor().features([Sample(small)], (1,))[0])
    assert not torch.equal(found, before)


@pytest.mark.parametrize("content", [None, b"", b"no picture"])
def test_a_picture_that_is_none_is_told_the_same_with_a_cache(make_extractor, cache, tmp_path, content):
    path = tmp_path / "image.png"
    if content is not None:
        path.write_bytes(content)
    told = []
    for extractor in (make_extractor(), make_extractor(cache=cache)):
        with pytest.raises(DataError) as error:
            extractor.features([Sample(path)], (1,))
        told.append(str(error.value))
    assert told[0] == told[1]
    assert cache.count() == 0


def test_a_damaged_entry_is_computed_again(make_extractor, tasks, cache):
    plain = requests(make_extractor(cache=cache), tasks)
    for path in cache.folder.glob("*/*"):
        path.write_bytes(path.read_bytes()[:-3])
    again = make_extractor(cache=Cache(cache.folder, 1))
    with pytest.warns(UserWarning, match="made again"):
        assert all(map(torch.equal, requests(again, tasks), plain))
    assert again.backbone.calls == 3


def test_a_folder_is_read_with_the_folders_below_it(extractor, tmp_path):
    for name in ("b/2.png", "b/10.png", "a.png", "b/c/d.PNG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    images = extractor.folder(str(tmp_path), 3)
    names = [str(sample.image.relative_to(tmp_path)) for sample in images.samples]
    assert names == ["a.png", "b/2.png", "b/10.png", "b/c/d.PNG"]
    assert [len(batch) for batch in images] == [3, 1]


def test_a_folder_without_images_and_links_that_leave_it_are_refused(extractor, tmp_path):
    (tmp_path / "inside").mkdir()
    with pytest.raises(DataError, match=r"inside: holds no images"):
        extractor.folder(str(tmp_path / "inside"))
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "secret.png")
    (tmp_path / "inside/link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"link.png: a link that leaves"):
        extractor.folder(str(tmp_path / "inside"))
    with pytest.raises(DataError, match=r"nowhere: does not exist"):
        extractor.folder(str(tmp_path / "nowhere"))


def test_the_middle_is_that_of_the_image_at_twice_the_size(extractor, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    middle = extractor.middle([Sample(tmp_path / "image.png")])
    assert torch.equal(middle[0].permute(1, 2, 0) * 255, torch.from_numpy(pixels[32:96, 32:96]).float())
