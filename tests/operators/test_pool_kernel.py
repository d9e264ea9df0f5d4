"""Tests of the pooling kernels beyond their cases: layouts of input and output, both code paths."""

import numpy as np
import pytest

import cml_engine.ops.pooling.pooling  # noqa: F401
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.layout import C4
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import Case
from cml_engine.testing import case_graph
from tests.fixtures.operators import check_on_gpu

pytestmark = pytest.mark.gpu

LAYOUTS = ({"x0": C4}, {"y0": C4}, {"x0": C4, "y0": C4})
OPS = ("box", "avg_pool", "max_pool", "debox")
#: a sum, a maximum and a transposed sum; the others differ in the last step only
IN_SUITE = ("box", "max_pool", "debox")


def with_even_channels(case):
    """Returns the case with eight input channels and, if it states an output shape, eight there
    too."""
    shape = case.inputs[0].shape
    attrs = dict(case.attrs)
    if attrs.get("output_shape"):
        attrs["output_shape"] = [shape[0], 8, *attrs["output_shape"][2:]]
    return Case(((shape[0], 8, *shape[2:]),), attrs, case.note)


#: in the suite each case runs in one layout, which alternates
BLOCKED = [
    pytest.param(
        op, with_even_channels(case), layouts, id=f"{op}-{case.note}-{i}".replace(" ", "_"),
        marks=() if op in IN_SUITE and number % len(LAYOUTS) == i else pytest.mark.long,
    )
    for op in OPS
    for number, case in enumerate(lookup(op).cases)
    for i, layouts in enumerate(LAYOUTS)
    if len(case.inputs[0].shape) >= 3 and case.inputs[0].shape[1]
]  # fmt: skip


@pytest.mark.parametrize(("op", "case", "layouts"), BLOCKED)
def test_blocked_channels(op, case, layouts, gpu):
    if case_graph(op, case)[0].facts["y0"].shape[1] % 4:
        layouts = {"x0": C4}
    check_on_gpu(op, case, gpu, layouts=layouts)


def test_global_pooling_is_a_reduction():
    case = Case(((1, 2, 300, 300),), {"size": [1, 1, 300, 300], "padding": [(0, 0)] * 4})
    plan = lower(case_graph("avg_pool", case)[0], Limits())
    assert {str(step.path) for step in plan.steps} == {"reduction/reduce.hlsl"}


def test_sample_index_outside_the_window_gives_zero(gpu):
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4)
    index = np.array([[[-1, 2, 1 << 30, 0]]], np.int32)
    case = Case((x, index), {"size": [1, 1, 2], "padding": [(0, 0), (0, 0), (0, 1)]})
    check_on_gpu("sample", case, gpu)
    check_on_gpu("desample", Case(case.inputs, {**case.attrs, "padding": [(0, 0)] * 3}), gpu)
