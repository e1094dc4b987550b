import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inclad.data.images import decode, read_image, read_mask
from inclad.data.task import DataError

GREY_RAMP = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)


def refusal(path: Path) -> str:
    """The one line that `read_image` refuses a file with."""
    with pytest.raises(DataError) as error:
        read_image(path, 8)
    assert len(error.value.problems) == 1
    line = str(error.value)
    assert "\n" not in line and str(path) in line
    return line


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises a size and is black and tiny on disk."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compress(b"\0" * 5000)
    return b"\x89PNG\r\n\x1a\n" + (
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", rows)
        + chunk(b"IEND", b"")
    )


def test_colours_keep_their_order(tmp_path):
    array = np.zeros((4, 4, 3), np.uint8)
    array[...] = (200, 100, 50)
    Image.fromarray(array).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 4).tolist() == array.tolist()


def test_an_oblong_image_is_squashed_to_a_square(tmp_path, picture):
    image = read_image(picture(tmp_path / "a.png", 7, (30, 10)), 16)
    assert image.shape == (16, 16, 3) and image.dtype == np.uint8 and (image == 7).all()


def test_grey_becomes_three_equal_channels(tmp_path):
    Image.fromarray(GREY_RAMP).save(tmp_path / "a.png")
    assert (read_image(tmp_path / "a.png", 8) == GREY_RAMP[..., None]).all()


def test_a_palette_is_looked_up(tmp_path):
    image = Image.fromarray(np.full((4, 4), 1, np.uint8), "P")
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 4)[0, 0].tolist() == [10, 20, 30]


def test_alpha_is_dropped_not_composited(tmp_path):
    Image.new("RGBA", (4, 4), (90, 80, 70, 0)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", 4)[0, 0].tolist() == [90, 80, 70]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_by_their_range(tmp_path, suffix):
    Image.fromarray(GREY_RAMP.astype(np.uint16) * 257).save(tmp_path / f"a.{suffix}")
    assert (read_image(tmp_path / f"a.{suffix}", 8)[..., 0] == GREY_RAMP).all()


def test_thirty_two_bit_integers_within_sixteen_bits_are_read(tmp_path):
    Image.fromarray(GREY_RAMP.astype(np.int32) * 256).save(tmp_path / "a.tif")
    assert (read_image(tmp_path / "a.tif", 8)[..., 0] == GREY_RAMP).all()


def test_integers_beyond_sixteen_bits_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 70000, np.int32)).save(tmp_path / "a.tif")
    assert "beyond 16 bits" in refusal(tmp_path / "a.tif")


def test_floating_point_pixels_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "a.tif")
    assert "floating-point" in refusal(tmp_path / "a.tif")


def test_cmyk_becomes_rgb(tmp_path):
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "a.tif")
    red, green, blue = read_image(tmp_path / "a.tif", 4)[0, 0].tolist()
    assert red > 200 and green < 60 and blue < 60


def test_the_first_frame_of_an_animation_is_read(tmp_path):
    frames = [Image.new("L", (4, 4), value) for value in (40, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (read_image(tmp_path / "a.gif", 4) == 40).all()


def test_a_missing_file_is_named(tmp_path):
    assert "no such file" in refusal(tmp_path / "a.png")


def test_a_text_file_is_not_an_image(tmp_path):
    (tmp_path / "a.png").write_text("no picture")
    assert "not an image" in refusal(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "gif"])
def test_half_a_file_is_refused(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "copy it again" in refusal(path) or "not an image" in refusal(path)


@pytest.mark.parametrize("side", [8001, 12_000, 20_000])
def test_a_huge_image_is_refused_by_its_header(tmp_path, side):
    (tmp_path / "a.png").write_bytes(png_header(side, side))
    assert "64 megapixels" in refusal(tmp_path / "a.png")


def test_a_huge_image_is_refused_though_warnings_are_off(tmp_path):
    (tmp_path / "a.png").write_bytes(png_header(12_000, 12_000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "64 megapixels" in refusal(tmp_path / "a.png")


def test_a_mask_is_compared_with_its_threshold(tmp_path):
    Image.fromarray(np.array([[0, 1], [127, 128]], np.uint8)).save(tmp_path / "m.png")
    assert read_mask(tmp_path / "m.png", 2).tolist() == [[False, True], [True, True]]
    assert read_mask(tmp_path / "m.png", 2, threshold=128).tolist() == [[False, False], [False, True]]


def test_a_mask_is_resized_to_the_nearest_pixel(tmp_path):
    small = np.array([[0, 255], [255, 0]], np.uint8)
    Image.fromarray(small).save(tmp_path / "m.png")
    assert (read_mask(tmp_path / "m.png", 8) == np.kron(small, np.ones((4, 4))).astype(bool)).all()


def test_class_numbers_in_a_wide_mask_count(tmp_path):
    Image.fromarray(np.array([[0, 3], [300, 0]], np.uint16)).save(tmp_path / "m.png")
    assert read_mask(tmp_path / "m.png", 2).tolist() == [[False, True], [True, False]]


def test_no_mask_is_all_false():
    mask = read_mask(None, 5)
    assert mask.shape == (5, 5) and mask.dtype == bool and not mask.any()


def test_decoding_keeps_size_and_mode(tmp_path, picture):
    image = decode(picture(tmp_path / "a.png", 3, (9, 5), mode="L"))
    assert image.size == (9, 5) and image.mode == "L"
