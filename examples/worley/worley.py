"""``worley(points, seed)``: the distance from each point to the nearest feature point, in 3-D.

Space is a lattice of unit cells with one feature point in each, placed by a hash. Most of the 27
cells around a point cannot contain the nearest feature: the loop skips these, and ends when no
remaining cell can be nearer than the current minimum. No standard operator can do either.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

import cml_engine as cml

Array = np.ndarray[Any, Any]


def infer(attrs: cml.Attrs, points: cml.Fact) -> cml.Fact:
    if points.rank < 2 or points.shape[1] != 3:
        raise cml.ModelError(f"wanted x, y and z as three channels, got {points}")
    return cml.Fact("scalar", (points.shape[0], 1, *points.shape[2:]))


def mix(x: Array) -> Array:
    """Returns a 32-bit hash of each uint32."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    mixed: Array = x ^ (x >> np.uint32(16))
    return mixed


def feature(cell: Array, seed: int) -> Array:
    """Returns the feature point of each cell ``[..., 3]``, relative to the cell, in [0, 1)."""
    x, y, z = (cell[..., i].astype(np.int32).view(np.uint32) for i in range(3))
    h = mix(x + mix(y + mix(z + np.uint32(seed))))
    parts = [h & np.uint32(1023), (h >> np.uint32(10)) & np.uint32(1023), h >> np.uint32(22)]
    return np.stack(parts, -1).astype(np.float32) / np.float32(1024)


def cpu(attrs: cml.Attrs, points: Array) -> Array:
    at = np.moveaxis(points, 1, -1)
    cell = np.floor(at)
    inside = at - cell
    best = np.full(at.shape[:-1], 4, np.float32)
    for offset in product((-1, 0, 1), repeat=3):
        step = np.array(offset, np.float32)
        away = step + feature(cell + step, attrs.seed) - inside
        best = np.minimum(best, np.square(away).sum(-1))
    return np.sqrt(best)[:, None]


def cost(attrs: cml.Attrs, inputs: Sequence[cml.Fact], outputs: Sequence[cml.Fact]) -> cml.Cost:
    return cml.Cost(12 * 40 * outputs[0].size, inputs[0].nbytes, outputs[0].nbytes)


WORLEY = cml.register(
    cml.OpSpec(
        name="worley",
        signature="fragment worley(points: tensor<scalar>, seed: integer = 0)"
        " -> (distance: tensor<scalar>);",
        doc="The distance from each point to the nearest feature point of a hashed lattice.",
        infer=infer,
        cpu=cpu,
        kernel=cml.Kernel("worley.hlsl"),
        cost=cost,
        cases=[
            cml.Case(((1, 3, 17, 9),)),
            cml.Case((np.random.default_rng(1).uniform(-40, 40, (2, 3, 300)),), {"seed": 7}),
            cml.Case((np.zeros((1, 3)),), {"seed": 2**31 - 1}, "a corner of eight cells"),
        ],
        tolerance=cml.Tolerance(1e-5, 1e-6, "subtraction, three squares and a root"),
    )
)
