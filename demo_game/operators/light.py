"""Operators that make textures of tensors.

``pack_bytes(channels)`` packs four channels into the texels of an ``rgba8unorm`` texture.
``shading(heights, cell)`` computes light that depends only on the land's shape: four channels in
[0, 1]: the normal's x and z (0.5 is upright), the share of the sky that is open (Max, "Horizon
mapping: shadows for bump-mapped surfaces", 1988: the horizon in eight directions), and sunlight
with a soft edge. No sample outside the apron is read, so neighbours agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import cml_engine as cml
from cml_engine import ops
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.operators.declaring import EXACT, declare
from cml_engine.demo_game.world.sun import SUN, Light
from cml_engine.demo_game.world.tile import FINE, FINE_APRON, WIDE, WIDE_APRON

_WAYS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
#: distances in cells of the samples along a direction; the farthest diagonal is within the apron
_DISTANCES = (1, 2, 4, 7, 11, 15)
#: reach of the sun's shadow in cells, and the tangent over which its edge fades
_REACH, _SOFTNESS = 15, 0.12
_START = WIDE_APRON - FINE_APRON


def _shading(attrs: ops.Attrs, heights: Array, cell: Array) -> Array:
    land, size = heights[0, 0], np.float32(cell.flat[0])
    surface = np.maximum(land, 0)
    dx = (_shift(land, 1, 0) - _shift(land, -1, 0)) / (2 * size)
    dz = (_shift(land, 0, 1) - _shift(land, 0, -1)) / (2 * size)
    upright = 1 / np.sqrt(1 + dx * dx + dz * dz)
    half = np.float32(0.5)
    sky = sum(_measure_openness(surface, direction, size) for direction in _WAYS) / len(_WAYS)
    channels = [half - half * dx * upright, half - half * dz * upright, sky]
    channels.append(_sunlight(surface, size, attrs.sun))
    return np.stack(channels)[None].astype(np.float32)


def _shift(grid: Array, dx: int, dz: int) -> Array:
    """Returns the values that lie ``dx`` and ``dz`` cells beside the fine samples, (FINE, FINE)."""
    z, x = _START + dz, _START + dx
    shifted: Array = grid[z : z + FINE, x : x + FINE]
    return shifted


def _measure_openness(surface: Array, direction: tuple[int, int], size: np.float32) -> Array:
    centre = _shift(surface, 0, 0)
    length = np.float32(np.hypot(*direction))
    steepest: Array = np.zeros_like(centre)
    for distance in _DISTANCES:
        rise = _shift(surface, direction[0] * distance, direction[1] * distance) - centre
        steepest = np.maximum(steepest, rise / (length * np.float32(distance) * size))
    openness: Array = 1 - steepest / np.sqrt(1 + steepest * steepest)
    return openness


def _sunlight(surface: Array, size: np.float32, sun: Sequence[float]) -> Array:
    horizontal = float(np.hypot(sun[0], sun[2]))
    centre = _shift(surface, 0, 0)
    steepest: Array = np.full_like(centre, -1)
    for k in range(1, _REACH + 1):
        rise = _interpolate(surface, sun[0] / horizontal * k, sun[2] / horizontal * k) - centre
        steepest = np.maximum(steepest, rise / (np.float32(k) * size))
    share: Array = (np.float32(sun[1] / horizontal) - steepest) / np.float32(_SOFTNESS) + 0.5
    return np.clip(share, 0, 1)


def _interpolate(surface: Array, x: float, z: float) -> Array:
    """Returns the surface's values ``x`` and ``z`` cells beside the fine samples.

    They are interpolated for fractions of a cell.
    """
    low_x, low_z = int(np.floor(x)), int(np.floor(z))
    fx, fz = np.float32(x - low_x), np.float32(z - low_z)
    a, b = _shift(surface, low_x, low_z), _shift(surface, low_x + 1, low_z)
    c, d = _shift(surface, low_x, low_z + 1), _shift(surface, low_x + 1, low_z + 1)
    north, south = a + fx * (b - a), c + fx * (d - c)
    mixed: Array = north + fz * (south - north)
    return mixed


def _make_hills(seed: int, height: float) -> Array:
    """Returns smooth random land (1, 1, WIDE, WIDE) of standard deviation ``height``."""
    rng = np.random.default_rng(seed)
    rough = rng.standard_normal((WIDE, WIDE))
    for axis in (0, 1):
        for _ in range(6):
            rough = (rough + np.roll(rough, 1, axis) + np.roll(rough, -1, axis)) / 3
    land: Array = (height * rough / rough.std())[None, None].astype(np.float32)
    return land


def relight(surface: cml.Graph, light: Light) -> cml.Graph:
    """Returns the network with the sun's direction of ``light`` in its ``shading`` operators.

    The given graph stays unchanged.
    """
    nodes = tuple(
        replace(node, attrs=ops.Attrs(node.attrs, sun=light.sun)) if node.op == "shading" else node
        for node in surface.nodes
    )
    return replace(surface, nodes=nodes)


_SIZE = np.full((1, 1, 1, 1), 4, np.float32)
declare(
    "shading",
    "(heights: tensor<scalar>, cell: tensor<scalar>, "
    f"apron: integer = {_START}, ways: integer[] = {[n for way in _WAYS for n in way]}, "
    f"distances: integer[] = {list(_DISTANCES)}, reach: integer = {_REACH}, "
    f"softness: scalar = {_SOFTNESS}, sun: scalar[] = {list(SUN)}) -> (shading: tensor<scalar>)",
    {
        "heights": ops.Fact("scalar", (1, 1, WIDE, WIDE)),
        "cell": ops.Fact("scalar", (1, 1, 1, 1)),
    },
    [ops.Fact("scalar", (1, 4, FINE, FINE))],
    _shading,
    (len(_WAYS) * len(_DISTANCES) * 6 + _REACH * 20) // 4,
    [
        ops.Case((_make_hills(1, 20.0), _SIZE), {}, "hills"),
        ops.Case((_make_hills(2, 400.0), 16 * _SIZE), {}, "mountains and sea"),
        ops.Case((np.zeros((1, 1, WIDE, WIDE)), _SIZE), {}, "a plain"),
        ops.Case((np.full((1, 1, WIDE, WIDE), -30.0), _SIZE), {}, "the sea"),
    ],
    ops.Tolerance(0, 3e-4, "slopes over a narrow edge; a byte is 4e-3"),
    threads=FINE * FINE,
)


def _infer_bytes(attrs: ops.Attrs, channels: ops.Fact) -> ops.Fact:
    if channels.rank != 4 or channels.shape[:2] != (1, 4):
        raise cml.ModelError(f"wanted four channels, [1, 4, height, width], got {channels}")
    return ops.Fact("integer", (1, 1, *channels.shape[2:]))


def _pack_bytes(attrs: ops.Attrs, channels: Array) -> Array:
    clamped = np.clip(channels, 0, 1).astype(np.float32)
    levels = (clamped * np.float32(255) + np.float32(0.5)).astype(np.uint32)
    packed = levels[:, 0] | levels[:, 1] << 8 | levels[:, 2] << 16 | levels[:, 3] << 24
    return np.asarray(packed.astype(np.uint32).view(np.int32)[:, None])


_STEPS = np.linspace(-0.1, 1.1, 4 * 16 * 16, dtype=np.float32).reshape(1, 4, 16, 16)
cml.register(
    cml.OpSpec(
        name="pack_bytes",
        signature="fragment pack_bytes(channels: tensor<scalar>) -> (words: tensor<integer>);",
        doc="Four channels of 0 to 1 as the texels of an rgba8unorm texture.",
        infer=_infer_bytes,
        cpu=_pack_bytes,
        kernel=cml.Kernel(
            Path(__file__).with_name("pack_bytes.hlsl"),
            threads=lambda attrs, channels: channels.size // 4,
            trusted=True,
        ),
        cases=[
            ops.Case((_STEPS,), {}, "beyond both ends"),
            ops.Case(((1, 4, 3, 5),)),
            ops.Case((np.full((1, 4, 1, 1), 1.0),), {}, "the sign bit"),
            ops.Case((np.zeros((1, 4, 0, 8)),), {}, "nothing"),
        ],
        tolerance=EXACT,
    )
)
