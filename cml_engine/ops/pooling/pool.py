"""Operators with a sliding window on the GPU, all by one kernel (``pool.hlsl``).

The usual window (at most two neighbouring dimensions) becomes four dimensions ``[outer, H, W,
inner]``, whatever the layout: blocked channels are only an ``inner`` of 4. All other windows take
the general path. A window that covers its whole dimensions is a reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from cml_engine.ir.graph import Fact, Node
from cml_engine.ir.layout import BLOCKED, PLAIN, STORED, VECTOR_TYPE
from cml_engine.ops.common.shapes import contiguous_strides
from cml_engine.ops.common.window import Window, WindowAxis, reverse_window_of, volume, window_of
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering
from cml_engine.ops.declaration.spec import (
    Defines,
    Dispatch,
    Half,
    Kernel,
    Lower,
    engine_kernel,
    word,
)
from cml_engine.ops.elementwise.kernels.elementwise import Operand
from cml_engine.ops.reduction.reduce import Reduction, reduction

_GROUP = 64
_MAX_DIMS = 9
#: the fewest taps of a window over a whole dimension that a reduction computes
_MANY_TAPS = 64
_TYPES = {"scalar": "float", "integer": "int"}

_ARRAYS = (
    "out_extent:u out_unit:u owner:u size:i stride:i dilation:i before:i extent:i high:u low:u"
)
_PARAMS = " ".join(
    [
        "count:u taps:u tap_begin:u tap_end:u start:u inner:u inner_step:u outer_step:u",
        "windows:u out_dims:u",
        *(f"{name}{_MAX_DIMS}" for name in _ARRAYS.split()),
    ]
)


@dataclass(frozen=True, slots=True)
class Sliding:
    """The operation that is applied to each window.

    ``kind`` is a name of the shader's. ``mean`` divides, and ``reverse`` goes from the narrow to
    the wide side.
    """

    kind: str
    mean: bool = False
    reverse: bool = False

    @property
    def reduction(self) -> Reduction | None:
        """The corresponding reduction over the whole input; None if there is none."""
        if self.reverse or self.kind not in ("SUM", "MAX", "INDEX"):
            return None
        reduction_kind = "SUM" if self.kind == "SUM" else "MAX"
        return Reduction(reduction_kind, index=self.kind == "INDEX", mean=self.mean)


Layouts = Literal["plain", "same"]


def pool_kernel(lower: Lower, layouts: Layouts) -> Kernel:
    return replace(_KERNEL, lower=lower, layouts=layouts, half=_half)


def _half(node: Node, facts: Mapping[str, Fact]) -> Half:
    """Returns ``"each"`` if the kernel processes four channels at once, otherwise ``"none"``."""
    resolve = reverse_window_of if "output_shape" in node.attrs else window_of
    window = resolve(node.attrs, facts[node.inputs[0]].shape)
    moving = [axis for axis, window_axis in enumerate(window) if not window_axis.trivial]
    if not moving or moving[0] < 2 or moving[-1] - moving[0] > 1 or _reduces(window, moving):
        return "none"
    if _iterations(volume(window), 2) > MAX_ITERATIONS:
        return "none"
    return "each"


def _reduces(window: Window, moving: Sequence[int]) -> bool:
    """Returns True if a reduction computes the window: it is large and covers whole dimensions.

    ``moving`` are the axes that have a window.
    """
    return all(window[i].whole for i in moving) and volume(window) >= _MANY_TAPS


def _iterations(taps: int, windows: int) -> int:
    """Returns the most loop iterations of a thread: a loop over ``windows`` axes per tap."""
    return taps * (windows + LOOP_ITERATIONS)


@dataclass(frozen=True, slots=True)
class _Dim:
    """One dimension of the result's memory.

    It is ``axis``, or a part of it: one index is ``unit`` steps of that axis. ``step`` is the
    input's stride if the axis has no window.
    """

    extent: int
    axis: int
    unit: int
    step: int


@dataclass(frozen=True, slots=True)
class _Walk:
    """The result's dimensions, outermost first, and per axis the window and input strides.

    ``high`` is the stride of a coordinate's part above four, ``low`` that of its remainder
    modulo four; only blocked channels need both.
    """

    dims: tuple[_Dim, ...]
    window: Window
    windowed: tuple[bool, ...]
    high: tuple[int, ...]
    low: tuple[int, ...]


def _walk(window: Window, x: Operand, out: Operand) -> _Walk:
    rank = len(window)
    strides = contiguous_strides(x.fact.shape)
    high, low = [4 * s for s in strides], list(strides)
    windowed = [not axis.trivial for axis in window]
    if x.layout in BLOCKED:
        spatial = prod(x.fact.shape[2:])
        low = [-(-x.fact.shape[1] // 4) * 4 * spatial, 1, *(4 * s for s in strides[2:])]
        high = [4 * low[0], 4 * spatial, *(4 * s for s in low[2:])]
        # a coordinate of blocked channels is two steps: not one unless the result has the same
        windowed[1] = windowed[1] or out.layout == PLAIN
    dims = [_Dim(n, a, 1, low[a]) for a, n in enumerate(out.fact.shape)]
    if out.layout in BLOCKED:
        blocks = _Dim(out.fact.shape[1] // 4, 1, 4, high[1])
        dims = [dims[0], blocks, *dims[2:rank], _Dim(4, 1, 1, low[1])]
    return _Walk(tuple(dims), window, tuple(windowed), tuple(high), tuple(low))


@dataclass(frozen=True, slots=True)
class _Pooling:
    """A node with a sliding window that is being lowered."""

    op: Lowering
    sliding: Sliding
    window: Window
    inputs: Sequence[Operand]
    outs: Sequence[Operand]

    @property
    def axes(self) -> list[int]:
        """The axes along which the window is not trivial."""
        return [i for i, axis in enumerate(self.window) if not axis.trivial]

    @property
    def walk(self) -> _Walk:
        return _walk(self.window, self.inputs[0], self.outs[0])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(operand.name for operand in (*self.inputs, *self.outs))

    @property
    def start(self) -> int:
        """The accumulation's initial value as 32 bits: -infinity for a maximum, otherwise 0."""
        return 0xFF800000 if self.sliding.kind in ("MAX", "INDEX", "BOTH") else 0


