"""The damage of the mini dataset: each fault takes a clean scene and returns the damaged picture.

A fault is `fault(rng, scene) -> float32 (S, S, 3)`; lengths are shares of half the image side.
"""

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter

from inclad.data.mini_scenes import Scene, blend, coordinates, cover, noise


def spot(rng: np.random.Generator, scene: Scene) -> np.ndarray:
    """A random point (x, y) of the scene's surface, away from the picture's edge."""
    x, y = coordinates(scene.surface.shape[0])
    places = np.flatnonzero(scene.surface & (np.maximum(np.abs(x), np.abs(y)) < 0.82))
    place = places[rng.integers(len(places))]
    return np.array([x.flat[place], y.flat[place]])


def blob(
    rng: np.random.Generator, scene: Scene, radius: float, *, soft: float, rough: float = 0.14
) -> np.ndarray:
    """Signed distance (S, S) of an irregular round patch somewhere on the surface, as its opacity."""
    x, y = coordinates(scene.surface.shape[0])
    cx, cy = spot(rng, scene)
    theta, rho = np.arctan2(y - cy, x - cx), np.hypot(x - cx, y - cy)
    edge = radius * rng.uniform(0.8, 1.25)
    wobble = sum(rough / k * np.cos(k * theta + rng.uniform(0, 2 * np.pi)) for k in (2, 3, 4, 6))
    return cover(rho - edge * (1 + wobble), soft)


def stroke(
    rng: np.random.Generator,
    scene: Scene,
    length: float,
    width: float,
    *,
    jag: float,
    angle: float | None = None,
    branches: int = 0,
) -> np.ndarray:
    """Opacity (S, S) of a line that starts on the surface and wanders; `jag` in radians a step."""
    size, fine = scene.surface.shape[0], 4
    canvas = Image.new("L", (fine * size, fine * size))
    pen = ImageDraw.Draw(canvas)
    steps = 14
    start = spot(rng, scene)
    heading = rng.uniform(0, 2 * np.pi) if angle is None else angle + rng.normal(0, 0.12)
    length = length * rng.uniform(0.8, 1.25)

    def walk(point: np.ndarray, heading: float, count: int, thick: float) -> np.ndarray:
        turns = heading + rng.normal(0, jag, count)
        moves = np.stack([np.cos(turns), np.sin(turns)], 1) * (length / steps)
        points = np.vstack([point, point + np.cumsum(moves, 0)])
        for index in range(count):
            taper = thick * (1 - 0.6 * abs(2 * index / count - 1))
            ends = [tuple(end) for end in ((points[index : index + 2] + 1) * (fine * size / 2)).tolist()]
            pen.line(ends, 255, max(1, round(taper * fine * size / 2)))
        return points

    path = walk(start - 0.5 * length * np.array([np.cos(heading), np.sin(heading)]), heading, steps, width)
    for _ in range(branches):
        walk(path[rng.integers(4, 10)], heading + rng.choice([-1, 1]) * rng.uniform(0.5, 0.9), 5, 0.7 * width)
    return np.asarray(canvas.resize((size, size), Image.Resampling.BOX), np.float32) / 255


def stain(
    rng: np.random.Generator, scene: Scene, *, radius: float, tint: tuple, strength: float
) -> np.ndarray:
    """A patch that takes on a tint, darker at its dried edge, and lets the surface show through."""
    alpha = blob(rng, scene, radius, soft=0.05)
    rim = 1 + 0.35 * np.clip(4 * alpha * (1 - alpha), 0, 1)
    mottled = np.clip(strength * rim * (1 + 0.12 * noise(rng, len(alpha), 14, 14)), 0, 1)
    return blend(scene.image, scene.image * np.array(tint, np.float32), alpha * mottled)


def hole(
    rng: np.random.Generator, scene: Scene, *, radius: float, depth: float = 0.9, rim: float = 0.3
) -> np.ndarray:
    """A pit: a dark inside and a rim that is lit on the side away from the light."""
    alpha = blob(rng, scene, radius, soft=0.015)
    gy, gx = np.gradient(alpha)
    edge = np.clip((gx + gy) * -3, -1, 1) * rim
    grain = 0.05 * noise(rng, len(alpha), 40, 40)
    return (
        blend(scene.image, scene.image * (1 - depth) + 0.04 + grain[..., None] * 0.5, alpha) + edge[..., None]
    )


def scratch(
    rng: np.random.Generator,
    scene: Scene,
    *,
    length: float,
    width: float,
    strength: float,
    angle: float | None = None,
) -> np.ndarray:
    """A nearly straight groove: bright (`strength` > 0) or dark, with a thin shadow on one side."""
    alpha = stroke(rng, scene, length, width, jag=0.05, angle=angle)
    shade = np.roll(alpha, (1, 1), (0, 1)) * (1 - alpha)
    image = blend(scene.image, np.float32(1 if strength > 0 else 0), abs(strength) * alpha)
    return image * (1 - 0.4 * abs(strength) * shade)[..., None]


def crack(
    rng: np.random.Generator, scene: Scene, *, length: float, width: float, strength: float, branches: int = 1
) -> np.ndarray:
    """A jagged dark line with branches."""
    alpha = stroke(rng, scene, length, width, jag=0.6, branches=branches)
    return scene.image * (1 - strength * alpha)[..., None]


def fade(
    rng: np.random.Generator, scene: Scene, *, radius: float, shift: tuple, strength: float
) -> np.ndarray:
    """A patch whose colour is off by `shift` while its texture stays."""
    alpha = blob(rng, scene, radius, soft=0.08)
    return scene.image + (strength * alpha)[..., None] * np.array(shift, np.float32)


def dent(rng: np.random.Generator, scene: Scene, *, radius: float, strength: float) -> np.ndarray:
    """A shallow hollow: the picture is bent and one side is lit, the other shaded."""
    x, y = coordinates(len(scene.surface))
    cx, cy = spot(rng, scene)
    radius = radius * rng.uniform(0.85, 1.2)
    dx, dy = (x - cx) / radius, (y - cy) / radius
    bowl = np.clip(1 - dx**2 - dy**2, 0, 1) ** 1.5
    slope = np.clip(2.2 * (dx + dy), -0.75, 0.75) + np.where(dx + dy < 0, -0.25, 0.25)  # with a crease
    return scene.image * (1 + strength * bowl * slope)[..., None]


def smear(rng: np.random.Generator, scene: Scene, *, length: float, width: float, angle: float) -> np.ndarray:
    """A pulled strip: the texture along a line is dragged sideways by a few pixels and brightened."""
    alpha = stroke(rng, scene, length, width, jag=0.03, angle=angle)
    shift = max(2, round(0.05 * len(alpha)))
    return blend(scene.image, np.roll(scene.image, (shift, shift // 2), (0, 1)) * 1.15 + 0.05, alpha)


def drop(rng: np.random.Generator, scene: Scene, *, radius: float, colour: tuple) -> np.ndarray:
    """A splash of solder or paint: opaque, domed, with a bright side and a dark one."""
    alpha = blob(rng, scene, radius, soft=0.015)
    gy, gx = np.gradient(gaussian_filter(alpha, 0.012 * len(alpha)))
    shine = np.clip((gx + gy) * 0.03 * len(alpha), -0.5, 0.5)
    return blend(scene.image, np.array(colour, np.float32) + shine[..., None], alpha)
