"""The shapes of ``conv`` and ``deconv``: windows, padding, groups, bias, and their checks.

A :class:`ConvShape` holds all properties of a node that the CPU function, the kernels and the
cost need, in three spatial dimensions (one and two get leading extents of 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.common.window import (
    BORDERS,
    Window,
    WindowAxis,
    check_border,
    resolve_reverse,
    resolve_window,
)

#: numbers of positions and of workgroups below which divide.hlsli divides exactly by a rounded
#: product and by :func:`reciprocal`
MOST_FEW, _MOST_FEW_GROUPS = 1 << 20, 1 << 15
#: the parameters of kernels that divide by the numbers of :func:`reciprocals`
RECIPROCALS = "group_factor:u group_shift:u line_inverse:f"
#: the numbers of a map whose indices have 27 bits, as the kernels tell compilers
_MOST_INPUTS = 1 << 27


@dataclass(frozen=True, slots=True)
class ConvShape:
    """The shape of a ``conv`` or ``deconv`` with all defaults resolved, such as padding."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    axes: Window
    border: str

    @property
    def axes3(self) -> Window:
        """The axes of depth, height and width; missing ones have extent 1."""
        return (WindowAxis(1, 1),) * (3 - len(self.axes)) + self.axes

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups if self.groups else 0

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups if self.groups else 0

    @property
    def taps(self) -> int:
        return prod(a.size for a in self.axes)

    @property
    def takes_tiles(self) -> bool:
        """True if Winograd's tiles can compute it: 3x3 taps, stride and dilation 1, one group."""
        windows = [(a.size, a.stride, a.dilation) for a in self.axes]
        return self.groups == 1 and windows == [(3, 1, 1)] * 2

    @property
    def padding(self) -> list[tuple[int, int]]:
        """The padding before and after each axis of the wide side."""
        return [(a.before, a.after) for a in self.axes]

    @property
    def wide(self) -> tuple[int, ...]:
        return tuple(a.wide for a in self.axes)

    @property
    def narrow(self) -> tuple[int, ...]:
        return tuple(a.narrow for a in self.axes)

    @property
    def is_inside(self) -> bool:
        """True if no window of a ``conv`` reaches beyond the input."""
        return all(
            a.before <= 0 and (a.narrow - 1) * a.stride + a.reach - a.before <= a.wide
            for a in self.axes
        )

    def is_few(self, groups: int) -> bool:
        """Returns True if divide.hlsli can count positions and ``groups`` workgroups as FEW."""
        positions = max(prod(self.wide), prod(self.narrow))
        is_short = self.in_channels * positions < _MOST_INPUTS
        is_few = positions < MOST_FEW and groups < _MOST_FEW_GROUPS
        return self.batch == 1 and is_short and is_few