def slide(
    op: Lowering,
    sliding: Sliding,
    window: Window,
    inputs: Sequence[Operand],
    outs: Sequence[Operand],
) -> Iterator[Dispatch]:
    """Yields the dispatches that apply the operation to all windows.

    An empty result has none.
    """
    node = _Pooling(op, sliding, window, inputs, outs)
    if not outs[0].fact.size:
        return
    if sliding.reduction is not None and _reduces(window, node.axes):
        yield from reduction(op, sliding.reduction, node.axes, inputs[0], outs[0])
        return
    iterations = _iterations(volume(window), max(sum(node.walk.windowed), 2))
    if sliding.kind != "SAMPLE" and iterations > MAX_ITERATIONS:
        yield from _in_parts(node)
    else:
        yield _one_dispatch(node)


def _one_dispatch(node: _Pooling) -> Dispatch:
    """Returns a dispatch with a thread for each result, or for four channels of it."""
    sliding, taps = node.sliding, volume(node.window)
    fast = _fast(node.walk, sliding)
    params, width = fast or (_general(node.walk, sliding.reverse), 1)
    count = node.outs[0].fact.size // width
    return Dispatch(
        groups=-(-count // _GROUP),
        tensors=node.names,
        params={
            **params,
            "count": count,
            "taps": taps,
            "tap_begin": 0,
            "tap_end": taps,
            "start": node.start,
        },
        defines=_defines(node, width) | {"FAST": int(fast is not None)},
        writes=len(node.outs),
    )


def _in_parts(node: _Pooling) -> Iterator[Dispatch]:
    """Yields dispatches that each process some of the taps.

    Partial results are in scratch memory.
    """
    count, taps = node.outs[0].fact.size, volume(node.window)
    params = {**_general(node.walk, node.sliding.reverse), "taps": taps, "start": node.start}
    parts = (node.op.scratch(count), node.op.scratch(count))
    first = len(node.names)
    step = MAX_ITERATIONS // _iterations(1, sum(node.walk.windowed))
    for begin in range(0, taps, step):
        end = min(begin + step, taps)
        yield Dispatch(
            groups=-(-count // _GROUP),
            tensors=(*node.names, *parts),
            params={**params, "count": count, "tap_begin": begin, "tap_end": end},
            defines={
                **_defines(node, 1),
                "FAST": 0,
                "PARTS": 1,
                "PART_VALUE": f"T{first}",
                "PART_COUNT": f"T{first + 1}",
                f"T{first + 1}_TYPE": "int",
            },
            writes=len(node.outs) + 2,
        )


_KERNEL = engine_kernel("pooling/pool.hlsl", _PARAMS, group=_GROUP)


def _defines(node: _Pooling, width: int) -> Defines:
    sliding, tensors = node.sliding, (*node.inputs, *node.outs)
    border = node.op.attrs["border"]
    vector = "4" if width == 4 else ""
    divide = (2 if border == "ignore" else 1) if sliding.mean else 0
    return {
        "KIND": sliding.kind,
        "REVERSE": int(sliding.reverse),
        **word("border", border),
        "MAX_DIMS": _MAX_DIMS,
        "DIVIDE": divide,
        "VEC": width,
        "OUT": f"T{len(tensors) - 1}",
        **{f"T{i}_TYPE": _stored_type(t, vector) for i, t in enumerate(tensors)},
    }


def _stored_type(tensor: Operand, vector: str) -> str:
    if tensor.layout in STORED:
        return VECTOR_TYPE[tensor.layout]
    return _TYPES[tensor.fact.dtype] + vector


# ---------------------------------------------------------------- parameters


def _window_params(axes: Sequence[WindowAxis], reverse: bool) -> dict[str, list[int]]:
    return {
        "size": [a.size for a in axes],
        "stride": [a.stride for a in axes],
        "dilation": [a.dilation for a in axes],
        "before": [a.before for a in axes],
        "extent": [a.narrow if reverse else a.wide for a in axes],
    }


def _general(walk: _Walk, reverse: bool) -> dict[str, object]:
    """Returns the shader's parameters for any window, with the innermost dimensions first."""
    axes = [a for a in range(len(walk.window) - 1, -1, -1) if walk.windowed[a]]
    dims = walk.dims[::-1]
    return {
        **_window_params([walk.window[a] for a in axes], reverse),
        "windows": len(axes),
        "high": [walk.high[a] for a in axes],
        "low": [walk.low[a] for a in axes],
        "out_dims": len(dims),
        "out_extent": [d.extent for d in dims],
        "owner": [axes.index(d.axis) if walk.windowed[d.axis] else _MAX_DIMS for d in dims],
        "out_unit": [d.unit if walk.windowed[d.axis] else d.step for d in dims],
        "inner": 1,
        "inner_step": 0,
        "outer_step": 0,
    }


def _fast(walk: _Walk, sliding: Sliding) -> tuple[dict[str, object], int] | None:
    """Returns the shader's parameters for ``[outer, H, W, inner]``, and the values per thread.

    Returns None for other windows.
    """
    dims = _merge_dims(walk)
    windows = [i for i, d in enumerate(dims) if d.axis >= 0]
    first, last = (windows[0], windows[-1]) if windows else (len(dims), len(dims) - 1)
    outer, inner = dims[:first], dims[last + 1 :]
    blocked = any(
        walk.high[d.axis] != 4 * walk.low[d.axis] or d.unit != 1 for d in dims[first : last + 1]
    )
    has_gap = last - first + 1 != len(windows)
    if blocked or has_gap or len(windows) > 2 or len(outer) > 1 or len(inner) > 1:
        return None
    axes = [walk.window[dims[i].axis] for i in reversed(windows)]
    steps = [walk.low[dims[i].axis] for i in reversed(windows)]
    while len(axes) < 2:
        axes.append(WindowAxis(1, 1))
        steps.append(0)
    extent, inner_step = (inner[0].extent, inner[0].step) if inner else (1, 0)
    outer_step = outer[0].step if outer else 0
    may_vectorise = sliding.kind in ("SUM", "MAX") and inner_step == 1
    is_vector = may_vectorise and all(n % 4 == 0 for n in (extent, outer_step, *steps))
    width = 4 if is_vector else 1
    return {
        **_window_params(axes, sliding.reverse),
        "windows": 2,
        "low": [step // width for step in steps],
        "high": [0],
        "out_dims": 4,
        "out_extent": [a.wide if sliding.reverse else a.narrow for a in axes],
        "owner": [0],
        "out_unit": [0],
        "inner": extent // width,
        "inner_step": inner_step,
        "outer_step": outer_step // width,
    }, width


def _merge_dims(walk: _Walk) -> list[_Dim]:
    """Returns the result's dimensions with neighbours without a window merged.

    The axis of such a dimension is -1.
    """
    merged: list[_Dim] = []
    for dim in walk.dims:
        if walk.windowed[dim.axis]:
            merged.append(dim)
        elif dim.extent != 1:
            last = merged[-1] if merged else None
            if last and last.axis < 0 and last.step == dim.step * dim.extent:
                merged[-1] = _Dim(last.extent * dim.extent, -1, 1, dim.step)
            else:
                merged.append(_Dim(dim.extent, -1, 1, dim.step))
    return merged
