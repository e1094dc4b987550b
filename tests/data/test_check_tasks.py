import shutil
from dataclasses import replace

import numpy as np
import pytest

from inclad.data import mvtec
from inclad.data.check import check_tasks
from inclad.data.task import DataError


def problems(tasks) -> list[str]:
    with pytest.raises(DataError) as error:
        check_tasks(tasks, 16)
    return error.value.problems


def test_a_whole_tree_has_neither_problems_nor_warnings(mvtec_tree):
    assert check_tasks(mvtec.read(mvtec_tree), 16) == []


def test_all_problems_are_told_together(mvtec_tree, picture):
    broken = mvtec_tree / "bolt/train/good/000.png"
    broken.write_bytes(broken.read_bytes()[:30])
    (mvtec_tree / "nut/test/good/001.png").write_text("no image")
    picture(mvtec_tree / "nut/ground_truth/cut/001_mask.png", 255, (6, 5), mode="L")
    found = problems(mvtec.read(mvtec_tree))
    wanted = ["bolt/train/good/000.png", "nut/test/good/001.png: not an image", "001_mask.png: 6 x 5 pixels"]
    assert len(found) == 3 and all(any(text in line for line in found) for text in wanted)


def test_a_missing_file_is_told(mvtec_tree):
    tasks = mvtec.read(mvtec_tree)
    (mvtec_tree / "nut/ground_truth/cut/000_mask.png").unlink()
    (line,) = problems(tasks)
    assert "000_mask.png: no such file" in line


def test_an_empty_training_set_is_an_error(mvtec_tree):
    (task,) = mvtec.read(mvtec_tree, ["nut"])
    assert "no training images" in problems([replace(task, train=())])[0]


def test_an_empty_test_set_is_an_error(mvtec_tree):
    (task,) = mvtec.read(mvtec_tree, ["nut"])
    assert "no test images" in problems([replace(task, test=())])[0]


def test_an_anomalous_training_image_is_an_error(mvtec_tree):
    (task,) = mvtec.read(mvtec_tree, ["nut"])
    anomalous = replace(task.train[0], label=1)
    assert "000.png: anomalous, but a training image" in problems([replace(task, train=(anomalous,))])[0]


def test_an_entry_listed_twice_is_an_error(mvtec_tree):
    (task,) = mvtec.read(mvtec_tree, ["nut"])
    (line,) = problems([replace(task, test=(*task.test, task.train[0]))])
    assert "train/good/000.png: listed 2 times" in line


def test_a_task_listed_twice_is_an_error(mvtec_tree):
    assert "task 'nut' is listed 2 times" in problems(mvtec.read(mvtec_tree, ["nut"]) * 2)[0]


@pytest.mark.parametrize(("label", "only"), [(0, "normal"), (1, "anomalous")])
def test_a_test_set_of_one_class_is_a_warning(mvtec_tree, label, only):
    (task,) = mvtec.read(mvtec_tree, ["nut"])
    one = replace(task, test=tuple(sample for sample in task.test if sample.label == label))
    assert f"all test images are {only}" in check_tasks([one], 16)[0]


def test_no_masks_at_all_is_one_warning(mvtec_tree):
    shutil.rmtree(mvtec_tree / "nut/ground_truth")
    (warning,) = check_tasks(mvtec.read(mvtec_tree), 16)
    assert "'nut': no masks at all" in warning


def test_anomalous_images_without_mask_are_counted(mvtec_tree):
    (mvtec_tree / "nut/ground_truth/cut/001_mask.png").unlink()
    (warning,) = check_tasks(mvtec.read(mvtec_tree), 16)
    assert "1 of 2 anomalous images have no mask" in warning and "001.png" in warning


def test_a_mask_that_vanishes_at_the_image_size_is_a_warning(mvtec_tree, picture):
    for index in range(2):
        image = np.random.default_rng(index).integers(0, 256, (160, 160), dtype=np.uint8)
        picture(mvtec_tree / f"nut/test/cut/00{index}.png", image)
        mask = np.zeros((160, 160), np.uint8)
        mask[0, index * 80 : index * 80 + 2] = (
            255  # nearest resizing to 16 looks at every tenth pixel from 5 on
        )
        picture(mvtec_tree / f"nut/ground_truth/cut/00{index}_mask.png", mask, mode="L")
    (warning,) = check_tasks(mvtec.read(mvtec_tree), 16)
    assert "2 masks mark nothing at 16 pixels" in warning
    assert check_tasks(mvtec.read(mvtec_tree), 160) == []


def test_a_training_image_copied_into_a_test_is_a_warning(mvtec_tree):
    shutil.copy(mvtec_tree / "bolt/train/good/001.png", mvtec_tree / "nut/test/good/777.png")
    (warning,) = check_tasks(mvtec.read(mvtec_tree), 16)
    assert "task 'nut': 1 test images are byte for byte training images" in warning
    assert "777.png" in warning and "task 'bolt'" in warning


def test_fewer_training_images_than_the_detectors_need_is_an_error(mvtec_tree):
    tasks = mvtec.read(mvtec_tree)
    least = max(len(task.train) for task in tasks) + 1
    with pytest.raises(DataError, match=f"training images; the detectors chosen need {least}"):
        check_tasks(tasks, 64, least)
