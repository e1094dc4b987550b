import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from inclad.cache import SOURCES, Cache
from inclad.evaluate import check_finite, evaluate, example_rows, read_pictures


class Scorer:
    """Mean brightness as the map, its maximum as the score; counts its calls and the images it saw."""

    def __init__(self):
        self.calls, self.seen = 0, []

    def __call__(self, batch):
        self.calls += 1
        self.seen += batch.samples
        maps = batch.pixels().mean(1)
        return maps, maps.flatten(1).amax(1)


def pictures(samples) -> np.ndarray:
    return np.stack([np.array(Image.open(s.image), np.float32) / 255 for s in samples]).mean(3)


def masks(samples) -> np.ndarray:
    empty = np.zeros((64, 64), bool)
    return np.stack([np.array(Image.open(s.mask)) > 0 if s.mask else empty for s in samples])


def test_both_levels_come_from_one_pass(extractor, tasks):
    score = Scorer()
    result = evaluate(score, tasks[0], extractor)
    assert score.calls == 1
    assert tuple(score.seen) == tasks[0].test
    maps, labels = pictures(tasks[0].test), [s.label for s in tasks[0].test]
    assert result.image == pytest.approx(roc_auc_score(labels, maps.max((1, 2))), abs=1e-6)
    assert result.pixel == pytest.approx(roc_auc_score(masks(tasks[0].test).ravel(), maps.ravel()), abs=1e-6)
    assert result.reasons == {}


def test_every_image_is_scored_once_over_several_batches(extractor, make_task):
    task = make_task(normal=40, anomalous=5)
    score = Scorer()
    result = evaluate(score, task, extractor)
    assert score.calls == 2
    assert tuple(score.seen) == task.test
    maps = pictures(task.test)
    assert result.pixel == pytest.approx(roc_auc_score(masks(task.test).ravel(), maps.ravel()), abs=1e-6)


def test_an_anomalous_image_without_a_mask_is_left_out_at_pixel_level_only(extractor, tasks):
    test = [replace(s, mask=None) if i in (4, 6) else s for i, s in enumerate(tasks[0].test)]
    assert [s.label for s in test] == [0] * 4 + [1] * 4
    result = evaluate(Scorer(), replace(tasks[0], test=tuple(test)), extractor)
    assert result.image == evaluate(Scorer(), tasks[0], extractor).image
    left = [s for s in test if s.label == 0 or s.mask]
    assert len(left) == 6
    expected = roc_auc_score(masks(left).ravel(), pictures(left).ravel())
    assert result.pixel == pytest.approx(expected, abs=1e-6)
    assert result.pixel != evaluate(Scorer(), tasks[0], extractor).pixel
    assert result.reasons == {}


def test_without_masks_the_pixel_cell_is_missing(extractor, make_task):
    result = evaluate(Scorer(), make_task(masks=False), extractor)
    assert 0 <= result.image <= 1
    assert math.isnan(result.pixel)
    assert result.reasons == {"pixel": "no masks"}


@pytest.mark.parametrize(("normal", "anomalous", "absent"), [(4, 0, "anomalous"), (0, 4, "normal")])
def test_with_one_class_the_image_cell_is_missing(extractor, make_task, normal, anomalous, absent):
    result = evaluate(Scorer(), make_task(normal=normal, anomalous=anomalous), extractor)
    assert math.isnan(result.image)
    assert result.reasons["image"] == f"one class only: no {absent} test images"
    # Defective images have sound pixels too; normal ones have no defective pixel.
    assert math.isnan(result.pixel) == (anomalous == 0)
    assert ("pixel" in result.reasons) == (anomalous == 0)


def test_masks_without_a_defective_pixel_leave_the_pixel_cell_missing(extractor, tasks):
    result = evaluate(Scorer(), replace(tasks[0], mask_threshold=256), extractor)
    assert 0 <= result.image <= 1
    assert math.isnan(result.pixel)
    assert "one class only" in result.reasons["pixel"]


