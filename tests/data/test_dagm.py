import shutil

import pytest
from trees import dagm as tree
from trees import put

from inclad.data import dagm
from inclad.data.task import DataError

COUNTS = {"Class2": (4, 3, 2), "Class10": (3, 2, 2)}


@pytest.fixture
def root(tmp_path):
    return tree(tmp_path / "dagm", COUNTS)


def problems(*arguments) -> list[str]:
    with pytest.raises(DataError) as error:
        dagm.read(*arguments)
    return error.value.problems


def counts(tasks) -> dict[str, tuple[int, int, int]]:
    return {
        t.name: (len(t.train), sum(not s.label for s in t.test), sum(s.label for s in t.test)) for t in tasks
    }


def test_defective_training_images_are_dropped(root):
    tasks = dagm.read(root)
    assert [task.name for task in tasks] == ["Class2", "Class10"]
    assert counts(tasks) == COUNTS
    assert [sample.image.name for sample in tasks[0].train] == [
        "0003.PNG",
        "0004.PNG",
        "0005.PNG",
        "0006.PNG",
    ]


def test_masks_are_the_label_images_of_the_same_number(root):
    (task,) = dagm.read(root, ["Class2"])
    assert {s.image.name: s.mask.name for s in task.test if s.label} == {
        "0001.PNG": "0001_label.PNG", "0002.PNG": "0002_label.PNG",
    }  # fmt: skip
    assert all(sample.mask is None for sample in task.test if not sample.label)


def test_without_the_list_the_label_images_say_it(root):
    expected = dagm.read(root)
    for path in root.rglob("Labels.txt"):
        path.unlink()
    assert dagm.read(root) == expected


def test_the_list_says_it_where_a_label_image_is_missing(root):
    (root / "Class2/Test/Label/0001_label.PNG").unlink()
    test = dagm.read(root, ["Class2"])[0].test
    assert [(s.image.stem, s.mask and s.mask.stem) for s in test if s.label] == [
        ("0001", None), ("0002", "0002_label"),
    ]  # fmt: skip


def test_a_class_in_a_folder_of_its_own_name_is_read(root):
    expected = counts(dagm.read(root))
    for name in COUNTS:
        (root / name).rename(root / "aside")
        (root / "aside").rename((root / name).with_name("inner"))
        (root / name).mkdir()
        (root / "inner").rename(root / name / name)
    assert counts(dagm.read(root)) == expected


def test_the_folder_of_the_archive_is_looked_through(root):
    wrapper = root.parent / "all"
    wrapper.mkdir()
    root.rename(wrapper / "DAGM_KaggleUpload")
    assert counts(dagm.read(wrapper)) == COUNTS


def test_names_are_compared_in_any_case(root):
    for path in [*root.rglob("*.PNG"), *root.rglob("Labels.txt")]:
        path.rename(path.with_name(path.name.lower()))
    for name in COUNTS:
        for part in ("Train", "Test"):
            (root / name / part / "Label").rename(root / name / part / "label")
            (root / name / part).rename(root / name / part.lower())
    assert counts(dagm.read(root)) == COUNTS


def test_without_any_labels_nothing_passes_for_normal(root):
    shutil.rmtree(root / "Class2/Train/Label")
    (line,) = problems(root)
    assert "Class2/Train/Label: neither Labels.txt nor label images" in line


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace("1\t1\t0001.PNG", "1\t0\t0001.PNG"), "calls 1 images normal that have a label"),
        (lambda text: text.replace("5\t0\t0005.PNG\t0\t0\n", ""), "says nothing of 1 images (first: 0005.PNG)"),
        (lambda text: text + "9\t0\t0099.PNG\t0\t0\n", "0099.PNG is not there"),
        (lambda text: text + "9\tno\t0001.PNG\n", "expected number, 0 or 1, image"),
    ],
)  # fmt: skip
def test_a_list_that_disagrees_with_the_folder_is_told(root, change, told):
    table = root / "Class2/Test/Label/Labels.txt"
    table.write_text(change(table.read_text()))
    (line,) = problems(root)
    assert told in line and str(table) in line


def test_a_label_image_without_an_image_is_told(root):
    put(root / "Class2/Test/Label/0077_label.PNG")
    assert "0077_label.PNG: label image without an image" in problems(root)[0]


def test_a_class_without_a_test_is_told_and_the_others_are_read(root):
    shutil.rmtree(root / "Class2/Test")
    with pytest.raises(DataError) as error:
        dagm.read(root)
    assert "Class2/Test: no images" in error.value.problems[0]
    assert counts(error.value.tasks)["Class10"] == COUNTS["Class10"]


def test_a_wrong_root_says_what_belongs_there(root):
    (line,) = problems(root / "Class2" / "Test")
    assert "no class found, it holds" in line and "expected Class1 to Class10" in line
