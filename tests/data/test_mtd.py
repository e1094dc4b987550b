import numpy as np
import pytest
from PIL import Image

from inclad.data import mtd
from inclad.data.task import DataError


def problems(*arguments) -> list[str]:
    with pytest.raises(DataError) as error:
        mtd.read(*arguments)
    return error.value.problems


@pytest.fixture
def tile_tree(tmp_path, picture):
    """Ten sound tiles and one cracked in exposure 2 only, each under six exposures 10 frames apart."""
    for tile in range(11):
        for exposure in range(1, 7):
            cracked = tile == 10 and exposure == 2
            stem = f"MT_{'Crack' if cracked else 'Free'}/Imgs/exp{exposure}_num_{1000 * tile + 10 * exposure}"
            picture(tmp_path / f"{stem}.jpg", 10 * tile + exposure, mode="L")
            mask = np.zeros((10, 12), np.uint8)
            mask[3, 4] = 200 if cracked else 1
            Image.fromarray(mask).save(tmp_path / f"{stem}.png")
    picture(tmp_path / "MT_Free/Imgs/exp0_num_7.jpg")
    return tmp_path


@pytest.fixture(scope="module")
def real(shared_data):
    if not (shared_data / "mtd").is_dir():
        pytest.skip(f"{shared_data / 'mtd'} is not here")
    return mtd.read(shared_data / "mtd")


def frame(sample) -> int:
    return int(sample.image.stem.rsplit("_", 1)[1])


def test_frames_less_than_a_hundred_apart_are_one_tile():
    assert mtd.tiles([500, 100, 199, 299, 398]) == [3, 1, 1, 2, 2]


def test_exposures_are_the_tasks_and_exposure_zero_is_left_out(tile_tree):
    tasks = mtd.read(tile_tree)
    assert [task.name for task in tasks] == ["exp1", "exp2", "exp3", "exp4", "exp5", "exp6"]
    assert all(sample.image.name.startswith(task.name) for task in tasks for sample in task.train + task.test)


def test_a_third_of_the_sound_tiles_and_every_cracked_tile_are_tested(tile_tree):
    for task in mtd.read(tile_tree):
        assert (len(task.train), len(task.test)) == (7, 4)
        cracked = [sample for sample in task.test if frame(sample) >= 10_000]
        assert [sample.label for sample in cracked] == [int(task.name == "exp2")]


def test_no_tile_is_trained_on_in_one_task_and_tested_in_another(tile_tree):
    tasks = mtd.read(tile_tree)
    trained = {frame(sample) // 1000 for task in tasks for sample in task.train}
    tested = {frame(sample) // 1000 for task in tasks for sample in task.test}
    assert trained and tested and not trained & tested


def test_the_split_does_not_depend_on_the_tasks_asked_for(tile_tree):
    assert mtd.read(tile_tree, ["exp4"])[0] == mtd.read(tile_tree)[3]


def test_only_defects_have_masks_with_their_threshold(tile_tree):
    task = mtd.read(tile_tree, ["exp2"])[0]
    assert task.mask_threshold == 128
    assert {sample.label: sample.mask is not None for sample in task.test} == {0: False, 1: True}


def test_an_empty_mask_leaves_an_anomalous_image_without_mask(tile_tree):
    mask = next((tile_tree / "MT_Crack/Imgs").glob("*.png"))
    Image.fromarray(np.full((10, 12), 127, np.uint8)).save(mask)
    (cracked,) = [sample for sample in mtd.read(tile_tree, ["exp2"])[0].test if sample.label]
    assert cracked.mask is None and cracked.defect == "crack"


def test_a_damaged_mask_is_told(tile_tree):
    mask = next((tile_tree / "MT_Crack/Imgs").glob("*.png"))
    mask.write_bytes(mask.read_bytes()[:40])
    assert mask.name in problems(tile_tree)[0]


def test_a_wrong_root_says_what_it_holds(tile_tree):
    (line,) = problems(tile_tree / "MT_Free")
    assert "it holds Imgs; expected MT_Free" in line


def test_an_unknown_exposure_lists_the_known_ones(tile_tree):
    assert "no task 'exp0'; known: exp1" in problems(tile_tree, ["exp0"])[0]


def test_the_real_tiles_have_their_published_counts(real):
    normal = [len(task.train) + sum(sample.label == 0 for sample in task.test) for task in real]
    defects = [sum(sample.label for sample in task.test) for task in real]
    masks = sum(sample.mask is not None for task in real for sample in task.test)
    assert all(157 <= count <= 160 for count in normal) and all(64 <= count <= 67 for count in defects)
    # 388 of 392 with the two defects of exp0
    assert (masks, sum(defects) - masks) == (386, 4)


def test_no_real_tile_is_both_trained_on_and_tested(real):
    trained = np.array([frame(sample) for task in real for sample in task.train])
    tested = np.array([frame(sample) for task in real for sample in task.test])
    assert np.abs(trained[:, None] - tested[None]).min() >= mtd.SAME_TILE
