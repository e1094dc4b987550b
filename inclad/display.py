"""What a page shows: a figure with its alt text and caption, figures behind a slider, a table."""

import base64
import hashlib
import io
from collections.abc import Sequence

import ipywidgets as widgets
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from PIL import Image

from inclad.results import FIGURE_BYTES, png

FRAME_BYTES = 120_000


def table(frame: pd.DataFrame, caption: str) -> Styler:
    """The table with its caption: numbers right-aligned, three decimals, a dash where one is missing."""
    floats = [column for column in frame if pd.api.types.is_float_dtype(frame[column])]
    numbers = [column for column in frame if pd.api.types.is_numeric_dtype(frame[column])]
    align = {
        column: [{"selector": "", "props": f"text-align: {'right' if column in numbers else 'left'}"}]
        for column in frame
    }
    return (
        # The same caption gives the same id: a page that is made again stays the same.
        Styler(frame, uuid=hashlib.sha256(caption.encode()).hexdigest()[:8], cell_ids=False, caption=caption)
        .format(dict.fromkeys(floats, "{:.3f}"), na_rep="–", escape="html")
        .format_index(axis="columns", escape="html")
        .hide(axis="index")
        .set_table_styles(align)
    )


def show(fig: Figure, alt: str, caption: str) -> None:
    """Display the figure as a PNG with its alt text, then the caption (Markdown); once a cell.

    Raises ValueError for an empty alt text: a reader who cannot see the figure has nothing else.
    """
    _show_png(png(fig), alt, caption)


def slider(
    figures: Sequence[Figure], labels: Sequence[str], description: str, alt: str, caption: str
) -> None:
    """Display figures behind a slider that works in a page without a kernel, then a still of first and last.

    `labels` name the states, `description` the slider; arrow keys move it. The still carries `alt`.
    """
    if not figures or len(figures) != len(labels):
        raise ValueError(f"slider needs a label a figure, got {len(figures)} figures, {len(labels)} labels")
    frames = [png(fig, FRAME_BYTES) for fig in figures]
    handle = widgets.SelectionSlider(
        options=[(label, number) for number, label in enumerate(labels)],
        description=description,
        tooltip=description,
        style={"description_width": "initial"},
        layout={"width": "100%", "max_width": "44em"},
    )
    # Below its natural width the picture scrolls inside its box, and the page does not.
    fit = {"width": "100%", "min_width": "36em", "max_width": "66em"}
    stack = widgets.Stack(
        [widgets.Image(value=frame, format="png", layout=fit) for frame in frames],
        selected_index=0,
        layout={"width": "100%", "overflow": "auto"},
    )
    widgets.jslink((handle, "index"), (stack, "selected_index"))
    display(widgets.VBox([handle, stack]))
    ends = sorted({0, len(frames) - 1})
    states = " and ".join(str(labels[end]) for end in ends)
    _show_png(
        _stacked([frames[end] for end in ends]),
        f"{alt} Shown: {states}.",
        f"{caption} Below the slider, for print: {states}.",
    )


def _show_png(data: bytes, alt: str, caption: str) -> None:
    if not alt.strip():
        raise ValueError("a figure needs an alt text that says what it shows")
    bundle = {"image/png": base64.b64encode(data).decode(), "text/plain": alt}
    display(bundle, raw=True, metadata={"image/png": {"alt": alt}})
    display(Markdown(caption))


def _stacked(frames: Sequence[bytes]) -> bytes:
    """The frames below each other as one PNG within the size of a figure."""
    pictures = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    width = max(picture.width for picture in pictures)
    sheet = Image.new("RGB", (width, sum(picture.height for picture in pictures)), "white")
    y = 0
    for picture in pictures:
        sheet.paste(picture, (0, y))
        y += picture.height
    while True:
        buffer = io.BytesIO()
        sheet.quantize(256, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
        if buffer.tell() <= FIGURE_BYTES:
            return buffer.getvalue()
        sheet = sheet.resize((sheet.width * 4 // 5, sheet.height * 4 // 5), Image.Resampling.LANCZOS)
