import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trees import put

from inclad.data import visa
from inclad.data.images import read_mask
from inclad.data.task import DataError

HEAD = ["object", "split", "label", "image", "mask"]


def problems(*arguments) -> list[str]:
    with pytest.raises(DataError) as error:
        visa.read(*arguments)
    return error.value.problems


def rows(name: str) -> list[list[str]]:
    """Two training images, one normal and two anomalous test images; stems of both kinds collide."""
    normal, bad = f"{name}/Data/Images/Normal", f"{name}/Data/Images/Anomaly"
    return [
        [name, "test", "anomaly", f"{bad}/001.JPG", f"{name}/Data/Masks/Anomaly/001.png"],
        [name, "train", "normal", f"{normal}/010.JPG", ""],
        [name, "test", "normal", f"{normal}/000.JPG", ""],
        [name, "train", "normal", f"{normal}/001.JPG", ""],
        [name, "test", "anomaly", f"{bad}/000.JPG", f"{name}/Data/Masks/Anomaly/000.png"],
    ]


def write_split(root: Path, lines: list[list[str]]) -> None:
    (root / "split_csv").mkdir(parents=True, exist_ok=True)
    with (root / "split_csv/1cls.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEAD, *lines])


@pytest.fixture
def raw(tmp_path):
    root = tmp_path / "VisA"
    lines = [line for name in ("pcb1", "pipe fryum") for line in rows(name)]
    for *_, image, mask in lines:
        put(root / image)
        if mask:
            put(root / mask, mask=True)
    write_split(root, lines)
    return root


@pytest.fixture
def converted(tmp_path):
    root = tmp_path / "VisA_pytorch"
    for name in ("train/good/0001.JPG", "test/good/000.JPG", "test/bad/000.JPG"):
        put(root / "1cls/pcb1" / name)
    put(root / "1cls/pcb1/ground_truth/bad/000.png", mask=True)
    return root


def test_the_official_split_makes_the_tasks(raw):
    first, second = visa.read(raw)
    assert (first.name, second.name, first.dataset) == ("pcb1", "pipe fryum", "visa")
    assert [sample.image.name for sample in first.train] == ["001.JPG", "010.JPG"]
    assert [(s.image.parent.name, s.image.stem, s.label) for s in first.test] == [
        ("Normal", "000", 0), ("Anomaly", "000", 1), ("Anomaly", "001", 1),
    ]  # fmt: skip


def test_equal_stems_of_normal_and_anomalous_images_are_kept_apart(raw):
    masks = {(s.image.parent.name, s.image.stem): s.mask for s in visa.read(raw, ["pcb1"])[0].test}
    assert masks["Normal", "000"] is None
    assert masks["Anomaly", "000"] == raw / "pcb1/Data/Masks/Anomaly/000.png"
    assert masks["Anomaly", "001"].stem == "001"


def test_class_numbers_in_masks_count_though_they_look_black(raw):
    mask = raw / "pcb1/Data/Masks/Anomaly/000.png"
    Image.fromarray(np.array([[0, 1], [9, 0]], np.uint8)).save(mask)
    task = visa.read(raw, ["pcb1"])[0]
    assert read_mask(mask, 2, task.mask_threshold).tolist() == [[False, True], [True, False]]


def test_the_converted_layout_is_read_from_its_parent_or_itself(converted):
    (task,) = visa.read(converted)
    assert visa.read(converted / "1cls") == [task]
    assert (task.dataset, task.name, len(task.train)) == ("visa", "pcb1", 1)
    assert [(s.defect, s.label, s.mask and s.mask.name) for s in task.test] == [
        ("bad", 1, "000.png"), ("good", 0, None),
    ]  # fmt: skip


def test_raw_wins_where_a_converted_copy_lies_beside_it(raw, converted):
    shutil.copytree(converted / "1cls", raw / "1cls")
    assert [task.name for task in visa.read(raw)] == ["pcb1", "pipe fryum"]


def test_a_copy_with_other_suffixes_is_read(raw):
    for path in [*raw.rglob("*.JPG")]:
        path.rename(path.with_suffix(".jpeg"))
    (task,) = visa.read(raw, ["pcb1"])
    assert [sample.image.suffix for sample in task.test] == [".jpeg"] * 3


def test_a_missing_mask_leaves_the_image_anomalous_and_the_other_masks_in_place(raw):
    (raw / "pcb1/Data/Masks/Anomaly/000.png").unlink()
    masks = {s.image.stem: s.mask for s in visa.read(raw, ["pcb1"])[0].test if s.label}
    assert masks["000"] is None and masks["001"].stem == "001"


def test_a_category_that_is_not_there_is_no_task(raw):
    shutil.rmtree(raw / "pcb1")
    assert [task.name for task in visa.read(raw)] == ["pipe fryum"]
    assert "no task 'pcb1'; known: pipe fryum" in problems(raw, ["pcb1"])[0]


def test_missing_images_are_counted_by_folder_and_the_rest_is_still_told(raw):
    shutil.rmtree(raw / "pcb1/Data/Images/Normal")
    (raw / "pipe fryum/Data/Images/Anomaly/001.JPG").unlink()
    with pytest.raises(DataError) as error:
        visa.read(raw)
    first, second = error.value.problems
    assert "pcb1/Data/Images/Normal: 3 images of the official split are not there" in first
    assert "Anomaly: 1 images" in second and "001.JPG" in second
    assert [len(task.test) for task in error.value.tasks] == [2, 2]


def test_raw_without_the_split_says_where_it_is(raw):
    shutil.rmtree(raw / "split_csv")
    (line,) = problems(raw)
    assert "1cls.csv: the official split is missing" in line and "amazon-science/spot-diff" in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "expected the columns object, split, label"),
        (",".join(HEAD) + "\npcb1,train,good,pcb1/x.JPG,\n", "line 2: expected train or test"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_damaged_split_is_told(raw, text, told):
    (raw / "split_csv/1cls.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=told):
        visa.read(raw)


@pytest.mark.parametrize("hostile", ["../secret/000.JPG", "/etc/000.JPG", "C:\\x\\000.JPG"])
def test_a_path_that_leaves_the_root_is_refused(raw, tmp_path, hostile):
    put(tmp_path / "secret/000.JPG")
    write_split(raw, [*rows("pcb1"), ["pcb1", "train", "normal", hostile, ""]])
    with pytest.raises(DataError) as error:
        visa.read(raw)
    images = [sample.image for task in error.value.tasks for sample in task.train]
    assert all(image.is_relative_to(raw) for image in images) and len(images) == 2


def test_leftovers_of_archives_are_ignored(raw):
    before = visa.read(raw)
    put(raw / "pcb1/Data/Images/Normal/._000.JPG")
    put(raw / "__MACOSX/pcb1/Data/Images/Normal/000.JPG")
    assert visa.read(raw) == before


def test_a_wrong_root_says_what_belongs_there(tmp_path):
    (tmp_path / "docs").mkdir()
    put(tmp_path / "docs/a.png")
    (line,) = problems(tmp_path)
    assert "it holds docs; expected split_csv/1cls.csv" in line
