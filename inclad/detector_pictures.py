"""The pictures of the pages on single detectors: one idea each, drawn from real maps of one part."""

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from inclad import plots
from inclad.detector_pages import Part
from inclad.detectors import padim, patchcore
from inclad.detectors.cfa import CFA
from inclad.detectors.detector import Detector
from inclad.detectors.fastflow import FastFlow
from inclad.detectors.padim import PaDiM
from inclad.detectors.patchcore import PatchCore
from inclad.features import Batch
from inclad.neighbors import nearest
from inclad.pictures import MAPS, map_scale, outline

STYLE = plots.STYLE | {"axes.titlesize": 8}
_styled = matplotlib.rc_context(STYLE)
# The two patches or locations that a picture follows: name, colour, marker.
TWO = (("defective", "#D55E00", "s"), ("sound", "#0072B2", "o"))
MARKER = {"markersize": 7, "markeredgecolor": "white", "linestyle": ""}

# What one panel shows: a title and uint8 (H, W, 3) pixels or a map (h, w).
Panels = list[tuple[str, np.ndarray]]


# ---- panels and what is drawn in them


def show_image(ax: Axes, image: np.ndarray, mask: np.ndarray, title: str) -> None:
    """An image with the outline of its defect."""
    ax.imshow(image, extent=(0, len(mask), len(mask), 0))
    outline(ax, mask, shift=0.5)
    ax.set_title(title)


def show_map(ax: Axes, values: np.ndarray, mask: np.ndarray, vmax: float, title: str) -> None:
    """A map from 0 to `vmax`, a coarse one as the squares it is, with the outline of the defect."""
    box = (0, len(mask), len(mask), 0)
    ax.imshow(values, cmap=MAPS, vmin=0, vmax=vmax, extent=box, interpolation="nearest")
    outline(ax, mask, shift=0.5)
    ax.set_title(title)


def panels(
    columns: int, side: float, *, rows: int = 1, right: float = 0.0, below: float = 0.0
) -> tuple[Figure, np.ndarray]:
    """A figure of square panels of `side` inches without axes, and those panels (rows, columns); `right` and
    `below` inches are left free around them."""
    head = 0.25
    width, height = side * columns + right, (side + head) * rows + below
    fig = Figure(figsize=(width, height), facecolor="white")
    found = np.empty((rows, columns), dtype=object)
    for row, column in np.ndindex(rows, columns):
        x, y = column * side + 0.03, height - (row + 1) * (side + head) + 0.02
        found[row, column] = fig.add_axes(
            (x / width, y / height, (side - 0.06) / width, (side - 0.06) / height)
        )
        found[row, column].axis("off")
    return fig, found


def bar(fig: Figure, beside: Axes, vmax: float, label: str) -> None:
    """The colour bar of maps from 0 to `vmax`, right of the panel `beside`."""
    place = beside.get_position()
    width, height = fig.get_size_inches()
    box = (place.x1 + 0.1 / width, place.y0 + 0.1 / height, 0.1 / width, place.height - 0.2 / height)
    fig.colorbar(map_scale(0, vmax), cax=fig.add_axes(box), label=label)


def grid(maps: torch.Tensor) -> np.ndarray:
    """The one map of a batch of one, (1, h, w) -> (h, w)."""
    return maps[0].detach().float().cpu().numpy()


