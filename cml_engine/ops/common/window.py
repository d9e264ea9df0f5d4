"""Sliding windows: extents, automatic padding, and the transposed case.

A window slides over the *wide* side (the input of ``box``, the result of ``debox``) and there is
one value per window on the *narrow* side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact

#: the values around a tensor; a pool may also ignore them
BORDERS = ("constant", "replicate", "reflect", "reflect-even")
POOL_BORDERS = (*BORDERS, "ignore")


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One dimension of a sliding window and of the tensors on both of its sides.

    ``wide`` and ``narrow`` are the tensors' extents, ``size`` the window's, ``before`` and
    ``after`` the padding of the wide side.
    """

    wide: int
    narrow: int
    size: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def reach(self) -> int:
        """The extent of the dilated window."""
        return (self.size - 1) * self.dilation + 1

    @property
    def trivial(self) -> bool:
        """True if every window contains a single value and the axis keeps its extent."""
        return self.size == 1 and self.stride == 1 and self.before == 0 == self.after

    @property
    def whole(self) -> bool:
        """True if there is one window, which covers the whole axis."""
        return (
            self.narrow == 1
            and self.before == 0
            and self.size == self.wide
            and (self.dilation == 1 or self.size == 1)
        )


Window = tuple[WindowAxis, ...]
#: a window of up to three axes as a kernel's parameters
GEOMETRY = "wide:u3 narrow:u3 taps:u3 stride:u3 dilation:u3 before:i3"


def geometry(window: Sequence[WindowAxis]) -> dict[str, list[int]]:
    """Returns the kernels' parameters of a window by name: a list for three axes, innermost first.

    The names are those of :data:`GEOMETRY`; missing axes have extent 1.
    """
    axes = [*window[::-1], *[WindowAxis(1, 1)] * (3 - len(window))]
    return {
        "wide": [a.wide for a in axes],
        "narrow": [a.narrow for a in axes],
        "taps": [a.size for a in axes],
        "stride": [a.stride for a in axes],
        "dilation": [a.dilation for a in axes],
        "before": [a.before for a in axes],
    }


def volume(window: Window) -> int:
    """Returns the number of taps: the product of the window's sizes."""
    return prod(axis.size for axis in window)


