"""A ``conv`` or ``deconv`` on its way to a kernel: what all of its kernels ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cml_engine.graph import Node
from cml_engine.layout import C4, C4H, VECTOR_TYPE, to_half
from cml_engine.ops.conv.shapes import ConvAxis, ConvShape
from cml_engine.ops.declaration.defines import word
from cml_engine.ops.declaration.lowering import Lowering

Array = np.ndarray[Any, Any]

#: threads of a workgroup, where a kernel has no reason for others; a software driver runs few as
#: well, and wastes less
GROUP, SOFTWARE_GROUP = 64, 16

#: both operators' windows, see conv_position.hlsli
POSITION = "x_size:i3 y_size:i3 k_size:i3 y_mul:i3 k_step:i3 origin:i3 up:i3"


@dataclass(frozen=True)
class Conv:
    """One node to lower: its shape, and how its filter lies."""

    op: Lowering
    shape: ConvShape
    transposed: bool

    @property
    def in_size(self) -> tuple[int, ...]:
        return self.shape.narrow if self.transposed else self.shape.wide

    @property
    def out_c4(self) -> bool:
        return self.op.is_blocked(self.op.out_names[0])

    @property
    def half(self) -> bool:
        """Whether the filter is stored in 16 bits."""
        return self.constant and takes_half(self.op.node, self.op.layouts)

    @property
    def filter_type(self) -> str:
        """What a shader calls four numbers of the filter."""
        return VECTOR_TYPE[C4H if self.half else C4]

    @property
    def vectors(self) -> dict[str, int | str]:
        """Input, filter, and bias or result of the kernels that take four channels at once."""
        x = self.op.in_names[0]
        kind = self.op.vector_type(x) if self.op.is_blocked(x) else VECTOR_TYPE[C4]
        return {"T0_TYPE": kind, "T1_TYPE": self.filter_type, "T2_TYPE": VECTOR_TYPE[C4]}

    def pack(self, key: str, make: Callable[[], Array]) -> str:
        """The filter as ``make()`` lays it out, for the plan."""
        if self.half:
            return self.op.pack(f"{key}.half", lambda: to_half(make()))
        return self.op.pack(key, make)

    @property
    def border(self) -> dict[str, int | str]:
        """The define that says what lies around the input."""
        return word("border", self.shape.border)

    def position(self) -> dict[str, list[int]]:
        """Parameters that place the windows."""
        rows = [self._position(axis) for axis in self.shape.axes3]
        names = ("x_size", "y_size", "k_size", "y_mul", "k_step", "origin", "up")
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def _position(self, a: ConvAxis) -> tuple[int, ...]:
        if self.transposed:
            return a.narrow, a.wide, a.kernel, 1, -a.dilation, a.before, a.stride
        return a.wide, a.narrow, a.kernel, a.stride, a.dilation, -a.before, 1

    @property
    def in_blocks(self) -> int:
        return -(-self.shape.in_channels // 4)

    @property
    def constant(self) -> bool:
        """Whether the filter can be packed when the model is loaded."""
        return self.op.constant(self.op.in_names[1]) is not None

    def filter_rows(self) -> Array:
        """The constant filter as (output channels, input channels of the group, taps)."""
        shape = self.shape
        value = self.op.constant(self.op.in_names[1])
        assert value is not None
        if self.transposed:
            parts = value.reshape(shape.groups, shape.group_in, shape.group_out, shape.taps)
            value = parts.transpose(0, 2, 1, 3)
        return value.reshape(shape.out_channels, shape.group_in, shape.taps)

    def filter_steps(self) -> dict[str, int]:
        """How far a group, an output and an input channel lie apart in the filter."""
        shape = self.shape
        whole = shape.group_in * shape.group_out * shape.taps
        steps = (shape.taps, shape.group_out * shape.taps)
        w_out, w_in = steps if self.transposed else (shape.group_in * shape.taps, shape.taps)
        return {"w_group": whole, "w_out": w_out, "w_in": w_in}


@dataclass(frozen=True, slots=True)
class ConvTile:
    """What a workgroup computes: ``rows`` output channels at ``group * columns`` positions."""

    rows: int
    columns: int
    group: int

    @property
    def positions(self) -> int:
        return self.columns * self.group

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.group}"


def takes_half(node: Node, layouts: Mapping[str, str]) -> bool:
    """Whether what the node reads or what it writes is stored in 16 bits."""
    return any(layouts.get(name) == C4H for name in (node.inputs[0], node.outputs[0]))


def usual_group(conv: Conv) -> int:
    """Threads of a workgroup that are right for most kernels."""
    return SOFTWARE_GROUP if conv.op.limits.software else GROUP


def is_depthwise(conv: Conv) -> bool:
    """One output for each input channel: four of them are computed side by side."""
    shape = conv.shape
    return conv.constant and shape.group_in == shape.group_out == 1 and shape.groups > 1


def first_block(conv: Conv, rows: int, row_block: int) -> int:
    """The first block of inputs that a block of rows needs: where its first row's group begins."""
    return row_block * rows // conv.shape.group_out * conv.shape.group_in // 4


def band_of(conv: Conv, rows: int) -> int:
    """Blocks of inputs that a block of rows needs at most: those of all groups that it meets."""
    shape = conv.shape
    band = 0
    for row_block in range(-(-shape.out_channels // rows)):
        last = min((row_block + 1) * rows, shape.out_channels) - 1
        end = (last // shape.group_out + 1) * shape.group_in
        band = max(band, -(-end // 4) - first_block(conv, rows, row_block))
    return band


def phases_of(conv: Conv) -> tuple[list[int], int]:
    """Results along each axis in one phase (result % up), and how many phases there are."""
    position = conv.position()
    ups = position["up"]
    return [-(-y // up) for y, up in zip(position["y_size"], ups, strict=True)], prod(ups)
