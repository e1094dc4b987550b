import json
import shutil

import numpy as np
import pytest
import trees
from PIL import Image

from inclad.data import sources
from inclad.data.catalog import DATASETS
from inclad.data.images import probe
from inclad.data.inventory import COLUMNS, as_json, as_text, take_inventory
from inclad.data.task import DataError
from inclad.reference import reference_table

LISTS = {"mvtec": "mvtec_meta/mvtec_meta.json", "visa": "visa_split/split_csv/1cls.csv"}


def clean(dataset: str, root, shared_data):
    if dataset not in LISTS:
        return getattr(trees, dataset)(root)
    if not (shared_data / LISTS[dataset]).is_file():
        pytest.skip(f"{shared_data / LISTS[dataset]} is not here")
    return getattr(trees, dataset)(root, shared_data / LISTS[dataset])


@pytest.fixture(scope="module")
def whole_mpdd(tmp_path_factory):
    return trees.mpdd(tmp_path_factory.mktemp("mpdd"))


@pytest.fixture
def parts(whole_mpdd, tmp_path):
    """A copy of all of MPDD to spoil."""
    return shutil.copytree(whole_mpdd, tmp_path / "mpdd")


# ---- whole copies


@pytest.mark.parametrize(
    ("dataset", "images"), [("mvtec", 5354), ("visa", 10_821), ("btad", 2540), ("mpdd", 1346)]
)  # fmt: skip
def test_a_whole_copy_has_every_published_count_and_nothing_wrong(dataset, images, tmp_path, shared_data):
    found = take_inventory(dataset, clean(dataset, tmp_path, shared_data))
    assert (found.errors, found.warnings) == ([], [])
    table = reference_table("dataset_counts").query("dataset == @dataset")
    expected = {
        row.category: [row.train_normal, row.test_normal, row.test_anomalous] for row in table.itertuples()
    }
    assert {each.name: list(each.counts.values()) for each in found.categories} == expected
    assert all(each.counts == each.published for each in found.categories)
    assert all(each.masks == each.counts["test_anomalous"] for each in found.categories)
    assert sum(sum(each.counts.values()) for each in found.categories) == images
    assert "Nothing is wrong." in as_text(found)


# ---- twelve faults in one copy


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def no_image(path):
    path.write_text("moved to the archive")


def huge(path):
    header = b"\x00\x00\x4e\x20\x00\x00\x4e\x20\x08\x00\x00\x00\x00"
    content = trees.chunk(b"IHDR", header) + trees.chunk(b"IDAT", b"") + trees.chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def empty_mask(path):
    Image.new("L", (8, 8), 0).save(path)


def other_size(path):
    Image.new("L", (6, 8), 255).save(path)


