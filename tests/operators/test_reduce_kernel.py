"""Tests of the reduction kernels beyond their cases: several steps, both types of driver,
layouts."""

import dataclasses

import numpy as np
import pytest

import cml_engine as cml
import cml_engine.ops.pooling.pooling
import cml_engine.ops.reduction.reduction
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.layout import C4
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.spec import Case, Random
from cml_engine.testing import case_graph
from tests.fixtures.graphs import Net
from tests.fixtures.operators import check_on_gpu

pytestmark = pytest.mark.gpu

VALUES = ("sum_reduce", "mean_reduce", "max_reduce", "argmin_reduce", "softmax", "moments")
LONG = [((1, 1, 300, 301), [0, 1, 2, 3]), ((2, 3000, 3), [1]), ((400, 2), [0])]
#: rows of whole float4 vectors: in one workgroup, in several, and interleaved with other rows
VECTORS = [((3, 320), [1]), ((3, 9000), [1]), ((2, 40, 3, 8), [1, 3])]


@pytest.fixture(params=[True, False], ids=["software", "hardware"])
def driver(request, gpu, set_limits):
    """The suite's device, in one run of the test as a software driver and in one as hardware.

    Both get different kernels.
    """
    set_limits(software=request.param)
    return gpu


@pytest.mark.parametrize(("shape", "axes"), [*LONG, *VECTORS])
@pytest.mark.parametrize("op", VALUES)
def test_long_reductions(op, shape, axes, driver):
    """Reductions over long axes are right on both types of driver.

    The values' mean is not 0, since a sum that cancels keeps few digits.
    """
    case = Case((Random(shape, -0.5, 1.0),), {"axes": axes})
    check_on_gpu(op, case, driver)
    if (shape, axes) in VECTORS:
        first = lower(case_graph(op, case)[0], driver.limits).steps[0]
        in_stages = op == "softmax" and shape == (3, 9000)
        assert first.defines["WIDTH"] == (1 if op == "argmin_reduce" else 4) or in_stages


#: many equal terms, whose rounding errors have one sign: adjacent, strided, in a window
MANY_TERMS = (
    [
        (op, shape, {"axes": [axis]})
        for op in ("sum_reduce", "mean_reduce", "softmax")
        for shape, axis in (((2, 1000), 1), ((3, 1021), 1), ((1000, 3), 0), ((2, 8000), 1))
    ]
    + [
        (op, (1, 4, 33, 37), {"size": size, "padding": [(0, 0)] * 4})
        for op in ("avg_pool", "box")
        for size in ([1, 1, 30, 30], [1, 3, 30, 30])
    ]
    + [("area_downsample", (1, 4, 60, 90), {"factor": [30, 30]})]
)


@pytest.mark.parametrize(("op", "shape", "attrs"), MANY_TERMS)
def test_long_sums_are_accurate(op, shape, attrs, driver):
    """Long sums differ from the CPU's by at most 6e-7; sequential additions would lose up to 60
    ulp."""
    graph, inputs = case_graph(op, Case((np.full(shape, 0.1, np.float32),), attrs))
    (got,) = cml.Session(graph, driver).run(inputs).values()
    (expected,) = cml.Session(graph, "cpu").run(inputs).values()
    np.testing.assert_allclose(got, expected, rtol=6e-7)


@pytest.mark.parametrize("axes", [[2, 3], [1], [1, 2], [0], [0, 1, 2, 3], [1, 3]])
@pytest.mark.parametrize("op", VALUES)
def test_blocked_channels(op, axes, driver):
    """Reductions of a blocked input are right.

    The result is blocked too if it keeps its channels and is no index.
    """
    keeps = op == "softmax" or (1 not in axes and not op.startswith("arg"))
    layouts = {"x0": C4} | (dict.fromkeys(["y0", "y1"], C4) if keeps else {})
    for shape in ((2, 8, 3, 5), (1, 4, 20, 21)):
        check_on_gpu(op, Case((shape,), {"axes": axes}), driver, layouts=layouts)


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("op", ["sum_reduce", "argmax_reduce", "softmax", "moments"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 1, 4096, 4096), [0, 1, 2, 3]), ((1, 1 << 20, 4), [1]), ((4, 900), [1])]
)
def test_workgroup_reduces_at_most_16384_elements(op, shape, axes, software):
    """A workgroup reduces at most 16,384 elements, so that the scheduler can slice a reduction."""
    net = Net(*shape)
    names = net.moments("x", axes) if op == "moments" else [net.op(op, "x", axes=axes)]
    limits = dataclasses.replace(Limits(), software=software, max_binding_bytes=1 << 30)
    plan = lower(net.graph(*names), limits)
    for step in plan.steps:
        if "total" in step.params:
            rows = 1 if step.defines["TREE"] else step.defines["GROUP"]
            assert rows * step.params["chunk"] <= 16384
            assert step.params["chunk"] * step.params["chunks"] >= step.params["total"]
