"""Tests that a group normalization exported with reshapes becomes one that reads the whole map."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.group_normalization import normalize_groups
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.ir.layout import C4
from tests.fixtures.graphs import Net


def operators(graph):
    return [node.op for node in graph.nodes]


def wide(graph):
    """Returns the names of the operators that read a tensor of the graph's largest size, in
    order."""
    most = max(fact.size for fact in graph.facts.values())
    return [n.op for n in graph.nodes if any(graph.facts[x].size == most for x in n.inputs)]


def normalized(shape=(2, 8, 5, 7), groups=4):
    net = Net(*shape)
    return net, net.group_norm("x", groups)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((1, 8, 6, 6), 8), ((2, 12, 5, 7), 4), ((1, 8, 9), 2), ((2, 6, 2, 3, 4), 1)],
)
def test_the_map_is_read_twice_and_reshaped_never(shape, groups):
    net, y = normalized(shape, groups)
    graph = net.graph(y)
    made = normalize_groups(graph)
    assert wide(made) == ["moments", "batch_normalization"]
    assert made.outputs == graph.outputs and made.facts[y] == graph.facts[y]
    inputs = {"x": net.input()["x"] * 2 + 3}
    wanted, found = (CpuProgram(g).run(inputs)[y] for g in (graph, made))
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_far_from_zero_nothing_cancels():
    """The rewritten normalization is accurate if a group's spread is small against its mean."""
    net, y = normalized((1, 8, 16, 16), 2)
    x = net.input()["x"] * 0.1 + 100 * np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    graph = net.graph(y)
    wanted, found = (CpuProgram(g).run({"x": x})[y] for g in (graph, normalize_groups(graph)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("what", ["other axes", "another shape back", "computed scale", "output"])
def test_what_is_no_normalization_by_groups_stays(what):
    net = Net(2, 8, 4, 6)
    parts = net("reshape(x, shape=[2, 4, 48])")
    mean, variance = net.moments(parts, [1, 2] if what == "other axes" else [2])
    scale = net(f"relu({mean})") if what == "computed scale" else net.random(1, 4)
    even = net(f"batch_normalization({parts}, {mean}, {variance}, {scale}, {scale})")
    back = [2, 8, 6, 4] if what == "another shape back" else [2, 8, 4, 6]
    y = net(f"reshape({even}, shape={back})")
    graph = net.graph(*([even, y] if what == "output" else [y]))
    assert operators(normalize_groups(graph)) == operators(graph)


def test_the_map_lies_in_blocks_between_convolutions(gpu):
    """The normalized map between two convs is stored in blocks, without reshapes of whole maps.

    A computed factor per channel follows it, as in diffusion networks.
    """
    net = Net(1, 8, 9, 11)
    h = net.group_norm(net.conv("x", 24), 4)
    h = net(f"mul({h}, sigmoid(mean_reduce({h}, axes=[2, 3])))")
    y = net.conv(net(f"silu({h})"), 8)
    graph = net.graph(y)
    made = optimize(graph)
    layouts = choose_layout(made)
    first = next(n.outputs[0] for n in made.nodes if n.op == "conv")
    assert layouts[first] == C4 and "reshape" not in wide(made)
    inputs = net.input()
    wanted = CpuProgram(graph).run(inputs)[y]
    np.testing.assert_allclose(cml.Session(graph, gpu).run(inputs)[y], wanted, 1e-4, 1e-4)
