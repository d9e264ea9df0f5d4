"""Tests of the elementwise kernels beyond their cases, and of operators stated by an expression."""

import itertools

import numpy as np
import pytest

import cml_engine as cml
import cml_engine.ops.elementwise.elementwise
from cml_engine import ops
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.layout import C4
from cml_engine.ops.declaration.spec import Case
from cml_engine.testing import case_graph, check
from tests.fixtures.graphs import Net, check_session
from tests.fixtures.operators import check_on_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("chosen", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("op", ["sub", "lt"])
def test_any_mix_of_layouts(op, chosen, gpu):
    """Any mix of plain and blocked tensors works; a comparison's result is always plain."""
    shape = (2, 8, 3, 5)
    blocked = [n for n, c in zip(("x0", "x1", "y0"), chosen, strict=True) if c]
    if op == "lt":
        blocked = [n for n in blocked if n != "y0"]
    check_on_gpu(op, Case((shape, shape)), gpu, layouts=dict.fromkeys(blocked, C4))


@pytest.mark.parametrize("size", [1, 3, 4, 255, 256, 257, 1023, 1024, 1025, 65535 * 4])
def test_sizes_around_the_workgroup(size, gpu):
    check_on_gpu("neg", Case(((size,),)), gpu)


def test_more_workgroups_than_a_dimension_takes(gpu, set_limits):
    """A kernel with more workgroups than one or two dimensions allow (7 each here) is right."""
    set_limits(max_groups_per_dimension=7)
    graph, _ = case_graph("neg", Case(((65535 * 4,),)))
    (step,) = lower(graph, gpu.limits).steps
    assert step.groups > 49 and step.groups % 7
    check_on_gpu("neg", Case(((65535 * 4,),)), gpu, partitions=3)


SOFT = "fragment soft(x: tensor<scalar>, alpha: scalar = 0.25) -> (y: tensor<scalar>);"
MIX = "fragment mix(x: tensor<scalar>, y: tensor<scalar>, k: scalar = 0.5) -> (z: tensor<scalar>);"


@pytest.fixture
def soft(own_operators):
    """Registers two operators for one test: ``soft`` with a float4 expression, ``mix`` with a
    scalar one."""
    cml.register(cml.OpSpec("soft", signature=SOFT, expression="x < 0 ? {alpha} * x : tanh(x) + x"))
    cml.register(cml.OpSpec("mix", signature=MIX, expression="x != 0 ? x + {k} * sin(y) : y"))


@pytest.mark.usefixtures("soft")
@pytest.mark.parametrize("name", ["soft", "mix"])
def test_alone(name, gpu):
    assert check(name, gpu).compared


@pytest.mark.usefixtures("soft")
@pytest.mark.parametrize("producer", ["conv", "linear"])
def test_behind_another(producer, gpu):
    """Operators given by expressions become epilogues of a conv or product.

    Their operands are one value per channel, or a scalar.
    """
    net = Net(1, 8, 6, 5) if producer == "conv" else Net(3, 20)
    if producer == "conv":
        y, other = net.conv("x", 8, 3), net.random(1, 8)
    else:
        y, other = net("linear(x, random(8, 20), random(1, 8))"), net.constant(0.5)
    y = net(f"mix(soft({y}, alpha=0.125), {other}, k=2.0)")
    session = check_session(net.graph(f"relu({y})"), gpu, net.input())
    assert [e.op for e in session.graph.nodes[-1].epilogues] == ["soft", "mix", "relu"]


@pytest.mark.usefixtures("soft")
def test_in_a_chain(gpu):
    net = Net(1, 1, 3, 4)
    graph = net.graph("abs(mix(soft(neg(x)), x))")
    assert len(check_session(graph, gpu, net.input()).plan.steps) == 1


@pytest.mark.parametrize("expression", ["x > 1 ? 1 : x", ""])
def test_replacement_of_relu_is_fused_only_if_elementwise(expression, gpu):
    """A replacement of the engine's ``relu`` is fused into a conv only if it is an expression.

    Given as a kernel it runs as its own node.
    """
    source = "void kernel(uint thread) { y[thread] = min(x[thread], 1.0); }"
    spec = {"expression": expression} if expression else {
        "infer": ops.same_as(0), "kernel": cml.Kernel(source=source),
        "cpu": lambda attrs, x: np.minimum(x, np.float32(1)),
    }  # fmt: skip
    ops.unregister("relu")
    cml.register(cml.OpSpec("relu", **spec))
    try:
        net = Net(1, 8, 6, 5)
        graph = net.graph("relu(conv(x, 8, 3))")
        session = check_session(graph, gpu, net.input())
        assert bool(session.graph.nodes[-1].epilogues) == bool(expression)
        (got,) = session.run({"x": np.ones((1, 8, 6, 5), np.float32)}).values()
        assert got.min() < 0 and got.max() == 1
    finally:
        ops.unregister("relu")
