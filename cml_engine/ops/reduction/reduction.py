"""The reductions: sum, mean, product, min, max, their positions, any, all, softmax and moments.

Reduced dimensions keep extent 1. A large reduction is done in stages (``reduce.py``): every
workgroup takes a bounded number of elements, so that the scheduler can stop between any two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact
from cml_engine.ops.common.shapes import check_axes
from cml_engine.ops.common.window import exclude_axes
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    NO_TRAITS,
    Case,
    Cost,
    CostRule,
    Cpu,
    Dispatch,
    Infer,
    Lower,
    OpSpec,
    Random,
    Tolerance,
    Traits,
    transposed_axes,
)
from cml_engine.ops.elementwise.kernels.elementwise import operands
from cml_engine.ops.reduction.reduce import Reduction, base_kernel, reduction
from cml_engine.ops.reduction.softmax import softmax

SUM = Tolerance(4e-6, 1e-5, "sums in another order, of blocks of 32 terms, then of such sums")
PRODUCT = Tolerance(
    2e-5, 1e-6, "a rounding for each factor, in another order: up to 1500 of them in these tests"
)
SOFTMAX = Tolerance(1e-5, 1e-6, "exp to a few units, and a sum in another order")


# ---------------------------------------------------------------- shapes


def _axes(attrs: Attrs, fact: Fact) -> tuple[int, ...]:
    """Returns the reduced axes in rising order.

    Raises :class:`ShapeError` if one is out of range or repeated.
    """
    return tuple(sorted(check_axes(attrs["axes"], fact.rank)))


def _infer(dtype: str, attrs: Attrs, x: Fact) -> Fact:
    axes = _axes(attrs, x)
    return Fact(dtype, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))


def _infer_index(attrs: Attrs, x: Fact) -> Fact:
    result = _infer("integer", attrs, x)
    if result.size and not x.size:
        raise ShapeError(f"no position in nothing: {x} has no elements along {attrs['axes']}")
    return result


def _infer_softmax(attrs: Attrs, x: Fact) -> Fact:
    _axes(attrs, x)
    return x


def _infer_moments(attrs: Attrs, x: Fact) -> list[Fact]:
    return [_infer("scalar", attrs, x)] * 2


# ---------------------------------------------------------------- NumPy definitions


def _sum(x: Array, axes: tuple[int, ...], mean: bool) -> Array:
    """Returns the sum (or mean) over the axes as float32, with their extents kept as 1.

    It sums in float64, because NumPy's pairwise summation only applies to the innermost axis.
    """
    total = np.asarray(np.sum(x, axes, np.float64, keepdims=True))
    if mean:
        count = prod(x.shape[a] for a in axes)
        with np.errstate(invalid="ignore"):
            total = total / np.float64(count)
    return np.asarray(total, np.float32)


def _cpu_sum(mean: bool, attrs: Attrs, x: Array) -> Array:
    return _sum(x, tuple(attrs["axes"]), mean or bool(attrs.get("normalize")))


def _cpu_moments(attrs: Attrs, x: Array) -> list[Array]:
    axes = tuple(attrs["axes"])
    mean = _sum(x, axes, True)
    return [mean, _sum(np.square(x - mean), axes, True)]


def _cpu_fold(function: Callable[..., Array], attrs: Attrs, x: Array, **options: object) -> Array:
    """Returns a NumPy reduction of ``x`` in the type of ``x``; ``options`` go to ``function``."""
    return np.asarray(function(x, tuple(attrs["axes"]), keepdims=True, **options), x.dtype)


def _cpu_index(function: Callable[..., Array], attrs: Attrs, x: Array) -> Array:
    """Returns the int32 positions that ``function``, such as argmax, finds over the reduced axes.

    Positions count row-major over the axes, whatever order they are named in.
    """
    axes = sorted(attrs["axes"])
    kept_axes = [a for a in range(x.ndim) if a not in axes]
    shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
    if x.size == 0:
        return np.zeros(shape, np.int32)
    rows = x.transpose(*kept_axes, *axes).reshape([x.shape[a] for a in kept_axes] + [-1])
    return np.asarray(function(rows, -1)).reshape(shape).astype(np.int32)


def _cpu_softmax(attrs: Attrs, x: Array) -> Array:
    axes = tuple(attrs["axes"])
    if x.size == 0:
        return x.copy()
    terms = np.exp(x - np.max(x, axes, keepdims=True))
    total = np.sum(terms, axes, np.float64, keepdims=True)
    return np.asarray(terms / total, np.float32)


# ---------------------------------------------------------------- GPU


def _lower(operation: Reduction, op: Lowering) -> Iterator[Dispatch]:
    x, out = operands(op, op.in_names + op.out_names)
    if op.attrs.get("normalize"):
        operation = Reduction(operation.kind, mean=True)
    yield from reduction(op, operation, _axes(op.attrs, x.fact), x, out)


def _lower_softmax(op: Lowering) -> Iterator[Dispatch]:
    x, out = operands(op, op.in_names + op.out_names)
    yield from softmax(op, _axes(op.attrs, x.fact), x, out)


def _lower_moments(op: Lowering) -> Iterator[Dispatch]:
    x, mean, variance = operands(op, op.in_names + op.out_names)
    axes = _axes(op.attrs, x.fact)
    yield from reduction(op, Reduction("SUM", mean=True), axes, x, mean)
    # about the mean, not E[x^2] - E[x]^2, which cancels
    square = Reduction("SUM", term="(v - m) * (v - m)", mean=True)
    yield from reduction(op, square, axes, x, variance, mean)


# ---------------------------------------------------------------- declarations


def _cost(per_element: float, passes: int) -> Callable[..., Cost]:
    """Returns a cost function: FLOPs per input element, and the input read ``passes`` times."""

    def cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
        read = passes * sum(f.nbytes for f in inputs)
        written = sum(f.nbytes for f in outputs)
        return Cost(per_element * sum(f.size for f in inputs), read, written)

    return cost


_SHAPES: tuple[tuple[tuple[int, ...], list[int], str], ...] = (
    ((2, 3, 5, 7), [2, 3], "rows of neighbours"),
    ((2, 3, 15, 17), [1], "strided"),
    ((2, 8, 3, 4), [3, 0, 2], "axes in any order"),
    ((2, 3, 4), [], "no axes: the identity"),
    ((), [], "rank 0"),
    ((1, 1, 129, 131), [0, 1, 2, 3], "a tree of two levels"),
    ((1, 1100, 2, 3), [1], "strided, in stages"),
    ((2, 1500), [1], "one tree"),
    ((2, 1, 3, 2, 1, 5), [1, 3, 5], "rank 6"),
    ((3, 0, 2), [0], "an empty result"),
)
_NOTHING = ((3, 0, 2), [1], "of nothing")


def _cases(dtype: str, nothing: bool, **attrs: AttrValue) -> list[Case]:
    shapes = _SHAPES + ((_NOTHING,) if nothing else ())
    return [
        Case((Random(shape, -1.0, 1.0, dtype),), {"axes": axes, **attrs}, note)
        for shape, axes, note in shapes
    ]


_TIES = Case((np.array([[1, 3, 3], [3, 1, 3]], np.float32),), {"axes": [0, 1]}, "first on ties")
_LARGE = Case((np.array([[1e3, 1e3 + 1, -1e3]], np.float32),), {"axes": [1]}, "far from 0")


def _declare(
    name: str, infer: Infer, cpu: Cpu, lower: Lower,
    cases: Sequence[Case], tolerance: Tolerance, cost: CostRule,
    traits: Traits = NO_TRAITS,
) -> None:  # fmt: skip
    kernel = base_kernel(lower, "none" if name == "softmax" else "reads")
    traits = replace(traits, rows=exclude_axes("axes"))
    define(OpSpec(name, infer, cpu, kernel, cost, cases, tolerance, traits=traits))


_scalar, _logical = partial(_infer, "scalar"), partial(_infer, "logical")
_MOVES, _ADDS = Traits(transposed_axes), Traits(transposed_axes, is_sum=True)
_one, _read_twice, _read_thrice = _cost(1, 1), _cost(4, 2), _cost(20, 3)

_declare(
    "sum_reduce", _scalar, partial(_cpu_sum, False), partial(_lower, Reduction("SUM")),
    _cases("scalar", True, normalize=False) + _cases("scalar", False, normalize=True), SUM, _one,
    _ADDS,
)  # fmt: skip
_declare(
    "mean_reduce", _scalar, partial(_cpu_sum, True), partial(_lower, Reduction("SUM", mean=True)),
    _cases("scalar", False), SUM, _one,
    _ADDS,
)  # fmt: skip
_declare(
    "prod_reduce", _scalar, partial(_cpu_fold, np.prod, dtype=np.float64),
    partial(_lower, Reduction("PROD")),
    [Case((Random(shape, 0.9, 1.1),), {"axes": axes}, note)
     for shape, axes, note in (*_SHAPES, _NOTHING)], PRODUCT, _one,
)  # fmt: skip
_declare(
    "min_reduce", _scalar, partial(_cpu_fold, np.min, initial=np.inf),
    partial(_lower, Reduction("MIN")), _cases("scalar", True), EXACT, _one, _MOVES,
)  # fmt: skip
_declare(
    "max_reduce", _scalar, partial(_cpu_fold, np.max, initial=-np.inf),
    partial(_lower, Reduction("MAX")), _cases("scalar", True), EXACT, _one, _MOVES,
)  # fmt: skip
_declare(
    "argmin_reduce", _infer_index, partial(_cpu_index, np.argmin),
    partial(_lower, Reduction("MIN", index=True)), [*_cases("scalar", False), _TIES], EXACT, _one,
)  # fmt: skip
_declare(
    "argmax_reduce", _infer_index, partial(_cpu_index, np.argmax),
    partial(_lower, Reduction("MAX", index=True)), [*_cases("scalar", False), _TIES], EXACT, _one,
)  # fmt: skip
_declare(
    "any_reduce", _logical, partial(_cpu_fold, np.any), partial(_lower, Reduction("ANY")),
    _cases("logical", True), EXACT, _one, _MOVES,
)  # fmt: skip
_declare(
    "all_reduce", _logical, partial(_cpu_fold, np.all), partial(_lower, Reduction("ALL")),
    _cases("logical", True), EXACT, _one, _MOVES,
)  # fmt: skip
_declare(
    "softmax", _infer_softmax, _cpu_softmax, _lower_softmax,
    [*_cases("scalar", True), _LARGE], SOFTMAX, _read_thrice,
)  # fmt: skip
_declare(
    "moments", _infer_moments, _cpu_moments, _lower_moments, _cases("scalar", False), SUM,
    _read_twice,
)  # fmt: skip
