"""The operators with a sliding window: box, the pools, sample, and the reverse debox and desample.

Windows have an extent for every dimension, including batch and channels. The zeros of the
default border 'constant' take part, also in a maximum; exporters that exclude them write
'ignore'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, AttrValue, Fact
from cml_engine.ops.common.window import reverse_window_of, under_windows, window_of
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    EXACT,
    SUMMATION,
    Case,
    Cost,
    Cpu,
    Dispatch,
    Infer,
    OperandRows,
    OpSpec,
    Prepare,
    Random,
    RowMapping,
    Tolerance,
    Traits,
)
from cml_engine.ops.elementwise.kernels.elementwise import operands
from cml_engine.ops.pooling import cpu as pool_cpu
from cml_engine.ops.pooling.pool import Layouts, Sliding, pool_kernel, slide

# ---------------------------------------------------------------- shapes


def _wide_to_narrow(dtypes: Sequence[str], attrs: Attrs, x: Fact) -> list[Fact]:
    shape = tuple(axis.narrow for axis in window_of(attrs, x.shape))
    return [Fact(dtype, shape) for dtype in dtypes]


def _infer_sample(attrs: Attrs, x: Fact, index: Fact) -> Fact:
    result = _wide_to_narrow(("scalar",), attrs, x)[0]
    _want_index(index, result.shape, "one for each window")
    return result


def _infer_debox(attrs: Attrs, x: Fact) -> Fact:
    return Fact("scalar", tuple(axis.wide for axis in reverse_window_of(attrs, x.shape)))


def _infer_desample(attrs: Attrs, x: Fact, index: Fact) -> Fact:
    _want_index(index, x.shape, "one for each input value")
    return _infer_debox(attrs, x)


def _want_index(index: Fact, shape: tuple[int, ...], reason: str) -> None:
    if index.shape != shape:
        raise ShapeError(
            f"index has shape {list(index.shape)}, wanted {list(shape)}: {reason}; it comes from "
            "argmax_pool with the same size, padding, stride and dilation"
        )


def _rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping:
    """Returns the row mapping of pooling: the rows under the windows, with adapted padding."""
    window = window_of(attrs, facts[0].shape)

    def need(begin: int, end: int) -> OperandRows:
        span, around = under_windows(window[axis], attrs["border"], begin, end)
        padding = [around if i == axis else (a.before, a.after) for i, a in enumerate(window)]
        return OperandRows((span,), attrs.with_(padding=padding), (begin, end))

    return RowMapping(axis, need)


# ---------------------------------------------------------------- GPU


def _lower(sliding: Sliding, op: Lowering) -> Iterator[Dispatch]:
    inputs, outs = operands(op, op.in_names), operands(op, op.out_names)
    resolve = reverse_window_of if sliding.reverse else window_of
    sliding = replace(sliding, mean=sliding.mean or bool(op.attrs.get("normalize")))
    yield from slide(op, sliding, resolve(op.attrs, inputs[0].fact.shape), inputs, outs)


def _cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    """Returns the cost of one FLOP for every tap of every window.

    Every tensor is moved once.
    """
    taps = prod(attrs["size"])
    windows = min(outputs[0].size, inputs[0].size) if "output_shape" in attrs else outputs[0].size
    return Cost.moving(taps * windows, inputs, outputs)


# ---------------------------------------------------------------- tests


def _attrs(size: Sequence[int], **changes: AttrValue) -> dict[str, AttrValue]:
    unset: dict[str, AttrValue] = {"padding": [], "stride": [], "dilation": []}
    return {"size": list(size), "border": "constant", **unset, **changes}


_KEEP = (0, 0)
#: shapes, attributes and notes of the test cases
_WINDOWS: tuple[tuple[tuple[int, ...], dict[str, AttrValue], str], ...] = (
    ((1, 3, 7, 6), _attrs((1, 1, 2, 2), stride=[1, 1, 2, 2]), "auto padding, odd extent"),
    ((2, 8, 6, 5), _attrs((1, 1, 3, 3), border="ignore"), "auto padding, ignore"),
    ((2, 3, 5, 5), _attrs((1, 1, 3, 2), border="replicate", padding=[_KEEP, _KEEP, (2, 1), (0, 3)]),
     "replicate"),
    ((1, 2, 4, 5), _attrs((1, 1, 3, 3), border="reflect", padding=[_KEEP, _KEEP, (5, 4), (3, 2)]),
     "reflected more than once"),
    ((1, 2, 4, 3), _attrs((1, 1, 2, 3), border="reflect-even",
                          padding=[_KEEP, _KEEP, (3, 4), (4, 1)], dilation=[1, 1, 2, 1]),
     "reflect-even, dilation"),
    ((1, 2, 9, 8), _attrs((1, 1, 2, 2), stride=[1, 1, 3, 2], dilation=[1, 1, 2, 3],
                          padding=[_KEEP, _KEEP, (-1, 2), (1, -2)]), "negative padding"),
    ((2, 7, 3, 4), _attrs((1, 5, 1, 1)), "over channels"),
    ((3, 4, 5, 2), _attrs((2, 3, 2, 1), stride=[1, 2, 1, 2], border="ignore"), "over all"),
    ((2, 2, 3, 4, 3), _attrs((1, 1, 2, 3, 2)), "rank 5"),
    ((1, 70, 16, 17), _attrs((1, 1, 16, 17), padding=[_KEEP] * 4), "global: a reduction"),
    ((1, 2, 1, 2, 1, 2, 1, 3), _attrs((1, 2, 1, 1, 1, 2, 1, 2)), "rank 8"),
    ((2, 3, 9), _attrs((1, 1, 3), stride=[1, 1, 2]), "one spatial dimension"),
    ((5,), _attrs((3,)), "rank 1"),
    ((), _attrs(()), "rank 0"),
    ((2, 0, 4, 4), _attrs((1, 1, 2, 2)), "no channels"),
    ((1, 1, 1, 1), _attrs((1, 1, 3, 3), padding=[_KEEP, _KEEP, (3, 3), (3, 3)], border="ignore"),
     "windows without input"),
)  # fmt: skip
#: shapes of the narrow side, attributes and notes of the test cases of debox and desample
_REVERSE_WINDOWS: tuple[tuple[tuple[int, ...], dict[str, AttrValue], str], ...] = (
    ((1, 3, 3, 4), _attrs((1, 1, 2, 2), stride=[1, 1, 2, 2]), "doubling"),
    ((2, 2, 4, 3), _attrs((1, 1, 3, 3)), "overlapping"),
    ((1, 2, 3, 3), _attrs((1, 1, 3, 2), stride=[1, 1, 3, 2], dilation=[1, 1, 2, 3],
                          padding=[_KEEP, _KEEP, (1, 2), (-1, -2)], border="ignore"),
     "dilation, negative padding"),
    ((1, 2, 3, 4), _attrs((1, 1, 2, 2), stride=[1, 1, 2, 2], output_shape=[1, 2, 5, 8]),
     "stated shape"),
    ((2, 3, 2, 2), _attrs((2, 3, 1, 2)), "over batch and channels"),
    ((2, 2, 3, 2, 3), _attrs((1, 1, 2, 3, 2), stride=[1, 1, 2, 1, 3]), "rank 5"),
    ((2, 8, 2, 3), _attrs((1, 1, 2, 1), stride=[1, 1, 2, 1]), "even channels"),
    ((4,), _attrs((3,), stride=[2]), "rank 1"),
    ((), _attrs(()), "rank 0"),
    ((1, 0, 2, 2), _attrs((1, 1, 2, 2)), "no channels"),
)  # fmt: skip


def _cases(**more: AttrValue) -> list[Case]:
    return [Case((Random(s),), {**a, **more}, note) for s, a, note in _WINDOWS]


def _reverse_attrs(attrs: dict[str, AttrValue], **more: AttrValue) -> dict[str, AttrValue]:
    return {"output_shape": [], **attrs, **more}


def _debox_cases(normalize: bool) -> list[Case]:
    return [
        Case((Random(shape),), _reverse_attrs(attrs, normalize=normalize), note)
        for shape, attrs, note in _REVERSE_WINDOWS
    ]


def _sample_case(shape: tuple[int, ...], attrs: dict[str, AttrValue], note: str) -> Case:
    narrow = _wide_to_narrow(("integer",), Attrs(attrs), Fact("scalar", shape))[0]
    return Case((Random(shape), _any_tap(narrow.shape, attrs)), attrs, note)


def _desample_case(shape: tuple[int, ...], attrs: dict[str, AttrValue], note: str) -> Case:
    return Case((Random(shape), _any_tap(shape, attrs)), _reverse_attrs(attrs), note)


def _any_tap(shape: tuple[int, ...], attrs: dict[str, AttrValue]) -> Random:
    """Returns a test input of random indices of taps, including one past the window.

    That one has no effect.
    """
    return Random(shape, 0, prod(Attrs(attrs).size) + 1, "integer")


# ---------------------------------------------------------------- declarations


def _declare(
    name: str, infer: Infer, cpu: Cpu, sliding: Sliding,
    cases: Sequence[Case], tolerance: Tolerance, layouts: Layouts = "same",
    prepare: Prepare | None = None,
) -> None:  # fmt: skip
    kernel = pool_kernel(partial(_lower, sliding), layouts)
    is_sum = sliding.kind == "SUM" and not sliding.reverse
    rows = None if sliding.reverse or sliding.kind == "SAMPLE" else _rows
    traits = Traits(is_sum=is_sum, rows=rows)
    spec = OpSpec(name, infer, cpu, kernel, _cost, cases, tolerance, prepare=prepare, traits=traits)
    define(spec)


_value = partial(_wide_to_narrow, ("scalar",))
_index = partial(_wide_to_narrow, ("integer",))
_both = partial(_wide_to_narrow, ("scalar", "integer"))

_declare(
    "box", _value, pool_cpu.box, Sliding("SUM"),
    _cases(normalize=False) + _cases(normalize=True)[:8], SUMMATION,
)  # fmt: skip
_declare(
    "debox", _infer_debox, pool_cpu.debox, Sliding("SUM", reverse=True),
    _debox_cases(False) + _debox_cases(True)[:4], SUMMATION,
)  # fmt: skip
_declare(
    "avg_pool", _value, pool_cpu.avg_pool, Sliding("SUM", mean=True), _cases(), SUMMATION,
)  # fmt: skip
_declare(
    "max_pool", _value, pool_cpu.max_pool, Sliding("MAX"), _cases(), EXACT,
    prepare=pool_cpu.prepare_max_pool,
)  # fmt: skip
_TIES = Case(
    (np.zeros((1, 1, 3, 3), np.float32),), _attrs((1, 1, 2, 2)), "equals, the border among them"
)
_declare(
    "argmax_pool", _index, pool_cpu.argmax_pool, Sliding("INDEX"), [*_cases(), _TIES], EXACT,
    "plain",
)  # fmt: skip
_declare(
    "max_pool_with_index", _both, pool_cpu.max_with_index, Sliding("BOTH"), [*_cases(), _TIES],
    EXACT, "plain",
)  # fmt: skip
_declare(
    "sample", _infer_sample, pool_cpu.sample, Sliding("SAMPLE"),
    [_sample_case(*window) for window in _WINDOWS], EXACT, "plain",
)  # fmt: skip
_declare(
    "desample", _infer_desample, pool_cpu.desample, Sliding("DESAMPLE", reverse=True),
    [_desample_case(*window) for window in _REVERSE_WINDOWS], SUMMATION, "plain",
)  # fmt: skip
