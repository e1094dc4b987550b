import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from inclad.data import mini
from inclad.data.images import read_mask
from inclad.data.task import DataError

SMALL = {"size": 48, "train": 2, "good": 1, "defective": 4}
CASES = [(name, index) for name, spec in mini.COMPONENTS.items() for index in range(len(spec.faults))]


def content(root: Path) -> dict[str, str]:
    files = sorted(root.rglob("*.png"))
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return mini.generate(tmp_path_factory.mktemp("data") / "mini", **SMALL)


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "mini")


def test_counts_are_as_asked(made):
    tasks = mini.read(made)
    assert [task.name for task in tasks] == sorted(mini.COMPONENTS)
    for task in tasks:
        labels = [sample.label for sample in task.test]
        assert (task.dataset, len(task.train), labels.count(0), labels.count(1)) == ("mini", 2, 1, 4)


def test_there_are_enough_components_and_kinds_of_defect():
    kinds = {kind for spec in mini.COMPONENTS.values() for kind in spec.faults}
    assert len(mini.COMPONENTS) >= 6 and len(kinds) >= 5


def test_the_same_seed_gives_the_same_bytes(made, tmp_path):
    assert content(mini.generate(tmp_path / "again", **SMALL)) == content(made)


def test_another_seed_gives_other_images(made, tmp_path):
    first, other = content(made), content(mini.generate(tmp_path / "other", seed=1, **SMALL))
    images = [path for path in first if "ground_truth" not in path]
    assert first.keys() == other.keys()
    assert all(first[path] != other[path] for path in images)


def test_more_images_change_none_of_the_others(made, tmp_path):
    more = content(mini.generate(tmp_path / "more", size=48, train=3, good=2, defective=5))
    assert content(made).items() < more.items()


@pytest.mark.parametrize(("component", "index"), CASES)
def test_outside_the_mask_the_image_is_the_sound_one(component, index):
    damaged, mask, defect = mini.draw(component, "defective", index, size=128)
    sound, no_mask, good = mini.draw(component, "defective", index, size=128, sound=True)
    assert defect == list(mini.COMPONENTS[component].faults)[index] and good == "good" and not no_mask.any()
    assert (damaged[~mask] == sound[~mask]).all()
    changed = (damaged != sound).any(2)
    assert changed[mask].mean() > 0.75  # the mask is not padded: nearly all of it changed
    assert 0.0008 < mask.mean() < 0.06


@pytest.mark.parametrize("component", list(mini.COMPONENTS))
def test_normal_images_differ_from_one_another(component):
    images = [mini.draw(component, "train", index, size=48)[0].astype(int) for index in range(3)]
    assert all(np.abs(images[a] - images[b]).mean() > 1 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_written_masks_are_the_drawn_ones(made):
    task = mini.read(made, ["gear"])[0]
    sample = next(sample for sample in task.test if sample.label)
    mask = mini.draw("gear", "defective", int(sample.image.stem), size=48)[1]
    assert (read_mask(sample.mask, 48) == mask).all()


def test_a_whole_folder_is_not_made_again(copy, monkeypatch):
    monkeypatch.setattr(mini, "draw", None)
    assert mini.generate(copy, **SMALL) == copy


def test_a_folder_of_another_seed_is_made_again(copy):
    before = content(copy)
    mini.generate(copy, seed=5, **SMALL)
    assert content(copy) != before
    assert json.loads((copy / mini.MARKER).read_text())["recipe"]["seed"] == 5


@pytest.mark.parametrize("harm", ["lost", "changed", "added"])
def test_a_damaged_folder_is_not_taken_for_whole(copy, harm):
    before = content(copy)
    path = copy / "wood/train/good/000.png"
    if harm == "lost":
        path.unlink()
    elif harm == "changed":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        shutil.copy(path, path.with_name("999.png"))
    with pytest.raises(DataError, match="not a whole mini dataset"):
        mini.read(copy)
    mini.generate(copy, **SMALL)
    assert content(copy) == before


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mini, "publish_folder", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        mini.generate(tmp_path / "mini", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_content_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="something else than a mini dataset"):
        mini.generate(tmp_path, **SMALL)
    with pytest.raises(DataError, match="set dataset: mvtec") as caught:
        mini.read(tmp_path)
    assert "delete" not in str(caught.value)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_without_root_it_is_made_in_the_project(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").write_text("")
    (tmp_path / "inclad").mkdir()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(mini, "generate", lambda root, make=mini.generate: make(root, **SMALL))
    (task,) = mini.read(None, ["wood"])
    assert task.train[0].image == tmp_path / "build/data/mini/wood/train/good/000.png"


def test_without_root_outside_the_project_a_root_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="give a root"):
        mini.read()


def test_an_unknown_component_lists_the_known_ones(made):
    with pytest.raises(DataError, match="no task 'screw'; known: capsule, circuit"):
        mini.read(made, ["screw"])
