"""Declares an elementwise operator by its HLSL and its NumPy function.

Shapes, broadcasting, the kernel variant, its place in chains and epilogues, tests and cost follow
from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact
from cml_engine.ops.common.shapes import broadcast_shapes, left_views
from cml_engine.ops.declaration.expression import Formula
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    NO_TRAITS,
    ROUNDING,
    Case,
    Kernel,
    OpSpec,
    Random,
    Tolerance,
    Traits,
    elementwise_cost,
)
from cml_engine.ops.elementwise.kernels.elementwise import kernel_of

#: the declarations of this package's elementwise operators by name
ELEMENTWISE: dict[str, OpSpec] = {}


# ---------------------------------------------------------------- shapes and types


def infer(row: Formula, attrs: Attrs, *facts: Fact) -> Fact:
    result = row.result
    if result == "?":
        result = facts[row.types.index("?")].dtype
    return Fact(result, broadcast_shapes(*(f.shape for f in facts)))


def cpu(row: Formula, attrs: Attrs, *arrays: Array) -> Array:
    views = left_views(*arrays)
    dtype = views[-1].dtype if row.result == "?" else NUMPY_DTYPE[row.result]
    # overflow to infinity and NaN outside a domain are results here, as on the GPU
    with np.errstate(all="ignore"):
        result = row.numpy(*views, *(np.float32(v) for v in row.values(attrs)))
    return np.asarray(result, dtype)


# ---------------------------------------------------------------- tests

_SHAPES: Mapping[int, tuple[tuple[tuple[int, ...], ...], ...]] = {
    1: (((2, 7, 61),), ((),), ((1031,),), ((1, 8, 3, 4),), ((2, 1, 3, 1, 2, 2),), ((3, 0, 2),)),
    2: (
        ((2, 3, 14, 15), (2, 3)),
        ((1, 8), (2, 8, 4, 4)),
        ((3, 1, 4), (1, 5, 1)),
        ((), (7, 3)),
        ((2, 4, 8), (2, 4, 8)),
        ((1, 128, 1, 1), (1, 128, 1)),
        ((2, 1, 3, 1, 2, 2), (1, 2, 1, 4)),
        ((0, 3), (1, 3, 2)),
        ((), ()),
    ),
    3: (
        ((2, 7, 61), (2, 7, 61), (2, 7, 61)),
        ((2,), (2, 3), (1, 3, 4)),
        ((), (4, 4), ()),
        ((1, 1, 3), (2, 1, 1, 5, 1, 2), (2, 4)),
        ((3, 0), (3,), ()),
        ((), (), ()),
    ),
    5: (
        ((2, 8, 12, 11), (1, 8), (1, 8), (1, 8), (1, 8)),
        ((2, 3, 5, 5), (1, 3), (1, 3, 1, 1), (), (1, 3)),
        ((1, 3, 2, 1, 3, 2), (1, 3), (), (1, 3), (1, 3)),
        ((2, 0, 3), (), (), (), ()),
        ((), (), (), (), ()),
    ),
}


def cases_of(
    formula: Formula,
    attrs: Mapping[str, Sequence[float]],
    low: float = -3.0,
    high: float = 3.0,
    brief: bool = True,
) -> list[Case]:
    """Returns test cases of random values, with broadcasting; see :func:`declare`."""
    shapes_of = _SHAPES[formula.arity]
    return [
        Case(
            tuple(
                Random(shape, low, high, "scalar" if dtype == "?" else dtype)
                for shape, dtype in zip(shapes, formula.types, strict=True)
            ),
            {name: values[i % len(values)] for name, values in attrs.items()},
        )
        for i, shapes in enumerate([shapes_of[0], shapes_of[-1]] if brief else shapes_of)
    ]


def declare(
    name: str,
    hlsl: str,
    numpy: Callable[..., object],
    types: tuple[str, ...] = ("scalar",),
    result: str = "scalar",
    *,
    flops: float = 1,
    tolerance: Tolerance = ROUNDING,
    attrs: Mapping[str, Sequence[float]] | None = None,
    low: float = -3.0,
    high: float = 3.0,
    extra: Sequence[tuple[Array, ...]] = (),
    brief: bool = False,
    cases: Sequence[Case] = (),
    kernel: Kernel | None = None,
    traits: Traits = NO_TRAITS,
    custom: bool = False,
    fusable: bool = False,
    commutative: bool = False,
    in_place: Callable[..., bool] | None = None,
) -> None:
    """Registers an elementwise operator of this package.

    Parameters
    ----------
    name, hlsl, numpy, types, result : its name and its :class:`Formula`.
    fusable, commutative, in_place : as in :class:`Formula`.
    flops, tolerance, traits, custom, kernel : as in :class:`OpSpec`.
    attrs : attributes in the order of ``numpy``'s arguments, each with test values.
    low, high : the range of the operands' test values.
    extra : further test inputs: arrays of special values.
    brief : test a few shapes only, because all operators share the code that iterates over them.
    cases : test cases instead of those with random values.
    """
    attrs = attrs or {}
    formula = Formula(hlsl, numpy, types, result, tuple(attrs), fusable, commutative, in_place)
    cases = cases or cases_of(formula, attrs, low, high, brief)
    first = {attr: values[0] for attr, values in attrs.items() if values}
    ELEMENTWISE[name] = define(
        OpSpec(
            name,
            infer=partial(infer, formula),
            cpu=partial(cpu, formula),
            kernel=kernel or kernel_of(formula),
            formula=formula,
            cost=elementwise_cost(flops),
            cases=[*cases, *(Case(arrays, first, "special values") for arrays in extra)],
            tolerance=tolerance,
            custom=custom,
            traits=traits,
        )
    )
