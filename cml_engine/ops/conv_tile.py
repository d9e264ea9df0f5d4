"""Register tiles: output channels by positions. Shader: ``shaders_hlsl/conv.hlsl``.

What Winograd's kernel shares with them is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cml_engine.graph import Node
from cml_engine.layout import C4, C4H, VECTOR_TYPE, to_half
from cml_engine.ops.conv_shapes import BORDERS, Axis, ConvShape
from cml_engine.ops.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.epilogue import EpilogueArgs, epilogue_of, per_channel
from cml_engine.ops.lowering import Lowering
from cml_engine.ops.spec import Cost, Dispatch, Kernel

Array = np.ndarray[Any, Any]

GROUP = 64
#: both operators' windows, see conv_position.hlsli
POSITION = "x_size:i3 y_size:i3 k_size:i3 y_mul:i3 k_step:i3 origin:i3 up:i3"
PARAMS = (
    "batch:u out_c:u in_blocks:u band:u group_in:u group_out:u row_blocks:u tiles:u steps3:i3 "
    f"{POSITION} {EPILOGUE_PARAMS}"
)
_BLOCKS = Kernel(
    "conv_blocks.hlsl", "images:u channels:u volume:u step:u", group=GROUP, trusted=True
)
_PACK = Kernel(
    "conv_pack.hlsl",
    "total:u rows:u band:u taps:u in_blocks:u out_c:u group_in:u group_out:u w_group:u w_out:u "
    "w_in:u",
    group=GROUP,
    trusted=True,
)


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
    def border(self) -> int:
        return BORDERS.index(self.shape.border)

    def position(self) -> dict[str, list[int]]:
        """Parameters that place the windows."""
        rows = [self._position(axis) for axis in self.shape.axes3]
        names = ("x_size", "y_size", "k_size", "y_mul", "k_step", "origin", "up")
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def _position(self, a: Axis) -> tuple[int, ...]:
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


def takes_half(node: Node, layouts: Mapping[str, str]) -> bool:
    """Whether what the node reads or what it writes is stored in 16 bits."""
    return any(layouts.get(name) == C4H for name in (node.inputs[0], node.outputs[0]))


def bindings(epilogue: EpilogueArgs, first: int) -> dict[str, int | str]:
    """The epilogue's defines, and the name of the output's buffer behind its tensors."""
    return {**epilogue.defines, "OUT": f"T{first + len(epilogue.tensors)}", "GROUP": GROUP}


#: rows per thread -> GFLOPS of a software driver's tile of that size, per computed row (32 rows
#: gain little, but take the driver long to build, and hardware has not the registers)
_ROWS_SPEED = {4: 23, 8: 38, 16: 54}
_COLUMNS = (4, 2, 1)
#: workgroups that keep hardware busy: below, threads take fewer positions each
_BUSY_GROUPS = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """What a workgroup computes: ``rows`` output channels at ``group * columns`` positions."""

    rows: int
    columns: int
    group: int

    @property
    def positions(self) -> int:
        return self.columns * self.group

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} by {self.group}"


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


def tile_of(conv: Conv, positions: int, batches: int = 1) -> Tile:
    """The tile for ``batches`` products of all output channels by so many positions.

    As many rows as the registers hold, but few that are padding. A software driver runs a small
    workgroup as well as a large one, and wastes less; hardware wants many of them.
    """
    shape = conv.shape
    rows = rows_of(conv)
    if conv.op.limits.software:
        return Tile(rows, _COLUMNS[0], 16)
    row_blocks = -(-shape.out_channels // rows)
    for columns in _COLUMNS:
        if batches * row_blocks * positions // (columns * GROUP) >= _BUSY_GROUPS:
            break
    return Tile(rows, columns, GROUP)


def rows_of(conv: Conv) -> int:
    """Output channels per thread: as many as the registers hold, but few that are padding."""
    return 4 if is_depthwise(conv) else min(_ROWS_SPEED, key=lambda r: _rows_cost(conv, r))


def _rows_cost(conv: Conv, rows: int) -> float:
    """Products with so many rows per thread, padding included, over their speed."""
    row_blocks = -(-conv.shape.out_channels // rows)
    return row_blocks * rows * max(band_of(conv, rows), 1) / _ROWS_SPEED[rows]


def phases_of(conv: Conv) -> tuple[list[int], int]:
    """Results along each axis in one phase (result % up), and how many phases there are."""
    position = conv.position()
    ups = position["up"]
    return [-(-y // up) for y, up in zip(position["y_size"], ups, strict=True)], prod(ups)


def usual_tile(conv: Conv) -> Tile:
    """The tile that the rules take."""
    steps, phases = phases_of(conv)
    return tile_of(conv, conv.shape.batch * prod(steps), phases)


def lower_tile(conv: Conv, tile: Tile) -> Iterator[Dispatch]:
    op, shape = conv.op, conv.shape
    depthwise = is_depthwise(conv)
    x = yield from blocks_of(conv)
    position = conv.position()
    steps, phases = phases_of(conv)
    row_blocks = -(-shape.out_channels // tile.rows)
    tiles = -(-shape.batch * prod(steps) // tile.positions)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4)
    filter = yield from packed_filter(conv, tile.rows)
    bias = yield from packed_bias(conv)
    yield Dispatch(
        groups=phases * tiles * row_blocks,
        tensors=(x, filter, bias, *epilogue.tensors, op.out_names[0]),
        params={
            **position,
            **epilogue.params,
            "batch": shape.batch,
            "out_c": shape.out_channels,
            "in_blocks": conv.in_blocks,
            "band": 1 if depthwise else band_of(conv, tile.rows),
            "group_in": shape.group_in,
            "group_out": shape.group_out,
            "row_blocks": row_blocks,
            "tiles": tiles,
            "steps3": steps,
        },
        defines={
            **store_defines(conv, epilogue, 3),
            **product_defines(conv, tile),
            **conv.vectors,
            "BORDER": conv.border,
            "DEPTHWISE": int(depthwise),
            "TRANSPOSED": int(conv.transposed),
        },
    )


def store_defines(conv: Conv, epilogue: EpilogueArgs, first: int) -> dict[str, int | str]:
    """Defines of conv_store.hlsli: how results are stored, and what is applied to them before."""
    out = f"T{first + len(epilogue.tensors)}"
    kind = conv.op.vector_type(conv.op.out_names[0])
    return {**bindings(epilogue, first), "OUT_C4": int(conv.out_c4), f"{out}_TYPE": kind}


def product_defines(conv: Conv, tile: Tile) -> dict[str, int | str]:
    """Defines of conv_product.hlsli. Hardware reads an address that all lanes share at no cost."""
    limits = conv.op.limits
    share = limits.software and limits.subgroup_size >= 8
    return {
        "ROWS": tile.rows, "COLUMNS": tile.columns, "GROUP": tile.group, "SHARE": int(share)
    }  # fmt: skip


def blocks_of(conv: Conv) -> Generator[Dispatch, None, str]:
    """The name of the input in blocks of four channels; a copy where it is plain."""
    op, shape = conv.op, conv.shape
    if op.is_blocked(op.in_names[0]):
        return op.in_names[0]
    volume = prod(conv.in_size)
    return (yield from _blocked(op, op.in_names[0], shape.batch, shape.in_channels, volume, 1))


def _blocked(
    op: Lowering, name: str, images: int, channels: int, volume: int, step: int
) -> Generator[Dispatch, None, str]:
    threads = images * -(-channels // 4) * volume
    copy = op.scratch(4 * threads)
    yield Dispatch(
        groups=-(-threads // GROUP),
        tensors=(name, copy),
        params={"images": images, "channels": channels, "volume": volume, "step": step},
        defines={"T1_TYPE": "float4"},
        kernel=_BLOCKS,
        cost=Cost(0, 4 * images * channels * volume, 16 * threads),
    )
    return copy


def packed_bias(conv: Conv) -> Generator[Dispatch, None, str]:
    """The bias for each channel, in whole blocks."""
    op, name, channels = conv.op, conv.op.in_names[2], conv.shape.out_channels
    value = op.constant(name)
    if value is not None:
        bias = value
        return op.pack(f"{name}.bias{channels}", lambda: per_channel(bias, channels))
    return (yield from _blocked(op, name, 1, channels, 1, int(op.fact(name).size > 1)))


def packed_filter(conv: Conv, rows: int) -> Generator[Dispatch, None, str]:
    """The filter as the shader reads it: packed now, or on the GPU where it is computed there."""
    op, shape = conv.op, conv.shape
    name = op.in_names[1]
    if is_depthwise(conv):
        return packed_depthwise(conv)
    if conv.constant:
        way = "deconv" if conv.transposed else "conv"
        return conv.pack(f"{name}.{way}{shape.groups}.rows{rows}", lambda: pack_filter(conv, rows))
    band = band_of(conv, rows)
    total = -(-shape.out_channels // rows) * rows * shape.taps * band * 4
    packed = op.scratch(total)
    yield Dispatch(
        groups=-(-total // GROUP),
        tensors=(name, packed),
        params={
            **conv.filter_steps(),
            "total": total,
            "rows": rows,
            "band": band,
            "taps": shape.taps,
            "in_blocks": conv.in_blocks,
            "out_c": shape.out_channels,
            "group_in": shape.group_in,
            "group_out": shape.group_out,
        },
        kernel=_PACK,
        cost=Cost(0, op.fact(name).nbytes, 4 * total),
    )
    return packed


def pack_filter(conv: Conv, rows: int) -> Array:
    """[row block][tap][band][4 in][rows]; what a row does not take of its band is zero."""
    shape, value, band = conv.shape, conv.filter_rows(), band_of(conv, rows)
    row_blocks = -(-shape.out_channels // rows)
    packed = np.zeros((row_blocks, shape.taps, 4 * band, rows), np.float32)
    for row_block in range(row_blocks):
        first = min(first_block(conv, rows, row_block), conv.in_blocks - band)
        channels = range(row_block * rows, min((row_block + 1) * rows, shape.out_channels))
        for row, channel in enumerate(channels):
            begin = channel // shape.group_out * shape.group_in - 4 * first
            packed[row_block, :, begin : begin + shape.group_in, row] = value[channel].T
    return packed


def packed_depthwise(conv: Conv) -> str:
    """The depthwise filter as [block][tap][4]."""
    return conv.pack(f"{conv.op.in_names[1]}.depthwise", lambda: _pack_depthwise(conv))


def _pack_depthwise(conv: Conv) -> Array:
    value = conv.filter_rows()[:, 0]
    padded = np.zeros((-(-len(value) // 4) * 4, value.shape[1]), np.float32)
    padded[: len(value)] = value
    return padded.reshape(-1, 4, value.shape[1]).transpose(0, 2, 1)
