"""Convolutions whose products are of 16 bits: the three kernels of hardware in ``half``.

Two products are one operation (HLSL's ``half2``). Those of a turn of the inner loop are added in 16
bits, and the sums of the turns in 32. Only with ``CompileOptions(arithmetic="half")``, on a device
with the feature ``shader-f16``, and where the input is stored in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from cml_engine.ir.layout import C4H
from cml_engine.ops.conv.kernels import conv, conv_window, depthwise, winograd
from cml_engine.ops.conv.kernels.conv_pack import block_format
from cml_engine.ops.conv.node import (
    CONV,
    Conv,
    ConvTile,
    has_finite_filter,
    is_depthwise,
    overlaps_groups,
)
from cml_engine.ops.declaration.variant import KernelVariant

_LARGEST = float(np.finfo(np.float16).max)


def _is_direct(node: Conv) -> bool:
    return node.constant and not is_depthwise(node) and node.in_blocks > 0


#: a kernel, and its modelled time
_Way = tuple[KernelVariant[Conv, ConvTile], Callable[[Conv], float]]
_WAYS: tuple[_Way, ...] = (
    (winograd.WINOGRAD, winograd.seconds),
    (
        conv_window.WINDOW,
        lambda node: conv_window.seconds(node, conv_window.default_tile(node)),
    ),
    (
        replace(conv.TILE, is_possible=_is_direct),
        lambda node: conv.direct_seconds(node, conv.default_tile(node)),
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


def _seconds(nodes: Sequence[Conv]) -> dict[tuple[bool, str], float]:
    """Returns the modelled time of each node with each kernel.

    The keys are whether the node's products are of 16 bits, and the kernel's name.
    """
    return {
        (node.halves, variant.name): seconds(node) if variant.is_possible(node) else inf
        for variant, seconds in _WAYS
        for node in nodes
    }


def least_seconds(node: Conv) -> float:
    """Returns the modelled time of the fastest kernel on hardware, infinity if none is modelled."""
    if is_depthwise(node):
        return depthwise.least_seconds(node)
    return min(_seconds((in_halves(node), node) if can_use_halves(node) else (node,)).values())


def _is_faster(name: str, node: Conv) -> bool:
    """Returns True on hardware if the model says that this kernel is the fastest of all."""
    if node.op.limits.software:
        return False
    found = _seconds((in_halves(node), node))
    return min(found, key=lambda key: found[key]) == (True, name)


def _add(variant: KernelVariant[Conv, ConvTile]) -> None:
    CONV.add(
        variant.of_changed(
            in_halves,
            name=f"half {variant.name}",
            about=f"{variant.name} whose products are of 16 bits, two in one operation",
            is_possible=lambda node: can_use_halves(node) and variant.is_possible(in_halves(node)),
            is_faster=lambda node: _is_faster(variant.name, node),
            before=("winograd", "plain", "row tile", "tile", "window"),
        )
    )


for _variant, _ in _WAYS:
    _add(_variant)
