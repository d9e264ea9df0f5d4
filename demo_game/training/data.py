"""Makes training data: the game's noise at random places, and simulations on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.training.erosion import erode
from cml_engine.demo_game.world import noise
from cml_engine.demo_game.world.grids import fold, grid, half_cells, unfold
from cml_engine.demo_game.world.tile import CELL_M, MAX_LEVEL, SCALE

#: worlds with seeds below this are for training, the others for measuring errors
HELD_OUT = 1 << 20


def catmull_rom() -> Array:
    """Returns weights (16, 1, 4, 4) of bicubic interpolation (Catmull and Rom, 1974).

    Channel ``4 * ky + kx`` is the sample at ``(ky, kx) / 4`` between the second and third of
    four samples.
    """
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
    products = np.einsum("ai,bj->abij", line, line).reshape(SCALE * SCALE, 1, 4, 4)
    weights: Array = products.astype(np.float32)
    return weights


def bicubic(coarse: Array) -> Array:
    """Interpolates coarse samples (N, 1, h, w) to fine ones (N, 1, 4 * (h - 3), 4 * (w - 3)).

    The first fine sample lies on coarse sample 1.
    """
    windows = np.lib.stride_tricks.sliding_window_view(coarse[:, 0], (4, 4), axis=(1, 2))
    return unfold(np.einsum("nhwij,cij->nchw", windows, catmull_rom()[:, 0]), SCALE)


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a square: its world's seed, its level, its first cell (multiples of 4)."""

    seed: int
    level: int
    x: int
    z: int

    @property
    def cell_m(self) -> float:
        return float(CELL_M * 2**self.level)

    @property
    def tile(self) -> Array:
        """The place as operators take a tile."""
        return np.array([[self.x, self.z, self.level, self.seed]], np.int32)

    def coarse(self, first: int, count: int) -> Array:
        """Returns coarse heights (count, count) in metres.

        The first sample lies ``first`` cells from the place.
        """
        return noise.height(grid(self.tile, count, -first, SCALE))

    def fine_detail(self, first: int, count: int) -> Array:
        """Returns the noise that is too short for coarse samples, (count, count) in cells."""
        return noise.detail(grid(self.tile, count, -first))

    def detail(self, first: int, count: int) -> Array:
        """Returns the noise for the upres agent, (16, count, count)."""
        channels: Array = fold(self.fine_detail(first, SCALE * count), SCALE)[0]
        return channels

    def moisture(self, first: int, count: int) -> Array:
        return noise.moisture(grid(self.tile, count, -first))

    def grain(self, first: int, count: int) -> Array:
        """Returns the white noise for the agents, (4, count, count)."""
        channels: Array = fold(noise.grain(half_cells(self.tile, count, -first)), 2)[0]
        return channels


def random_place(rng: np.random.Generator, held_out: bool = False) -> Place:
    """Returns a random place on land or near it; most places under deep water are skipped.

    With ``held_out`` its world is one that training never uses.
    """
    while True:
        level = int(rng.integers(0, MAX_LEVEL + 1))
        seed = int(rng.integers(0, HELD_OUT)) + (HELD_OUT if held_out else 0)
        x, z = (int(v) * 8 for v in rng.integers(-(2**20) >> level, 2**20 >> level, 2))
        place = Place(seed, level, x, z)
        heights = place.coarse(0, 36)
        if heights.max() > -10 * place.cell_m or rng.random() < 0.1:
            return place


