"""A ``conv`` or ``deconv`` that is being lowered, and the family of kernels that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import Array, Node
from cml_engine.ir.layout import C4, C4H, C4U8, STORED, VECTOR_TYPE, whole_layout
from cml_engine.ops.common.window import WindowAxis
from cml_engine.ops.conv.shapes import ConvShape
from cml_engine.ops.declaration.choice import about
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.packing import (
    Packing,
)
from cml_engine.ops.declaration.spec import (
    WGSL_ONLY,
    Defines,
    word,
)
from cml_engine.ops.declaration.variant import KernelFamily

#: the default threads of a workgroup; a software driver runs few threads as fast and wastes less
GROUP, SOFTWARE_GROUP = 64, 16

#: both operators' windows, see conv_position.hlsli
POSITION = "x_size:i3 y_size:i3 k_size:i3 y_mul:i3 k_step:i3 origin:i3 up:i3"


@dataclass(frozen=True)
class Conv:
    """A ``conv`` or ``deconv`` node being lowered: its lowering, resolved shape and properties."""

    op: Lowering
    shape: ConvShape
    transposed: bool
    #: True if its kernel multiplies four bytes by four at once
    dot4: bool = False
    #: True if its kernel multiplies in 16 bits
    halves: bool = False

    @property
    def numbers(self) -> str:
        """The word before a kernel's name in the table of hardware, by what it multiplies."""
        return "dot4 " if self.dot4 else "half " if self.halves else ""

    @property
    def stored(self) -> str:
        """The word before a depthwise kernel's name in the table of hardware, by what it reads."""
        return "half " if self.in_layout == C4H else ""

    @property
    def in_size(self) -> tuple[int, ...]:
        return self.shape.narrow if self.transposed else self.shape.wide

    @property
    def out_c4(self) -> bool:
        return self.op.is_blocked(self.op.out_names[0])

    @property
    def half(self) -> bool:
        """True if the filter is stored in 16 bits."""
        few_bits = weight_blocks(self.op.constant(self.op.in_names[1])) is not None
        return self.constant and not few_bits and takes_half(self.op.node, self.op.layouts)

    @cached_property
    def filter_layout(self) -> str:
        """The layout in which the filter's elements are stored, four at a time.

        Integers of an exact node take the narrowest layout that holds them.
        """
        value = self.op.constant(self.op.in_names[1])
        if value is not None and value.size and self.op.attrs.get("exact"):
            return whole_layout(value.min(), value.max()) or C4
        return C4H if self.half else C4

    @property
    def vectors(self) -> Defines:
        """The defines with the HLSL types of input, filter, and bias or result.

        For kernels that process four channels at once.
        """
        made: Defines = {
            "T0_TYPE": VECTOR_TYPE[self.in_layout],
            "T1_TYPE": VECTOR_TYPE[self.filter_layout],
            "T2_TYPE": VECTOR_TYPE[C4],
        }
        if self.dot4:
            made |= {"T0_TYPE": "uint", "T1_TYPE": "uint4", "DOT4": 1, WGSL_ONLY: 1}
            if self.in_layout == C4U8:
                made["FLIP"] = "0x80808080u"
        if self.halves:
            made |= {"T0_TYPE": "half4", "T1_TYPE": "half4", "HALVES": 1}
        if self.sums == "int":
            made |= {"T2_TYPE": "int4", "NUMBER": "int"}
        return made

    @property
    def sums(self) -> str:
        """The type of the kernel's sums, ``"int"`` or ``"float"``.

        Products of bytes, and sums of an integer network that floats do not hold, are integers.
        """
        wide = self.op.attrs.get("carrier") == "int32"
        return "int" if self.dot4 or wide else "float"

    @property
    def in_layout(self) -> str:
        """The blocked layout of the input, or of the copy that is made of a plain input."""
        name = self.op.in_names[0]
        if self.op.is_blocked(name):
            return self.op.layout(name)
        return whole_layout(*self.op.graph.words.get(name, (-inf, inf))) or C4

    def pack(self, key: str, make: Callable[[], Packing]) -> str:
        """Packs the filter as ``make()`` describes, in its layout, and returns its name."""
        layout = self.filter_layout
        if layout == C4:
            return self.op.pack(key, make)
        kind = "half" if layout == C4H else layout
        return self.op.pack(f"{key}.{kind}", lambda: replace(make(), dtype=STORED[layout]))

    @property
    def border(self) -> Defines:
        """The define of the border mode, such as ``border_is_constant``."""
        return word("border", self.shape.border)

    def position(self) -> dict[str, list[int]]:
        """Returns the shader parameters of :data:`POSITION`, which place the windows.

        Each parameter has a value for three axes.
        """
        rows = [self._position(axis) for axis in self.shape.axes3]
        names = ("x_size", "y_size", "k_size", "y_mul", "k_step", "origin", "up")
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def _position(self, a: WindowAxis) -> tuple[int, ...]:
        if self.transposed:
            return a.narrow, a.wide, a.size, 1, -a.dilation, a.before, a.stride
        return a.wide, a.narrow, a.size, a.stride, a.dilation, -a.before, 1

    @property
    def in_blocks(self) -> int:
        return -(-self.shape.in_channels // 4)

    @property
    def constant(self) -> bool:
        """True if the filter is a constant, which can be packed when the model is loaded."""
        return self.op.constant(self.op.in_names[1]) is not None

    def filter_rows(self) -> Array:
        """Returns the constant filter as (output channels, input channels of the group, taps)."""
        shape = self.shape
        value = self.op.constant(self.op.in_names[1])
        assert value is not None
        if self.transposed:
            parts = value.reshape(shape.groups, shape.group_in, shape.group_out, shape.taps)
            value = parts.transpose(0, 2, 1, 3)
        return value.reshape(shape.out_channels, shape.group_in, shape.taps)

    def filter_source(self) -> tuple[Array, int, int]:
        """Returns the constant filter, and the axes of its output and input channels.

        The filter is not reordered. It has three axes; axis 2 has the taps. Only for one group,
        or a depthwise filter.
        """
        value = self.op.constant(self.op.in_names[1])
        assert value is not None
        outer = not self.transposed or self.shape.groups > 1
        return value.reshape(*value.shape[:2], self.shape.taps), 1 - outer, int(outer)


@dataclass(frozen=True, slots=True)
class ConvTile:
    """The tile of a workgroup: ``rows`` output channels at ``group * columns`` positions.

    ``group`` is the number of threads. With several ``parts``, as many threads compute a part of
    the sum of each position, and the workgroup has ``parts`` times as many.
    """

    rows: int
    columns: int
    group: int
    parts: int = 1

    @property
    def positions(self) -> int:
        return self.columns * self.group

    def __str__(self) -> str:
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        return f"{self.rows}x{self.columns} by {self.group}{parts}"


def takes_half(node: Node, layouts: Mapping[str, str]) -> bool:
    """Returns True if the node's input or result is stored in 16 bits."""
    return any(layouts.get(name) == C4H for name in (node.inputs[0], node.outputs[0]))


def default_group(conv: Conv) -> int:
    """Returns the default number of threads of a workgroup, 64 or on a software driver 16."""
    return SOFTWARE_GROUP if conv.op.limits.software else GROUP


def is_depthwise(conv: Conv) -> bool:
    """Returns True for a constant filter with one input and one output channel per group.

    Kernels then compute four channels side by side.
    """
    shape = conv.shape
    return conv.constant and shape.group_in == shape.group_out == 1 and shape.groups > 1


def overlaps_groups(conv: Conv, rows: int) -> bool:
    """Returns True if a block of ``rows`` outputs, or of four inputs, belongs to several groups.

    The filter then has zeros for the inputs of other groups.
    """
    shape = conv.shape
    in_own_blocks = shape.group_out % rows == 0 and shape.group_in % 4 == 0
    return shape.groups > 1 and not in_own_blocks and not is_depthwise(conv)


def has_finite_filter(conv: Conv) -> bool:
    """Returns True if the filter is a constant without infinities and NaN."""
    value = conv.op.constant(conv.op.in_names[1])
    return value is not None and (
        weight_blocks(value) is not None or bool(np.isfinite(value).all())
    )


def first_block(conv: Conv, rows: int, row_block: int) -> int:
    """Returns the index of the first input block that a block of rows needs.

    It is where the group of the first row begins.
    """
    return row_block * rows // conv.shape.group_out * conv.shape.group_in // 4


def band_of(conv: Conv, rows: int) -> int:
    """Returns the number of input blocks that a block of ``rows`` output channels needs at most.

    A block of rows may overlap several groups.
    """
    shape = conv.shape
    band = 0
    for row_block in range(-(-shape.out_channels // rows)):
        last = min((row_block + 1) * rows, shape.out_channels) - 1
        end = (last // shape.group_out + 1) * shape.group_in
        band = max(band, -(-end // 4) - first_block(conv, rows, row_block))
    return band


def phases_of(conv: Conv) -> tuple[list[int], int]:
    """Returns the number of results of one phase along each axis, and the number of phases.

    A phase is the results with the same remainder modulo ``up``, a deconv's stride.
    """
    position = conv.position()
    ups = position["up"]
    return [-(-y // up) for y, up in zip(position["y_size"], ups, strict=True)], prod(ups)


def conv_key(conv: Conv) -> str:
    """Returns the key under which a tuning table stores the node's fastest variant.

    It has everything that decides which variant is fastest: ``conv 3x3 64>64 at ~4096, c4>c4``.
    """
    op, shape = conv.op, conv.shape
    words = [op.node.op]
    for name in ("size", "stride", "dilation"):
        values = [getattr(axis, name) for axis in shape.axes]
        if name == "size" or any(value != 1 for value in values):
            words.append(f"{name} {'x'.join(map(str, values))}".removeprefix("size "))
    words.append(f"{shape.in_channels}>{shape.out_channels}")
    if shape.groups != 1:
        words.append(f"in {shape.groups} groups")
    positions = op.outputs[0].size // shape.out_channels
    layouts = f"{op.layout(op.in_names[0])}>{op.layout(op.out_names[0])}"
    words.append(f"at ~{about(positions)}, {layouts}")
    if not conv.constant:
        words.append(", computed filter")
    if op.attrs.get("halves"):
        words.append(", in halves")
    if op.attrs.get("direct"):
        words.append(", direct")
    return " ".join(words).replace(" ,", ",")


CONV = KernelFamily[Conv]("conv, deconv", conv_key)
