"""Whole datasets made of tiny files: the official lists of files, 8 pixels a side, no two byte for byte equal."""

import csv
import json
import struct
import zlib
from io import BytesIO
from pathlib import Path

from PIL import Image

from inclad.reference import reference_table


def chunk(name: bytes, data: bytes) -> bytes:
    """One block of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _encoded(kind: str, value: int = 90) -> bytes:
    buffer = BytesIO()
    Image.new("L", (8, 8), value).save(buffer, kind)
    return buffer.getvalue()


PNG, MASK, JPEG, BMP = _encoded("PNG"), _encoded("PNG", 3), _encoded("JPEG"), _encoded("BMP")
_END = len(chunk(b"IEND", b""))


def put(path: Path, mask: bool = False) -> Path:
    """Write a whole image file of the suffix of `path`; its own name in a comment makes its bytes unique."""
    note = path.as_posix().encode()
    suffix = path.suffix.lower()
    if suffix == ".png":
        base = MASK if mask else PNG
        content = base[:-_END] + chunk(b"tEXt", b"Comment\0" + note) + base[-_END:]
    elif suffix == ".bmp":
        content = BMP + note
    else:
        content = JPEG[:2] + b"\xff\xfe" + struct.pack(">H", len(note) + 2) + note + JPEG[2:]
    try:
        path.write_bytes(content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    return path


def mvtec(root: Path, listing: Path) -> Path:
    """The 5,354 images and 1,258 masks of MVTec AD, from the official list of files."""
    meta = json.loads(listing.read_text())
    for row in (row for split in meta.values() for rows in split.values() for row in rows):
        put(root / row["img_path"])
        if row["mask_path"]:
            put(root / row["mask_path"], mask=True)
    return root


def visa(root: Path, split: Path) -> Path:
    """The 10,821 images and 1,200 masks of VisA, raw, from the official split."""
    table = root / "split_csv/1cls.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_bytes(split.read_bytes())
    with split.open(newline="") as file:
        for row in csv.DictReader(file):
            put(root / row["image"])
            if row["mask"]:
                put(root / row["mask"], mask=True)
    return root


def btad(root: Path, counts: dict[str, tuple[int, int, int]] | None = None) -> Path:
    """BTAD with its published counts; images of 01 and 02 are .bmp and .png, masks of 03 .bmp."""
    for name, (train, good, bad) in (counts or published("btad")).items():
        suffix, other = (".png", ".bmp") if name == "03" else (".bmp", ".png")
        for folder, count in (("train/ok", train), ("test/ok", good), ("test/ko", bad)):
            for number in range(count):
                put(root / name / folder / f"{number:04}{suffix}")
        for number in range(bad):
            put(root / name / "ground_truth/ko" / f"{number:04}{other}", mask=True)
    return root


def mpdd(root: Path, counts: dict[str, tuple[int, int, int]] | None = None) -> Path:
    """MPDD with its published counts, without the folder that the archive wraps it in."""
    for name, (train, good, bad) in (counts or published("mpdd")).items():
        for folder, count in (("train/good", train), ("test/good", good), ("test/scratches", bad)):
            for number in range(count):
                put(root / name / folder / f"{number:03}.png")
        for number in range(bad):
            put(root / name / "ground_truth/scratches" / f"{number:03}_mask.png", mask=True)
    return root


def dagm(root: Path, counts: dict[str, tuple[int, int, int]] | None = None, spoiled: int = 2) -> Path:
    """DAGM 2007; `spoiled` defective images lie in Train beside the published normal ones."""
    for name, (train, good, bad) in (counts or published("dagm")).items():
        for part, normal, defective in (("Train", train, spoiled), ("Test", good, bad)):
            rows = ["1"]
            for number in range(1, normal + defective + 1):
                put(root / name / part / f"{number:04}.PNG")
                label = f"{number:04}_label.PNG" if number <= defective else "0"
                rows.append(f"{number}\t{int(number <= defective)}\t{number:04}.PNG\t0\t{label}")
                if number <= defective:
                    put(root / name / part / "Label" / label, mask=True)
            (root / name / part / "Label/Labels.txt").write_text("\n".join(rows) + "\n")
    return root


def published(dataset: str) -> dict[str, tuple[int, int, int]]:
    """Training, normal test and anomalous test images by category."""
    table = reference_table("dataset_counts").query("dataset == @dataset")
    columns = ["category", "train_normal", "test_normal", "test_anomalous"]
    return {name: tuple(counts) for name, *counts in table[columns].itertuples(index=False)}
