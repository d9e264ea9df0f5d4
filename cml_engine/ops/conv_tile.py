"""Register tiles: output channels by positions, for filters that are constant.

Shader: ``shaders_hlsl/conv_tile.hlsl``. What the other kernels of ``conv`` share is here too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cml_engine.layout import C4
from cml_engine.ops.conv_shapes import BORDERS, Axis, ConvShape
from cml_engine.ops.epilogue import PARAMS as EPILOGUE_PARAMS
from cml_engine.ops.epilogue import EpilogueArgs, epilogue_of, per_channel
from cml_engine.ops.lowering import Lowering
from cml_engine.ops.spec import Dispatch, Kernel

Array = np.ndarray[Any, Any]

GROUP = 64
#: both operators' windows, see conv_position.hlsli
POSITION = "x_size:i3 y_size:i3 k_size:i3 y_mul:i3 k_step:i3 origin:i3 up:i3"
_TILE = Kernel(
    "conv_tile.hlsl",
    "batch:u out_c:u in_blocks:u group_blocks:u group_out:u row_blocks:u tiles:u steps3:i3 "
    f"{POSITION} {EPILOGUE_PARAMS}",
    group=GROUP,
    trusted=True,
)
_BLOCKS = Kernel("conv_blocks.hlsl", "images:u channels:u volume:u", group=GROUP, trusted=True)


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
    def out_size(self) -> tuple[int, ...]:
        return self.shape.wide if self.transposed else self.shape.narrow

    @property
    def out_c4(self) -> bool:
        return self.op.layout(self.op.out_names[0]) == C4

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

    def filter_rows(self) -> Array:
        """The constant filter as (output channels, input channels of the group, taps)."""
        shape = self.shape
        value = self.op.constant(self.op.in_names[1])
        assert value is not None
        if self.transposed:
            parts = value.reshape(shape.groups, shape.group_in, shape.group_out, shape.taps)
            value = parts.transpose(0, 2, 1, 3)
        return value.reshape(shape.out_channels, shape.group_in, shape.taps)


def bindings(epilogue: EpilogueArgs, first: int) -> dict[str, int | str]:
    """The epilogue's defines, and the name of the output's buffer behind its tensors."""
    return {**epilogue.defines, "OUT": f"T{first + len(epilogue.tensors)}", "GROUP": GROUP}


#: rows per thread -> GFLOPS of a software driver's tile of that size, per computed row (32 rows
#: gain little, but take the driver long to build, and hardware has not the registers)
_ROWS_SPEED = {4: 23, 8: 38, 16: 54}
_COLUMNS = (4, 2, 1)
#: workgroups that keep hardware busy: below, threads take fewer positions each
_BUSY_GROUPS = 256
#: input, filter and bias or result of the kernels that take four channels at once
VECTORS: dict[str, int | str] = {f"T{i}_TYPE": "float4" for i in range(3)}


@dataclass(frozen=True, slots=True)
class Tile:
    """What a workgroup computes: ``rows`` output channels at ``group * columns`` positions."""

    rows: int
    columns: int
    group: int

    @property
    def positions(self) -> int:
        return self.columns * self.group


def can_tile(conv: Conv) -> bool:
    op, shape = conv.op, conv.shape
    constant = all(op.constant(name) is not None for name in op.in_names[1:])
    wide = shape.groups == 1 or (shape.group_in % 4 == 0 and shape.group_out % 4 == 0)
    return constant and (wide or is_depthwise(conv)) and shape.group_in > 0


def is_depthwise(conv: Conv) -> bool:
    """One output for each input channel: a kernel may take four of them side by side."""
    return conv.shape.group_in == conv.shape.group_out == 1 and conv.shape.groups > 1


def tile_of(conv: Conv, positions: int, batches: int = 1) -> Tile:
    """The tile for ``batches`` products of all output channels by so many positions.

    As many rows as the registers hold, but few that are padding. A software driver runs a small
    workgroup as well as a large one, and wastes less; hardware wants many of them.
    """
    shape = conv.shape
    fits = [r for r in _ROWS_SPEED if shape.groups == 1 or shape.group_out % r == 0] or [4]
    rows = min(fits, key=lambda r: -(-shape.out_channels // r) * r / _ROWS_SPEED[r])
    if conv.op.limits.software:
        return Tile(rows, _COLUMNS[0], 16)
    row_blocks = -(-shape.out_channels // rows)
    for columns in _COLUMNS:
        if batches * row_blocks * positions // (columns * GROUP) >= _BUSY_GROUPS:
            break
    return Tile(rows, columns, GROUP)


def lower_tile(conv: Conv) -> Iterator[Dispatch]:
    op, shape = conv.op, conv.shape
    depthwise = is_depthwise(conv)
    x = yield from blocks_of(conv)
    position = conv.position()
    ups = position["up"]
    steps = [-(-y // up) for y, up in zip(position["y_size"], ups, strict=True)]
    tile = tile_of(conv, shape.batch * prod(steps), prod(ups))
    row_blocks = -(-shape.out_channels // tile.rows)
    tiles = -(-shape.batch * prod(steps) // tile.positions)
    epilogue = epilogue_of(op, 3, vector=conv.out_c4)
    filter = _depthwise_filter(conv) if depthwise else _tile_filter(conv, tile.rows)
    one_group = depthwise or shape.groups == 1
    yield Dispatch(
        groups=prod(ups) * tiles * row_blocks,
        tensors=(x, filter, tile_bias(conv), *epilogue.tensors, op.out_names[0]),
        params={
            **position,
            **epilogue.params,
            "batch": shape.batch,
            "out_c": shape.out_channels,
            "in_blocks": -(-shape.in_channels // 4),
            "group_blocks": 1 if depthwise else -(-shape.group_in // 4),
            "group_out": row_blocks * tile.rows if one_group else shape.group_out,
            "row_blocks": row_blocks,
            "tiles": tiles,
            "steps3": steps,
        },
        defines={
            **store_defines(conv, epilogue, 3),
            **product_defines(conv, tile),
            **VECTORS,
            "BORDER": conv.border,
            "DEPTHWISE": int(depthwise),
        },
        kernel=_TILE,
    )


def store_defines(conv: Conv, epilogue: EpilogueArgs, first: int) -> dict[str, int | str]:
    """Defines of conv_store.hlsli: how results are stored, and what is applied to them before."""
    out = f"T{first + len(epilogue.tensors)}"
    kind = "float4" if conv.out_c4 else "float"
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
    if op.layout(op.in_names[0]) == C4:
        return op.in_names[0]
    volume = prod(conv.in_size)
    threads = shape.batch * -(-shape.in_channels // 4) * volume
    copy = op.scratch(4 * threads)
    yield Dispatch(
        groups=-(-threads // GROUP),
        tensors=(op.in_names[0], copy),
        params={"images": shape.batch, "channels": shape.in_channels, "volume": volume},
        defines={"GROUP": GROUP, "T1_TYPE": "float4"},
        kernel=_BLOCKS,
    )
    return copy


def _tile_filter(conv: Conv, rows: int) -> str:
    def make() -> Array:
        value = conv.filter_rows()
        out_c, in_c, taps = value.shape
        padded = np.zeros((-(-out_c // rows) * rows, -(-in_c // 4) * 4, taps), np.float32)
        padded[:out_c, :in_c] = value
        parts = padded.reshape(-1, rows, padded.shape[1] // 4, 4, taps)
        return parts.transpose(0, 4, 2, 3, 1)

    way = "deconv" if conv.transposed else "conv"
    return conv.op.pack(f"{conv.op.in_names[1]}.{way}{conv.shape.groups}.rows{rows}", make)


def _depthwise_filter(conv: Conv) -> str:
    def make() -> Array:
        value = conv.filter_rows()[:, 0]
        padded = np.zeros((-(-len(value) // 4) * 4, value.shape[1]), np.float32)
        padded[: len(value)] = value
        return padded.reshape(-1, 4, value.shape[1]).transpose(0, 2, 1)

    return conv.op.pack(f"{conv.op.in_names[1]}.depthwise", make)


def tile_bias(conv: Conv) -> str:
    name, channels = conv.op.in_names[2], conv.shape.out_channels

    def make() -> Array:
        value = conv.op.constant(name)
        assert value is not None
        return per_channel(value, channels)

    return conv.op.pack(f"{name}.bias{channels}", make)
