"""The family of kernels that compute ``conv`` and ``deconv``; each is a module of its own."""

from __future__ import annotations

from collections.abc import Iterable

from cml_engine.ops.conv.node import Conv, ConvTile
from cml_engine.ops.declaration.choice import about
from cml_engine.ops.declaration.variant import KernelFamily


def conv_key(conv: Conv) -> str:
    """Returns the key under which a tuning table stores the node's fastest variant.

    It has everything that decides which variant is fastest: ``conv 3x3 64>64 at ~4096, c4>c4``.
    """
    op, shape = conv.op, conv.shape
    words = [op.node.op, _extents(axis.kernel for axis in shape.axes)]
    for word, values in (
        ("stride", [axis.stride for axis in shape.axes]),
        ("dilation", [axis.dilation for axis in shape.axes]),
    ):
        if any(value != 1 for value in values):
            words.append(f"{word} {_extents(values)}")
    words.append(f"{shape.in_channels}>{shape.out_channels}")
    if shape.groups != 1:
        words.append(f"in {shape.groups} groups")
    positions = op.outputs[0].size // shape.out_channels
    layouts = f"{op.layout(op.in_names[0])}>{op.layout(op.out_names[0])}"
    words.append(f"at ~{about(positions)}, {layouts}")
    return " ".join(words) + ("" if conv.constant else ", computed filter")


def _extents(values: Iterable[int]) -> str:
    return "x".join(map(str, values))


CONV = KernelFamily[Conv, ConvTile]("conv, deconv", conv_key)
