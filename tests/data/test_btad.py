import numpy as np
import pytest
from PIL import Image
from trees import btad as tree
from trees import put

from inclad.data import btad
from inclad.data.check import check_tasks
from inclad.data.images import read_mask
from inclad.data.task import DataError

COUNTS = {"01": (3, 2, 2), "02": (2, 1, 2), "03": (2, 2, 1)}


@pytest.fixture
def root(tmp_path):
    return tree(tmp_path / "BTech_Dataset_transformed", COUNTS)


def test_products_keep_their_names_as_text_and_their_counts(root):
    tasks = btad.read(root)
    assert [task.name for task in tasks] == ["01", "02", "03"] and tasks[0].dataset == "btad"
    found = {
        t.name: (len(t.train), sum(not s.label for s in t.test), sum(s.label for s in t.test)) for t in tasks
    }
    assert found == COUNTS


def test_the_folder_of_the_archive_is_looked_through(root):
    assert btad.read(root.parent) == btad.read(root)


def test_masks_with_other_suffixes_belong_to_the_image_of_their_stem(root):
    for task in btad.read(root):
        for sample in task.test:
            if sample.label:
                assert sample.mask.stem == sample.image.stem and sample.mask.suffix != sample.image.suffix
            else:
                assert sample.mask is None


def test_a_missing_first_mask_does_not_shift_the_others(root):
    (root / "01/ground_truth/ko/0000.png").unlink()
    masks = {s.image.stem: s.mask for s in btad.read(root, ["01"])[0].test if s.label}
    assert masks["0000"] is None and masks["0001"].name == "0001.png"


def test_masks_of_both_codings_mark_the_same(root):
    marks = np.zeros((8, 8), np.uint8)
    marks[2:4, 3:6] = 1
    for number, top in enumerate((1, 255)):
        Image.fromarray(marks * top).save(root / f"01/ground_truth/ko/000{number}.png")
    task = btad.read(root, ["01"])[0]
    for sample in task.test:
        if sample.label:
            assert read_mask(sample.mask, 8, task.mask_threshold).tolist() == marks.astype(bool).tolist()


def test_an_empty_mask_leaves_its_image_anomalous_and_is_told(root):
    Image.new("L", (8, 8), 0).save(root / "03/ground_truth/ko/0000.bmp")
    (task,) = btad.read(root, ["03"])
    assert [sample.label for sample in task.test if sample.defect == "ko"] == [1]
    assert "1 masks mark nothing" in check_tasks([task], 8)[0]


def test_a_mask_in_both_suffixes_is_refused(root):
    put(root / "02/ground_truth/ko/0000.bmp", mask=True)
    with pytest.raises(DataError, match="a second mask beside"):
        btad.read(root)


def test_oblong_images_are_read(root):
    Image.new("RGB", (12, 9), (1, 2, 3)).save(root / "03/train/ok/0000.png")
    Image.new("RGB", (12, 9), (1, 2, 4)).save(root / "03/test/ko/0000.png")
    Image.new("L", (12, 9), 1).save(root / "03/ground_truth/ko/0000.bmp")
    assert check_tasks(btad.read(root, ["03"]), 8) == []


def test_a_missing_ok_folder_is_told_by_its_own_name(root):
    (root / "02/train/ok").rename(root / "02/train/good")
    with pytest.raises(DataError, match="train/ok: no normal training images"):
        btad.read(root)
