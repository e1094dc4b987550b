"""Draw book/mini.png: of each component of the mini dataset a normal part, a damaged one and its mask.

python tools/contact_sheet.py [FILE]        (after a change of the dataset's pictures)
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from inclad.data.mini import COMPONENTS, draw

SIDE, GAP, HEAD = 128, 6, 24


def contact_sheet() -> Image.Image:
    """The sheet: a column a component; 256 colours, which keeps the file small."""
    width, height = len(COMPONENTS) * (SIDE + GAP) + GAP, HEAD + 3 * (SIDE + GAP)
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(15)
    for column, component in enumerate(COMPONENTS):
        left = GAP + column * (SIDE + GAP)
        pen.text((left + SIDE / 2, HEAD / 2), component, fill="black", font=font, anchor="mm")
        normal, _, _ = draw(component, "good", 0)
        damaged, mask, _ = draw(component, "defective", column % 4)  # not the same kind of damage everywhere
        for row, picture in enumerate((normal, damaged, mask.astype(np.uint8) * 255)):
            tile = Image.fromarray(picture).convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            sheet.paste(tile, (left, HEAD + row * (SIDE + GAP)))
    return sheet.quantize(256, dither=Image.Dither.NONE)


if __name__ == "__main__":
    target = Path(__file__).resolve().parents[1] / "book" / "mini.png"
    contact_sheet().save(Path(sys.argv[1]) if len(sys.argv) > 1 else target, optimize=True)
