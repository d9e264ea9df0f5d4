"""The declarations of ``conv`` and ``deconv``.

``shapes.py`` defines their shapes, ``cpu.py`` and ``kernels/`` compute them, and ``cases.py`` has
their tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cml_engine.ir.graph import Array, Attrs, Fact
from cml_engine.ops.common.window import onto_windows, under_windows
from cml_engine.ops.conv.cases import CONV_CASES, DECONV_CASES
from cml_engine.ops.conv.cpu import conv_cpu, deconv_cpu
from cml_engine.ops.conv.cpu_channels_last import prepare_conv
from cml_engine.ops.conv.kernels.conv import KERNEL
from cml_engine.ops.conv.node import CONV, Conv, takes_half
from cml_engine.ops.conv.shapes import conv_shape, deconv_shape
from cml_engine.ops.declaration.lowering import Lowering
from cml_engine.ops.declaration.registry import define
from cml_engine.ops.declaration.spec import (
    Cost,
    Dispatch,
    Kernel,
    OperandRows,
    OpSpec,
    RowMapping,
    Tolerance,
    Traits,
)

TOLERANCE = Tolerance(
    1e-5,
    1e-4,
    "sums of some hundred products in another order; Winograd's tiles differ more",
    of_largest=4e-6,
)


def infer_conv(attrs: Attrs, x: Fact, filter: Fact, bias: Fact) -> Fact:
    shape = conv_shape(attrs, x, filter, bias)
    return Fact("scalar", (shape.batch, shape.out_channels, *shape.narrow))


def infer_deconv(attrs: Attrs, x: Fact, filter: Fact, bias: Fact) -> Fact:
    shape = deconv_shape(attrs, x, filter, bias)
    return Fact("scalar", (shape.batch, shape.out_channels, *shape.wide))


def conv_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    shape = conv_shape(attrs, *inputs)
    return Cost.moving(2.0 * outputs[0].size * shape.group_in * shape.taps, inputs, outputs)


def deconv_cost(attrs: Attrs, inputs: Sequence[Fact], outputs: Sequence[Fact]) -> Cost:
    shape = deconv_shape(attrs, *inputs)
    return Cost.moving(2.0 * inputs[0].size * shape.group_out * shape.taps, inputs, outputs)


def _scaled_filter(attrs: Attrs, facts: Sequence[Fact], filter: Array, scale: Array) -> Array:
    return np.asarray(filter * scale.reshape(-1, *(1,) * (filter.ndim - 1)))


def _scaled_deconv(attrs: Attrs, facts: Sequence[Fact], filter: Array, scale: Array) -> Array:
    shape = deconv_shape(attrs, *facts[:2])
    rows = np.repeat(scale.reshape(shape.groups, shape.group_out), shape.group_in, axis=0)
    return np.asarray(filter * rows.reshape(*rows.shape, *(1,) * (filter.ndim - 2)))


def _conv_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    shape = conv_shape(attrs, *facts)
    if axis != 2:
        return None

    def need(begin: int, end: int) -> OperandRows:
        span, padding = under_windows(shape.axes[0], shape.border, begin, end)
        stated = {"padding": [padding, *shape.padding[1:]]}
        return OperandRows((span, None, None), Attrs({**attrs, **stated}), (begin, end))

    return RowMapping(2, need)


def _deconv_rows(attrs: Attrs, facts: Sequence[Fact], axis: int) -> RowMapping | None:
    shape = deconv_shape(attrs, *facts)
    if axis != 2:
        return None

    def need(begin: int, end: int) -> OperandRows:
        span, padding = onto_windows(shape.axes[0], begin, end)
        others = [onto_windows(a, 0, a.wide)[1] for a in shape.axes[1:]]
        stated = {"padding": [padding, *others], "output_shape": [], "groups": shape.groups}
        return OperandRows((span, None, None), Attrs({**attrs, **stated}), (begin, end))

    return RowMapping(2, need, shape.axes[0].stride)


def conv_kernel(transposed: bool) -> Kernel:
    """Returns the kernel of ``conv`` or, if ``transposed``, of ``deconv``."""

    def lower(op: Lowering) -> Iterator[Dispatch]:
        shape = (deconv_shape if transposed else conv_shape)(op.attrs, *op.inputs)
        if op.outputs[0].size:
            yield from CONV.lower(Conv(op, shape, transposed))

    return replace(KERNEL, lower=lower, layouts="any", half="each", epilogues="channels")


define(
    OpSpec(
        name="conv",
        infer=infer_conv,
        cpu=conv_cpu,
        prepare=prepare_conv,
        kernel=conv_kernel(transposed=False),
        cost=conv_cost,
        cases=CONV_CASES,
        tolerance=TOLERANCE,
        traits=Traits(
            scaled_weights=_scaled_filter,
            summed_axis=lambda attrs, shape: 1,
            filter_in_half=takes_half,
            is_sum=True,
            rows=_conv_rows,
        ),
    )
)

define(
    OpSpec(
        name="deconv",
        infer=infer_deconv,
        cpu=deconv_cpu,
        kernel=conv_kernel(transposed=True),
        cost=deconv_cost,
        cases=DECONV_CASES,
        tolerance=TOLERANCE,
        traits=Traits(
            scaled_weights=_scaled_deconv,
            summed_axis=lambda attrs, shape: 0,
            filter_in_half=takes_half,
            is_sum=True,
            rows=_deconv_rows,
        ),
    )
)
