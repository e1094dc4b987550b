"""The six components of the mini dataset as pictures: three textures and three objects, no photographs.

Coordinates run from -1 to 1 over the image, colours from 0 to 1. Every scene takes all its random numbers
from one generator in a fixed order, so that leaving a part out (`without`) changes nothing else.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import binary_erosion, gaussian_filter

LIGHT = np.array([-0.45, -0.55, 0.70], np.float32)  # from the upper left, as in every picture


@dataclass(frozen=True)
class Scene:
    """A clean picture: `image` float32 (S, S, 3); `surface` bool (S, S), where damage may lie."""

    image: np.ndarray
    surface: np.ndarray


def coordinates(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of the pixel centres, float32 (size, size), from -1 to 1."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
    return np.meshgrid(axis, axis)


def noise(rng: np.random.Generator, size: int, rows: float, columns: float) -> np.ndarray:
    """Return smooth noise float32 (size, size) with about that many independent rows and columns."""
    shape = (max(2, round(rows)) + 3, max(2, round(columns)) + 3)
    coarse = Image.fromarray(rng.standard_normal(shape, dtype=np.float32))
    margin = (1.5, 1.5, shape[1] - 1.5, shape[0] - 1.5)
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC, box=margin))


def cover(distance: np.ndarray, softness: float = 0.0) -> np.ndarray:
    """Share of a pixel inside a shape, from its signed distance (negative inside), soft over `softness`."""
    width = softness + 2 / distance.shape[0]
    return np.clip(0.5 - distance / width, 0, 1)


def colour(*rgb: float) -> np.ndarray:
    return np.array(rgb, np.float32)


def blend(below: np.ndarray, above: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Lay colours (3,) or (S, S, 3) over an image with opacity `alpha` (S, S)."""
    return below + (above - below) * alpha[..., None]


