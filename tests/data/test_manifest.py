"""A stream written out and read again: the same tasks and figures, or the first file that differs."""

import json
import shutil
from functools import partial

import mlcroissant
import pytest

from inclad.cli import main
from inclad.continual.catalog import make_learner
from inclad.data import manifest, mini, mvtec
from inclad.data.catalog import DATASETS, load_tasks
from inclad.data.croissant import COLUMNS
from inclad.data.sources import SOURCES
from inclad.data.task import DataError
from inclad.published import open_scenario, published_scenario
from inclad.stream import run_stream


@pytest.fixture
def made(mvtec_tree, tmp_path):
    """The manifest of the tree with the tasks nut, bolt, as a file."""
    content = manifest.build("mine", "mvtec", "given", ["nut", "bolt"], str(mvtec_tree))
    return manifest.write(content, tmp_path / "out")[0]


def altered(path, change):
    """A copy of a manifest after `change` of its content."""
    content = json.loads(path.read_text())
    change(content)
    copy = path.with_name("altered.json")
    copy.write_text(json.dumps(content))
    return copy


def test_rows_name_every_file_of_the_stream(made, mvtec_tree):
    content = manifest.load(made)
    tasks = load_tasks("mvtec", ["nut", "bolt"], str(mvtec_tree))
    rows = iter(content["images"])
    for position, task in enumerate(tasks, 1):
        for split, samples in (("train", task.train), ("test", task.test)):
            for sample, row in zip(samples, rows):
                where = (row["dataset"], row["task"], row["position"], row["split"])
                assert where == ("mvtec", task.name, position, split)
                assert (row["label"], row["defect"]) == (sample.label, sample.defect)
                assert mvtec_tree / row["image"] == sample.image and "\\" not in row["image"]
                assert (row["mask"] and mvtec_tree / row["mask"]) == sample.mask
                assert (row["mask"] is None) == (row["mask_sha256"] is None) and len(row["sha256"]) == 64
    assert not list(rows)
    assert [entry["task"] for entry in content["tasks"]] == ["nut", "bolt"]
    assert content["sources"]["mvtec"]["licence"].startswith("CC BY-NC-SA 4.0")
    assert content["sources"]["mvtec"]["homepage"].startswith("https://www.mvtec.com/")
    assert content["sources"]["mvtec"]["seed"] is None


def test_no_pixel_and_no_folder_of_this_machine_is_in_it(made, mvtec_tree):
    assert {path.name for path in made.parent.iterdir()} == {"manifest.json", "croissant.json"}
    for path in made.parent.iterdir():
        assert str(mvtec_tree.parent) not in path.read_text()


def test_a_run_from_the_manifest_is_the_run_from_the_root(made, mvtec_tree, tmp_path, extractor):
    """Also from a copy elsewhere: R is the same to the last bit."""
    copy = shutil.copytree(mvtec_tree, tmp_path / "copy")

    def cells(tasks):
        learner = make_learner("patchcore", "continual")
        steps = run_stream(tasks, learner, extractor)
        return [(step.task.name, [(cell.image, cell.pixel) for cell in step.evaluations]) for step in steps]

    from_root = cells(load_tasks("mvtec", ["nut", "bolt"], str(mvtec_tree)))
    assert [name for name, _ in from_root] == ["nut", "bolt"]
    assert cells(manifest.read(made, str(mvtec_tree))) == from_root
    assert cells(manifest.read(made, str(copy))) == from_root
    assert open_scenario(str(made), str(copy)) == ("mine", "mvtec", "given", ["nut", "bolt"])


def test_croissant_is_valid_and_its_records_are_the_rows(made):
    described = json.loads(made.with_name("croissant.json").read_text())
    dataset = mlcroissant.Dataset(str(made.with_name("croissant.json")))
    assert dataset.metadata.ctx.issues.report() == ""  # no error and no warning
    assert described["conformsTo"] == [
        "http://mlcommons.org/croissant/1.0",
        "http://mlcommons.org/croissant/RAI/1.0",
    ]
    assert sum(key.startswith("rai:") for key in described) >= 8
    assert dataset.metadata.data_biases and dataset.metadata.personal_sensitive_information
    records = [
        {
            key.removeprefix("images/"): value.decode() if isinstance(value, bytes) else value
            for key, value in record.items()
        }
        for record in dataset.records("images")
    ]
    assert records == manifest.load(made)["images"] and set(records[0]) == set(COLUMNS)


def test_croissant_of_broken_metadata_is_not_valid(made):
    """So that the test above can fail."""
    path = made.with_name("croissant.json")
    described = json.loads(path.read_text())
    described["recordSet"][0]["field"][0]["source"]["fileObject"]["@id"] = "other.json"
    path.write_text(json.dumps(described))
    with pytest.raises(mlcroissant.ValidationError):
        mlcroissant.Dataset(str(path))


def remove_image(root):
    (root / "bolt/test/cut/001.png").unlink()
    (root / "bolt/ground_truth/cut/001_mask.png").unlink()
    return "bolt/test/cut/001.png: missing"


