"""Land to learn from: the game's own noise at random places, and what simulations make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from demo_game.training.erosion import erode
from demo_game.world import noise
from demo_game.world.tile import CELL_M, MAX_LEVEL, SCALE

Array = np.ndarray[Any, Any]

#: seeds of worlds whose land is trained on; the others are for measuring
HELD_OUT = 1 << 20


def catmull_rom() -> Array:
    """Weights (16, 1, 4, 4) of bicubic samples at ``(ky, kx) / 4`` between the second and third of
    four (Catmull and Rom, 1974): channel ``4 * ky + kx``."""
    t = np.arange(SCALE) / SCALE
    line = np.stack(
        [
            -0.5 * t + t**2 - 0.5 * t**3,
            1 - 2.5 * t**2 + 1.5 * t**3,
            0.5 * t + 2 * t**2 - 1.5 * t**3,
            -0.5 * t**2 + 0.5 * t**3,
        ],
        axis=1,
    )
    both = np.einsum("ai,bj->abij", line, line).reshape(SCALE * SCALE, 1, 4, 4)
    weights: Array = both.astype(np.float32)
    return weights


def fine(channels: Array, scale: int) -> Array:
    """(N, scale**2 * C, h, w) as (N, C, scale * h, scale * w): channel ``scale**2 * c + scale * ky
    + kx`` is sample ``(ky, kx)`` of every cell."""
    n, c, h, w = channels.shape
    split = channels.reshape(n, c // scale**2, scale, scale, h, w)
    joined: Array = split.transpose(0, 1, 4, 2, 5, 3).reshape(
        n, c // scale**2, scale * h, scale * w
    )
    return joined


def folded(samples: Array, scale: int) -> Array:
    """Returns the samples (N, C, scale * h, scale * w) as (N, scale**2 * C, h, w), the inverse of
    :func:`fine`."""
    n, c, h, w = samples.shape
    split = samples.reshape(n, c, h // scale, scale, w // scale, scale)
    joined: Array = split.transpose(0, 1, 3, 5, 2, 4).reshape(
        n, c * scale**2, h // scale, w // scale
    )
    return joined


def bicubic(coarse: Array) -> Array:
    """(N, 1, h, w) coarse samples as (N, 1, 4 * (h - 3), 4 * (w - 3)) fine ones; the first lies on
    coarse sample 1."""
    windows = np.lib.stride_tricks.sliding_window_view(coarse[:, 0], (4, 4), axis=(1, 2))
    return fine(np.einsum("nhwij,cij->nchw", windows, catmull_rom()[:, 0]), SCALE)


@dataclass(frozen=True, slots=True)
class Place:
    """A square of cells: world, level, first cell (multiples of 4)."""

    seed: int
    level: int
    x: int
    z: int

    @property
    def cell_m(self) -> float:
        return float(CELL_M * 2**self.level)

    def cells(self, first: int, count: int, step: int = 1) -> tuple[Array, Array]:
        """The grids of cell numbers x and z, from ``first`` on, that noise takes."""
        line = np.arange(first, first + count * step, step, dtype=np.int32)
        gx, gz = np.meshgrid(self.x + line, self.z + line)
        return gx.astype(np.int32), gz.astype(np.int32)

    def coarse(self, first: int, count: int) -> Array:
        """(count, count) metres, ``first`` in cells."""
        return noise.height(*self.cells(first, count, SCALE), self.level, self.seed)

    def detail(self, first: int, count: int) -> Array:
        """Returns the noise for the upres agent, (16, count, count)."""
        samples = noise.detail(*self.cells(first, SCALE * count), self.level, self.seed)
        result: Array = folded(samples[None, None], SCALE)[0]
        return result

    def moisture(self, first: int, count: int) -> Array:
        return noise.moisture(*self.cells(first, count), self.level, self.seed)

    def grain(self, first: int, count: int) -> Array:
        """Returns the white noise for the agents, (4, count, count)."""
        line = np.arange(2 * first, 2 * (first + count), dtype=np.int32)
        gx, gz = np.meshgrid(2 * self.x + line, 2 * self.z + line)
        samples = noise.grain(gx.astype(np.int32), gz.astype(np.int32), self.level, self.seed)
        result: Array = folded(samples[None, None], 2)[0]
        return result


def random_place(rng: np.random.Generator, held_out: bool = False) -> Place:
    """A place on land or near it: of those under deep water most are left out."""
    while True:
        level = int(rng.integers(0, MAX_LEVEL + 1))
        seed = int(rng.integers(0, HELD_OUT)) + (HELD_OUT if held_out else 0)
        x, z = (int(v) * 8 for v in rng.integers(-(2**20) >> level, 2**20 >> level, 2))
        place = Place(seed, level, x, z)
        heights = place.coarse(0, 36)
        if heights.max() > -10 * place.cell_m or rng.random() < 0.1:
            return place


#: samples on each side of a simulated square that its border may have spoilt
SPOILT = 32
#: coarse samples across a simulated square, and fine ones
SQUARE = 64
WIDTH = SCALE * SQUARE
#: fine samples of a square that the upres agent's result covers, and the coarse ones that it takes
INNER = slice(SPOILT, WIDTH - SPOILT)
SEEN = slice(SPOILT // SCALE - 6, SQUARE - SPOILT // SCALE + 6)


@dataclass(frozen=True, slots=True)
class Square:
    """Land before and after rain: coarse heights (64, 64) in metres, detail (256, 256) in cells,
    heights (256, 256) in metres."""

    place: Place
    coarse: Array
    detail: Array
    heights: Array


def erode_place(place: Place) -> Square:
    """Returns a square of eroded land, the training data of the upres agent."""
    coarse = place.coarse(-SCALE, SQUARE + 3)
    detail = noise.detail(*place.cells(0, WIDTH), place.level, place.seed)
    before = bicubic(coarse[None, None] / np.float32(place.cell_m))[0, 0] + detail
    heights = erode(before) * np.float32(place.cell_m)
    return Square(place, coarse[1:-2, 1:-2], detail, heights)


def rotate(grid: Array, way: int, last: int) -> Array:
    """One of eight symmetries of a square whose sample ``last`` becomes its first; the samples
    after it, which nothing is known of, hold the edge."""
    if way & 1:
        grid = grid.T
    for axis, bit in ((0, 2), (1, 4)):
        if way & bit:
            line = np.clip(last - np.arange(grid.shape[axis]), 0, None)
            grid = np.take(grid, line, axis=axis)
    return grid


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs of an agent by name and its target, each (1, channels, rows, columns)."""

    inputs: Mapping[str, Array]
    target: Array

    def tile(self, rng: np.random.Generator, given: int, made: int) -> Sample:
        """Returns a random part: inputs of ``given`` samples a side, and the ``made`` targets for
        them.

        Its position is even, like a tile's.
        """
        size = max(array.shape[-1] for array in self.inputs.values())
        y, x = (int(v) * 2 for v in rng.integers(0, (size - given) // 2 + 1, 2))
        inputs = {
            key: array if array.shape[-1] == 1 else array[:, :, y : y + given, x : x + given]
            for key, array in self.inputs.items()
        }
        scale = (self.target.shape[-1] - made) // (size - given)
        y, x = y * scale, x * scale
        return Sample(inputs, self.target[:, :, y : y + made, x : x + made])


def upres_inputs(place: Place, coarse: Array, detail: Array) -> dict[str, Array]:
    """Returns the upres agent's inputs for the fine samples 32 to 223 of a square."""
    return {
        "coarse": coarse[None, None, SEEN, SEEN],
        "detail": folded(detail[None, None], SCALE)[:, :, SEEN, SEEN],
        "cell": np.full((1, 1, 1, 1), place.cell_m, np.float32),
    }


def upres_sample(square: Square, way: int = 0) -> Sample:
    """A square for the upres agent, turned one of eight ways."""
    coarse = rotate(square.coarse, way, SQUARE - 1)
    detail = rotate(square.detail, way, WIDTH - SCALE)
    heights = rotate(square.heights, way, WIDTH - SCALE)
    return Sample(upres_inputs(square.place, coarse, detail), heights[None, None, INNER, INNER])


def unseen_inputs(place: Place) -> dict[str, Array]:
    """Returns the inputs that the game gives the upres agent for a square."""
    detail = noise.detail(*place.cells(0, WIDTH), place.level, place.seed)
    return upres_inputs(place, place.coarse(0, SQUARE), detail)


def surface_inputs(place: Place, heights: Array) -> dict[str, Array]:
    """Returns the inputs that the game gives the other agents for a square.

    ``heights`` are the upres agent's, (1, 1, 192, 192).
    """
    return {
        "heights": heights,
        "moisture": place.moisture(SPOILT, heights.shape[-1])[None, None],
        "grain": place.grain(SPOILT, heights.shape[-1])[None],
        "cell": np.full((1, 1, 1, 1), place.cell_m, np.float32),
    }
