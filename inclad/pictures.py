"""Images, their defects and their anomaly maps as figures. Reads arrays, runs no model."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from inclad.plots import LINES, WIDTH, draw_r, name_axes, name_size, name_width, roc_bar, styled

MAPS = matplotlib.colormaps["magma"]


@styled
def anomaly_maps(
    images: Sequence[np.ndarray],
    masks: Sequence[np.ndarray | None],
    maps: Sequence[np.ndarray],
    titles: Sequence[str],
    vmin: float | None = None,
    vmax: float | None = None,
    threshold: float | None = None,
) -> Figure:
    """Images with the outline of their defect, and below them their maps; six a row.

    `images` uint8 (H, W, 3), `masks` bool (H, W) or None, `maps` float (H, W), higher = more anomalous. One
    colour scale for all, from `vmin` to `vmax`, by default from the lowest to the highest value shown; a
    dashed contour stands at `threshold`.
    """
    vmin = min(float(np.min(m)) for m in maps) if vmin is None else vmin
    vmax = max(float(np.max(m)) for m in maps) if vmax is None else vmax
    columns = min(len(images), 6)
    bands = -(-len(images) // columns)
    side, head, right = min((WIDTH - 0.7) / columns, 1.9), 0.22, 0.7
    width, height = side * columns + right, bands * (2 * side + head)
    fig = Figure(figsize=(width, height), facecolor="white")

    def square(column: int, top: float) -> Axes:
        x, y, across = 0.03 + column * side, height - top - side, side - 0.05
        ax = fig.add_axes((x / width, y / height, across / width, across / height))
        ax.axis("off")
        return ax

    for k, (image, mask, scores, title) in enumerate(zip(images, masks, maps, titles, strict=True)):
        band, column = divmod(k, columns)
        top = band * (2 * side + head) + head - 0.05
        above, below = square(column, top), square(column, top + side)
        above.imshow(image)
        outline(above, mask)
        above.set_title(title, fontsize=_fit(title, side), pad=2)
        _draw_map(below, image, scores, vmin, vmax)
        outline(below, mask)
        if threshold is not None and scores.min() < threshold < scores.max():
            below.contour(scores, [threshold], colors="white", linewidths=0.9, linestyles="--")
    tall = min(2 * side - 0.05, 3.0)
    x, y = (width - right + 0.05) / width, (height - head - tall) / height
    bar = fig.add_axes((x, y, 0.12 / width, tall / height))
    fig.colorbar(map_scale(vmin, vmax), cax=bar, alpha=0.65, label="anomaly score, one scale for all")
    return fig


@styled
def forgetting_frame(
    image: np.ndarray,
    mask: np.ndarray | None,
    map_naive: np.ndarray,
    map_continual: np.ndarray,
    R_naive: np.ndarray,
    R_continual: np.ndarray,
    step: int,
    tasks: Sequence[str],
    vmax: float,
    vmin: float = 0.0,
    shown: str = "",
) -> Figure:
    """One test image after `step` tasks (1-based): its two maps, and the matrices R filled so far.

    `image` uint8 (H, W, 3), `mask` bool (H, W) or None, maps float (H, W), higher = more anomalous, drawn on
    one scale from `vmin` to `vmax`: give the same in every frame. R (N, N) may be complete, only `step` rows
    are drawn. `shown` is the task the image belongs to.
    """
    size = name_size(1.9 * 72 / len(tasks))
    names = min(name_width(tasks, size), 1.3)
    side, top, gap = 1.9, 0.52, 0.32
    width, height = WIDTH, top + 2 * side + gap + names + 0.3
    left = WIDTH - 0.62 - 2 * side - 0.12
    fig = Figure(figsize=(width, height), facecolor="white")

    def square(column: int, row: int) -> Axes:
        x = (left + (column - 1) * (side + 0.12)) if column else 0.08
        y = height - top - side - row * (side + gap)
        across = side if column else min(side, left - 0.2)
        return fig.add_axes((x / width, y / height, across / width, side / height))

    head = f"after task {step} of {len(tasks)}: {tasks[step - 1]}"
    fig.text(0.08 / width, 1 - 0.06 / height, head, va="top", fontsize=10.5, weight="bold")
    ax = square(0, 0)
    ax.imshow(image)
    outline(ax, mask)
    ax.set_title(f"test image of {shown}" if shown else "test image", fontsize=8)
    ax.axis("off")
    for column, (protocol, scores) in enumerate(
        (("naive", map_naive), ("continual", map_continual)), start=1
    ):
        ax = square(column, 0)
        _draw_map(ax, image, scores, vmin, vmax)
        outline(ax, mask)
        ax.set_title(f"map, {protocol}")
        ax.axis("off")
    for column, (protocol, R) in enumerate((("naive", R_naive), ("continual", R_continual)), start=1):
        ax = square(column, 1)
        draw_r(ax, R, tasks, side * 72, filled=step)
        name_axes(ax, tasks, size, rows=False, columns=True)
        ax.set_title(f"R, {protocol}", pad=3)
        ax.plot([-0.5, len(tasks) - 0.5], [len(tasks) - 0.5] * 2, color="#BBBBBB", linewidth=0.6)
        ax.plot([-0.5, -0.5], [-0.5, len(tasks) - 0.5], color="#BBBBBB", linewidth=0.6)
        if shown in tasks:
            k = list(tasks).index(shown)
            ax.get_xticklabels()[k].set_weight("bold")
    lines = square(0, 1)
    lines.axis("off")
    lines.set_ylim(len(tasks) - 0.5, -0.5)
    lines.set_xlim(0, 1)
    for i, task in enumerate(tasks):
        now = i == step - 1
        ink, weight = "black" if i < step else "#767676", "bold" if now else "normal"
        lines.text(1, i, task, ha="right", va="center", fontsize=size, color=ink, weight=weight)
        if now:
            lines.text(1.03, i, "▸", ha="left", va="center", fontsize=size)
    lines.set_title("after learning", loc="right", fontsize=8, pad=3)
    x = (WIDTH - 0.56) / width
    bar = fig.add_axes((x, (height - top - side + 0.1) / height, 0.1 / width, (side - 0.2) / height))
    fig.colorbar(map_scale(vmin, vmax), cax=bar, alpha=0.65, label="anomaly score")
    bar = fig.add_axes(
        (x, (height - top - 2 * side - gap + 0.2) / height, 0.1 / width, (side - 0.3) / height)
    )
    roc_bar(fig, bar)
    return fig


@styled
def contact_sheet(rows: Sequence[tuple[str, Sequence[tuple[np.ndarray, np.ndarray | None, str]]]]) -> Figure:
    """Example images, a row a task: `rows` holds (name, cells), a cell is (image, mask or None, title).

    `image` uint8 (H, W, 3), `mask` bool (H, W), outlined.
    """
    columns = max(len(cells) for _, cells in rows)
    names = name_width([name for name, _ in rows], 8) + 0.1
    side = min((WIDTH - names) / columns, 1.3)
    width, height = names + side * columns, (side + 0.17) * len(rows)
    fig = Figure(figsize=(width, height), facecolor="white")
    for i, (name, cells) in enumerate(rows):
        y = height - (i + 1) * (side + 0.17)
        fig.text((names - 0.08) / width, (y + side / 2) / height, name, ha="right", va="center", fontsize=8)
        for j, (image, mask, title) in enumerate(cells):
            x = names + j * side
            ax = fig.add_axes((x / width, y / height, (side - 0.05) / width, (side - 0.05) / height))
            ax.imshow(image)
            outline(ax, mask)
            ax.set_title(title, fontsize=_fit(title, side), pad=2)
            ax.axis("off")
    return fig


@styled
def last_maps(
    images: np.ndarray, masks: np.ndarray, names: Sequence[str], maps: dict[str, np.ndarray], detector: str
) -> Figure:
    """A row a part: its followed image with the defect outlined, and its map from each protocol at the end.

    `maps` holds (steps, images, H, W) by "detector.protocol". Every map has its own colour scale, from its
    lowest to its highest value: what matters is where it is brightest.
    """
    protocols = [protocol for protocol in LINES if f"{detector}.{protocol}" in maps]
    columns = 1 + len(protocols)
    label = name_width(names, 8) + 0.1
    side = min((WIDTH - label) / columns, 1.25)
    width, height = label + side * columns, 0.25 + side * len(images)
    fig = Figure(figsize=(width, height), facecolor="white")
    for i, (image, mask, name) in enumerate(zip(images, masks, names, strict=True)):
        last = [maps[f"{detector}.{protocol}"][-1, i].astype(np.float32) for protocol in protocols]
        y = height - 0.25 - (i + 1) * side
        fig.text((label - 0.08) / width, (y + side / 2) / height, name, ha="right", va="center", fontsize=8)
        for j, title in enumerate(["image", *(f"{detector}, {protocol}" for protocol in protocols)]):
            place = ((label + j * side) / width, y / height, (side - 0.05) / width, (side - 0.05) / height)
            ax = fig.add_axes(place)
            ax.axis("off")
            if j:
                _draw_map(ax, image, last[j - 1], last[j - 1].min(), last[j - 1].max())
            else:
                ax.imshow(image)
            outline(ax, mask)
            if i == 0:
                ax.set_title(title, fontsize=_fit(title, side), pad=3)
    return fig


@styled
def first_maps(
    image: np.ndarray, mask: np.ndarray, maps: dict[str, np.ndarray], vmax: float, title: str
) -> Figure:
    """One image, where its defect is, and maps of it by their titles, on one scale from 0 to `vmax`."""
    columns = 2 + len(maps)
    side, right, head = min((WIDTH - 0.65) / columns, 1.9), 0.65, 0.25
    width, height = side * columns + right, side + head
    fig = Figure(figsize=(width, height), facecolor="white")
    panels = [(title, None), ("where the defect is", None), *maps.items()]
    for column, (name, scores) in enumerate(panels):
        place = ((0.03 + column * side) / width, 0.02, (side - 0.06) / width, (side - 0.06) / height)
        ax = fig.add_axes(place)
        ax.axis("off")
        ax.set_title(name, fontsize=_fit(name, side), pad=3)
        if scores is not None:
            _draw_map(ax, image, scores, 0.0, vmax)
        elif column:
            ax.imshow(mask, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        else:
            ax.imshow(image)
        if scores is not None:
            outline(ax, mask)
    bar = fig.add_axes(((width - right + 0.05) / width, 0.06, 0.1 / width, (side - 0.25) / height))
    fig.colorbar(map_scale(0.0, vmax), cax=bar, alpha=0.65, extend="max", label="anomaly score")
    return fig


def _draw_map(ax: Axes, image: np.ndarray, scores: np.ndarray, vmin: float, vmax: float) -> None:
    """The map in colour over the image in grey: every colour then tells a score."""
    ax.imshow(image.mean(axis=2), cmap="gray", vmin=0, vmax=255)
    ax.imshow(scores, cmap=MAPS, norm=Normalize(vmin, vmax), alpha=0.65, interpolation="nearest")


def map_scale(vmin: float, vmax: float) -> ScalarMappable:
    """The colours of maps from `vmin` to `vmax`, for a colour bar."""
    return ScalarMappable(Normalize(vmin, vmax), MAPS)


def outline(ax: Axes, mask: np.ndarray | None, shift: float = 0.0) -> None:
    """The border of the defect, white on black: seen on every ground; `shift` is where the first pixel has its
    middle."""
    if mask is None or not mask.any() or mask.all():
        return
    middles = np.arange(len(mask)) + shift
    for colour, width in (("black", 2.2), ("white", 1.0)):
        ax.contour(middles, middles, np.asarray(mask, dtype=float), [0.5], colors=colour, linewidths=width)


def _fit(title: str, width: float) -> float:
    """Font size at which the title is no wider than `width` inches."""
    return min(8.0, width * 72 / (0.62 * max(len(title), 1)))
