"""The painter that the texture agent learns: the land's materials, their colour and roughness.

It begins with grass and lays over it what climate, slope and hollows call for, each layer by a
soft mask whose edge follows patches made from the grain. Colours are sRGB values of real surfaces
(grass, dry grass, sand, granite, snow) as seen from the air.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.training.networks import STRATA
from cml_engine.demo_game.world.grids import unfold

#: samples at the border of a map that are computed from less than all neighbours
BORDER = 16

GRASS, MEADOW, DRY = (0.30, 0.38, 0.16), (0.37, 0.43, 0.19), (0.56, 0.51, 0.30)
STEPPE, TUNDRA, FOREST = (0.64, 0.55, 0.37), (0.45, 0.42, 0.28), (0.15, 0.21, 0.10)
SAND, SILT, DEEP = (0.80, 0.73, 0.56), (0.52, 0.50, 0.39), (0.17, 0.22, 0.22)
SCREE, EARTH, MOSS = (0.53, 0.50, 0.46), (0.42, 0.35, 0.25), (0.24, 0.31, 0.13)
GRANITE, SLATE, OCHRE = (0.50, 0.47, 0.43), (0.35, 0.33, 0.32), (0.60, 0.49, 0.37)
SNOW = (0.93, 0.95, 0.98)


def step(x: Array, low: float, high: float) -> Array:
    """Returns a smooth step: 0 below ``low``, 1 above ``high``.

    With ``high`` below ``low`` it falls instead: 1 below ``high``, 0 above ``low``.
    """
    t = np.clip((x - low) / (high - low), 0, 1)
    result: Array = t * t * (3 - 2 * t)
    return result


def blur(x: Array, sigma: float) -> Array:
    """Returns the array after a Gaussian blur of the last two axes; the edge is repeated."""
    radius = int(np.ceil(2.5 * sigma))
    line = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    line = (line / line.sum()).astype(np.float32)
    for axis in (-2, -1):
        border = [(0, 0)] * x.ndim
        border[axis] = (radius, radius)
        padded = np.pad(x, border, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(line), axis=axis)
        x = windows @ line
    return x


def noise_of(grain: Array, sigma: float) -> Array:
    """Returns the grain (N, 1, 2h, 2w) blurred to patches of mean 0 and deviation about 1."""
    smooth = blur(grain - np.float32(0.5), sigma)
    return smooth * np.float32(np.sqrt(12.0) * max(1.0, 2 * np.sqrt(np.pi) * sigma))


def double_samples(x: Array) -> Array:
    """Returns samples (N, 1, h, w) interpolated to texels (N, 1, 2h, 2w).

    The texels lie a quarter of a cell beside the samples.
    """
    for axis in (-2, -1):
        border = [(0, 0)] * x.ndim
        border[axis] = (1, 1)
        padded = np.pad(x, border, mode="edge")
        n = x.shape[axis]
        before, after = (np.take(padded, range(k, k + n), axis=axis) for k in (0, 2))
        pair = np.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], axis=x.ndim + axis + 1)
        shape = list(x.shape)
        shape[axis] *= 2
        x = pair.reshape(shape).astype(np.float32)
    return x


def wave(x: Array) -> Array:
    """Returns a triangle wave of ``x``, of period 1, between 0 and 1."""
    result: Array = 2 * np.abs(x - np.floor(x) - 0.5)
    return result


class Ground:
    """The properties of a map that materials and plants depend on, such as slope and warmth.

    They are computed from heights (N, 1, h, w) in metres and the moisture.
    """

    def __init__(self, heights: Array, moisture: Array, cell: Array) -> None:
        cells = heights / cell
        self.cells = cells
        dz, dx = np.gradient(cells, axis=(-2, -1))
        self.slope = np.hypot(dx, dz)
        #: 1 where a slope looks north, -1 where it looks south
        self.north = dz / np.maximum(self.slope, 0.15)
        #: depth below the land around, in cells: near, and in the width of a valley
        self.hollow = blur(cells, 1.5) - cells
        self.valley = blur(cells, 4.5) - cells
        self.wet = np.clip(
            moisture + 0.16 * np.tanh(self.valley) - 0.25 * np.maximum(self.slope - 0.2, 0), 0, 1.2
        )
        #: 1 at the sea, 0 where nothing grows, about 1 km up
        self.warmth = 1 - (heights + 110 * self.north * np.minimum(self.slope, 0.6)) / 950


def _blend_layer(under: Array, mask: Array, colour: Sequence[float], rough: float) -> Array:
    """Returns ``under`` (N, 4, h, w) with a layer of one colour over it, by the mask."""
    over = np.array([*colour, rough], np.float32).reshape(1, 4, 1, 1)
    return under + mask * (over - under)


def _cover(mask: Array, colour: Sequence[float], rough: float) -> Array:
    """Returns a layer (N, 4, h, w) of one colour, as large as ``mask``."""
    under = np.zeros((mask.shape[0], 4, *mask.shape[2:]), np.float32)
    return _blend_layer(under, np.ones_like(mask), colour, rough)


def _rock(cells: Array, patches: Array) -> Array:
    """Returns the colour and roughness of layered rock, bands that tilt with the patches."""
    bands = wave(STRATA[0] * cells + 0.05 * patches)
    thick = wave(STRATA[1] * cells + 0.02 * patches)
    rock = _cover(cells, GRANITE, 0.82)
    rock = _blend_layer(rock, 0.55 * step(patches, 0.3, 1.6), SLATE, 0.75)
    rock = _blend_layer(rock, 0.7 * step(thick, 0.35, 0.6) * step(bands, 0.4, 0.75), SLATE, 0.7)
    return _blend_layer(rock, 0.6 * step(thick, 0.3, 0.1) * step(bands, 0.7, 0.3), OCHRE, 0.9)


def _plants(g: dict[str, Array], patches: Array, dots: Array) -> Array:
    """Returns the colour and roughness of the vegetation, which depends on wetness and warmth."""
    wet = g["wet"] + 0.05 * patches
    land = _cover(patches, DRY, 0.9)
    land = _blend_layer(land, step(wet, 0.30, 0.14), STEPPE, 0.92)
    land = _blend_layer(land, step(wet, 0.24, 0.43), GRASS, 0.88)
    land = _blend_layer(land, 0.6 * step(patches, 0.2, 1.8) * step(wet, 0.3, 0.45), MEADOW, 0.88)
    cool = step(g["warmth"] + 0.04 * patches, 0.45, 0.2)
    land = _blend_layer(land, cool, TUNDRA, 0.9)
    land = _blend_layer(land, 0.7 * cool * step(wet, 0.5, 0.75), MOSS, 0.9)
    trees = step(wet + 0.055 * patches + 0.25 * g["hollow"], 0.45, 0.66)
    trees = trees * step(g["warmth"], 0.28, 0.42) * step(g["slope"], 0.85, 0.6)
    land = _blend_layer(land, 0.92 * trees, FOREST, 0.95)
    light = 1 + (0.04 + 0.08 * trees) * dots
    land[:, :3] *= light
    return land


def paint(heights: Array, moisture: Array, grain: Array, cell: Array) -> Array:
    """Returns a map's albedo (N, 4, 2h, 2w): red, green, blue, roughness, two texels per sample."""
    ground = Ground(heights, moisture, cell)
    g = {name: double_samples(values) for name, values in vars(ground).items()}
    grains = unfold(grain, 2)
    dots, patches = noise_of(grains, 0.6), noise_of(grains, 1.6)
    slope, above = g["slope"], g["cells"]
    land = _plants(g, patches, dots)
    # water takes the soil from gullies, and stones lie below cliffs
    bed = step(g["hollow"] + 0.03 * patches, 0.10, 0.26) * step(slope, 0.12, 0.3)
    land = _blend_layer(land, 0.7 * bed, EARTH, 0.85)
    stones = step(slope + 0.06 * patches - 0.2 * g["hollow"], 0.55, 0.78)
    land = _blend_layer(land, 0.85 * stones, SCREE, 0.95)
    cliff = step(slope + 0.05 * patches - 0.15 * g["hollow"], 0.70, 0.90)
    rock = _rock(above, patches)
    rock[:, :3] *= 1 + 0.05 * dots
    land = land + cliff * (rock - land)
    cold = step(g["warmth"] + 0.05 * patches - 0.10 * g["valley"], 0.16, 0.04)
    land = _blend_layer(land, cold * step(slope + 0.04 * patches, 0.95, 0.65), SNOW, 0.5)
    beach = step(above + 0.25 * patches, 1.4, 0.5) * step(slope, 0.5, 0.25)
    land = _blend_layer(land, beach, SAND, 0.8)
    wet_sand = step(above, 0.15, -0.15)
    land = _blend_layer(land, wet_sand, SILT, 0.45)
    land = _blend_layer(land, step(above, -0.5, -9.0), DEEP, 0.4)
    shade = 1 - 0.30 * step(g["hollow"], 0.0, 0.6) + 0.10 * step(g["hollow"], 0.0, -0.4)
    land[:, :3] *= shade
    painted: Array = np.clip(land, 0, 1).astype(np.float32)
    return painted