def resolve_window(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[tuple[int, int]],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Window:
    """Returns the window over a tensor of ``shape`` with defaults resolved, axis by axis.

    Empty ``padding`` is automatic (as many windows as strides fit, the odd one padded at the
    end); empty ``stride`` and ``dilation`` are 1 everywhere. Padding may be negative. Raises
    :class:`ShapeError` for invalid values.
    """
    rank = len(shape)
    _check("size", size, rank, 1)
    strides, dilations = _ones("stride", stride, rank), _ones("dilation", dilation, rank)
    _check_padding(padding, rank)
    axes = []
    for i, (wide, f, s, d) in enumerate(zip(shape, size, strides, dilations, strict=True)):
        reach = (f - 1) * d + 1
        if padding:
            before, after = padding[i]
            narrow = (before + wide + after - reach) // s + 1
        else:
            narrow = -(-wide // s)
            before, after = _same(wide, narrow, reach, s)
        if narrow < 0 or (narrow == 0 and wide):
            raise ShapeError(
                f"axis {i}: a window of {f} (dilation {d}: {reach}) does not fit into {wide} + "
                f"padding ({before},{after}) = {before + wide + after}; add padding"
            )
        axes.append(WindowAxis(wide, narrow, f, s, d, before, after))
    return tuple(axes)


def resolve_reverse(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[tuple[int, int]],
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
) -> Window:
    """Returns the window of a transposed operator, whose narrow side has ``shape``.

    Raises :class:`ShapeError` if a stated ``output_shape`` would not lead back to ``shape``.
    """
    rank = len(shape)
    _check("size", size, rank, 1)
    strides, dilations = _ones("stride", stride, rank), _ones("dilation", dilation, rank)
    _check_padding(padding, rank)
    if output_shape:
        _check("output_shape", output_shape, rank, 0)
    axes = []
    for i, (narrow, f, s, d) in enumerate(zip(shape, size, strides, dilations, strict=True)):
        reach = (f - 1) * d + 1
        stated = output_shape[i] if output_shape else None
        if padding:
            before, after = padding[i]
            full = (narrow - 1) * s + reach - before - after if narrow else 0
            wide = full if stated is None else stated
            back = (before + wide + after - reach) // s + 1
        else:
            wide = narrow * s if stated is None else stated
            before, after = _same(wide, narrow, reach, s)
            back = -(-wide // s)
        axes.append(WindowAxis(wide, narrow, f, s, d, before, after))
        _check_reverse(i, axes[-1], back if stated is not None else narrow)
    return tuple(axes)


def _same(wide: int, narrow: int, reach: int, stride: int) -> tuple[int, int]:
    """Returns the automatic padding (before, after) of an axis; an odd element is after."""
    total = max((narrow - 1) * stride + reach - wide, 0) if narrow else 0
    return total // 2, total - total // 2


def _check(name: str, values: Sequence[int], rank: int, least: int) -> None:
    if len(values) != rank:
        raise ShapeError(
            f"{name}={list(values)} has {len(values)} values, wanted {rank}: one for each "
            "dimension, batch and channels included"
        )
    if any(v < least for v in values):
        raise ShapeError(f"{name}={list(values)}, wanted {least} or more everywhere")


def _ones(name: str, values: Sequence[int], rank: int) -> Sequence[int]:
    if not values:
        return (1,) * rank
    _check(name, values, rank, 1)
    return values


def _check_padding(padding: Sequence[tuple[int, int]], rank: int) -> None:
    if padding and (len(padding) != rank or any(len(pair) != 2 for pair in padding)):
        raise ShapeError(
            f"padding={list(padding)} has {len(padding)} entries, wanted {rank} pairs "
            "(before, after): one for each dimension, batch and channels included"
        )


def _check_reverse(i: int, axis: WindowAxis, back: int) -> None:
    if axis.wide < 0 or (axis.wide == 0 and axis.narrow):
        raise ShapeError(
            f"axis {i}: padding ({axis.before},{axis.after}) crops all of the "
            f"{(axis.narrow - 1) * axis.stride + axis.reach} that {axis.narrow} windows cover; "
            "use less padding"
        )
    if axis.narrow and back != axis.narrow:
        raise ShapeError(
            f"axis {i}: output_shape {axis.wide} goes back to {back} with stride {axis.stride}, "
            f"padding ({axis.before},{axis.after}) and a window of {axis.reach}, but the input "
            f"has {axis.narrow}; check output_shape"
        )


def window_of(attrs: Attrs, x: Fact) -> Window:
    """Returns the window of a pooling operator from its attributes and its input ``x``.

    Raises :class:`ShapeError` for invalid attributes.
    """
    window = resolve_window(
        x.shape, attrs["size"], attrs["padding"], attrs["stride"], attrs["dilation"]
    )
    border = attrs["border"]
    if border not in POOL_BORDERS:
        raise ShapeError(f"border='{border}', wanted one of {', '.join(POOL_BORDERS)}")
    for i, axis in enumerate(window):
        if axis.wide == 0 < axis.narrow and border not in ("constant", "ignore"):
            raise ShapeError(
                f"axis {i} of {x} is empty, so border='{border}' finds no value to repeat; "
                "use border='constant'"
            )
    return window


def reverse_window_of(attrs: Attrs, x: Fact) -> Window:
    """Returns the window of ``debox`` or ``desample`` from its attributes and its input ``x``.

    Raises :class:`ShapeError` for invalid attributes.
    """
    if attrs["border"] not in ("constant", "ignore"):
        raise ShapeError(
            f"border='{attrs['border']}' has no meaning here, wanted 'constant' or 'ignore': "
            "what falls onto the padding is dropped"
        )
    return resolve_reverse(
        x.shape, attrs["size"], attrs["padding"], attrs["stride"], attrs["dilation"],
        attrs["output_shape"],
    )  # fmt: skip
