"""Convolutions whose products are of 16 bits: the three kernels of hardware in ``half``.

Two products are one operation (HLSL's ``half2``). Those of a turn of the inner loop are added in 16
bits, and the sums of the turns in 32. Only with ``CompileOptions(arithmetic="half")``, on a device
with the feature ``shader-f16``, and where the input is stored in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from cml_engine.ir.layout import C4H
from cml_engine.ops.conv.kernels import conv, conv_window, winograd
from cml_engine.ops.conv.kernels.conv_pack import block_format
from cml_engine.ops.conv.node import (
    CONV,
    Conv,
    ConvTile,
    has_finite_filter,
    is_depthwise,
    overlaps_groups,
)
from cml_engine.ops.declaration.spec import Dispatch, Kernel
from cml_engine.ops.declaration.variant import KernelVariant

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class _Way:
    """A kernel: its name, and the functions of its module."""

    name: str
    kernel: Kernel
    is_possible: Callable[[Conv], bool]
    seconds: Callable[[Conv], float]
    default_tile: Callable[[Conv], ConvTile]
    tiles: Callable[[Conv], list[ConvTile]]
    lower: Callable[[Conv, ConvTile], Iterator[Dispatch]]

    def seconds_in(self, node: Conv) -> float:
        """Returns the modelled time, infinity if the kernel cannot compute the node."""
        return self.seconds(node) if self.is_possible(node) else inf


def _is_direct(node: Conv) -> bool:
    return node.constant and not is_depthwise(node) and node.in_blocks > 0


_WAYS = (
    _Way(
        "winograd",
        winograd.KERNEL,
        winograd.is_possible,
        winograd.seconds,
        winograd.default_tile,
        winograd.tiles,
        winograd.lower_winograd,
    ),
    _Way(
        "window",
        conv_window.KERNEL,
        conv_window.is_possible,
        lambda node: conv_window.seconds(node, conv_window.default_tile(node)),
        conv_window.default_tile,
        conv_window.tiles,
        conv_window.lower_window,
    ),
    _Way(
        "tile",
        conv.KERNEL,
        _is_direct,
        lambda node: conv.direct_seconds(node, conv.default_tile(node)),
        conv.default_tile,
        conv.tiles,
        conv.lower_tile,
    ),
)


def in_halves(node: Conv) -> Conv:
    """Returns the node for a kernel that multiplies in 16 bits."""
    return replace(node, halves=True)


def can_use_halves(node: Conv) -> bool:
    """Returns True if the caller and the device allow products of 16 bits, and the input and the
    filter are stored so."""
    op = node.op
    if not op.attrs.get("halves") or not op.limits.half_arithmetic:
        return False
    if not node.half or op.layout(op.in_names[0]) != C4H or block_format(node, 4):
        return False
    largest = np.abs(node.filter_rows()).max(initial=0.0)
    apart = not any(overlaps_groups(node, rows) for rows in (4, 8, 16))
    return apart and has_finite_filter(node) and bool(largest < _LARGEST)


def _is_faster(name: str, node: Conv) -> bool:
    """Returns True on hardware if the model says that this kernel is the fastest of all."""
    if node.op.limits.software:
        return False
    found = {
        (numbers.halves, way.name): way.seconds_in(numbers)
        for way in _WAYS
        for numbers in (in_halves(node), node)
    }
    return min(found, key=lambda key: found[key]) == (True, name)


def _add(way: _Way) -> None:
    CONV.add(
        KernelVariant(
            name=f"half {way.name}",
            about=f"{way.name} whose products are of 16 bits, two in one operation",
            kernel=way.kernel,
            lower=lambda node, tile: way.lower(in_halves(node), tile),
            default_tile=lambda node: way.default_tile(in_halves(node)),
            is_possible=lambda node: can_use_halves(node) and way.is_possible(in_halves(node)),
            is_faster=lambda node: _is_faster(way.name, node),
            before=("winograd", "plain", "row tile", "tile", "window"),
            tiles=lambda node: way.tiles(in_halves(node)),
        )
    )


for _way in _WAYS:
    _add(_way)
