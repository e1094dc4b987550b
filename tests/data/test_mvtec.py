import os
import shutil
from pathlib import Path

import pytest

from inclad.data import mvtec
from inclad.data.task import DataError


def problems(*arguments) -> list[str]:
    with pytest.raises(DataError) as error:
        mvtec.read(*arguments)
    return error.value.problems


def test_tasks_are_the_categories_with_their_samples(mvtec_tree):
    bolt, nut = mvtec.read(mvtec_tree)
    assert (bolt.name, nut.name, bolt.dataset, bolt.mask_threshold) == ("bolt", "nut", "mvtec", 1)
    assert [sample.image.name for sample in bolt.train] == ["000.png", "001.png", "002.png"]
    assert {sample.label for sample in bolt.train} == {0}
    assert [(sample.label, sample.defect) for sample in bolt.test] == [(1, "cut")] * 2 + [(0, "good")] * 2


def test_each_mask_belongs_to_the_image_of_its_stem(mvtec_tree):
    for sample in mvtec.read(mvtec_tree, ["nut"])[0].test:
        expected = mvtec_tree / "nut/ground_truth/cut" / f"{sample.image.stem}_mask.png"
        assert sample.mask == (expected if sample.label else None)


def test_names_choose_and_order_the_tasks(mvtec_tree):
    assert [task.name for task in mvtec.read(mvtec_tree, ["nut", "bolt"])] == ["nut", "bolt"]


def test_numbers_in_names_are_ordered_as_numbers(mvtec_tree):
    for name in ("part10", "part9"):
        shutil.copytree(mvtec_tree / "nut", mvtec_tree / name)
    assert [task.name for task in mvtec.read(mvtec_tree)] == ["bolt", "nut", "part9", "part10"]


def test_upper_case_and_other_suffixes_are_paired(mvtec_tree, picture):
    picture(mvtec_tree / "nut/test/bent/007.JPG")
    mask = picture(mvtec_tree / "nut/ground_truth/bent/007.bmp", 255, mode="L")
    (task,) = mvtec.read(mvtec_tree, ["nut"])
    assert [sample.mask for sample in task.test if sample.defect == "bent"] == [mask]


def test_equal_stems_of_two_defects_are_kept_apart(mvtec_tree, picture):
    picture(mvtec_tree / "nut/test/bent/000.png")
    mask = picture(mvtec_tree / "nut/ground_truth/bent/000_mask.png", 255, mode="L")
    by_defect = {sample.defect: sample for sample in mvtec.read(mvtec_tree, ["nut"])[0].test}
    assert by_defect["bent"].mask == mask
    assert by_defect["cut"].mask.parent.name == "cut"


def test_a_missing_first_mask_does_not_shift_the_others(mvtec_tree):
    (mvtec_tree / "nut/ground_truth/cut/000_mask.png").unlink()
    masks = {s.image.stem: s.mask for s in mvtec.read(mvtec_tree, ["nut"])[0].test if s.label}
    assert masks["000"] is None and masks["001"].name == "001_mask.png"


def test_a_defect_without_ground_truth_is_image_level_only(mvtec_tree, picture):
    picture(mvtec_tree / "nut/test/bent/000.png")
    bent = [s for s in mvtec.read(mvtec_tree, ["nut"])[0].test if s.defect == "bent"]
    assert [(sample.label, sample.mask) for sample in bent] == [(1, None)]


def test_only_train_good_is_training(mvtec_tree, picture):
    picture(mvtec_tree / "nut/train/cut/000.png")
    assert {sample.image.parent.name for sample in mvtec.read(mvtec_tree, ["nut"])[0].train} == {"good"}


@pytest.mark.parametrize(
    "extra",
    ["nut/train/good/._000.png", "__MACOSX/nut/train/good/._000.png", "nut/test/cut/Thumbs.db", ".DS_Store",
     "nut/readme.txt", "nut/test/stray.png", "license.txt", "nut/train/good/.ipynb_checkpoints/000.png"],
)  # fmt: skip
def test_leftovers_and_files_in_odd_places_are_ignored(mvtec_tree, extra):
    before = mvtec.read(mvtec_tree)
    (mvtec_tree / extra).parent.mkdir(parents=True, exist_ok=True)
    (mvtec_tree / extra).write_bytes(b"x")
    assert mvtec.read(mvtec_tree) == before


def test_names_with_spaces_are_read(mvtec_tree):
    (mvtec_tree / "nut").rename(mvtec_tree / "wing nut")
    assert [task.name for task in mvtec.read(mvtec_tree, ["wing nut"])] == ["wing nut"]


def test_a_link_inside_the_root_is_followed(mvtec_tree):
    (mvtec_tree / "nut/train/good/009.png").symlink_to(mvtec_tree / "nut/train/good/000.png")
    assert len(mvtec.read(mvtec_tree, ["nut"])[0].train) == 4


def test_a_link_that_leaves_the_root_is_refused(mvtec_tree, tmp_path, picture):
    (mvtec_tree / "nut/train/good/009.png").symlink_to(picture(tmp_path / "secret.png"))
    (line,) = problems(mvtec_tree)
    assert "009.png: a link that leaves" in line


