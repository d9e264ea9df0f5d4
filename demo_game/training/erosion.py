"""The simulation that the upres agent learns: rain that cuts valleys into a grid of heights.

Heights are in cells, so the land looks alike at every level. Water runs to the lower ones of a
cell's eight neighbours, more to the steeper (multiple flow directions; Quinn et al., "The
prediction of hillslope flow paths", 1991), and cuts the ground by the stream power law (Whipple
and Tucker, "Dynamics of the stream-power river incision model", 1999): a power of the water times
the slope. Soil creeps down slopes, slopes above the talus angle slip, hollows fill up. Every cell
loses a part of its water in each step. Uplift holds the mean height of each neighbourhood. So a
place depends on some twenty cells around it, which a small network can see.
"""

from __future__ import annotations

import numpy as np

from cml_engine.demo_game.arrays import Array

#: the eight neighbours (rows down, columns right)
NEIGHBOURS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


#: steps of the simulation; lengths below are in cells, rates are per step
STEPS = 100
#: share of the water that seeps away in each step
_LOSS = 0.06
#: exponent of the water in the depth that is cut
_POWER = 0.5
#: cells cut where one cell's rain runs down a slope of 1, and cells that soil creeps in each step
_CUT, _CREEP = 0.03, 0.05
#: the steepest stable slope, and the share of the excess that slips in each step
_TALUS, _SLIP = 0.8, 0.1
#: radius in cells of the neighbourhoods whose mean height is kept
_UPLIFT = 6


def _pad_edge(grid: Array) -> Array:
    """Returns the grid with a border of one cell that repeats the edge."""
    return np.pad(grid, 1, mode="edge")


def _toward(padded: Array, dy: int, dx: int) -> Array:
    """Returns the neighbours at offset ``(dy, dx)`` of every cell inside the border."""
    h, w = padded.shape
    return padded[1 + dy : h - 1 + dy, 1 + dx : w - 1 + dx]


def box_blur(grid: Array, radius: int) -> Array:
    """Returns the grid after three box means in a row, which approximate a Gaussian.

    The edge is repeated.
    """
    width = 2 * radius + 1
    for axis in (0, 1):
        for _ in range(3):
            border = [(radius + 1, radius) if a == axis else (0, 0) for a in (0, 1)]
            total = np.cumsum(np.pad(grid, border, mode="edge"), axis=axis, dtype=np.float64)
            high = np.take(total, range(width, total.shape[axis]), axis=axis)
            low = np.take(total, range(total.shape[axis] - width), axis=axis)
            grid = ((high - low) / width).astype(np.float32)
    return grid


def _step(ground: Array, water: Array) -> tuple[Array, Array]:
    """Returns the ground and the water of every cell after one step of the simulation."""
    around = _pad_edge(ground)
    drops = []
    lowest = np.full_like(ground, np.inf)
    creep = np.zeros_like(ground)
    slipped = np.zeros_like(ground)
    for dy, dx in NEIGHBOURS:
        inverse_distance = np.float32(1.0 if dy == 0 or dx == 0 else 0.70710678)
        neighbour = _toward(around, dy, dx)
        drop = (ground - neighbour) * inverse_distance
        creep -= drop * inverse_distance
        # what is too steep slips off, and what is too steep above slips down here
        steep = drop - np.clip(drop, -_TALUS, _TALUS)
        slipped -= steep
        np.minimum(lowest, neighbour, out=lowest)
        drops.append(np.maximum(drop, 0, out=drop))
    shares = [drop * drop for drop in drops]
    total = np.add.reduce(shares) + np.float32(1e-12)
    slope = np.maximum.reduce(drops)
    # water ends in the sea: none runs on below it
    dry = np.clip(ground * np.float32(0.5) + 1, 0, 1)
    outflow = _pad_edge(water * (1 - _LOSS) * dry / total)
    outflow[0], outflow[-1], outflow[:, 0], outflow[:, -1] = 0, 0, 0, 0
    inflow = np.ones_like(water)
    for (dy, dx), share in zip(NEIGHBOURS, shares, strict=True):
        inflow += _toward(outflow, -dy, -dx) * _toward(np.pad(share, 1), -dy, -dx)
    cut = _CUT * inflow**_POWER * slope * dry
    ground = ground - np.minimum(cut, slope * np.float32(0.3))
    ground += np.float32(_CREEP) * creep + np.float32(_SLIP) * slipped
    # a hollow fills up to its lowest rim
    np.maximum(ground, lowest, out=ground)
    return ground, inflow


def erode(heights: Array) -> Array:
    """Returns the heights (rows, columns) after erosion, in cells above the sea."""
    ground = heights.astype(np.float32)
    water = np.ones_like(ground)
    for _ in range(STEPS):
        ground, water = _step(ground, water)
    change = ground - heights
    eroded: Array = (heights + change - box_blur(change, _UPLIFT)).astype(np.float32)
    return eroded