FAULTS = {
    "a training image cut off": (
        lambda root: cut_off(root / "connector/train/good/005.png"),
        "error", "connector/train/good/005.png: unreadable",
    ),
    "a test image that is text": (
        lambda root: no_image(root / "connector/test/good/002.png"),
        "error", "connector/test/good/002.png: not an image",
    ),
    "an image of 400 megapixels": (
        lambda root: huge(root / "tubes/train/good/003.png"),
        "error", "tubes/train/good/003.png: its pixels are far more than the 64 megapixels allowed",
    ),
    "a mask of another size than its image": (
        lambda root: other_size(root / "tubes/ground_truth/scratches/004_mask.png"),
        "error", "tubes/ground_truth/scratches/004_mask.png: 6 x 8 pixels, its image 8 x 8",
    ),
    "a mask without an image": (
        lambda root: trees.put(root / "tubes/ground_truth/scratches/999_mask.png", mask=True),
        "error", "tubes/ground_truth/scratches/999_mask.png: mask without an image",
    ),
    "two masks for one image": (
        lambda root: trees.put(root / "bracket_brown/ground_truth/scratches/007_mask.bmp", mask=True),
        "error", "007_mask.png: a second mask beside 007_mask.bmp",
    ),
    "a link that leaves the folder": (
        lambda root: (root / "bracket_brown/train/good/900.png").symlink_to(root.parent / "away.png"),
        "error", "bracket_brown/train/good/900.png: a link that leaves",
    ),
    "training images missing": (
        lambda root: [(root / f"bracket_white/train/good/{number:03}.png").unlink() for number in range(9)],
        "error", "bracket_white: 101 of 110 train normal images of 'bracket_white'; part of the copy is missing",
    ),
    "an empty category": (
        lambda root: (root / "hinge").mkdir(),
        "error", "hinge: empty category",
    ),
    "a category missing": (
        lambda root: shutil.rmtree(root / "metal_plate"),
        "warning", "category 'metal_plate' of MPDD is not there",
    ),
    "a category of one's own": (
        lambda root: trees.mpdd(root, {"my part": (3, 2, 2)}),
        "warning", "my part: 'my part' is no category of MPDD",
    ),
    "an empty mask": (
        lambda root: empty_mask(root / "bracket_black/ground_truth/scratches/011_mask.png"),
        "warning", "task 'bracket_black': 1 masks mark nothing",
    ),
    "a mask missing": (
        lambda root: (root / "bracket_black/ground_truth/scratches/030_mask.png").unlink(),
        "warning", "task 'bracket_black': 1 of 47 anomalous images have no mask",
    ),
    "a training image among the test images": (
        lambda root: shutil.copy(root / "bracket_black/train/good/001.png", root / "bracket_white/test/good/001.png"),
        "warning", "task 'bracket_white': 1 test images are byte for byte training images too",
    ),
    "one image as normal and as anomalous": (
        lambda root: shutil.copy(root / "connector/test/scratches/003.png", root / "connector/test/good/003.png"),
        "warning", "task 'connector': 1 test images are there as normal and as anomalous",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def spoiled(whole_mpdd, tmp_path_factory):
    """All faults planted in one copy, and its inventory, taken once."""
    root = shutil.copytree(whole_mpdd, tmp_path_factory.mktemp("spoiled") / "mpdd")
    trees.put(root.parent / "away.png")
    for plant, _, _ in FAULTS.values():
        plant(root)
    return take_inventory("mpdd", root)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_pass_over_a_spoiled_copy_finds(spoiled, fault):
    _, level, told = FAULTS[fault]
    lines = spoiled.errors if level == "error" else spoiled.warnings
    assert sum(told in line for line in lines) == 1


def test_one_pass_over_a_spoiled_copy_finds_nothing_else(spoiled):
    assert len(spoiled.errors) + len(spoiled.warnings) == len(FAULTS)


def test_every_line_has_a_path_and_says_what_to_do(spoiled):
    verbs = ("copy", "remove", "replace", "scale", "draw", "keep", "restore", "name the tasks", "add")
    for line in spoiled.errors + spoiled.warnings:
        assert "/mpdd" in line and line.isprintable()
        assert any(verb in line for verb in verbs), line


# ---- single cases


def test_a_training_folder_missing_hides_nothing_else(parts):
    shutil.rmtree(parts / "connector/train")
    cut_off(parts / "connector/test/good/001.png")
    cut_off(parts / "tubes/test/good/001.png")
    found = "\n".join(take_inventory("mpdd", parts).errors)
    assert "connector/train/good: no normal training images" in found
    assert (
        "connector/test/good/001.png: unreadable" in found and "tubes/test/good/001.png: unreadable" in found
    )


def test_more_images_than_published_are_a_warning(parts):
    trees.put(parts / "tubes/train/good/777.png")
    found = take_inventory("mpdd", parts)
    assert found.errors == []
    (line,) = found.warnings
    assert "123 of 122 train normal images of 'tubes', more than published" in line


def test_two_damaged_files_are_not_taken_for_copies(parts):
    cut_off(parts / "tubes/train/good/001.png")
    cut_off(parts / "tubes/test/good/001.png")
    found = take_inventory("mpdd", parts)
    assert len(found.errors) == 2 and found.warnings == []


def test_a_folder_of_ones_own_is_not_compared(mvtec_tree):
    found = take_inventory("mvtec", mvtec_tree)
    assert (found.errors, found.warnings) == ([], [])
    assert [each.published for each in found.categories] == [None, None]
    assert "There are no published counts to compare with." in as_text(found)


def test_the_table_shows_counts_beside_the_published_ones(parts):
    (parts / "tubes/train/good/001.png").unlink()
    lines = as_text(take_inventory("mpdd", parts)).splitlines()
    row = next(line for line in lines if line.startswith("tubes"))
    assert row.split() == ["tubes", "121", "of", "122", "32", "of", "32", "69", "of", "69", "69"]
    assert lines[7].split() == ["all", "887", "176", "282", "282"]
    assert "1 error:" in lines


def test_json_holds_the_same(parts):
    found = take_inventory("mpdd", parts)
    read = json.loads(as_json(found))
    assert read["dataset"] == "mpdd" and read["root"] == parts.as_posix()
    assert read["errors"] == read["warnings"] == []
    tubes = read["categories"][-1]
    assert tubes["name"] == "tubes" and list(tubes["counts"]) == list(COLUMNS)
    assert tubes["counts"] == tubes["published"]


def test_numbers_stay_names_in_json(tmp_path):
    root = trees.btad(tmp_path, {"01": (2, 1, 1)})
    assert json.loads(as_json(take_inventory("btad", root)))["categories"][0]["name"] == "01"


def test_an_unknown_dataset_is_refused():
    with pytest.raises(ValueError, match="dataset 'moon' is unknown; known: mini"):
        take_inventory("moon")


# ---- what to download


@pytest.mark.parametrize("dataset", ["mvtec", "visa", "btad", "mpdd", "dagm", "mtd"])
@pytest.mark.parametrize(("root", "told"), [("", "no root given"), ("nowhere", "nowhere: does not exist")])
def test_a_missing_root_says_what_to_download(dataset, root, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = take_inventory(dataset, root).errors
    source = sources.SOURCES[dataset]
    for text in (told, source.title, source.page, source.licence or "none stated", source.size):
        assert text in line
    assert "\n" not in line


def test_every_dataset_is_fetched_or_made_or_has_a_source():
    assert set(DATASETS) == {*sources.SOURCES, "mini", "elpv"}


# ---- looking without decoding


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "gif", "tif"])
def test_a_probe_tells_the_size_and_refuses_half_a_file(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (48, 64), dtype=np.uint8)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(noise).save(path)
    assert probe(path) == (64, 48)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=f"a.{suffix}: "):
        probe(path)