def test_a_folder_link_that_leaves_the_root_is_refused(mvtec_tree, tmp_path, picture):
    picture(tmp_path / "elsewhere/000.png")
    (mvtec_tree / "nut/test/bent").symlink_to(tmp_path / "elsewhere")
    (line,) = problems(mvtec_tree)
    assert "bent: a link that leaves" in line


@pytest.mark.parametrize("name", ["train/good", "ground_truth/cut", "test"])
def test_a_link_in_place_of_a_folder_of_the_layout_is_refused(mvtec_tree, tmp_path, name):
    folder = mvtec_tree / "nut" / name
    assert folder.is_dir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert any(f"{name}: a link that leaves" in line for line in problems(mvtec_tree))


@pytest.mark.parametrize("name", ["0\n0.png", os.fsdecode(b"\xff.png")])
def test_a_name_that_cannot_be_printed_is_refused(mvtec_tree, name):
    (mvtec_tree / "nut/train/good/000.png").rename(mvtec_tree / "nut/train/good" / name)
    (line,) = problems(mvtec_tree)
    assert "which can't be printed; rename it" in line and line.isprintable()


@pytest.mark.parametrize(
    ("target", "text"), [("gone.png", "a link to nothing"), ("009.png", "a link that leaves")]
)
def test_dangling_and_looping_links_are_refused(mvtec_tree, target, text):
    (mvtec_tree / "nut/train/good/009.png").symlink_to(mvtec_tree / "nut/train/good" / target)
    (line,) = problems(mvtec_tree)
    assert f"009.png: {text}" in line


@pytest.mark.parametrize(("root", "text"), [(None, "no root given"), ("nowhere", "nowhere: does not exist")])
def test_a_missing_root_says_what_belongs_there(root, text):
    (line,) = problems(root)
    assert text in line and "train/good" in line


def test_a_file_as_root_is_refused(tmp_path):
    (tmp_path / "a").write_text("")
    assert "is not a folder" in problems(tmp_path / "a")[0]


def test_a_root_without_categories_says_what_it_holds(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("")
    (line,) = problems(tmp_path)
    assert "no category found, it holds docs" in line


def test_a_root_that_is_one_category_points_to_its_parent(mvtec_tree):
    (line,) = problems(mvtec_tree / "nut")
    assert "is itself one category" in line and line.endswith(f"give {mvtec_tree}")


def test_a_wrapping_folder_is_pointed_at(mvtec_tree):
    (line,) = problems(mvtec_tree.parent)
    assert f"{mvtec_tree} holds 2 (bolt, nut); give that" in line


def test_unknown_names_list_the_known_ones(mvtec_tree):
    (line,) = problems(mvtec_tree, ["nut", "screw"])
    assert "no task 'screw'; known: bolt, nut" in line


def test_a_name_cannot_climb_out_of_the_root(mvtec_tree):
    assert "no task '../tree/nut'" in problems(mvtec_tree, ["../tree/nut"])[0]


def test_a_repeated_name_is_refused(mvtec_tree):
    assert "listed 2 times" in problems(mvtec_tree, ["nut", "nut"])[0]


def test_everything_wrong_is_told_at_once(mvtec_tree, picture):
    shutil.rmtree(mvtec_tree / "bolt/train")
    picture(mvtec_tree / "nut/ground_truth/cut/777_mask.png", 255, mode="L")
    picture(mvtec_tree / "nut/ground_truth/ghost/000_mask.png", 255, mode="L")
    (mvtec_tree / "screw").mkdir()
    found = problems(mvtec_tree)
    wanted = [
        "no normal training images",
        "777_mask.png: mask without an image",
        "ghost",
        "screw: empty category",
    ]
    assert len(found) == len(wanted)
    assert all(any(text in line for line in found) for text in wanted)


def test_a_category_without_test_images_is_refused(mvtec_tree):
    shutil.rmtree(mvtec_tree / "nut/test")
    shutil.rmtree(mvtec_tree / "nut/ground_truth")
    assert "no test images" in problems(mvtec_tree)[0]


def test_two_masks_for_one_stem_are_refused(mvtec_tree, picture):
    picture(mvtec_tree / "nut/ground_truth/cut/000_mask.bmp", 255, mode="L")
    assert any("a second mask" in line for line in problems(mvtec_tree))


def test_two_images_of_one_stem_cannot_share_a_mask(mvtec_tree, picture):
    picture(mvtec_tree / "nut/test/cut/000.jpg")
    assert any("shares its mask" in line for line in problems(mvtec_tree))


def test_metal_plate_has_its_published_counts(shared_data: Path):
    root = shared_data / "mpdd_metal_plate_512"
    if not root.is_dir():
        pytest.skip(f"{root} is not here")
    (task,) = mvtec.read(root)
    labels = [sample.label for sample in task.test]
    assert (len(task.train), labels.count(0), labels.count(1)) == (54, 26, 71)
    assert all(sample.mask.stem == f"{sample.image.stem}_mask" for sample in task.test if sample.label)
