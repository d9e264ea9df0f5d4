"""The shapes of ``conv`` and ``deconv``: windows, padding, groups, bias, and their checks.

A :class:`ConvShape` holds all properties of a node that the CPU function, the kernels and the
cost need, in three spatial dimensions (one and two get leading extents of 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.common.window import BORDERS


@dataclass(frozen=True, slots=True)
class ConvAxis:
    """One spatial dimension of a ``conv`` or ``deconv``, with its padding resolved.

    ``wide`` is the extent of the side that the window slides over (a conv's input, a deconv's
    output), ``narrow`` that of the side with one value per window.
    """

    wide: int
    narrow: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """The extent of the dilated window."""
        return (self.kernel - 1) * self.dilation + 1


_UNIT = ConvAxis(1, 1, 1, 1, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class ConvShape:
    """The shape of a ``conv`` or ``deconv`` with all defaults resolved, such as padding."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    axes: tuple[ConvAxis, ...]
    border: str

    @property
    def axes3(self) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
        """The axes of depth, height and width; missing ones have extent 1."""
        d, h, w = (_UNIT,) * (3 - len(self.axes)) + self.axes
        return d, h, w

    @property
    def group_in(self) -> int:
        return self.in_channels // self.groups if self.groups else 0

    @property
    def group_out(self) -> int:
        return self.out_channels // self.groups if self.groups else 0

    @property
    def taps(self) -> int:
        return prod(a.kernel for a in self.axes)

    @property
    def wide(self) -> tuple[int, ...]:
        return tuple(a.wide for a in self.axes)

    @property
    def narrow(self) -> tuple[int, ...]:
        return tuple(a.narrow for a in self.axes)


def conv_shape(attrs: Attrs, x: Fact, filter: Fact, bias: Fact | None = None) -> ConvShape:
    """Returns the resolved shape of ``conv``.

    Raises :class:`ShapeError` if its operands do not fit.
    """
    _check_ranks("conv", x, filter)
    border = attrs["border"]
    if border not in BORDERS:
        raise ShapeError(
            f"border='{border}' is not one that conv knows, wanted one of {', '.join(BORDERS)}"
        )
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
    axes = _conv_axes(attrs, spatial, filter.shape[2:])
    _check_border(border, axes)
    _check_bias(bias, filter.shape[0])
    return ConvShape(batch, channels, filter.shape[0], groups, axes, border)


def deconv_shape(attrs: Attrs, x: Fact, filter: Fact, bias: Fact | None = None) -> ConvShape:
    """Returns the resolved shape of ``deconv``.

    Raises :class:`ShapeError` if its operands do not fit. The filter is ``(input channels,
    output channels / groups, …)``.
    """
    _check_ranks("deconv", x, filter)
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
    axes = _deconv_axes(attrs, spatial, filter.shape[2:], wanted[2:])
    _check_bias(bias, out_channels)
    return ConvShape(batch, channels, out_channels, groups, axes, "constant")


def _check_ranks(op: str, x: Fact, filter: Fact) -> None:
    if not 3 <= x.rank <= 5:
        raise ShapeError(
            f"input is {x}, wanted rank 3, 4 or 5 (batch, channels, and 1 to 3 spatial extents)"
        )
    if filter.rank != x.rank:
        raise ShapeError(f"filter is {filter}, wanted rank {x.rank} as the input {x}")
    if x.dtype != "scalar" or filter.dtype != "scalar":
        raise ShapeError(f"{op} wants tensors of scalars, got {x} and {filter}; cast them")
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


def _check_border(border: str, axes: Sequence[ConvAxis]) -> None:
    for i, axis in enumerate(axes):
        if border != "constant" and axis.wide == 0 and axis.narrow:
            raise ShapeError(
                f"spatial axis {i} of the input is empty: border='{border}' finds no value to "
                f"repeat; use border='constant'"
            )


