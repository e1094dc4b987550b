"""BTAD, the beanTech products 01 to 03 (Mishra et al. 2021): MVTec AD's layout with ok and ko for good and bad.

Images and masks have different suffixes, .bmp and .png in every mixture, so masks are paired by stem; they are
coded 0/1 or 0/255, so every pixel above 0 counts. Eleven masks of `ko` images mark nothing: those images
stay anomalous. On disk product 02 has 399 training images and 03 has 1,000; the owner's README swaps them.
"""

from pathlib import Path

from inclad.data import mvtec
from inclad.data.folder import unwrap
from inclad.data.task import Task

LAYOUT = "01, 02 and 03, each with train/ok, test/ok, test/ko and ground_truth/ko"


def read(root: Path | str | None, names: list[str] | None = None) -> list[Task]:
    """Read the named products (None: all) below `root` or its BTech_Dataset_transformed, one task each.

    Raises one DataError with everything that is wrong.
    """
    root = unwrap(root, "BTech_Dataset_transformed")
    return mvtec.read(root, names, dataset="btad", normal="ok", layout=LAYOUT)