def _turn(x: np.ndarray, y: np.ndarray, centre: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x, y = x - np.float32(centre[0]), y - np.float32(centre[1])
    return cos * x + sin * y, cos * y - sin * x


def _inside(alpha: np.ndarray, margin: float) -> np.ndarray:
    """The part of a shape at least `margin` away from its edge."""
    return binary_erosion(alpha > 0.99, iterations=max(1, round(margin * alpha.shape[0] / 2)))


def capsule(rng: np.random.Generator, size: int, without: int | None = None) -> Scene:
    """A red and ivory capsule with a printed mark (part 0) on a dark mat."""
    x, y = coordinates(size)
    centre, angle = rng.normal(0, 0.03, 2), -0.55 + rng.normal(0, 0.07)
    u, v = _turn(x, y, centre, angle)
    seam = rng.normal(0.0, 0.015)
    radius = np.where(u < seam, 0.335, 0.32).astype(np.float32)
    along = np.clip(u, -0.47, 0.47)
    nu, nv = (u - along) / radius, v / radius
    distance = np.hypot(nu, nv) * radius - radius
    nz = np.sqrt(np.clip(1 - nu**2 - nv**2, 0, 1))
    lu, lv = (
        np.cos(angle) * LIGHT[0] + np.sin(angle) * LIGHT[1],
        np.cos(angle) * LIGHT[1] - np.sin(angle) * LIGHT[0],
    )
    diffuse = np.clip(nu * lu + nv * lv + nz * LIGHT[2], 0, 1)
    halfway = np.array([lu, lv, LIGHT[2] + 1]) / np.linalg.norm([lu, lv, LIGHT[2] + 1])
    gloss = np.clip(nu * halfway[0] + nv * halfway[1] + nz * halfway[2], 0, 1) ** 45

    mat = 0.16 + 0.012 * noise(rng, size, size / 3, size / 3) + 0.01 * noise(rng, size, 6, 6)
    image = mat[..., None] * colour(0.85, 1.0, 1.35)
    shadow = np.hypot(u - 0.07 - np.clip(u - 0.07, -0.47, 0.47), v - 0.10) - 0.33
    image *= 1 - 0.65 * cover(shadow, 0.22)[..., None]

    skin = blend(
        np.broadcast_to(colour(0.93, 0.88, 0.74), image.shape), colour(0.72, 0.09, 0.10), cover(u - seam)
    )
    skin = skin * (1 - 0.35 * np.exp(-(((u - seam) / 0.012) ** 2)))[..., None]
    if without != 0:
        for bar, length in ((0.17, 0.11), (0.25, 0.07), (0.33, 0.11)):
            box = np.maximum(np.abs(u - bar) - 0.018, np.abs(v) - length)
            skin = blend(skin, colour(0.20, 0.16, 0.30), 0.85 * cover(box))
    skin = skin * (0.30 + 0.78 * diffuse)[..., None] + 0.55 * gloss[..., None]
    body = cover(distance)
    return Scene(blend(image, skin, body), _inside(body, 0.06))


def circuit(rng: np.random.Generator, size: int, without: int | None = None) -> Scene:
    """A green printed board; parts 0 to 15 are chips, resistors, capacitors and lamps."""
    scale = 2 * size / 256  # drawn at twice the size, then turned and reduced in one step
    board = Image.new("RGB", (2 * size, 2 * size), (24, 92, 58))
    pen = ImageDraw.Draw(board)

    def box(x: float, y: float, w: float, h: float, fill: tuple[int, int, int]) -> None:
        pen.rectangle(
            [scale * (x - w / 2), scale * (y - h / 2), scale * (x + w / 2), scale * (y + h / 2)], fill
        )

    def disc(x: float, y: float, r: float, fill: tuple[int, int, int]) -> None:
        pen.ellipse([scale * (x - r), scale * (y - r), scale * (x + r), scale * (y + r)], fill)

    trace = (44, 128, 80)
    for row in range(6):
        path = [
            (0, 20 + 7 * row),
            (60 + 7 * row, 20 + 7 * row),
            (110 + 7 * row, 70 + 7 * row),
            (256, 70 + 7 * row),
        ]
        pen.line([(scale * a, scale * b) for a, b in path], trace, round(2.4 * scale))
        path = [
            (256, 190 + 8 * row),
            (190 - 6 * row, 190 + 8 * row),
            (150 - 6 * row, 150 + 8 * row),
            (0, 150 + 8 * row),
        ]
        pen.line([(scale * a, scale * b) for a, b in path], trace, round(2.4 * scale))
    for x, y in ((24, 120), (60, 136), (232, 140), (200, 20), (120, 24), (20, 232), (132, 236), (238, 50)):
        disc(x, y, 4.2, (196, 170, 96))
        disc(x, y, 1.9, (18, 40, 30))

    dark, silver, paste = (34, 35, 40), (192, 194, 190), (150, 156, 150)
    chips = [(70, 84, 56, 40), (182, 150, 50, 50)]
    small = [(150, 34), (178, 34), (206, 34), (40, 178), (68, 178), (96, 178), (60, 212), (88, 212)]
    cans = [(222, 96, 14), (26, 58, 12), (140, 104, 11), (116, 206, 12)]
    lamps = [(164, 226), (196, 226)]
    for part in range(len(chips) + len(small) + len(cans) + len(lamps)):
        dx, dy = rng.normal(0, 1.2, 2)
        tone = rng.normal(0, 9)
        kind, index = part, part
        if kind < 2:
            x, y, w, h = chips[index]
            for lead in np.linspace(-w / 2 + 5, w / 2 - 5, 6):
                for end in (y - h / 2 - 1, y + h / 2 + 1):
                    box(x + lead, end, 3, 10, paste)
            if part == without:
                continue
            for lead in np.linspace(-w / 2 + 5, w / 2 - 5, 6):
                box(x + lead + dx, y + dy, 3, h + 10, silver)
            box(x + dx + 2, y + dy + 2.5, w, h, (12, 46, 30))
            body = tuple(int(c + tone) for c in dark)
            box(x + dx, y + dy, w, h, body)
            box(x + dx, y + dy - h / 2 + 1.2, w, 2, (78, 80, 86))
            disc(x + dx - w / 2 + 7, y + dy + h / 2 - 7, 2.6, (90, 92, 98))
            for line, length in ((-4, 26), (4, 18)):
                box(x + dx, y + dy + line, length, 2.2, (128, 130, 132))
        elif kind < 10:
            x, y = small[index - 2]
            box(x, y, 22, 9, paste)
            box(x, y, 10, 9, (24, 92, 58))
            if part == without:
                continue
            box(x + dx + 1, y + dy + 1.6, 18, 10, (12, 46, 30))
            box(x + dx, y + dy, 18, 9.5, silver)
            fill = (58, 44, 40) if index % 2 else (168, 128, 84)
            box(x + dx, y + dy, 11, 9.5, tuple(int(c + tone) for c in fill))
        elif kind < 14:
            x, y, r = cans[index - 10]
            disc(x, y, 0.6 * r, paste)
            if part == without:
                continue
            disc(x + dx + 2.2, y + dy + 2.8, r, (12, 46, 30))
            disc(x + dx, y + dy, r, (46, 60, 104))
            disc(x + dx, y + dy, r - 2.4, tuple(int(c + tone) for c in (176, 178, 184)))
            disc(x + dx - 0.25 * r, y + dy - 0.25 * r, 0.35 * r, (226, 228, 230))
        else:
            x, y = lamps[index - 14]
            box(x, y, 20, 6, paste)
            if part == without:
                continue
            disc(x + dx + 1.6, y + dy + 2.2, 8, (12, 46, 30))
            disc(
                x + dx,
                y + dy,
                8,
                tuple(int(np.clip(c + tone, 0, 255)) for c in ((206, 52, 44), (232, 176, 40))[index - 14]),
            )
            disc(x + dx - 2.4, y + dy - 2.4, 2.6, (250, 220, 200))

    angle, shift = np.radians(rng.normal(0, 0.8)), rng.normal(0, 1.5, 2) * scale
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = (cos, sin, size * (1 - cos - sin) + shift[0], -sin, cos, size * (1 - cos + sin) + shift[1])
    board = board.transform(
        board.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=(24, 92, 58)
    )
    image = np.asarray(board.resize((size, size), Image.Resampling.BOX), np.float32) / 255
    image = (
        image * (1 + 0.02 * noise(rng, size, 5, 5) + 0.012 * noise(rng, size, size / 2, size / 2))[..., None]
    )
    return Scene(image, np.ones((size, size), bool))


def fabric(rng: np.random.Generator, size: int, without: int | None = None) -> Scene:
    """A blue twill: warp threads over two and under one weft thread."""
    x, y = coordinates(size)
    x, y = _turn(x, y, np.zeros(2), rng.normal(0, 0.02))
    threads = 15 * (1 + rng.normal(0, 0.008))
    u = threads * x + 0.10 * noise(rng, size, 3, 3) + rng.uniform(0, 3)
    v = threads * y + 0.10 * noise(rng, size, 3, 3) + rng.uniform(0, 3)
    column, row = np.floor(u), np.floor(v)
    top = (column + row) % 3 != 0
    fu, fv = 2 * (u - column) - 1, 2 * (v - row) - 1
    across, along = np.where(top, fu, fv), np.where(top, fv, fu)
    height = np.sqrt(np.clip(1 - 0.85 * across**2, 0, 1)) * (1 - 0.25 * along**2)
    fibre = np.where(top, noise(rng, size, size / 8, size / 1.5), noise(rng, size, size / 1.5, size / 8))
    shade = 0.25 + 0.75 * height - 0.10 * across + 0.05 * fibre
    dye = np.where(top[..., None], colour(0.17, 0.29, 0.56), colour(0.50, 0.58, 0.74))
    tone = 1 + 0.025 * noise(rng, size, 4, 4)
    return Scene(dye * (shade * tone)[..., None], np.ones((size, size), bool))


def gear(rng: np.random.Generator, size: int, without: int | None = None) -> Scene:
    """A brass gear of sixteen teeth (the parts) on grey felt, lying at any angle."""
    x, y = coordinates(size)
    u, v = _turn(x, y, rng.normal(0, 0.03, 2), 0.0)
    phase = rng.uniform(0, 2 * np.pi)
    rho, theta = np.hypot(u, v), (np.arctan2(v, u) - phase) % (2 * np.pi)
    tooth = np.clip(1.7 * np.sin(16 * theta) + 0.1, -1, 1) * 0.5 + 0.5
    if without is not None:
        tooth = np.where(np.floor(theta * 8 / np.pi + 0.2) % 16 == without, 0.1 * tooth, tooth)
    distance = np.maximum(rho - (0.66 + 0.15 * tooth), 0.17 - rho)
    keyway = np.maximum(np.abs(_turn(u, v, np.zeros(2), phase)[1]) - 0.045, np.abs(rho - 0.17) - 0.06)
    distance = np.maximum(distance, -keyway)
    spoke = (theta + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5
    distance = np.maximum(distance, 0.105 - np.hypot(rho * np.cos(spoke) - 0.41, rho * np.sin(spoke)))

    felt = 0.47 + 0.05 * noise(rng, size, size / 2, size / 2) + 0.02 * noise(rng, size, size / 8, size / 8)
    image = felt[..., None] * colour(0.95, 1.0, 1.04)
    reach = max(1, round(0.04 * size))
    shadow = np.roll(gaussian_filter(cover(distance), 0.02 * size), (reach, reach // 2), (0, 1))
    image = image * (1 - 0.6 * shadow[..., None])

    ring = noise(rng, size, 4, size / 2)[0]  # the turning marks of the lathe: one value a radius
    turned = np.interp(rho, np.linspace(0, 1, size), ring).astype(np.float32)
    shine = 0.5 + 0.5 * np.cos(2 * (np.arctan2(v, u) + 0.75))
    metal = 0.70 + 0.22 * shine**3 + 0.025 * turned
    gy, gx = np.gradient(gaussian_filter(np.clip(distance, -0.05, 0.02), 0.006 * size))
    metal = metal + 0.9 * np.clip((gx * LIGHT[0] + gy * LIGHT[1]) * size / 2, -0.45, 0.45)
    metal = (
        metal - 0.10 * np.exp(-(((rho - 0.25) / 0.012) ** 2)) - 0.10 * np.exp(-(((rho - 0.585) / 0.012) ** 2))
    )
    brass = np.clip(metal, 0, 1.3)[..., None] * colour(0.88, 0.68, 0.30)
    body = cover(distance)
    return Scene(blend(image, brass, body), _inside(body, 0.03))


def terrazzo(rng: np.random.Generator, size: int, without: int | None = None) -> Scene:
    """A polished floor: stone chips of many colours and sizes in pale cement."""
    floor = Image.new("RGB", (2 * size, 2 * size), (204, 197, 183))
    pen = ImageDraw.Draw(floor)
    palette = np.array(
        [[176, 106, 84], [120, 128, 118], [92, 92, 98], [204, 172, 128], [224, 220, 214], [150, 84, 70]]
    )
    count = 200
    places = rng.uniform(0, 2 * size, (count, 2))
    radii = np.sort(rng.lognormal(np.log(0.016), 0.52, count))[::-1] * 2 * size
    colours = palette[rng.integers(0, len(palette), count)] + rng.normal(0, 9, (count, 3))
    corners = np.sort(rng.uniform(0, 2 * np.pi, (count, 7)), 1)
    stretch = rng.uniform(0.7, 1.3, (count, 7))
    for place, radius, fill, angles, factor in zip(places, radii, colours, corners, stretch):
        edge = place + (radius * factor)[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
        pen.polygon([tuple(point) for point in edge.tolist()], tuple(int(c) for c in np.clip(fill, 0, 255)))
    image = np.asarray(floor.resize((size, size), Image.Resampling.BOX), np.float32) / 255
    grain = 1 + 0.02 * noise(rng, size, size / 2, size / 2) + 0.025 * noise(rng, size, 4, 4)
    x, y = coordinates(size)
    glare = 0.05 * np.exp(-((x + 0.5 + rng.normal(0, 0.2)) ** 2 + (y + 0.6 + rng.normal(0, 0.2)) ** 2) / 0.5)
    return Scene(image * grain[..., None] + glare[..., None], np.ones((size, size), bool))


def wood(rng: np.random.Generator, size: int, without: int | None = None) -> Scene:
    """A planed oak board with upright grain, no two alike."""
    x, y = coordinates(size)
    bend = noise(rng, size, 2, 3)
    centre = rng.normal(0, 0.5)
    flow = np.sqrt((x - centre + 0.16 * bend) ** 2 + (0.12 * (y - rng.normal(0, 1.5))) ** 2 + 0.003)
    rings = rng.uniform(6, 10) * flow + 0.12 * noise(rng, size, 3, 12)
    late = (rings % 1.0) ** 2.2 * np.clip((1 - rings % 1.0) * 9, 0, 1)
    fibre = noise(rng, size, size / 28, size / 1.6)
    pores = np.clip(noise(rng, size, size / 12, size / 1.8) - 1.25, 0, 1)
    shade = 0.55 * late + 0.07 * fibre + 0.08 * noise(rng, size, 3, 3)
    image = blend(np.broadcast_to(colour(0.80, 0.60, 0.38), (size, size, 3)), colour(0.52, 0.32, 0.16), shade)
    return Scene(image * (1 - 0.45 * pores)[..., None], np.ones((size, size), bool))
