"""Tests of an operator given by one expression.

It runs alone (in 16 bits too), in chains, as epilogue of a conv or a product, and as replacement of
an engine's operator.
"""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.tools.testing import check
from tests.fixtures.graphs import Net

SOFT = "fragment soft(x: tensor<scalar>, alpha: scalar = 0.25) -> (y: tensor<scalar>);"
MIX = "fragment mix(x: tensor<scalar>, y: tensor<scalar>, k: scalar = 0.5) -> (z: tensor<scalar>);"


@pytest.fixture
def soft():
    """Registers two operators for one test: ``soft`` with a float4 expression, ``mix`` with a
    scalar one."""
    cml.register(cml.OpSpec("soft", signature=SOFT, expression="x < 0 ? {alpha} * x : tanh(x) + x"))
    cml.register(cml.OpSpec("mix", signature=MIX, expression="x != 0 ? x + {k} * sin(y) : y"))
    yield
    cml.unregister("soft")
    cml.unregister("mix")


@pytest.mark.usefixtures("soft")
@pytest.mark.parametrize("name", ["soft", "mix"])
def test_alone(name, gpu):
    assert check(name, gpu).compared


def compare(graph, gpu, rng):
    """Asserts that the graph's results on the GPU are close to NumPy's; returns the GPU session."""
    session = cml.Session(graph, gpu)
    given = {"x": rng.standard_normal(graph.facts["x"].shape).astype(np.float32)}
    (wanted,) = cml.Session(graph, "cpu").run(given).values()
    (got,) = session.run(given).values()
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    return session


@pytest.mark.usefixtures("soft")
@pytest.mark.parametrize("producer", ["conv", "linear"])
def test_behind_another(producer, gpu, rng):
    """Operators given by expressions become epilogues of a conv or product.

    Their operands are one value per channel, or a scalar.
    """
    net = Net(1, 8, 6, 5) if producer == "conv" else Net(3, 20)
    if producer == "conv":
        y, other = net.conv("x", 8, 3), net.random(1, 8)
    else:
        y, other = net("linear(x, random(8, 20), random(1, 8))"), net.constant(0.5)
    y = net(f"mix(soft({y}, alpha=0.125), {other}, k=2.0)")
    session = compare(net.graph(net(f"relu({y})")), gpu, rng)
    assert [e.op for e in session.graph.nodes[-1].epilogues] == ["soft", "mix", "relu"]


@pytest.mark.usefixtures("soft")
def test_in_a_chain(gpu, rng):
    net = Net(1, 1, 3, 4)
    graph = net.graph(net("abs(mix(soft(neg(x)), x))"))
    assert len(compare(graph, gpu, rng).plan.steps) == 1


@pytest.mark.parametrize("expression", ["x > 1 ? 1 : x", ""])
def test_in_the_place_of_ours(expression, gpu, rng):
    """A replacement of the engine's ``relu`` is fused into a conv only if it is an expression.

    Given as a kernel it runs as its own node.
    """
    source = "void kernel(uint thread) { y[thread] = min(x[thread], 1.0); }"
    made = {"expression": expression} if expression else {
        "infer": cml.same_as(0), "kernel": cml.Kernel(source=source),
        "cpu": lambda attrs, x: np.minimum(x, np.float32(1)),
    }  # fmt: skip
    cml.unregister("relu")
    cml.register(cml.OpSpec("relu", **made))
    try:
        net = Net(1, 8, 6, 5)
        graph = net.graph(net("relu(conv(x, 8, 3))"))
        session = compare(graph, gpu, rng)
        assert bool(session.graph.nodes[-1].epilogues) == bool(expression)
        (got,) = session.run({"x": np.ones((1, 8, 6, 5), np.float32)}).values()
        assert got.min() < 0 and got.max() == 1
    finally:
        cml.unregister("relu")
