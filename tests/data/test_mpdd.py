import pytest
from trees import mpdd as tree
from trees import put

from inclad.data import mpdd
from inclad.data.task import DataError

COUNTS = {"metal_plate": (3, 2, 2), "tubes": (2, 1, 1)}


def test_the_folder_of_the_archive_is_looked_through(tmp_path):
    tree(tmp_path / "MPDD", COUNTS)
    put(tmp_path / "__MACOSX/MPDD/tubes/train/good/._000.png")
    plate, tubes = mpdd.read(tmp_path)
    assert mpdd.read(tmp_path / "MPDD") == [plate, tubes]
    assert (plate.name, plate.dataset, tubes.name) == ("metal_plate", "mpdd", "tubes")
    assert [len(plate.train), len(plate.test), len(tubes.train)] == [3, 4, 2]


def test_dot_files_of_repacked_archives_are_no_images(tmp_path):
    tree(tmp_path, COUNTS)
    before = mpdd.read(tmp_path)
    put(tmp_path / "tubes/train/good/._000.png")
    put(tmp_path / "tubes/ground_truth/scratches/._000_mask.png")
    assert mpdd.read(tmp_path) == before


def test_defects_of_two_kinds_with_equal_stems_have_their_own_masks(tmp_path):
    tree(tmp_path, COUNTS)
    put(tmp_path / "tubes/test/total rust/000.png")
    mask = put(tmp_path / "tubes/ground_truth/total rust/000_mask.png", mask=True)
    masks = {sample.defect: sample.mask for sample in mpdd.read(tmp_path, ["tubes"])[0].test}
    assert masks["total rust"] == mask and masks["scratches"].parent.name == "scratches"


def test_a_missing_root_says_what_to_download():
    with pytest.raises(DataError) as error:
        mpdd.read("nowhere")
    (line,) = error.value.problems
    assert "does not exist" in line and "stepanje/MPDD" in line and "CC BY-NC-SA 4.0" in line