def test_a_probe_finds_a_changed_byte_in_a_png(tmp_path):
    path = trees.put(tmp_path / "a.png")
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png: unreadable"):
        probe(path)


def test_a_probe_takes_a_jpeg_with_bytes_after_its_end(tmp_path):
    path = trees.put(tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes() + b"camera notes")
    assert probe(path) == (8, 8)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_a_probe_refuses_pixels_that_cannot_be_read(tmp_path, mode):
    Image.new(mode, (4, 4), 70_000).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"pixels have no fixed range|beyond 16 bits"):
        probe(tmp_path / "a.tif")


def test_odd_colour_modes_are_sound(tmp_path):
    modes = {"palette": "P", "grey": "L", "alpha": "RGBA", "two": "1", "wide": "I;16"}
    for folder, count in (("train/good", 0), ("test/good", 40), ("test/cut", 80)):
        for value, (name, mode) in enumerate(modes.items()):
            path = tmp_path / "nut" / folder / f"{name} {value}.PNG"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(count + value).integers(0, 256, (8, 8), dtype=np.uint8)
            image = (
                Image.fromarray(noise.astype(np.uint16))
                if mode == "I;16"
                else Image.fromarray(noise).convert(mode)
            )
            image.save(path)
            if folder == "test/cut":
                trees.put(tmp_path / "nut/ground_truth/cut" / f"{name} {value}_mask.png", mask=True)
    found = take_inventory("mvtec", tmp_path)
    assert (found.errors, found.warnings) == ([], [])
    assert found.categories[0].masks == len(modes)