def _per_axis(attrs: Attrs, name: str, rank: int) -> tuple[int, ...]:
    """Returns the attribute ``name`` (stride or dilation) as one value per spatial axis.

    An empty list is 1 everywhere.
    """
    values = tuple(attrs[name]) or (1,) * rank
    if len(values) != rank:
        raise ShapeError(
            f"{name}={list(values)} has {len(values)} values, wanted {rank}: one for each "
            f"spatial axis"
        )
    if any(v < 1 for v in values):
        raise ShapeError(f"{name}={list(values)}, wanted 1 or more everywhere")
    return values


def _padding(attrs: Attrs, rank: int) -> Sequence[tuple[int, int]] | None:
    """Returns the explicit padding as (before, after) per axis, or None if it is automatic."""
    padding = [tuple(pair) for pair in attrs["padding"]]
    if not padding:
        return None
    if len(padding) != rank or any(len(pair) != 2 for pair in padding):
        raise ShapeError(
            f"padding={padding} has {len(padding)} entries, wanted {rank} pairs (before, after): "
            f"one for each spatial axis"
        )
    return [(before, after) for before, after in padding]


def _same(wide: int, narrow: int, reach: int, stride: int) -> tuple[int, int]:
    """Returns the automatic padding (before, after) of an axis; an odd element is after."""
    total = max((narrow - 1) * stride + reach - wide, 0)
    return total // 2, total - total // 2


def _conv_axes(attrs: Attrs, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[ConvAxis, ...]:
    rank = len(spatial)
    strides = _per_axis(attrs, "stride", rank)
    dilations = _per_axis(attrs, "dilation", rank)
    padding = _padding(attrs, rank)
    axes = []
    for i, (x, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = (k - 1) * d + 1
        if padding is None:
            out = -(-x // s)
            before, after = _same(x, out, reach, s)
        else:
            before, after = padding[i]
            out = (before + x + after - reach) // s + 1
            if out <= 0 and x:
                raise ShapeError(
                    f"spatial axis {i}: a window of {k} (dilation {d}: {reach}) does not fit into "
                    f"{x} + padding ({before},{after}) = {before + x + after}; add padding"
                )
        axes.append(ConvAxis(x, max(out, 0), k, s, d, before, after))
    return tuple(axes)


def _deconv_axes(
    attrs: Attrs, spatial: Sequence[int], kernel: Sequence[int], wanted: Sequence[int]
) -> tuple[ConvAxis, ...]:
    rank = len(spatial)
    strides = _per_axis(attrs, "stride", rank)
    dilations = _per_axis(attrs, "dilation", rank)
    padding = _padding(attrs, rank)
    axes = []
    for i, (x, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = (k - 1) * d + 1
        if padding is None:
            out = wanted[i] if wanted else x * s
            before, after = _same(out, x, reach, s)
            back = -(-out // s)
        else:
            before, after = padding[i]
            full = (x - 1) * s + reach - before - after
            out = wanted[i] if wanted else full if x else 0
            back = (before + out + after - reach) // s + 1
        axis = ConvAxis(out, x, k, s, d, before, after)
        _check_deconv_axis(i, axis, back, bool(wanted))
        axes.append(axis)
    return tuple(axes)


def _check_deconv_axis(i: int, axis: ConvAxis, back: int, stated: bool) -> None:
    if axis.wide < 0 or (axis.wide == 0 and axis.narrow):
        raise ShapeError(
            f"spatial axis {i}: padding ({axis.before},{axis.after}) crops all of the "
            f"{(axis.narrow - 1) * axis.stride + axis.reach} that {axis.narrow} inputs give; "
            f"use less padding"
        )
    if stated and axis.narrow and back != axis.narrow:
        raise ShapeError(
            f"spatial axis {i}: output_shape {axis.wide} goes back to {back} with stride "
            f"{axis.stride}, padding ({axis.before},{axis.after}) and a window of {axis.reach}, "
            f"but the input has {axis.narrow}; check output_shape"
        )