#: samples on each side of a simulated square that may be wrong because of its border
SPOILT = 32
#: coarse and fine samples along a side of a simulated square
SQUARE = 64
WIDTH = SCALE * SQUARE
#: fine samples of a square in the upres agent's result, and coarse samples in its input
INNER = slice(SPOILT, WIDTH - SPOILT)
SEEN = slice(SPOILT // SCALE - 6, SQUARE - SPOILT // SCALE + 6)


@dataclass(frozen=True, slots=True)
class Square:
    """A square of land before and after rain.

    It has coarse heights (64, 64) in metres and detail (256, 256) in cells before, and eroded
    heights (256, 256) in metres after.
    """

    place: Place
    coarse: Array
    detail: Array
    heights: Array


def erode_place(place: Place) -> Square:
    """Computes the land of a place before and after the erosion simulation.

    Returns both as a square.
    """
    coarse = place.coarse(-SCALE, SQUARE + 3)
    detail = place.fine_detail(0, WIDTH)
    before = bicubic(coarse[None, None] / np.float32(place.cell_m))[0, 0] + detail
    heights = erode(before) * np.float32(place.cell_m)
    return Square(place, coarse[1:-2, 1:-2], detail, heights)


def rotate(grid: Array, symmetry: int, last: int) -> Array:
    """Returns one of the eight symmetries of a square, ``symmetry`` 0 to 7.

    Sample ``last`` becomes the first. Samples behind it, for which there are no values, repeat
    the edge.
    """
    if symmetry & 1:
        grid = grid.T
    for axis, bit in ((0, 2), (1, 4)):
        if symmetry & bit:
            line = np.clip(last - np.arange(grid.shape[axis]), 0, None)
            grid = np.take(grid, line, axis=axis)
    return grid


@dataclass(frozen=True, slots=True)
class Sample:
    """The inputs of an agent by name, and its target.

    Each array is (1, channels, rows, columns).
    """

    inputs: Mapping[str, Array]
    target: Array

    def tile(self, rng: np.random.Generator, in_size: int, out_size: int) -> Sample:
        """Returns a random crop: inputs with ``in_size`` samples per side, the target with
        ``out_size``.

        Its position is even, like a tile's.
        """
        size = max(array.shape[-1] for array in self.inputs.values())
        y, x = (int(v) * 2 for v in rng.integers(0, (size - in_size) // 2 + 1, 2))
        inputs = {
            key: array if array.shape[-1] == 1 else array[:, :, y : y + in_size, x : x + in_size]
            for key, array in self.inputs.items()
        }
        scale = (self.target.shape[-1] - out_size) // (size - in_size)
        y, x = y * scale, x * scale
        return Sample(inputs, self.target[:, :, y : y + out_size, x : x + out_size])


def upres_inputs(place: Place, coarse: Array, detail: Array) -> dict[str, Array]:
    """Returns the upres agent's inputs by name, for the fine samples 32 to 223 of a square."""
    return {
        "coarse": coarse[None, None, SEEN, SEEN],
        "detail": fold(detail, SCALE)[:, :, SEEN, SEEN],
        "cell": np.full((1, 1, 1, 1), place.cell_m, np.float32),
    }


def upres_sample(square: Square, symmetry: int = 0) -> Sample:
    """Returns a square as a sample for the upres agent, turned by one of eight symmetries."""
    coarse = rotate(square.coarse, symmetry, SQUARE - 1)
    detail = rotate(square.detail, symmetry, WIDTH - SCALE)
    heights = rotate(square.heights, symmetry, WIDTH - SCALE)
    return Sample(upres_inputs(square.place, coarse, detail), heights[None, None, INNER, INNER])


def unseen_inputs(place: Place) -> dict[str, Array]:
    """Returns the inputs that the game gives the upres agent at a place, without any simulation."""
    detail = place.fine_detail(0, WIDTH)
    return upres_inputs(place, place.coarse(0, SQUARE), detail)


def surface_inputs(place: Place, heights: Array) -> dict[str, Array]:
    """Returns the inputs that the game gives the texture and population agents at a place.

    ``heights`` are the upres agent's result, (1, 1, 192, 192).
    """
    return {
        "heights": heights,
        "moisture": place.moisture(SPOILT, heights.shape[-1])[None, None],
        "grain": place.grain(SPOILT, heights.shape[-1])[None],
        "cell": np.full((1, 1, 1, 1), place.cell_m, np.float32),
    }


def rms(values: Iterable[Array]) -> float:
    """Returns the root mean square of arrays; every array has the same weight."""
    return float(np.sqrt(np.mean([np.mean(np.square(v, dtype=np.float64)) for v in values])))
