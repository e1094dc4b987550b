"""Image files become arrays of one shape; what cannot be trusted is refused with its path."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from inclad.data.task import DataError

MAX_PIXELS = 64_000_000
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF", "PPM")

# `warnings.catch_warnings` changes the whole process, so one thread at a time reads a header.
_HEADER = threading.Lock()


def decode(path: Path) -> Image.Image:
    """Decode the first frame of an image file in its own mode and size.

    The header is judged before a pixel is decoded: more than 64 megapixels are refused, so is anything
    Pillow takes for a decompression bomb. Raises DataError (one line, with the path) for these and for a
    file that is missing, of no known format, truncated or damaged.
    """
    with _opened(path) as image:
        image.load()
        return image.copy()


def probe(path: Path) -> tuple[int, int]:
    """Look at an image file without decoding it, where that can be done, and return its width and height.

    Judged are the header, in PNG the checksum of every block, in JPEG the mark at the end; other formats
    and files without that mark are decoded. So a file that was cut off or whose bytes were changed is found,
    except for changes in the middle of a JPEG. Raises DataError as `decode` does.
    """
    with _opened(path) as image:
        size = image.size
        if image.format == "PNG":
            image.verify()
        elif image.format not in ("JPEG", "MPO") or not _ends_as_jpeg(path):
            image.load()
            if image.mode[0] in "IF":
                _convert(image, "RGB", path)
        return size


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image whose header is sound; what goes wrong then and inside becomes a DataError."""
    path = Path(path)
    try:
        with _HEADER, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path, formats=FORMATS)
        with image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError([_too_large(path, f"{width} x {height} pixels are")])
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError([_too_large(path, "its pixels are far")]) from None
    except FileNotFoundError:
        raise DataError([f"{path}: no such file; restore it or read the folder again"]) from None
    except UnidentifiedImageError:
        raise DataError(
            [f"{path}: not an image ({', '.join(FORMATS)} are read); remove or replace it"]
        ) from None
    except DataError:
        raise
    except Exception as error:  # a damaged file makes the decoders raise nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError([f"{path}: unreadable ({reason}); copy it again from its source"]) from None


def _ends_as_jpeg(path: Path) -> bool:
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 64))
        return file.read().rstrip(b"\0\r\n ").endswith(b"\xff\xd9")


def read_image(path: Path, size: int) -> np.ndarray:
    """Read an image as uint8 (size, size, 3), RGB, 0-255, squashed to a square by bilinear resizing.

    Grey, palette and CMYK files are converted; 16 bits are scaled to 8 (value // 256). An alpha channel is
    dropped, not composited: the stored colours are what the camera saw. The stored pixel grid counts,
    EXIF rotation is not applied, because masks are drawn on that grid. Raises DataError.
    """
    return _square(_convert(decode(path), "RGB", path), size, Image.Resampling.BILINEAR)


def read_mask(path: Path | None, size: int, threshold: int = 1) -> np.ndarray:
    """Read a mask as bool (size, size), True = defective; no path gives all False.

    One 8-bit channel, nearest resizing, then value >= `threshold`. Raises DataError.
    """
    if path is None:
        return np.zeros((size, size), dtype=bool)
    return binarise(decode(path), size, threshold, path)


def binarise(mask: Image.Image, size: int, threshold: int, path: Path) -> np.ndarray:
    """Turn a decoded mask into bool (size, size); `path` is named in the DataError of an unknown mode."""
    return _square(_convert(mask, "L", path), size, Image.Resampling.NEAREST) >= threshold


def _too_large(path: Path, what: str) -> str:
    return f"{path}: {what} more than the {MAX_PIXELS // 1_000_000} megapixels allowed; scale the image down"


def _square(image: Image.Image, size: int, resampling: Image.Resampling) -> np.ndarray:
    return np.array(image.resize((size, size), resampling))


def _convert(image: Image.Image, mode: str, path: Path) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise DataError([f"{path}: pixel values beyond 16 bits; save it with 8 or 16 bits a channel"])
        # Wide masks hold small class numbers, which scaling would wipe out; wide images fill their range.
        narrow = np.minimum(values, 255) if mode == "L" else values // 256
        image = Image.fromarray(narrow.astype(np.uint8))
    elif image.mode == "F":
        raise DataError([f"{path}: floating-point pixels have no fixed range; save it with 8 or 16 bits"])
    try:
        return image.convert(mode)
    except ValueError:
        raise DataError([f"{path}: colour mode {image.mode} is not supported; save it as RGB"]) from None