def reciprocal(divisor: int, count: int) -> tuple[int, int]:
    """Returns (factor, shift) with ``n // divisor == n * factor >> shift`` for every n below
    ``count``, which is at most 2^15. No product exceeds 32 bits."""
    for shift in range(31, -1, -1):
        factor = -(-(1 << shift) // divisor)
        if factor * count < 1 << 32:
            break
    return factor, shift


def reciprocals(groups: int, row_blocks: int, line: int) -> dict[str, float]:
    """Returns the parameters :data:`RECIPROCALS` by which divide.hlsli divides the numbers of
    workgroups by ``row_blocks``, and those of positions by ``line``."""
    factor, shift = reciprocal(max(row_blocks, 1), min(groups, _MOST_FEW_GROUPS))
    return {"group_factor": factor, "group_shift": shift, "line_inverse": 1 / max(line, 1)}


def conv_shape(attrs: Attrs, x: Fact, filter: Fact, bias: Fact | None = None) -> ConvShape:
    """Returns the resolved shape of ``conv``.

    Raises :class:`ShapeError` if its operands do not fit.
    """
    _check_ranks(x, filter)
    batch, channels, *spatial = x.shape
    groups = _groups(attrs["groups"], channels)
    _check_groups("input", channels, groups)
    if filter.shape[1] * groups != channels:
        raise ShapeError(
            f"filter has {filter.shape[1]} input channels, input has {channels} "
            f"(groups={attrs['groups']}, so {channels // groups if groups else 0} wanted); check "
            f"groups= or the filter's shape {list(filter.shape)}"
        )
    _check_groups("filter's output", filter.shape[0], groups)
    axes = resolve_window(
        spatial, filter.shape[2:], attrs["padding"], attrs["stride"], attrs["dilation"], 2
    )
    check_border(attrs["border"], BORDERS, axes, 2)
    _check_bias(bias, filter.shape[0])
    return ConvShape(batch, channels, filter.shape[0], groups, axes, attrs["border"])


def deconv_shape(attrs: Attrs, x: Fact, filter: Fact, bias: Fact | None = None) -> ConvShape:
    """Returns the resolved shape of ``deconv``.

    Raises :class:`ShapeError` if its operands do not fit. The filter is ``(input channels,
    output channels / groups, …)``.
    """
    _check_ranks(x, filter)
    if attrs["border"] != "constant":
        raise ShapeError(
            f"border='{attrs['border']}' has no meaning for deconv, wanted 'constant': what its "
            f"padding crops is not read"
        )
    batch, channels, *spatial = x.shape
    wanted = tuple(attrs["output_shape"])
    if wanted and len(wanted) != x.rank:
        raise ShapeError(
            f"output_shape {list(wanted)} has {len(wanted)} extents, wanted {x.rank} as the input"
        )
    groups = _groups(attrs["groups"], wanted[1] if wanted else channels)
    _check_groups("input", channels, groups)
    if filter.shape[0] != channels:
        raise ShapeError(
            f"filter is for {filter.shape[0]} input channels, input has {channels}; a deconv's "
            f"filter is (input channels, output channels / groups, extents), got "
            f"{list(filter.shape)}"
        )
    out_channels = filter.shape[1] * groups
    if wanted and wanted[:2] != (batch, out_channels):
        raise ShapeError(
            f"output_shape begins with {list(wanted[:2])}, wanted {[batch, out_channels]}: the "
            f"batch, and the filter's {filter.shape[1]} channels for each of {groups} groups"
        )
    axes = resolve_reverse(
        spatial, filter.shape[2:], attrs["padding"], attrs["stride"], attrs["dilation"],
        wanted[2:], 2,
    )  # fmt: skip
    _check_bias(bias, out_channels)
    return ConvShape(batch, channels, out_channels, groups, axes, "constant")


def _check_ranks(x: Fact, filter: Fact) -> None:
    if not 3 <= x.rank <= 5:
        raise ShapeError(
            f"input is {x}, wanted rank 3, 4 or 5 (batch, channels, and 1 to 3 spatial extents)"
        )
    if filter.rank != x.rank:
        raise ShapeError(f"filter is {filter}, wanted rank {x.rank} as the input {x}")
    if 0 in filter.shape[2:]:
        raise ShapeError(f"filter {filter} has a window without extent, wanted 1 or more")


def _groups(groups: int, depthwise: int) -> int:
    if groups < 0:
        raise ShapeError(f"groups={groups}, wanted 0 (one per channel) or more")
    return groups or depthwise


def _check_groups(what: str, channels: int, groups: int) -> None:
    if groups and channels % groups:
        raise ShapeError(
            f"the {what} channels ({channels}) do not divide into groups={groups}; "
            f"wanted a multiple of {groups}"
        )
    if not groups and channels:
        raise ShapeError(f"the {what} channels are {channels}, the input of groups=0 has none")


def _check_bias(bias: Fact | None, channels: int) -> None:
    """Raises :class:`ShapeError` unless the bias is one value, or one per output channel.

    The shapes are ``[]``, ``[C]``, ``[1,C]``, ``[1,C,1…]``.
    """
    if bias is None or bias.size == 1:
        return
    shape = bias.shape if bias.rank == 1 else bias.shape[1:2]
    if bias.size != channels or shape != (channels,):
        raise ShapeError(
            f"bias is {bias}, wanted one value, [{channels}] or [1,{channels}]: one for each of "
            f"the {channels} output channels"
        )