def change_image(root):
    shutil.copy(root / "bolt/test/good/000.png", root / "nut/test/good/001.png")
    return "nut/test/good/001.png: its content differs"


def change_mask(root):
    shutil.copy(root / "nut/test/good/000.png", root / "nut/ground_truth/cut/000_mask.png")
    return "nut/ground_truth/cut/000_mask.png: its content differs"


def add_image(root):
    shutil.copy(root / "nut/train/good/000.png", root / "nut/train/good/003.png")
    return "nut/train/good/003.png: an extra image"


def remove_mask(root):
    (root / "bolt/ground_truth/cut/000_mask.png").unlink()
    return "bolt/ground_truth/cut/000_mask.png: missing"


def move_to_another_defect(root):
    (root / "nut/test/cut").rename(root / "nut/test/dent")
    (root / "nut/ground_truth/cut").rename(root / "nut/ground_truth/dent")
    return "nut/test/cut/000.png: missing"


@pytest.mark.parametrize(
    "change", [remove_image, change_image, change_mask, add_image, remove_mask, move_to_another_defect]
)
def test_other_data_are_refused_with_their_first_difference(made, mvtec_tree, change):
    told = change(mvtec_tree)
    with pytest.raises(DataError) as error:
        manifest.read(made, str(mvtec_tree))
    assert f"{mvtec_tree}/{told}" in str(error.value) and "\n" not in str(error.value)
    assert "manifest.json" in str(error.value)


def relabel(content):
    content["images"][3].update(label=0, defect="good")


def drop_a_row(content):
    del content["images"][-1]


def swap_two_rows(content):
    content["images"][0], content["images"][1] = content["images"][1], content["images"][0]


def raise_the_threshold(content):
    content["tasks"][0]["mask_threshold"] = 128


def list_one_twice(content):
    content["images"].append(content["images"][-1])


def strange_ordering(content):
    content["ordering"] = "backwards"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (relabel, "label is"),
        (drop_a_row, "an extra image"),
        (swap_two_rows, "another order"),
        (raise_the_threshold, "mask threshold 128, its reader 1"),
        (list_one_twice, "twice or in another order"),
        (strange_ordering, "unknown ordering 'backwards'"),
    ],
)
def test_a_manifest_that_tells_another_story_is_refused(made, mvtec_tree, change, told):
    with pytest.raises(ValueError, match=told):
        open_scenario(str(altered(made, change)), str(mvtec_tree))


HOSTILE = ["/etc/passwd", "../out.png", "nut/../../out.png", "C:/out.png", "c:out.png", "nut\\out.png", "", "a\0b",
           "//server/share/out.png", "./nut/test/good/000.png", "nut//000.png", "n" * 300, "a/" * 2000 + "a",
           "\ud800.png"]  # fmt: skip


@pytest.mark.parametrize("column", ["image", "mask"])
@pytest.mark.parametrize("name", HOSTILE)
def test_paths_that_leave_the_root_are_refused_before_a_file_is_opened(made, column, name):
    path = altered(made, lambda content: content["images"][2].update({column: name}))
    with pytest.raises(DataError, match=r"image 3.* not a plain POSIX path below the root"):
        manifest.load(path)


def test_a_listed_link_that_leaves_the_root_is_refused(made, mvtec_tree, tmp_path):
    image = mvtec_tree / "nut/test/good/000.png"
    shutil.move(image, tmp_path / "out.png")
    image.symlink_to(tmp_path / "out.png")
    with pytest.raises(DataError, match="leaves"):
        manifest.read(made, str(mvtec_tree))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no manifest"),
        ('{"format": "other"}', "no manifest"),
        ('{"format": "inclad manifest 1"}', "scenario: expected str, got null .and 5 more"),
    ],
)
def test_what_is_no_manifest_is_told_in_one_line(tmp_path, text, told):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(DataError, match=told) as error:
        manifest.load(tmp_path / "m.json")
    assert str(tmp_path / "m.json") in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(DataError, match="no file; give a manifest"):
        manifest.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c["images"].insert(0, 7), "image 1, expected a mapping, got int"),
        (lambda c: c["images"][1].update(label=True), "image 2, label: expected int, got true"),
        (lambda c: c["images"][1].update(task="screw"), "image 2, task 'screw' is not the listed"),
        (lambda c: c["tasks"].append(c["tasks"][0]), "a task is listed twice"),
        (lambda c: c["tasks"].reverse(), "positions of its tasks"),
        (lambda c: c.update(tasks=[], images=[]), "it lists no task"),
        (lambda c: c.update(images=[r for r in c["images"] if r["task"] == "nut"]), "has no images"),
        (lambda c: c.update(dataset="visa"), "is of dataset 'mvtec', the stream of 'visa'"),
        (
            lambda c: c["images"][1].update(mask=None, mask_sha256="0" * 64),
            "mask and mask_sha256 go together",
        ),
        (lambda c: c["tasks"][0].pop("dataset"), "task 1, dataset: expected str, got null"),
    ],
)
def test_a_malformed_manifest_says_where(made, change, told):
    with pytest.raises(DataError, match=told):
        manifest.load(altered(made, change))


