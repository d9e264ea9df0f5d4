"""The declarations of the operators ``matmul`` and ``linear``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.blas import multiply
from cml_engine.ops.common.shapes import common_batch
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    Case,
    Cost,
    OpSpec,
    Random,
    Tolerance,
    Traits,
)
from cml_engine.ops.matmul.kernels.matmul import (
    KERNEL,
    lower_linear,
    lower_matmul,
    lower_parts,
    takes_packed_weights,
)

_SUMS = Tolerance(
    1e-5,
    1e-4,
    "K products summed in another order: a running sum of 5000 products of size 1 reaches 50, and "
    "each addition rounds by 2^-25 of it; such roundings add up to 5e-5",
)


def _matmul_infer(attrs: Attrs, a: Fact, b: Fact) -> Fact:
    if a.rank != b.rank or a.rank < 2:
        raise ShapeError(
            f"matmul of {a} and {b}, wanted equal ranks of 2 or more; unsqueeze the smaller one"
        )
    m, k = a.shape[-2:][::-1] if attrs.transposeA else a.shape[-2:]
    k_of_b, n = b.shape[-2:][::-1] if attrs.transposeB else b.shape[-2:]
    if k != k_of_b:
        raise ShapeError(
            f"matmul of {a} and {b} (transposeA={attrs.transposeA}, transposeB="
            f"{attrs.transposeB}): A has {k} columns but B has {k_of_b} rows; transpose one of them"
        )
    return Fact("scalar", (*common_batch("matmul", a, b), m, n))


def _heads_infer(attrs: Attrs, a: Fact, b: Fact) -> Fact:
    *batch, rows, columns = _matmul_infer(attrs, a, b).shape
    if attrs.heads:
        return Fact("scalar", (*batch, attrs.heads, rows, columns // attrs.heads))
    return Fact("scalar", (*batch[:-1], rows, batch[-1] * columns))


def _parts_infer(attrs: Attrs, a: Fact, b: Fact, bias: Fact, scale: Fact) -> list[Fact]:
    *batch, rows, columns = _matmul_infer(attrs, a, b).shape
    heads = [attrs.heads] if attrs.heads else []
    width = columns // attrs.parts // max(attrs.heads, 1)
    return [Fact("scalar", (*batch, *heads, rows, width))] * attrs.parts


def _linear_infer(attrs: Attrs, x: Fact, weights: Fact, bias: Fact) -> Fact:
    if x.rank != 2 or weights.rank != 2:
        raise ShapeError(
            f"linear of {x} with filter {weights}, wanted rank 2 for both; reshape to [batch, -1]"
        )
    if x.shape[1] != weights.shape[1]:
        raise ShapeError(
            f"linear of {x} with filter {weights}: {x.shape[1]} channels in, but the filter takes "
            f"{weights.shape[1]}; a filter is [channels out, channels in]"
        )
    out = weights.shape[0]
    # [out] is not NNEF (it would be the batch axis), but exporters write it and mean [1, out]
    if bias.shape not in ((), (1,), (1, 1), (1, out), (out,)):
        raise ShapeError(f"linear bias {bias}, wanted [1,{out}] or a single number")
    return Fact("scalar", (x.shape[0], out))


def _matmul_cpu(attrs: Attrs, a: Array, b: Array) -> Array:
    a = a.swapaxes(-1, -2) if attrs.transposeA else a
    b = b.swapaxes(-1, -2) if attrs.transposeB else b
    return multiply(a, b)


def _heads_cpu(attrs: Attrs, a: Array, b: Array) -> Array:
    c = _matmul_cpu(attrs, a, b)
    if attrs.heads:
        *rest, columns = c.shape
        return c.reshape(*rest, attrs.heads, columns // attrs.heads).swapaxes(-2, -3)
    *batch, heads, rows, columns = c.shape
    return c.swapaxes(-2, -3).reshape(*batch, rows, heads * columns)


def _parts_cpu(attrs: Attrs, a: Array, b: Array, bias: Array, scale: Array) -> list[Array]:
    c = (_matmul_cpu(attrs, a, b) + bias) * scale
    parts = np.split(c, attrs.parts, -1)
    if not attrs.heads:
        return parts
    split = (*c.shape[:-1], attrs.heads, -1)
    return [part.reshape(split).swapaxes(-2, -3) for part in parts]


def _linear_cpu(attrs: Attrs, x: Array, weights: Array, bias: Array) -> Array:
    return np.asarray(multiply(x, weights.T) + bias.reshape(-1))


def _cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    a = inputs[0].shape
    inner = a[-2] if attrs.get("transposeA", False) else a[-1]
    flops = outputs[0].size * (2 * inner + len(inputs) - 2)
    return Cost.moving(flops, inputs, outputs)


def _parts_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    flops = sum(fact.size for fact in outputs) * 2 * (inputs[0].shape[-1] + 1)
    return Cost.moving(flops, inputs, outputs)


def _flip(a: bool, b: bool) -> dict[str, bool]:
    return {"transposeA": a, "transposeB": b}


_PLAIN = _flip(False, False)


def _inner_axis_of_b(attrs: Attrs, shape: tuple[int, ...]) -> int:
    return len(shape) - (1 if attrs["transposeB"] else 2)


def _parts_case(
    a: tuple[int, ...], b: tuple[int, ...], parts: int, heads: int, note: str, linear: bool = False
) -> Case:
    is_flipped = a[-1] != b[-2]
    columns = b[-2] if is_flipped else b[-1]
    attrs = {**_flip(False, is_flipped), "parts": parts, "heads": heads, "linear": linear}
    return Case((a, b, (columns,), (columns,)), attrs, note)


def _scaled_rows(attrs: Attrs, facts: Sequence[Fact], weights: Array, scale: Array) -> Array:
    return weights * scale.reshape(-1, 1)


#: the kernel and the traits of ``matmul`` and ``matmul_heads``
_MATMUL_KERNEL = replace(KERNEL, lower=lower_matmul, epilogues="columns")
_MATMUL_TRAITS = Traits(
    summed_axis=_inner_axis_of_b, matrix_in_half=takes_packed_weights, is_sum=True
)
define(
    OpSpec(
        "matmul",
        infer=_matmul_infer,
        cpu=_matmul_cpu,
        kernel=_MATMUL_KERNEL,
        cost=_cost,
        tolerance=_SUMS,
        traits=_MATMUL_TRAITS,
        cases=[
            Case(((5, 7), (7, 3)), _PLAIN, "odd"),
            Case(((64, 64), (64, 64)), _PLAIN, "aligned"),
            Case(((65, 33), (33, 70)), _PLAIN, "odd tiles"),
            Case(((33, 65), (33, 70)), _flip(True, False)),
            Case(((65, 36), (70, 36)), _flip(False, True)),
            Case(((33, 65), (70, 33)), _flip(True, True)),
            Case(((36, 65), (70, 36)), _flip(True, True), "both transposed, k by fours"),
            Case(((2, 3, 17, 8), (2, 3, 8, 20)), _PLAIN, "batch"),
            Case(((2, 1, 17, 9), (1, 3, 18, 9)), _flip(False, True), "batch broadcast both ways"),
            Case(((1, 40, 12), (3, 12, 24)), _PLAIN, "one A for all"),
            Case(((2, 1, 2, 1, 2, 1, 9, 4), (1, 3, 1, 2, 1, 2, 4, 5)), _PLAIN, "rank 8"),
            Case(((1, 1), (1, 1)), _PLAIN, "extents of one"),
            Case(((1, 2050), (2050, 9)), _PLAIN, "vector, long sum"),
            Case(((3, 1028), (30, 1028)), _flip(False, True), "few rows, long sum"),
            Case(((70, 513), (513, 1)), _PLAIN, "one column, long sum"),
            Case(((17, 1024), (1024, 19)), _PLAIN, "small result, long sum"),
            Case(((66, 3000), (3000, 40)), _PLAIN, "a sum over several dispatches"),
            Case(((4, 0), (0, 5)), _PLAIN, "a sum of nothing is 0"),
            Case(((0, 4), (4, 5)), _PLAIN, "no rows"),
            Case(((2, 0, 3), (2, 3, 0)), _PLAIN, "no result"),
        ],
    )
)
# A pass puts it in the place of a matmul and attention's transpose of rows and heads: it stores
# `heads` of the result's columns before its rows, or with `heads` 0 those of the last batch axis in
# its columns.
define(
    OpSpec(
        "matmul_heads",
        infer=_heads_infer,
        cpu=_heads_cpu,
        kernel=_MATMUL_KERNEL,
        cost=_cost,
        tolerance=_SUMS,
        traits=_MATMUL_TRAITS,
        custom=True,
        cases=[
            Case(((2, 13, 20), (1, 20, 15)), {**_PLAIN, "heads": 3}, "columns as heads"),
            Case(((2, 3, 13, 20), (1, 3, 5, 20)), {**_flip(False, True), "heads": 0}, "joined"),
            Case(((9, 70), (70, 64)), {**_PLAIN, "heads": 2}, "heads of a matrix"),
            Case(((3, 1, 2050), (1, 2050, 6)), {**_PLAIN, "heads": 2}, "heads, long sum"),
            Case(((3, 1, 600), (3, 600, 6)), {**_PLAIN, "heads": 0}, "joined, vectors"),
            Case(((2, 66, 3000), (2, 3000, 40)), {**_PLAIN, "heads": 0}, "joined in dispatches"),
            Case(((1, 1), (1, 1)), {**_PLAIN, "heads": 1}, "extents of one"),
            Case(((5, 0), (0, 6)), {**_PLAIN, "heads": 6}, "a sum of nothing is 0"),
            Case(((2, 0, 3), (2, 3, 4)), {**_PLAIN, "heads": 0}, "no rows"),
        ],
    )
)
# A pass puts it in the place of matmuls of one A by constants, or of `linear`. The columns of
# (A B + bias) * scale are `parts` results of equal width; each stores `heads` of its columns before
# its rows, if not 0.
define(
    OpSpec(
        "matmul_parts",
        infer=_parts_infer,
        cpu=_parts_cpu,
        kernel=replace(KERNEL, lower=lower_parts),
        cost=_parts_cost,
        tolerance=_SUMS,
        traits=replace(_MATMUL_TRAITS, is_sum=False),
        custom=True,
        cases=[
            _parts_case((1, 9, 20), (1, 20, 30), 2, 5, "heads"),
            _parts_case((2, 7, 36), (1, 76, 36), 4, 0, "odd rows, B^T"),
            _parts_case((9, 70), (70, 2), 2, 1, "columns of one"),
            _parts_case((1, 600), (36, 600), 2, 3, "a row, vectors"),
            _parts_case((1, 5, 3000), (1, 3000, 420), 3, 2, "in dispatches"),
            _parts_case((5, 0), (0, 6), 2, 0, "a sum of nothing is the bias"),
            _parts_case((0, 8), (8, 6), 2, 0, "no rows"),
            _parts_case((7, 36), (75, 36), 3, 0, "linear", linear=True),
            _parts_case((1, 600), (36, 600), 2, 0, "linear, a row", linear=True),
        ],
    )
)
define(
    OpSpec(
        "linear",
        infer=_linear_infer,
        cpu=_linear_cpu,
        kernel=replace(KERNEL, lower=lower_linear, epilogues="channels"),
        cost=_cost,
        tolerance=_SUMS,
        traits=Traits(
            scaled_weights=_scaled_rows,
            summed_axis=lambda attrs, shape: 1,
            matrix_in_half=takes_packed_weights,
        ),
        cases=[
            Case(((1, 512), (10, 512), (1, 10)), {}, "a vector"),
            Case(((3, 515), (7, 515), (1, 7)), {}, "few rows, odd"),
            Case(((2, 5000), (6, 5000), ()), {}, "long sum, literal bias"),
            Case(((33, 12), (20, 12), (1, 20)), {}, "tiles"),
            Case(((65, 27), (66, 27), (66,)), {}, "odd tiles, bias as exporters write it"),
            Case(((5, 9), (1, 9), (1, 1)), {}, "one channel out"),
            Case(((5, 0), (4, 0), (1, 4)), {}, "a sum of nothing is the bias"),
            Case(((0, 8), (4, 8), (1, 4)), {}, "no rows"),
            Case((Random((128, 64), 0, 1), (64, 64), (1, 64)), {}, "aligned"),
        ],
    )
)
