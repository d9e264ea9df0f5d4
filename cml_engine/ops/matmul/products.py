"""Matrix products and convolutions of integers.

Sums of integers have 32 bits and wrap around, whatever their order. Zero points are subtracted
before, by ``int_sub``, so that zero padding is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, AttrValue, Fact, fact_from
from cml_engine.ops.common.shapes import MAX_RANK, broadcast_strides, common_batch
from cml_engine.ops.common.window import GEOMETRY, geometry
from cml_engine.ops.conv.cpu import exact_sums
from cml_engine.ops.conv.shapes import ConvShape, conv_shape
from cml_engine.ops.declaration.lowering import LOOP_ITERATIONS, MAX_ITERATIONS, Lowering, for_each
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    Case,
    Defines,
    Dispatch,
    OpSpec,
    Random,
    engine_kernel,
    moving_cost,
)

_kernel = partial(engine_kernel, "matmul/products.hlsl")
_WORDS = (-(2**31), 2**31 - 1, "integer")
_INTEGERS = {f"T{i}_TYPE": "int" for i in range(3)}


#: one sum per result, as long as the last axis of the first input
_row_cost = moving_cost(lambda attrs, inputs, outputs: 2 * outputs[0].size * inputs[0].shape[-1])


def _parts(op: Lowering, count: int, iterations: int, params: Mapping[str, AttrValue],
           defines: Defines) -> Iterator[Dispatch]:  # fmt: skip
    """Yields dispatches with a thread per result, as many as its sum of ``count`` parts needs.

    Each part takes ``iterations`` loop iterations; later dispatches add to the earlier ones'
    results.
    """
    size = op.outputs[0].size
    if size == 0:
        return
    step = (MAX_ITERATIONS - 64) // iterations
    if step < 1:
        raise op.refuse(f"one result has parts of {iterations} products each, wanted less")
    for begin in range(0, max(count, 1), step):
        part = {"begin": begin, "end": min(begin + step, count), **params}
        yield for_each(op, size, part, defines)


def _wrapped(values: Array) -> Array:
    """Converts integers below 2^53, in floats or int64, to int32; larger ones wrap around."""
    return values.astype(np.int64).astype(np.int32)


def _is_small(a: Array, b: Array, terms: int) -> bool:
    """Returns True if float64 represents every sum of ``terms`` products of the arrays exactly."""
    largest = [float(np.abs(x.astype(np.float64)).max(initial=0)) for x in (a, b)]
    return prod(largest) * terms < 2.0**53


# --- int_matmul ---------------------------------------------------------------------------------


def _matmul_infer(attrs: Attrs, a: Fact, b: Fact) -> Fact:
    if a.rank != b.rank or a.rank < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"int_matmul of {a} and {b}, wanted [… , M, K] and [… , K, N], equal ranks"
        )
    return Fact("integer", (*common_batch("int_matmul", a, b), a.shape[-2], b.shape[-1]))


def _matmul_cpu(attrs: Attrs, a: Array, b: Array) -> Array:
    if _is_small(a, b, a.shape[-1]):
        return _wrapped(a.astype(np.float64) @ b.astype(np.float64))
    return np.asarray(a @ b)


def _matmul_lower(op: Lowering) -> Iterator[Dispatch]:
    (a, b), (y,) = op.inputs, op.outputs
    params = {
        "rows": y.shape[-2],
        "columns": y.shape[-1],
        "inner": a.shape[-1],
        "rank": y.rank - 2,
        "extent": y.shape[:-2] or [1],
        "a_stride": broadcast_strides(a.shape)[:-2] or [0],
        "b_stride": broadcast_strides(b.shape)[:-2] or [0],
    }
    yield from _parts(op, a.shape[-1], 1, params, {"MATMUL": 1, **_INTEGERS})


def _bytes(*shape: int) -> Random:
    return Random(shape, -128, 256, "integer")


define(
    OpSpec(
        "int_matmul",
        infer=_matmul_infer,
        cpu=_matmul_cpu,
        kernel=_kernel(
            "n:u begin:u end:u rows:u columns:u inner:u rank:u "
            + " ".join(f"{name}:u{MAX_RANK - 2}" for name in ("extent", "a_stride", "b_stride")),
            lower=_matmul_lower,
        ),
        cost=_row_cost,
        tolerance=EXACT,
        cases=[
            Case((_bytes(5, 7), _bytes(7, 9))),
            Case((_bytes(2, 1, 3, 300), _bytes(1, 3, 300, 5)), note="batches that meet"),
            Case((Random((3, 4), *_WORDS), Random((4, 3), *_WORDS)), note="wraps"),
            Case((_bytes(1, 1), _bytes(1, 1)), note="extent 1"),
            Case((_bytes(2, 0), _bytes(0, 3)), note="sums of nothing"),
            Case((_bytes(0, 4), _bytes(4, 3)), note="no rows"),
        ],
    )
)


# --- int_conv -----------------------------------------------------------------------------------


def _shape(attrs: Attrs, x: Fact, filter: Fact) -> ConvShape:
    """Returns the convolution shape of integer tensors, with a border of zeros."""
    return conv_shape(attrs.with_(border="constant"), x, filter)


def _conv_infer(attrs: Attrs, x: Fact, filter: Fact) -> Fact:
    shape = _shape(attrs, x, filter)
    return Fact("integer", (shape.batch, shape.out_channels, *shape.narrow))


def _conv_cpu(attrs: Attrs, x: Array, filter: Array) -> Array:
    small = _is_small(x, filter, prod(filter.shape[1:]))
    shape = _shape(attrs, fact_from(x), fact_from(filter))
    return _wrapped(exact_sums(shape, x, filter, np.float64 if small else np.int32))


def _conv_lower(op: Lowering) -> Iterator[Dispatch]:
    shape = _shape(op.attrs, *op.inputs)
    window = geometry(shape.axes)
    params: dict[str, AttrValue] = {
        "channels": shape.in_channels,
        "group_in": shape.group_in,
        "group_out": shape.group_out,
        "out_channels": shape.out_channels,
        **window,
    }
    across, down, deep = window["taps"]
    iterations = ((across + LOOP_ITERATIONS) * down + LOOP_ITERATIONS) * deep + LOOP_ITERATIONS
    yield from _parts(op, shape.group_in, iterations, params, {"CONV": 1, **_INTEGERS})


def _conv_cases() -> Iterator[Case]:
    plain: dict[str, AttrValue] = {"padding": [], "stride": [], "dilation": [], "groups": 1}
    yield Case((_bytes(2, 3, 7, 9), _bytes(5, 3, 3, 3)), plain, "same extents")
    yield Case((_bytes(1, 4, 8, 7), _bytes(6, 2, 3, 2)), {
        "padding": [(0, 1), (2, 0)], "stride": [2, 1], "dilation": [1, 2], "groups": 2,
    }, "groups, stride, dilation")  # fmt: skip
    yield Case((_bytes(1, 3, 5), _bytes(6, 1, 3)), {**plain, "groups": 0}, "depthwise, a line")
    yield Case((_bytes(1, 2, 3, 4, 5), _bytes(2, 2, 2, 2, 2)), plain, "a volume")
    yield Case((_bytes(1, 2, 5, 5), _bytes(1, 2, 1, 1)),
               {**plain, "padding": [(-1, 0), (0, -2)]}, "cropped")  # fmt: skip
    yield Case((Random((1, 4, 6), *_WORDS), Random((2, 4, 3), *_WORDS)), plain, "wraps")
    yield Case((_bytes(1, 1, 1), _bytes(1, 1, 1)), plain, "extent 1")
    yield Case((_bytes(0, 2, 4), _bytes(3, 2, 3)), plain, "no batch")


define(
    OpSpec(
        "int_conv",
        infer=_conv_infer,
        cpu=_conv_cpu,
        kernel=_kernel(
            "n:u begin:u end:u channels:u group_in:u group_out:u out_channels:u " + GEOMETRY,
            lower=_conv_lower,
        ),
        cost=moving_cost(
            lambda attrs, inputs, outputs: 2 * outputs[0].size * prod(inputs[1].shape[1:])
        ),
        tolerance=EXACT,
        cases=list(_conv_cases()),
    )
)