def test_a_score_worse_than_chance_is_not_turned_round(extractor, tasks):
    def inverted(batch):
        maps, scores = Scorer()(batch)
        return -maps, -scores

    right, wrong = evaluate(Scorer(), tasks[0], extractor), evaluate(inverted, tasks[0], extractor)
    assert right.pixel > 0.5 > wrong.pixel
    assert right.pixel + wrong.pixel == pytest.approx(1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["map", "score"])
def test_what_is_not_finite_names_its_image(extractor, tasks, value, where):
    def score(batch):
        maps, scores = Scorer()(batch)
        (maps[5, 3] if where == "map" else scores)[5] = value
        return maps, scores

    with pytest.raises(ValueError, match="not finite") as error:
        evaluate(score, tasks[0], extractor)
    assert str(tasks[0].test[5].image) in str(error.value)
    assert "\n" not in str(error.value)


def test_finite_maps_pass(tasks):
    check_finite(tasks[0].test, np.zeros((8, 4, 4), np.float32), np.zeros(8, np.float32))


def test_masks_follow_the_threshold_and_are_read_once(tasks, extractor, tmp_path, monkeypatch):
    values = np.zeros((64, 64), np.uint8)
    values[0, :3] = [100, 127, 128]
    Image.fromarray(values).save(tmp_path / "mask.png")
    samples = [replace(tasks[0].test[-1], mask=tmp_path / "mask.png"), tasks[0].test[0]]
    for threshold, count in ((1, 3), (128, 1)):
        read = extractor.masks(samples, threshold)
        assert read.shape == (2, 64, 64)
        assert read.dtype == bool
        assert read.sum((1, 2)).tolist() == [count, 0]
    monkeypatch.setattr("inclad.features.read_mask", None)
    assert np.array_equal(extractor.masks(samples, 128), read)


def test_pictures_to_look_at_come_with_their_masks_and_tasks(tasks):
    samples = [tasks[1].test[0], tasks[0].test[-1]]
    images, drawn, names = read_pictures(samples, tasks, 64)
    assert names == ["bolt", "01"]
    assert images.shape == (2, 64, 64, 3)
    assert images.dtype == np.uint8
    assert np.array_equal(images[1], np.array(Image.open(samples[1].image)))
    assert np.array_equal(drawn, masks(samples))


def test_no_pictures_give_arrays_of_the_same_kind(tasks):
    images, drawn, names = read_pictures([], tasks, 64)
    assert names == []
    assert images.shape == (0, 64, 64, 3)
    assert drawn.shape == (0, 64, 64)
    assert drawn.dtype == bool


def test_rows_of_a_contact_sheet_show_different_kinds_first(tasks):
    good, bad = tasks[0].test[:4], tasks[0].test[4:]
    kinds = [replace(s, defect=kind, mask=mask) for s, kind, mask in zip(bad, "aabb", (None, 1, None, None))]
    kinds[1] = replace(kinds[1], mask=bad[1].mask)
    mixed, single = replace(tasks[0], test=(*good, *kinds)), tasks[1]
    rows = dict(example_rows([mixed, single], 64))
    assert list(rows) == ["01", "bolt"]
    assert [title for _, _, title in rows["01"]] == ["good", "good", "a", "b"]
    assert [mask is None for _, mask, _ in rows["01"]] == [True, True, False, True]
    assert np.array_equal(rows["01"][2][0], np.array(Image.open(bad[1].image)))
    assert [title for _, _, title in rows["bolt"]] == ["good", "good", "square", "square"]
    assert not np.array_equal(rows["bolt"][2][0], rows["bolt"][3][0])


# --- with a cache on disk


def test_what_scored_a_test_set_once_is_not_asked_again(make_extractor, tasks, cache):
    cold, warm = Scorer(), Scorer()
    plain = evaluate(Scorer(), tasks[0], make_extractor())
    assert evaluate(cold, tasks[0], make_extractor(cache=cache), "state") == plain
    assert evaluate(warm, tasks[0], make_extractor(cache=Cache(cache.folder, 1)), "state") == plain
    assert (cold.calls, warm.calls) == (1, 0)


def test_without_a_key_or_a_cache_nothing_is_kept(make_extractor, tasks, cache, tmp_path):
    score = Scorer()
    for extractor, key in (
        (make_extractor(cache=cache), ""),
        (make_extractor(cache=Cache(tmp_path, 0)), "state"),
    ):
        for _ in range(2):
            evaluate(score, tasks[0], extractor, key)
    assert score.calls == 4


