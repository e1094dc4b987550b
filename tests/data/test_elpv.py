import importlib.util

import pytest

from inclad.data import elpv
from inclad.data.task import DataError


def problems(*arguments) -> list[str]:
    with pytest.raises(DataError) as error:
        elpv.read(*arguments)
    return error.value.problems


@pytest.fixture
def cells(tmp_path, picture):
    """Six normal, two anomalous and one doubtful mono cell, and as many poly cells."""
    rows = []
    for index, probability in enumerate([0.0] * 6 + [1.0] * 2 + [0.3333333333333333]):
        for kind in ("mono", "poly"):
            rows.append(f"images/{kind}{index}.png  {probability}   {kind}")
            picture(tmp_path / f"images/{kind}{index}.png", index, mode="L")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_doubtful_cells_are_dropped_and_defective_ones_tested(cells):
    for task in elpv.read(cells):
        labels = [sample.label for sample in task.test]
        assert (task.dataset, len(task.train), labels.count(0), labels.count(1)) == ("elpv", 4, 2, 2)
        assert all(
            task.name in sample.image.name and sample.mask is None for sample in task.train + task.test
        )


def test_the_split_is_the_same_every_time(cells):
    assert elpv.read(cells) == elpv.read(cells)
    assert elpv.read(cells, ["poly"])[0] == elpv.read(cells)[1]


@pytest.mark.parametrize(
    "path", ["../secret.png", "/etc/passwd", "images/../../x.png", "C:\\x.png", "C:/x.png", "images\\a.png"]
)
def test_a_path_that_leaves_the_folder_is_refused(cells, path):
    with (cells / "labels.csv").open("a") as table:
        table.write(f"{path} 0.0 mono\n")
    (line,) = problems(cells)
    assert "line 19" in line and "leaves the folder" in line


def test_missing_images_and_broken_lines_are_told_together(cells):
    (cells / "images/mono0.png").unlink()
    with (cells / "labels.csv").open("a") as table:
        table.write("images/x.png high mono\n")
    first, second = problems(cells)
    assert "mono0.png: named in labels.csv but missing" in first and "line 19: expected" in second


def test_a_root_without_labels_is_refused(tmp_path):
    assert "labels.csv: cannot be read" in problems(tmp_path)[0]


def test_an_unknown_task_lists_the_known_ones(cells):
    assert "no task 'thin'; known: mono, poly" in problems(cells, ["thin"])[0]


def test_without_package_and_root_one_line_tells_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (line,) = problems()
    assert "pip install elpv-dataset" in line


def test_the_installed_package_has_its_published_counts():
    if importlib.util.find_spec("elpv_dataset") is None:
        pytest.skip("elpv-dataset is not installed")
    counts = {}
    for task in elpv.read():
        normal = len(task.train) + sum(sample.label == 0 for sample in task.test)
        counts[task.name] = (normal, sum(sample.label for sample in task.test))
    assert counts == {"mono": (588, 313), "poly": (920, 402)}