def on_defect(mask: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` positions of a square grid have their middle on the defect, bool (count,); of a defect
    that covers no middle, the one in which its own middle lies."""
    side, size = round(count**0.5), len(mask)
    middles = ((np.arange(side) + 0.5) * size / side).astype(int)
    inside = mask[np.ix_(middles, middles)]
    if mask.any() and not inside.any():
        row, column = (np.argwhere(mask).mean(0) * side / size).astype(int)
        inside[row, column] = True
    return inside.flatten()


# ---- memory


@dataclass(frozen=True)
class Match:
    """A patch of an image, where its middle lies (row, column), and the nearest patch of the bank; crops uint8."""

    place: tuple[int, int]
    patch: np.ndarray
    neighbour: np.ndarray
    distance: float


@dataclass(frozen=True)
class Memory:
    """A bank at work on the defective image of a part: `distances` (h, w) of its patches, the smoothed `map`
    (H, W), `kept` (h, w) patches of the bank by the place they come from, and two matches: defect, sound."""

    distances: np.ndarray
    map: np.ndarray
    kept: np.ndarray
    matches: tuple[Match, Match]


def look_up_patches(part: Part, detector: PatchCore) -> Memory:
    """Distances and nearest patches of the most suspicious patch of the defect and of a typical sound one."""
    distances, index = nearest(patchcore.embed(part.defective)[0], detector.bank)
    train = torch.cat([patchcore.embed(batch).flatten(0, 1) for batch in part.train])
    # A row of the bank is a row of the training patches: the one at distance zero.
    _, origin = nearest(detector.bank, train)
    count, size = len(distances), len(part.image)
    side = round(count**0.5)
    found = []
    for position in two_positions(part, distances):
        image, place = divmod(int(origin[index[position]]), count)
        picture = part.extractor.decoded(part.task.train[image]).numpy()
        at, there = (middle(each, side, size) for each in (position, place))
        found.append(Match(at, crop(part.image, at), crop(picture, there), float(distances[position])))
    kept = np.bincount((origin % count).cpu().numpy(), minlength=count)
    scores, _ = detector.score(part.defective)
    grid = distances.view(side, side).cpu().numpy()
    return Memory(grid, scores[0].cpu().numpy(), kept.reshape(side, side), (found[0], found[1]))


def two_positions(part: Part, distances: Tensor) -> tuple[int, int]:
    """The position of a distance (P,) that is largest on the defect, and one off it that is typical there."""
    inside = torch.from_numpy(on_defect(part.mask, len(distances))).to(distances.device)
    worst = distances.where(inside, -torch.inf).argmax()
    typical = distances[~inside].median()
    return int(worst), int((distances - typical).abs().where(~inside, torch.inf).argmin())


def middle(position: int, side: int, size: int) -> tuple[int, int]:
    """Pixel (row, column) in the middle of a position of a square grid."""
    row, column = divmod(position, side)
    return int((row + 0.5) * size / side), int((column + 0.5) * size / side)


def crop(image: np.ndarray, middle: tuple[int, int], half: int = 14) -> np.ndarray:
    """The square of 2 x `half` pixels around `middle`; outside of the image its border goes on."""
    padded = np.pad(image, ((half, half), (half, half), (0, 0)), mode="edge")
    row, column = middle
    return padded[row : row + 2 * half, column : column + 2 * half]


@_styled
def memory_figure(part: Part, memory: Memory) -> Figure:
    """PatchCore's idea: distances of patches, the map, what was kept, and two patches with their nearest."""
    vmax = float(memory.distances.max())
    fig, axes = panels(4, 1.55, rows=2, right=0.75)
    show_image(axes[0, 0], part.image, part.mask, f"{part.task.name}, defect outlined")
    show_map(axes[0, 1], memory.distances, part.mask, vmax, "distance of each patch")
    show_map(axes[0, 2], memory.map, part.mask, vmax, "enlarged and smoothed")
    axes[0, 3].imshow(memory.kept, cmap="Greys", vmin=0, interpolation="nearest")
    axes[0, 3].set_title(f"patches kept, 0 to {memory.kept.max()} a place")
    bar(fig, axes[0, 3], vmax, "distance")
    for match, column, (name, colour, marker) in zip(memory.matches, (0, 2), TWO):
        axes[0, 0].plot(match.place[1], match.place[0], marker, color=colour, **MARKER)
        for ax, pixels, title in (
            (axes[1, column], match.patch, f"{name} patch"),
            (axes[1, column + 1], match.neighbour, f"its nearest, at {match.distance:.1f}"),
        ):
            ax.imshow(pixels, interpolation="nearest")
            ax.set_title(title, color=colour)
    return fig


# ---- Gaussian


@dataclass(frozen=True)
class Cloud:
    """One location in the two of its `channels` that set an image apart most: what training gave (N, 2), its
    Gaussian, and what the image has there (2,). `distance` is that of all channels together."""

    place: tuple[int, int]
    channels: tuple[int, int]
    points: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    seen: np.ndarray
    distance: float

    def ellipse(self, radius: float) -> np.ndarray:
        """Points (100, 2) at Mahalanobis distance `radius` from the mean."""
        angle = np.linspace(0, 2 * np.pi, 100)
        circle = np.stack([np.cos(angle), np.sin(angle)], 1)
        return self.mean + radius * circle @ np.linalg.cholesky(self.covariance).T


@dataclass(frozen=True)
class Gaussians:
    """Gaussians at work on the defective image of a part: `distances` (h, w), the smoothed `map` (H, W), and
    two locations: on the defect, and a typical one off it."""

    distances: np.ndarray
    map: np.ndarray
    clouds: tuple[Cloud, Cloud]


def look_at_clouds(part: Part, detector: PaDiM) -> Gaussians:
    """The distances of the defective image, and the clouds behind two of them."""

    def embed(batch: Batch) -> Tensor:
        return padim.embed(batch, detector.channels, detector.channel_seed)

    seen = embed(part.defective)
    distances = padim.mahalanobis(seen, detector.mean, detector.whitening)[0]
    side = round(len(distances) ** 0.5)
    train = torch.cat([embed(batch) for batch in part.train], 1)
    found = []
    for position in two_positions(part, distances):
        factor = detector.whitening[position].double().inverse()
        covariance = (factor @ factor.T).cpu().numpy()
        mean, here = (each.double().cpu().numpy() for each in (detector.mean[position], seen[position, 0]))
        pair = list(farthest_pair(here - mean, covariance))
        found.append(
            Cloud(
                place=middle(position, side, len(part.image)),
                channels=(pair[0], pair[1]),
                points=train[position].cpu().numpy()[:, pair],
                mean=mean[pair],
                covariance=covariance[np.ix_(pair, pair)],
                seen=here[pair],
                distance=float(distances[position]),
            )
        )
    scores, _ = detector.score(part.defective)
    grid = distances.view(side, side).cpu().numpy()
    return Gaussians(grid, scores[0].cpu().numpy(), (found[0], found[1]))


def farthest_pair(offset: np.ndarray, covariance: np.ndarray) -> tuple[int, int]:
    """The two dimensions in which `offset` (d,) has the largest Mahalanobis distance; `covariance` (d, d)."""
    variance = covariance.diagonal()
    determinant = np.outer(variance, variance) - covariance**2
    np.fill_diagonal(determinant, np.inf)
    own = np.outer(offset**2, variance)
    squares = (own + own.T - 2 * np.outer(offset, offset) * covariance) / determinant
    first, second = np.unravel_index(squares.argmax(), squares.shape)
    return int(first), int(second)


@_styled
def gaussian_figure(part: Part, found: Gaussians) -> Figure:
    """PaDiM's idea: distances at every location, the map, and the clouds of two locations with their ellipses."""
    vmax, side, right, below = float(found.distances.max()), 2.05, 0.8, 2.35
    fig, axes = panels(3, side, right=right, below=below)
    show_image(axes[0, 0], part.image, part.mask, f"{part.task.name}, defect outlined")
    show_map(axes[0, 1], found.distances, part.mask, vmax, "distance at each location")
    show_map(axes[0, 2], found.map, part.mask, vmax, "enlarged and smoothed")
    bar(fig, axes[0, 2], vmax, "Mahalanobis distance")
    width, height = fig.get_size_inches()
    for k, (cloud, (name, colour, marker)) in enumerate(zip(found.clouds, TWO)):
        axes[0, 0].plot(cloud.place[1], cloud.place[0], marker, color=colour, **MARKER)
        across = width / 2 - 0.75
        ax = fig.add_axes(
            ((0.6 + k * width / 2) / width, 0.42 / height, across / width, (below - 0.75) / height)
        )
        ax.plot(*cloud.points.T, ".", color="#777777", markersize=4)
        for radius in (1, 2, 3):
            ax.plot(*cloud.ellipse(radius).T, "-", color="black", linewidth=0.8)
        ax.plot(*cloud.seen, marker, color=colour, **MARKER)
        ax.set_title(f"{name} location, distance {cloud.distance:.0f}", color=colour)
        ax.set_xlabel(f"channel {cloud.channels[0]}")
        ax.set_ylabel(f"channel {cloud.channels[1]}", labelpad=1)
        ax.margins(0.12)
    return fig


# ---- hypersphere


@dataclass(frozen=True)
class Adapted:
    """Distances of a part's test positions, in units of the median sound one: `sound` (N,), `defect` (M,), and
    the `grid` (h, w) of the defective image."""

    grid: np.ndarray
    sound: np.ndarray
    defect: np.ndarray


def measure_distances(part: Part, detector: CFA) -> Adapted:
    """All positions of the test images through the detector, apart by what is there."""
    values, inside = [], []
    for batch in part.extractor.images(part.task.test):
        values.append(detector.distances(batch).cpu().numpy())
        masks = part.extractor.masks(batch.samples, part.task.mask_threshold)
        inside.append(np.stack([on_defect(mask, values[-1].shape[1]) for mask in masks]))
    values, inside = np.concatenate(values), np.concatenate(inside)
    unit = np.median(values[~inside])
    grid = detector.distances(part.defective).cpu().numpy()[0] / unit
    return Adapted(grid.reshape(round(len(grid) ** 0.5), -1), values[~inside] / unit, values[inside] / unit)


@_styled
def hypersphere_figure(part: Part, before: Adapted, after: Adapted) -> Figure:
    """CFA's idea: distances to the centres before and after training, of one image and of all test images."""
    vmax = float(max(before.grid.max(), after.grid.max()))
    side, below = 2.05, 1.75
    fig, axes = panels(3, side, right=0.8, below=below)
    show_image(axes[0, 0], part.image, part.mask, f"{part.task.name}, defect outlined")
    show_map(axes[0, 1], before.grid, part.mask, vmax, "before training")
    show_map(axes[0, 2], after.grid, part.mask, vmax, "after training")
    bar(fig, axes[0, 2], vmax, "distance / median sound one")
    width, height = fig.get_size_inches()
    high = np.quantile(np.concatenate([a.defect for a in (before, after)]), 0.995)
    steps = np.linspace(0, high, 41)
    for k, (title, found) in enumerate((("before training", before), ("after training", after))):
        across = width / 2 - 0.45
        ax = fig.add_axes(
            ((0.3 + k * width / 2) / width, 0.42 / height, across / width, (below - 0.7) / height)
        )
        for values, (_, colour, _), line, name in (
            (found.sound, TWO[1], "-", "sound"),
            (found.defect, TWO[0], "--", "defective"),
        ):
            share = np.histogram(values, steps)[0] / len(values)
            ax.stairs(share, steps, color=colour, linestyle=line, linewidth=1.3, label=name)
        ax.set_title(f"all test images, {title}")
        ax.set_xlabel("distance / median sound one")
        ax.set_yticks([])
        ax.legend(fontsize=7)
    return fig


# ---- the families that train: maps side by side


def picture(part: Part, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 (H, W, 3) and mask bool (H, W) of the part's defective or sound image."""
    if batch is part.defective:
        return part.image, part.mask
    return part.extractor.decoded(batch.samples[0]).numpy(), np.zeros_like(part.mask)


def both_images(part: Part, shown: Callable[[Batch], Panels]) -> list[tuple[np.ndarray, Panels]]:
    """A pair of rows for `rows_figure`: the defective and the sound image, and what `shown` makes of each."""
    pair = []
    for batch, name in ((part.defective, "defective"), (part.sound, "sound")):
        pixels, mask = picture(part, batch)
        pair.append((mask, [(name, pixels), *shown(batch)]))
    return pair


@_styled
def rows_figure(pairs: list[list[tuple[np.ndarray, Panels]]], *, empty: int = 0) -> Figure:
    """Images and maps in rows, each with the outline of its mask (H, W); `empty` more rows are left free below.

    The maps of one column of a pair of rows share a scale, from 0 to their highest value, which the upper
    row's title says.
    """
    columns = max(len(shown) for pair in pairs for _, shown in pair)
    count = sum(map(len, pairs))
    fig, axes = panels(columns, min(plots.WIDTH / columns, 1.9), rows=count + empty)
    for ax in axes[count:].flat:
        ax.remove()
    lines = iter(axes)
    for pair in pairs:
        tops = [max(float(values.max()) for _, values in column) for column in zip(*(s for _, s in pair))]
        for row, (mask, shown) in enumerate(pair):
            for ax, (title, values), top in zip(next(lines), shown, tops):
                if values.ndim == 3:
                    show_image(ax, values, mask, title)
                else:
                    show_map(ax, values, mask, top, title if row else f"{title}, 0 to {top:.2g}")
    return fig


# ---- flow


def energies(part: Part, model: FastFlow) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean z^2 of FastFlow over channels, a stage: at all positions of the sound test images, and at those on
    the defects of the defective ones."""
    found: list[tuple[list, list]] = [([], []) for _ in model.stages]
    for batch in part.extractor.images(part.task.test):
        masks = part.extractor.masks(batch.samples, part.task.mask_threshold)
        with torch.inference_mode():
            maps = [z.square().mean(1).flatten(1).cpu().numpy() for z, _ in model.transform(batch)]
        for (sound, defective), values in zip(found, maps):
            for sample, mask, each in zip(batch.samples, masks, values):
                if not sample.label:
                    sound.append(each)
                elif mask.any():
                    defective.append(each[on_defect(mask, len(each))])
    return [(np.concatenate(sound), np.concatenate(defective)) for sound, defective in found]


@_styled
def flow_figure(pair: list[tuple[np.ndarray, Panels]], values: list[tuple[np.ndarray, np.ndarray]]) -> Figure:
    """FastFlow's idea: maps of a defective and a sound image, and below them `energies`, a stage a panel."""
    fig = rows_figure([pair], empty=1)
    for stage, (sound, defective) in enumerate(values):
        ax = fig.add_axes((0.07 + 0.325 * stage, 0.09, 0.26, 0.2))
        both = np.concatenate((sound, defective))
        bins = np.geomspace(both.min(), both.max(), 25)
        for each, (name, colour, _), line in zip((defective, sound), TWO, ("--", "-")):
            look = {"histtype": "step", "color": colour, "linestyle": line, "linewidth": 1.4, "label": name}
            ax.hist(each, bins, weights=np.full(len(each), 1 / len(each)), **look)
        ax.axvline(1, color="black", linewidth=0.7, linestyle=":")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(f"mean z² of a position, stage {stage + 1}", labelpad=1)
        ax.set_ylim(top=1.6 * ax.get_ylim()[1])
        if stage == 0:
            ax.set_ylabel("share of positions")
            ax.legend(loc="upper right", handlelength=1.5, fontsize=7)
    return fig


# ---- reconstruction


def error_shares(part: Part, model: Detector) -> tuple[float, float]:
    """Of the defective test images with a mask, the mean share of the area and of the map's sum that lies on
    the defect."""
    shares = []
    for batch in part.extractor.images([s for s in part.task.test if s.mask is not None]):
        masks = part.extractor.masks(batch.samples, part.task.mask_threshold)
        for mask, values in zip(masks, model.score(batch)[0].cpu().numpy()):
            shares.append((mask.mean(), values[mask].sum() / values.sum()))
    area, error = np.mean(shares, axis=0)
    return float(area), float(error)


def score_spread(part: Part, model: Detector) -> tuple[float, float, float]:
    """Image scores of the test images: mean of the sound ones, their standard deviation, mean of the defective."""
    scores = (
        torch.cat([model.score(batch)[1] for batch in part.extractor.images(part.task.test)]).cpu().numpy()
    )
    defective = np.array([bool(sample.label) for sample in part.task.test])
    sound = scores[~defective]
    return float(sound.mean()), float(sound.std()), float(scores[defective].mean())