def without_first(task, patch):
    return replace(task, test=task.test[1:])


def reordered(task, patch):
    return replace(task, test=task.test[::-1])


def relabelled(task, patch):
    test = [replace(s, label=1) if i == 3 else s for i, s in enumerate(task.test)]
    return replace(task, test=tuple(test))


def another_mask(task, patch):
    return replace(task, test=(*task.test[:-1], replace(task.test[-1], mask=task.test[-2].mask)))


def without_a_mask(task, patch):
    return replace(task, test=(*task.test[:-1], replace(task.test[-1], mask=None)))


def another_threshold(task, patch):
    return replace(task, mask_threshold=2)


def edited(name):
    def edit(task, patch):
        patch.setitem(SOURCES, name, b"edited")
        return task

    return edit


@pytest.mark.parametrize(
    "change",
    [without_first, reordered, relabelled, another_mask, without_a_mask, another_threshold]
    + [edited(name) for name in ("evaluate", "metrics", "maps", "data.images", "features", "backbones")],
)
def test_what_changes_a_cell_is_scored_again(make_extractor, tasks, cache, monkeypatch, change):
    evaluate(Scorer(), tasks[0], make_extractor(cache=cache), "state")
    task = change(tasks[0], monkeypatch)
    extractor, score = make_extractor(cache=cache), Scorer()
    assert evaluate(score, task, extractor, "state") == evaluate(Scorer(), task, make_extractor())
    assert score.calls == 1


def test_another_state_is_scored_again(make_extractor, tasks, cache):
    score = Scorer()
    for key in ("one", "two", "one"):
        evaluate(score, tasks[0], make_extractor(cache=cache), key)
    assert score.calls == 2


def test_an_edited_mask_is_scored_again(make_extractor, make_task, cache):
    task, extractor = make_task(), make_extractor(cache=cache)
    before = evaluate(Scorer(), task, extractor, "state")
    Image.fromarray(np.full((64, 64), 255, np.uint8)).save(task.test[-1].mask)
    after = evaluate(Scorer(), task, extractor, "state")
    assert after.image == before.image and after.pixel != before.pixel


def test_missing_cells_keep_their_reasons(make_extractor, make_task, cache):
    odd = [make_task("a", masks=False), make_task("b", anomalous=0), make_task("c", normal=0)]
    plain = [evaluate(Scorer(), task, make_extractor()) for task in odd]
    for _ in range(2):
        for task, expected in zip(odd, plain):
            found = evaluate(Scorer(), task, make_extractor(cache=cache), "state")
            assert found.reasons == expected.reasons
            assert np.array_equal(
                [found.image, found.pixel], [expected.image, expected.pixel], equal_nan=True
            )
    assert [sorted(each.reasons) for each in plain] == [["pixel"], ["image", "pixel"], ["image"]]


def test_what_is_not_finite_names_its_image_with_a_cache_too(make_extractor, tasks, cache):
    def score(batch):
        maps, scores = Scorer()(batch)
        maps[6, 0, 0] = math.nan
        return maps, scores

    for _ in range(2):
        with pytest.raises(ValueError, match="not finite") as error:
            evaluate(score, tasks[0], make_extractor(cache=cache), "state")
        assert str(tasks[0].test[6].image) in str(error.value)
    sound = Scorer()
    evaluate(sound, tasks[0], make_extractor(cache=cache), "state")
    assert sound.calls == 1


def test_features_that_are_not_finite_name_their_image_cold_and_warm(make_extractor, tasks, cache):
    def score(batch):
        (maps,) = batch.features((1,))
        maps = torch.nn.functional.interpolate(maps, size=64).mean(1)
        return maps, maps.flatten(1).amax(1)

    for _ in range(2):
        extractor = make_extractor(cache=cache, scale=math.inf)
        with pytest.raises(ValueError, match="not finite") as error:
            evaluate(score, tasks[0], extractor, "state")
        assert str(tasks[0].test[0].image) in str(error.value)
