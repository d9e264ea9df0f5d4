"""The operators ``cast``, ``to_bits`` and ``from_bits``.

``cast`` converts values to another type; ``to_bits`` and ``from_bits`` keep the 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact
from cml_engine.ir.layout import HLSL_TYPE
from cml_engine.ops.common.shapes import check_word
from cml_engine.ops.declaration.lowering import Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Defines,
    Dispatch,
    OpSpec,
    Random,
    elementwise_cost,
    engine_kernel,
    integers,
    truth_values,
)

_ITEMS = 4


def _cast_infer(attrs: Attrs, x: Fact) -> Fact:
    check_word("cast to", attrs.dtype, NUMPY_DTYPE)
    return Fact(attrs.dtype, x.shape)


def _cast_cpu(attrs: Attrs, x: Array) -> Array:
    """Converts an array to the type ``attrs.dtype``.

    From floats to integers, values are truncated towards zero and clamped to the range, and NaN
    becomes 0. C leaves out-of-range values undefined, and processors differ.
    """
    if attrs.dtype == "integer" and x.dtype.kind == "f":
        limit = np.iinfo(np.int32)
        return np.nan_to_num(x.astype(np.float64)).clip(limit.min, limit.max).astype(np.int32)
    return x.astype(NUMPY_DTYPE[attrs.dtype])


def _cast_lower(op: Lowering) -> Iterator[Dispatch]:
    (x,), (y,) = op.inputs, op.outputs
    conversion: Defines = {}
    if y.dtype == "logical":
        conversion = {"FLOAT_TO_LOGICAL" if x.dtype == "scalar" else "TO_LOGICAL": 1}
    elif (x.dtype, y.dtype) == ("scalar", "integer"):
        conversion = {"FLOAT_TO_INT": 1}
    yield _moved(op, f"{HLSL_TYPE[x.dtype]} {HLSL_TYPE[y.dtype]}", conversion)


def _moved(op: Lowering, types: str, conversion: Mapping[str, int | str]) -> Dispatch:
    """Returns a dispatch that converts every element.

    ``types`` are the HLSL types of both tensors.
    """
    defines = {"ITEMS": _ITEMS, **conversion}
    return for_each(op, op.outputs[0].size, {}, defines, types=types, items=_ITEMS)


_CAST = engine_kernel("indexing/cast.hlsl", "n:u", lower=_cast_lower)
_ODD = (np.inf, -np.inf, np.nan)
_EDGES = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.9, -1.9, 2.0**31 - 128, 2.0**31, -(2.0**31), 3e9, -3e9, 1e-30, *_ODD],
    np.float32,
)

define(
    OpSpec(
        "cast",
        infer=_cast_infer,
        cpu=_cast_cpu,
        kernel=_CAST,
        cost=elementwise_cost(1),
        tolerance=EXACT,
        cases=[
            Case((Random((3, 700), -99, 99),), {"dtype": "integer"}, "towards zero"),
            Case((_EDGES,), {"dtype": "integer"}, "what an integer cannot hold"),
            Case((_EDGES,), {"dtype": "logical"}, "is it not 0"),
            Case((integers(5, 7, below=3),), {"dtype": "scalar"}),
            Case((integers(5, 7, below=3),), {"dtype": "logical"}),
            Case((truth_values(1),), {"dtype": "scalar"}),
            Case((truth_values(65),), {"dtype": "integer"}),
            Case(((2, 0),), {"dtype": "integer"}, "empty"),
            Case(((),), {"dtype": "scalar"}, "rank 0, same dtype"),
            Case((Random((1, 2, 1, 2, 1, 2, 1, 3), -5, 5),), {"dtype": "integer"}, "rank 8"),
        ],
    )
)


def _bits_cpu(target: str, attrs: Attrs, x: Array) -> Array:
    return np.array(x, order="C").view(NUMPY_DTYPE[target])


def _bits_lower(op: Lowering) -> Iterator[Dispatch]:
    """Yields a dispatch that copies 32-bit words as integers, not through floats."""
    yield _moved(op, "uint uint", {})


for _name, _source, _target in (
    ("to_bits", "scalar", "integer"),
    ("from_bits", "integer", "scalar"),
):
    _patterns = np.array([0x7FC00001, 0x80000000, 1, 0x7FC0BEEF, 0x3F800000], np.uint32)
    define(
        OpSpec(
            _name,
            infer=lambda attrs, x, _target=_target: Fact(_target, x.shape),
            cpu=partial(_bits_cpu, _target),
            kernel=engine_kernel("indexing/cast.hlsl", "n:u", lower=_bits_lower),
            cost=elementwise_cost(0),
            tolerance=EXACT,
            cases=[
                Case((Random((3, 700), -99, 99, _source),)),
                Case((_patterns.view(NUMPY_DTYPE[_source]),), note="NaN, -0, a denormal"),
                Case((Random((2, 0), dtype=_source),), note="empty"),
            ],
        )
    )
