"""Random calls of every operator: shapes, attributes and values, drawn one choice at a time.

The choices come from a :class:`Chooser`: random numbers for long runs, Hypothesis for tests, which
then finds the smallest call that fails. Everything is small, and every call is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tests.reference import extension_calls
from tests.reference.calls import OPERATORS, SIGNATURES, SampleCall
from tests.reference.extension_formulas import INTEGERS
from tests.reference.formulas import ELEMENTWISE, FormulaWindow

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Chooser(Protocol):
    def integer(self, low: int, high: int) -> int: ...


class Numbers:
    """A chooser that draws from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))


class Draw:
    """Random shapes, attributes and tensors, drawn from a :class:`Chooser`."""

    def __init__(self, chooser: Chooser) -> None:
        self.integer = chooser.integer

    def choice(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def flag(self) -> bool:
        return bool(self.integer(0, 1))

    def shape(self, rank: int, high: int = 5, low: int = 1) -> list[int]:
        """Returns random extents; occasionally one is 0."""
        found = [self.integer(low, high) for _ in range(rank)]
        if rank and low == 1 and self.integer(0, 24) == 0:
            found[self.integer(0, rank - 1)] = 0
        return found

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Returns some axes in random order."""
        left = list(range(rank))
        found = []
        for _ in range(self.integer(least, rank)):
            found.append(left.pop(self.integer(0, len(left) - 1)))
        return found

    def scalars(self, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> Array:
        rng = np.random.default_rng(self.integer(0, 2**31 - 1))
        return rng.uniform(low, high, tuple(shape)).astype(np.float32)

    def integers(self, shape: Sequence[int], high: int, low: int = 0) -> Array:
        rng = np.random.default_rng(self.integer(0, 2**31 - 1))
        return rng.integers(low, max(high, low + 1), tuple(shape)).astype(np.int32)

    def logicals(self, shape: Sequence[int]) -> Array:
        return self.integers(shape, 2).astype(np.bool_)

    def any(self, shape: Sequence[int]) -> Array:
        """Returns a random tensor of a random type."""
        kind = self.integer(0, 3)
        if kind < 2:
            return self.scalars(shape)
        return self.logicals(shape) if kind == 2 else self.integers(shape, 99, -99)


# ---------------------------------------------------------------- one element at a time

_RANGES = {
    "log": (0.05, 9), "log2": (0.05, 9), "sqrt": (0, 9), "rsqrt": (0.1, 9), "rsqr": (0.3, 4),
    "rcp": (0.3, 4), "acosh": (1, 9), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-0.95, 0.95),
    "tan": (-1.4, 1.4), "pow": (0.2, 3), "div": (0.4, 4), "mod": (0.5, 4),
    "batch_normalization": (0.2, 3),
}  # fmt: skip
_ATTRS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "softabs": lambda d: {"epsilon": d.choice([0.01, 1.0])},
    "elu": lambda d: {"alpha": d.choice([1.0, 0.25])},
    "selu": lambda d: {"alpha": d.choice([1.67326319, 0.5]), "lambda": d.choice([1.05070102, 3.0])},
    "leaky_relu": lambda d: {"alpha": d.choice([0.0, 0.1, 2.0])},
    "batch_normalization": lambda d: {"epsilon": d.choice([0.0, 0.001, 0.5])},
    "hard_sigmoid": lambda d: {"alpha": d.choice([0.2, 1.0]), "beta": d.choice([0.5, 0.0])},
}
_LOGICAL = {"and", "or", "not"}


def _elementwise(op: str, d: Draw) -> SampleCall:
    count = len(SIGNATURES[op].tensors)
    whole = d.shape(d.integer(0, 6), 4)
    low, high = _RANGES.get(op, (-3, 3))
    arrays = []
    for i in range(count):
        shape = [1 if i and d.integer(0, 3) == 0 else e for e in whole]
        if i and d.flag():
            shape = shape[: d.integer(0, len(shape))]
        if op == "from_bits":
            arrays.append(d.scalars(shape).view(np.int32))
        elif op in INTEGERS:
            arrays.append(d.integers(shape, *d.choice([(40, -40), (2**31, -(2**31)), (9, -2)])))
        else:
            arrays.append(d.logicals(shape) if op in _LOGICAL else d.scalars(shape, low, high))
    if op == "select":
        arrays[0] = d.logicals(arrays[0].shape)
    return SampleCall(op, tuple(arrays), _ATTRS[op](d) if op in _ATTRS else {})


def _quantize(op: str, d: Draw) -> SampleCall:
    x = d.scalars(d.shape(3), -2, 2)
    shape = [1, x.shape[1]] if d.flag() else []
    bits: dict[str, Any] = {"bits": d.choice([2, 4, 8])}
    if op == "logarithmic_quantize":
        return SampleCall(op, (x, d.scalars(shape, 0.6, 3)), bits)
    if op != "linear_quantize":
        signed = d.flag()
        bits |= {"signed": signed, "symmetric": signed and d.flag()}
    if op == "zero_point_linear_quantize":
        return SampleCall(op, (x, d.integers(shape, 9, -9), d.scalars(shape, 0.05, 0.3)), bits)
    return SampleCall(op, (x, d.scalars(shape, -2, -1), d.scalars(shape, 1, 2)), bits)


# ---------------------------------------------------------------- windows

_BORDERS = ["constant", "replicate", "reflect", "reflect-even"]


def _geometry(
    d: Draw, shape: Sequence[int], size: Sequence[int], pad: bool = True
) -> dict[str, Any]:
    """Returns a random stride, dilation and padding with which the window fits."""
    n = len(shape)
    found: dict[str, Any] = {}
    if d.flag():
        found["stride"] = [d.integer(1, 3) for _ in range(n)]
    if d.integer(0, 2) == 0:
        found["dilation"] = [d.integer(1, 2) for _ in range(n)]
    if pad and d.flag():
        dilation = found.get("dilation", [1] * n)
        padding = []
        for extent, f, s in zip(shape, size, dilation, strict=True):
            before = d.integer(-1, 2)
            need = (f - 1) * s + 1 - extent - before
            padding.append((before, max(d.integer(-1, 2), need)))
        found["padding"] = padding
    return found


def _pool_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(0, 5), 5)
    size = [d.integer(1, 3) if d.flag() else 1 for _ in shape]
    border = d.choice(_BORDERS if op == "sample" else [*_BORDERS, "ignore"])
    border = "constant" if 0 in shape else border  # nothing to repeat
    attrs: dict[str, Any] = {"size": size, "border": border, **_geometry(d, shape, size)}
    if op == "box":
        attrs["normalize"] = d.flag()
    x = d.scalars(shape)
    if op != "sample":
        return SampleCall(op, (x,), attrs)
    window = FormulaWindow(
        shape, size, *(attrs.get(k, []) for k in ("padding", "stride", "dilation"))
    )
    return SampleCall(op, (x, d.integers(window.narrow, int(np.prod(size)))), attrs)


def _debox_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(1, 4), 4, low=2)
    size = [d.integer(1, 3) if d.flag() else 1 for _ in shape]
    attrs: dict[str, Any] = {"size": size, **_reverse(d, shape, size)}
    x = d.scalars(shape)
    if op == "desample":
        return SampleCall(op, (x, d.integers(shape, int(np.prod(size)))), attrs)
    return SampleCall(op, (x,), {**attrs, "normalize": d.flag()})


def _reverse(d: Draw, shape: Sequence[int], size: Sequence[int]) -> dict[str, Any]:
    found = _geometry(d, shape, size, pad=False)
    if d.flag():  # crops less than the extent
        found["padding"] = [(d.integer(-1, min(f - 1, 1)), d.integer(-1, 0)) for f in size]
    return found


def _conv_of(op: str, d: Draw) -> SampleCall:
    rank = d.integer(1, 3)
    groups = d.choice([1, 1, 2, 3])
    depthwise = d.integer(0, 3) == 0
    each_in, each_out = d.integer(1, 5), d.integer(1, 5)
    channels = d.integer(1, 5) if depthwise else groups * each_in
    spatial = d.shape(rank, 6)
    x = d.scalars([d.integer(1, 2), channels, *spatial])
    size = [d.integer(1, 3) for _ in spatial]
    attrs: dict[str, Any] = {"groups": 0 if depthwise else groups}
    each = (channels, each_out) if depthwise else (groups, each_out)
    if op == "conv":
        attrs |= {"border": d.choice(_BORDERS) if 0 not in spatial else "constant"}
        attrs |= _geometry(d, spatial, size)
        w = d.scalars([each[0] * each[1], 1 if depthwise else each_in, *size])
        out = w.shape[0]
    else:
        attrs |= _reverse(d, spatial, size)
        w = d.scalars([channels, 1 if depthwise else each_out, *size])
        out = channels if depthwise else groups * each_out
    bias = d.choice([np.float32(0.5), d.scalars([1, out])])
    return SampleCall(op, (x, w, np.asarray(bias)), attrs)


def _separable_of(op: str, d: Draw) -> SampleCall:
    channels, out = d.integer(1, 4), d.integer(1, 4)
    x = d.scalars([d.integer(1, 2), channels, *d.shape(2, 5, low=2)])
    size = [d.integer(1, 3), d.integer(1, 3)]
    if op == "separable_conv":
        w, v = d.scalars([channels, 1, *size]), d.scalars([out, channels, 1, 1])
        return SampleCall(op, (x, w, v, d.scalars([1, out])), _geometry(d, x.shape[2:], size))
    w, v = d.scalars([out, 1, *size]), d.scalars([channels, out, 1, 1])
    return SampleCall(op, (x, w, v, d.scalars([1, out])), _reverse(d, x.shape[2:], size))


def _local(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(2, 4), 5)
    attrs: dict[str, Any] = {"size": [d.integer(1, 3) for _ in shape]}
    if op == "local_response_normalization":
        attrs |= {"alpha": d.choice([1.0, 0.1]), "beta": d.choice([0.5, 0.75]), "bias": 1.5}
    elif op != "local_mean_normalization":
        attrs |= {"bias": d.choice([0.5, 1.0]), "epsilon": d.choice([0.0, 1.25])}
    return SampleCall(op, (d.scalars(shape),), attrs)


# ---------------------------------------------------------------- resolution and regions

_METHODS = ["symmetric", "asymmetric", "aligned"]


def _image(d: Draw, high: int = 5) -> list[int]:
    return [d.integer(1, 2), d.integer(1, 5), *d.shape(d.integer(1, 3), high, low=1)]


def _resample_of(op: str, d: Draw) -> SampleCall:
    shape = _image(d)
    factor = [d.integer(1, 3) for _ in shape[2:]]
    attrs: dict[str, Any] = {"factor": factor}
    if op.endswith("downsample"):
        shape[2:] = [e * f for e, f in zip(shape[2:], factor, strict=True)]
    if op == "multilinear_upsample":
        attrs |= {"method": d.choice(_METHODS), "border": d.choice(_BORDERS)}
    return SampleCall(op, (d.scalars(shape),), attrs)


def _roi_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in _image(d, 7)]
    count, spatial = d.integer(0, 4), len(shape) - 2
    low = d.scalars([count, spatial], -2, 5)
    rois = np.hstack([low, low + d.scalars([count, spatial], -1, 6)])
    index = d.integers(d.choice([[count], [count, 1], []]), shape[0])
    attrs: dict[str, Any] = {"output_size": [d.integer(1, 3) for _ in range(spatial)]}
    if op.endswith("align"):
        rates = [d.integer(1, 3) for _ in range(spatial)]
        attrs |= {"sampling_rate": rates, "resize_method": d.choice(_METHODS)}
    if op == "roi_resample":
        attrs["method"] = d.choice(_METHODS)
    return SampleCall(op, (d.scalars(shape), rois.astype(np.float32), index), attrs)


def _resize_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in _image(d, 7)]
    return SampleCall(op, (d.scalars(shape),), {
        "output_size": [d.integer(1, 9) for _ in shape[2:]],
        "method": d.choice(["nearest", "linear", "cubic"]), "coordinates": d.choice(_METHODS),
        "rounding": d.choice(["half_down", "half_up", "floor", "ceil"]),
        "cubic_coefficient": d.choice([-0.75, -0.5]),
    })  # fmt: skip


# ---------------------------------------------------------------- reductions and products


def _reduce_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(1, 6), 4)
    axes = d.axes(len(shape), least=1)
    if op.startswith(("max", "min", "arg", "softmax", "mean", "l1", "l2", "moments")):
        shape = [max(e, 1) for e in shape]
    logical = op in ("any_reduce", "all_reduce")
    attrs: dict[str, Any] = {"axes": axes}
    if op == "sum_reduce":
        attrs["normalize"] = d.flag() and 0 not in shape
    if op.startswith(("l1", "l2")):
        attrs |= {"bias": d.choice([0.0, 0.5]), "epsilon": d.choice([0.0, 1.5])}
        return SampleCall(op, (d.scalars(shape, 0.1, 2),), attrs)
    return SampleCall(op, (d.logicals(shape) if logical else d.scalars(shape),), attrs)


def _matmul_of(op: str, d: Draw) -> SampleCall:
    m, n, k = d.integer(1, 9), d.integer(1, 9), d.integer(1, 9)
    if op == "linear":
        return SampleCall(op, (d.scalars([m, k]), d.scalars([n, k]), d.scalars([1, n])))
    a, b = d.flag(), d.flag()
    batch = d.shape(d.integer(0, 3), 3)
    left = [1 if d.integer(0, 3) == 0 else e for e in batch]
    right = [1 if d.integer(0, 3) == 0 else e for e in batch]
    x = d.scalars([*left, *([k, m] if a else [m, k])])
    y = d.scalars([*right, *([n, k] if b else [k, n])])
    return SampleCall(op, (x, y), {"transposeA": a, "transposeB": b})


_EQUATIONS = ("bct,bcs->bts", "bts,bcs->bct", "ij,jk->ik", "abcd,ebd->aec", "i,i->", "ij->ji",
              "ab,bc,cd->da", "ij,jk", "abk,cb->a", "abc,c->ba", "a,b->ab", "nchw,oc->nohw",
              "ab,ab->b")  # fmt: skip


def _einsum_of(op: str, d: Draw) -> SampleCall:
    equation = d.choice(_EQUATIONS)
    left = equation.partition("->")[0]
    extents = {c: d.integer(1, 4) for c in sorted(set(left) - {","})}
    arrays = tuple(d.scalars([extents[c] for c in term]) for term in left.split(","))
    return SampleCall(op, arrays, {"equation": equation})


def _norm_of(op: str, d: Draw) -> SampleCall:
    groups, rank = d.integer(1, 3), d.integer(1, 2)
    channels = groups * d.integer(1, 3)
    x = d.scalars([d.integer(1, 2), channels, *d.shape(rank, 5, low=2)])
    attrs: dict[str, Any] = {"axes": list(range(2, x.ndim)), "epsilon": d.choice([1e-5, 0.1])}
    if op == "mean_variance_norm":
        return SampleCall(op, (x,), attrs)
    if op == "layer_norm":
        attrs["axes"] = [1, *attrs["axes"]]
    if op == "group_norm":
        attrs = {"groups": groups, **attrs}
    return SampleCall(op, (x, d.scalars([1, channels]), d.scalars([1, channels])), attrs)


def _step_of(op: str, d: Draw) -> SampleCall:
    n, k, h = d.integer(1, 3), d.integer(1, 5), d.integer(1, 4)
    gates = 4 if op == "lstm_step" else 3
    state = [d.scalars([n, h])] * (2 if op == "lstm_step" else 1)
    biases = [d.scalars([1, gates * h]) for _ in range(1 if op == "lstm_step" else 2)]
    weights = [d.scalars([gates * h, k]), d.scalars([gates * h, h])]
    return SampleCall(op, (d.scalars([n, k]), *state, *weights, *biases))


# ---------------------------------------------------------------- moving elements


def _reshape_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in d.shape(d.integer(0, 4), 4)]
    start = d.integer(0, len(shape))
    count = d.integer(0, len(shape) - start)
    part = shape[start : start + count]
    split = [f for e in part for f in d.choice([(e,), (1, e)] + [(2, e // 2)] * (e % 2 == 0))]
    new: list[int] = d.choice([split, [int(np.prod(part))], split[::-1]])
    if new and d.flag():
        new = [*new]
        new[d.integer(0, len(new) - 1)] = -1
    attrs = {"shape": new, "axis_start": start, "axis_count": count}
    return SampleCall(op, (d.any(shape),), attrs)


def _transpose_of(op: str, d: Draw) -> SampleCall:
    x = d.any(d.shape(d.integer(0, 6), 4))
    count = d.integer(0, x.ndim)
    left, axes = list(range(count)), []
    while left:
        axes.append(left.pop(d.integer(0, len(left) - 1)))
    return SampleCall(op, (x,), {"axes": axes})


def _joined(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(1, 5), 4)
    axis = d.integer(0, len(shape) - (op == "concat"))
    first = d.any(shape)
    arrays = [first]
    for _ in range(d.integer(0, 3)):
        if op == "concat":
            shape[axis] = d.integer(1, 4)
        other = d.scalars(shape, -9, 9)
        arrays.append(other.astype(first.dtype) if first.dtype != bool else other > 0)
    return SampleCall(op, tuple(arrays), {"axis": axis})


def _parted(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(1, 5), 4)
    axis = d.integer(0, len(shape) - 1)
    if op == "unstack":
        shape[axis] = d.integer(1, 4)
        return SampleCall(op, (d.any(shape),), {"axis": axis})
    ratios = [d.integer(1, 3) for _ in range(d.integer(1, 3))]
    shape[axis] = sum(ratios) * d.integer(1, 2)
    return SampleCall(op, (d.any(shape),), {"axis": axis, "ratios": ratios})


def _slice_of(op: str, d: Draw) -> SampleCall:
    x = d.any(d.shape(d.integer(1, 4), 6))
    axes = d.axes(x.ndim, least=1)
    begin, end, stride = [], [], []
    for axis in axes:
        extent = x.shape[axis]
        a, b = sorted((d.integer(0, extent), d.integer(0, extent)))
        backwards = d.integer(0, 2) == 0 and extent > 0
        stride.append(-d.integer(1, 2) if backwards else d.integer(1, 3))
        begin.append(min(b, extent - 1) if backwards else a)
        end.append((a - 1 if a else -extent - 1) if backwards else b if b else extent + 1)
    attrs: dict[str, Any] = {"axes": axes, "begin": begin, "end": end}
    return SampleCall(op, (x,), {**attrs, "stride": stride} if stride != [1] * len(axes) else attrs)


def _axes_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(1, 4), 4)
    if op == "unsqueeze":
        count = d.integer(1, 3)
        axes = d.axes(len(shape) + count, least=count)[:count]
        return SampleCall(op, (d.any(shape),), {"axes": axes})
    axes = d.axes(len(shape), least=1)
    for axis in axes:
        shape[axis] = 1
    return SampleCall(op, (d.any(shape),), {"axes": axes})


def _tile_of(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(0, 5), 3)
    return SampleCall(op, (d.any(shape),), {"repeats": [d.integer(1, 3) for _ in shape]})


def _pad_of(op: str, d: Draw) -> SampleCall:
    shape = [e + 2 for e in d.shape(d.integer(0, 4), 3)]
    border = d.choice(_BORDERS)
    attrs: dict[str, Any] = {
        "padding": [(d.integer(-1, 4), d.integer(-1, 4)) for _ in shape], "border": border,
    }  # fmt: skip
    if border == "constant":
        attrs["value"] = d.choice([0.0, -3.5])
    return SampleCall(op, (d.scalars(shape),), attrs)


def _gather_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 5)]
    if op == "gather_nd":
        places = d.integer(1, len(shape))
        parts = [d.integers([3, 1], shape[i], -shape[i]) for i in range(places)]
        return SampleCall(op, (d.any(shape), np.hstack(parts)))
    axis = d.integer(0, len(shape) - 1)
    indices = d.integers(d.shape(d.integer(0, 3), 3), shape[axis])
    return SampleCall(op, (d.any(shape), indices), {"axis": axis})


def _cast_of(op: str, d: Draw) -> SampleCall:
    x = d.any(d.shape(d.integer(0, 5), 4))
    return SampleCall(op, (x,), {"dtype": d.choice(["scalar", "integer", "logical"])})


def _blocks_of(op: str, d: Draw) -> SampleCall:
    b = d.integer(1, 3)
    n, c, h, w = d.integer(1, 2), d.integer(1, 3), d.integer(1, 4), d.integer(1, 4)
    shape = [n, c * b * b, h, w] if op == "depth_to_space" else [n, c, h * b, w * b]
    return SampleCall(op, (d.scalars(shape),), {"block_size": b, "blocks_first": d.flag()})


def _lines_of(op: str, d: Draw) -> SampleCall:
    shape = [max(e, 1) for e in d.shape(d.integer(1, 4), 7)]
    axis = d.integer(0, len(shape) - 1)
    if op in ("cumsum", "cumprod"):
        how = {"exclusive": d.flag(), "reverse": d.flag()}
        return SampleCall(op, (d.scalars(shape),), {"axis": axis, **how})
    attrs = {"k": d.integer(1, shape[axis]), "axis": axis, "largest": d.flag()}
    return SampleCall(op, (d.scalars(shape),), attrs)


def _many(op: str, d: Draw) -> SampleCall:
    shape = d.shape(d.integer(0, 4), 4)
    if op == "copy_n":
        return SampleCall(op, (d.any(shape),), {"times": d.integer(1, 4)})
    return SampleCall(op, tuple(d.scalars(shape) for _ in range(d.integer(1, 6))))


_FAMILIES: tuple[tuple[Callable[[str, Draw], SampleCall], str], ...] = (
    (_pool_of, "box avg_pool rms_pool max_pool max_pool_with_index argmax_pool sample"),
    (_debox_of, "debox desample"), (_conv_of, "conv deconv"),
    (_separable_of, "separable_conv separable_deconv"),
    (_local, "local_response_normalization local_mean_normalization "
             "local_variance_normalization local_contrast_normalization"),
    (_resample_of, "multilinear_upsample nearest_upsample nearest_downsample area_downsample"),
    (_roi_of, "avg_roi_pool max_roi_pool roi_resample avg_roi_align max_roi_align"),
    (_resize_of, "resize"),
    (_reduce_of, "sum_reduce mean_reduce max_reduce min_reduce any_reduce all_reduce argmax_reduce "
                 "argmin_reduce moments softmax l1_normalization l2_normalization"),
    (_matmul_of, "matmul linear"), (_einsum_of, "einsum"),
    (_norm_of, "mean_variance_norm layer_norm instance_norm group_norm"),
    (_step_of, "lstm_step gru_step"), (_reshape_of, "reshape"), (_transpose_of, "transpose"),
    (_joined, "concat stack"), (_parted, "split unstack"), (_slice_of, "slice"),
    (_axes_of, "squeeze unsqueeze"), (_tile_of, "tile"), (_pad_of, "pad"),
    (_gather_of, "gather gather_nd"), (_cast_of, "cast"),
    (_blocks_of, "depth_to_space space_to_depth"), (_lines_of, "top_k cumsum cumprod"),
    (_many, "copy_n add_n"), *extension_calls.FAMILIES,
    (_quantize, " ".join(op for op in OPERATORS if op.endswith("quantize"))),
)  # fmt: skip
MAKERS: dict[str, Callable[[str, Draw], SampleCall]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **{op: make for make, names in _FAMILIES for op in names.split()},
}
assert set(MAKERS) == set(OPERATORS), set(MAKERS) ^ set(OPERATORS)


def random_call(op: str, chooser: Chooser) -> SampleCall:
    """Returns a random legal call of an operator."""
    call = MAKERS[op](op, Draw(chooser))
    params = SIGNATURES[op].params
    order = [p.name for p in params if p.name in call.attrs]
    order += [name for name in call.attrs if name not in order]
    return SampleCall(op, call.arrays, {name: call.attrs[name] for name in order})
