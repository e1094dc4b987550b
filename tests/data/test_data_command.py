"""`inclad data check` and `inclad data show`: their words, status and output."""

import json

import pytest
import trees
from PIL import Image

from inclad.cli import main


def run(capsys, *words):
    status = main(["data", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return trees.mpdd(tmp_path / "my parts", {"bolt": (3, 2, 2), "nut": (2, 2, 1)})


def test_a_sound_folder_ends_with_status_0(root, capsys):
    status, out, err = run(capsys, "check", "mvtec", root)
    assert (status, err) == (0, "")
    assert out.splitlines()[1].split() == ["bolt", "3", "2", "2", "2"] and out.endswith("Nothing is wrong.\n")


def test_warnings_alone_end_with_status_0(root, capsys):
    (root / "nut/ground_truth/scratches/000_mask.png").unlink()
    status, out, _ = run(capsys, "check", "mvtec", root)
    assert status == 0 and "1 warning:\ntask 'nut': no masks at all" in out and "error" not in out


def test_errors_end_with_status_1_and_are_all_there(root, capsys):
    for name in ("bolt/train/good/000.png", "nut/test/good/001.png"):
        (root / name).write_bytes(b"")
    status, out, _ = run(capsys, "check", "mvtec", root)
    assert status == 1 and "2 errors:" in out
    assert f"{root / 'bolt/train/good/000.png'}: not an image" in out and "nut/test/good/001.png" in out


def test_json_goes_to_standard_output_alone(root, capsys):
    (root / "bolt/train/good/000.png").write_bytes(b"")
    status, out, err = run(capsys, "check", "mvtec", root, "--json")
    read = json.loads(out)
    assert (status, err) == (1, "")
    assert [each["name"] for each in read["categories"]] == ["bolt", "nut"] and len(read["errors"]) == 1


@pytest.mark.parametrize("command", ["check", "show"])
def test_without_a_root_it_says_what_to_download(root, capsys, command):
    status, out, err = run(capsys, command, "visa")
    assert status == (1 if command == "check" else 2)
    assert "visa: no root given" in out + err and "amazon-science/spot-diff" in out + err


@pytest.mark.parametrize("command", ["check", "show"])
def test_an_unknown_dataset_is_status_2(root, capsys, command):
    status, out, err = run(capsys, command, "moon", root)
    assert (status, out) == (2, "") and err.startswith("dataset 'moon' is unknown; known: mini")


def test_show_draws_a_sheet(root, capsys):
    status, out, _ = run(capsys, "show", "mvtec", root)
    assert (status, out) == (0, "mvtec-examples.png\n")
    sheet = Image.open(root.parent / "mvtec-examples.png")
    assert sheet.format == "PNG" and sheet.width > 500
    status, out, _ = run(capsys, "show", "mvtec", root, "--out", "pictures/mine.png")
    assert out == "pictures/mine.png\n" and (root.parent / out.strip()).is_file()


def test_show_names_what_it_cannot_draw(root, capsys):
    (root / "nut/train/good/000.png").write_bytes(b"")
    status, out, err = run(capsys, "show", "mvtec", root)
    assert (status, out) == (2, "") and "nut/train/good/000.png: not an image" in err
    assert not (root.parent / "mvtec-examples.png").exists()