def test_a_stream_over_several_datasets(mvtec_tree, tmp_path):
    cells = tmp_path / "mini"
    mini.generate(cells, size=32, train=2, good=1, defective=1)
    roots = {"mvtec": str(mvtec_tree), "mini": str(cells)}
    content = manifest.build("both", "mixed", "given", ["mini:gear", "mvtec:bolt"], roots=roots)
    path, _ = manifest.write(content, tmp_path / "out")
    tasks = manifest.read(path, roots=roots)
    assert tasks == load_tasks("mixed", ["mini:gear", "mvtec:bolt"], roots=roots)
    assert list(content["sources"]) == ["mini", "mvtec"]
    with pytest.raises(DataError, match="mvtec: no root given"):
        manifest.read(path, roots={"mini": str(cells)})


@pytest.fixture
def five_roots(monkeypatch, tmp_path, picture):
    """A folder for each of the paper's datasets in one layout, with the 27 tasks of the long stream."""
    roots = {}
    for task in published_scenario("multidataset_easy_to_hard").tasks:
        dataset, name = task.split(":")
        monkeypatch.setitem(DATASETS, dataset, partial(mvtec.read, dataset=dataset))
        root = tmp_path / dataset
        roots[dataset] = root
        picture(root / name / "train/good/0.png", 100)
        picture(root / name / "test/good/0.png", 101)
        picture(root / name / "test/cut/0.png", 102)
        picture(root / name / "ground_truth/cut/0_mask.png", 255, mode="L")
    return roots


def test_the_published_stream_of_27_tasks_from_the_command(five_roots, tmp_path, capsys):
    name, out = "multidataset_hard_to_easy", tmp_path / "out"
    words = [f"{dataset}={root}" for dataset, root in five_roots.items()]
    assert main(["scenarios", "build", name, "--out", str(out), "--roots", *words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["27 tasks, 81 images", f"{out}/manifest.json", f"{out}/croissant.json"]
    assert mlcroissant.Dataset(str(out / "croissant.json")).metadata.ctx.issues.report() == ""
    roots = {dataset: str(root) for dataset, root in five_roots.items()}
    assert open_scenario(f"{out}/manifest.json", roots=roots) == published_scenario(name)
    licences = json.loads((out / "croissant.json").read_text())["license"]
    assert len(licences) == len({SOURCES[name].licence for name in five_roots})
    assert "https://creativecommons.org/licenses/by-nc-sa/4.0/" in licences


def test_own_parts_from_the_command(mvtec_tree, tmp_path, capsys):
    words = ["--dataset", "mvtec", "--tasks", "nut,bolt", "--root", str(mvtec_tree), "--licence", "CC0"]
    assert main(["scenarios", "build", *words, "--out", str(tmp_path / "parts")]) == 0
    content = manifest.load(tmp_path / "parts/manifest.json")
    assert (content["scenario"], content["ordering"]) == ("parts", "given")
    source = content["sources"]["mvtec"]
    assert (source["title"], source["licence"], source["homepage"]) == ("parts", "CC0", "")
    described = json.loads((tmp_path / "parts/croissant.json").read_text())
    assert "InCLAD" not in json.dumps(described) and described["license"] == ["CC0"]
    mlcroissant.Dataset(described)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a scenario"),
        (["visa_random", "--dataset", "mvtec"], "name a scenario"),
        (["visa_easy"], "no scenario 'visa_easy'"),
        (["mvtec-random"], "mvtec: no root given"),
        (["mvtec_random", "--root", "nowhere"], "nowhere: does not exist"),
        (["multidataset_easy_to_hard", "--roots", "mvtec"], "--roots: expected DATASET=FOLDER"),
    ],
)
def test_wrong_words_are_told(tmp_path, capsys, words, told):
    assert main(["scenarios", "build", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert told in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_one_line(mvtec_tree, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["scenarios", "build", "--dataset", "mvtec", "--root", str(mvtec_tree)]
    assert main([*words, "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert (
        said.count("\n") == 1
        and f"{tmp_path / 'file'}: " in said
        and "name a place that can be written" in said
    )
    assert main(["data", "show", "mvtec", str(mvtec_tree), "--out", str(tmp_path)]) == 2
    assert "name a place that can be written" in capsys.readouterr().err


def test_the_list_is_table_1(capsys):
    assert main(["scenarios", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 18
    assert lines[-1].split() == ["multidataset_hard_to_easy", "27", "20853", "29.38", "%"]


def test_a_damaged_image_gets_into_no_manifest(mvtec_tree):
    image = mvtec_tree / "nut/test/good/000.png"
    image.write_bytes(image.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"000\.png"):
        manifest.build("mine", "mvtec", "given", [], str(mvtec_tree))
