"""Tests of normalizations that cannot be folded into weights.

A batch normalization becomes an epilogue of the previous node, or elementwise operators of its own.
A group normalization exported with reshapes becomes one that reads the whole map.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.group_normalization import normalize_groups
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.ir.layout import C4
from cml_engine.ir.limits import Limits
from tests.fixtures.graphs import Net, check_session
from tests.fixtures.kernels import conv_kernel
from tests.fixtures.operators import check_graph

pytestmark = pytest.mark.gpu


def _conv(inside, channels, size=3, **attrs):
    return (1, inside, 9, 11), lambda net: net.conv("x", channels, size, **attrs)


#: for each kernel its shader, the input's shape, and the node
PRODUCERS = {
    "row tile": ("conv/conv_row_tile.hlsl", *_conv(8, 12)),
    "depthwise": ("conv/depthwise.hlsl", *_conv(10, 10, groups=0)),
    "tile": ("conv/conv.hlsl", *_conv(8, 10, stride=[1, 3])),
    "groups": ("conv", *_conv(10, 15, groups=5)),
    "plain": ("conv/conv_plain.hlsl", *_conv(3, 10)),
    "winograd": ("conv/winograd.hlsl", (1, 48, 30, 31), lambda net: net.conv("x", 50)),
    "deconv": ("conv", (1, 8, 5, 7), lambda net: net.deconv("x", 6)),
}
#: shapes of mean, variance, offset and scale for a result of ``[1,C,H,W]``; "=" is a constant
FORMS = {
    "channels": ("C", "C11", "C", "C1"),
    "noise": ("C", "C", "=HW", "="),
    "computed noise": ("C", "C", "HW", "C"),
    "mean by position": ("=HW", "=C", "C", "C"),
    "by place": ("C", "=", "CHW", "C"),
    "single": ("1", "", "=", "1"),
}
CASES = [("row tile", form) for form in FORMS] + [("depthwise", "by place")]
CASES += [(producer, "noise") for producer in list(PRODUCERS)[1:]]


def operand(net, form, result, computed):
    """Adds a random operand between 0.5 and 1.5 to ``net`` and returns its name.

    ``form`` names its shape for a map of shape ``result``. Without "=" in ``form`` the name is also
    added to ``computed``: the operand is then an input of the graph.
    """
    _, channels, *size = result
    shape = {
        "C": (1, channels),
        "C1": (1, channels, 1),
        "C11": (1, channels, 1, 1),
        "HW": (1, 1, *size),
        "CHW": result,
        "1": (1, 1),
        "": (),
    }[form.removeprefix("=")]
    name = net.random(*shape, low=0.5, high=1.5)
    if "=" not in form:
        computed.append(name)
    return name


def normalized(producer, form, epsilon=1e-3):
    """Returns a graph and its inputs: the producer, a normalization, a leaky relu and a product."""
    _, shape, build = PRODUCERS[producer]
    net, computed = Net(*shape), list[str]()
    h = build(net)
    result = net.shape(h)
    operands = [operand(net, part, result, computed) for part in FORMS[form]]
    h = net.op("batch_normalization", h, *operands, epsilon=epsilon)
    h = net(f"leaky_relu({h}, alpha=0.2)")
    return computed_inputs(net, net.op("mul", h, operand(net, "C", result, computed)), computed)


def computed_inputs(net, result, computed):
    """Returns the graph with the constants named in ``computed`` as inputs, and its inputs."""
    graph = net.graph(result)
    inputs = {**net.input(), **{name: graph.constants[name] for name in computed}}
    constants = {n: value for n, value in graph.constants.items() if n not in computed}
    return graph.with_(inputs=tuple(inputs), constants=constants), inputs


def in_blocks(graph):
    """Returns the blocked layout for ``x`` and for all inputs and outputs as large as the
    result."""
    result = graph.facts[graph.outputs[0]]
    maps = [n for n in (*graph.inputs, *graph.outputs) if graph.facts[n] == result]
    return dict.fromkeys(["x", *maps], C4)


@pytest.mark.parametrize(("producer", "form"), CASES)
def test_every_kernel_fuses_normalization_and_following_operators(producer, form, gpu):
    """Every kernel applies the normalization and the operators after it as epilogues, rightly.

    The layouts alternate between the cases. One kernel runs with all forms of operands.
    """
    graph, inputs = normalized(producer, form)
    fused = optimize(graph)
    last = fused.nodes[-1]
    assert [e.op for e in last.epilogues] == ["sub", "mul", "add", "leaky_relu", "mul"]
    assert "batch_normalization" not in [node.op for node in fused.nodes]
    expected = CpuProgram(graph).run(inputs)[graph.outputs[0]]
    result = CpuProgram(fused).run(inputs)[graph.outputs[0]]
    assert_allclose(result, expected, 1e-5, 1e-5)
    plain = producer == "plain"
    turn = [*PRODUCERS].index(producer) + [*FORMS].index(form)
    in_turn = {} if plain or (form != "noise" and turn % 2) else in_blocks(fused)
    options, layouts = PlanOptions(), {} if plain else {"x": C4}
    if producer == "winograd":
        options = PlanOptions(variants=conv_kernel("winograd", fused, gpu.limits, layouts))
    check_graph(fused, inputs, gpu, layouts=in_turn, variants=options.variants)
    plan = lower(fused, gpu.limits, layouts, options)
    assert str(plan.steps[-1].path).startswith(PRODUCERS[producer][0])


def operators(graph):
    return [op for node in graph.nodes for op in (node.op, *(e.op for e in node.epilogues))]


@pytest.mark.parametrize("shown", [False, True])
def test_normalization_of_a_tensor_with_another_reader(gpu, shown):
    net, computed = Net(1, 8, 9, 11), list[str]()
    h = net.conv("x", 12)
    operands = [operand(net, "C", net.shape(h), computed) for _ in range(4)]
    last = net.op("relu", net.op("batch_normalization", h, *operands, epsilon=1e-3))
    last = last if shown else net(f"concat(sqr({h}), {last}, axis=1)")
    graph, inputs = computed_inputs(net, last, computed)
    graph = graph.with_(outputs=(last, h)) if shown else graph
    session = check_session(graph, gpu, inputs, 1e-4)
    assert "batch_normalization" in operators(session.graph)


@pytest.mark.parametrize(
    ("batch", "forms"),
    [
        (1, ("C", "HW", "C", "C")),  # a map of factors
        (2, ("C", "C", "=HW", "C")),  # positions of two batch items
        (1, ("C", "C", "=CHW", "C")),  # a constant map, whose layout may differ
    ],
)
def test_normalization_stays_if_no_epilogue_fits(batch, forms):
    net, computed = Net(batch, 8, 9, 11), list[str]()
    h = net.conv("x", 12)
    operands = [operand(net, form, (1, 12, 9, 11), computed) for form in forms]
    h = net.op("batch_normalization", h, *operands, epsilon=1e-3)
    graph, _ = computed_inputs(net, h, computed)
    assert operators(optimize(graph)) == ["conv", "batch_normalization"]


def test_fused_operators_stay_within_the_binding_limit():
    net, computed = Net(1, 8, 9, 11), list[str]()
    h = net.conv("x", 12)
    for _ in range(5):
        h = net.op("add", h, operand(net, "C", net.shape(h), computed))
    fused = optimize(computed_inputs(net, h, computed)[0])
    assert [len(node.epilogues) for node in fused.nodes] == [4, 0]
    for step in lower(fused, Limits()).steps:
        assert len(step.bindings) <= Limits().max_storage_buffers


def test_constant_normalization_after_an_activation_is_precomputed():
    """A constant normalization after an activation becomes sub, mul and add with constant operands.

    It cannot be folded into the weights.
    """
    net = Net(1, 8, 9, 11)
    graph = net.graph(net.batch_norm(net("relu(conv(x, 12))")))
    fused = optimize(graph)
    assert operators(fused) == ["conv", "relu", "sub", "mul", "add"]
    inputs, name = net.input(), graph.outputs[0]
    expected = CpuProgram(graph).run(inputs)[name]
    assert_allclose(CpuProgram(fused).run(inputs)[name], expected, 1e-5, 1e-5)


def wide(graph):
    """Returns the names of the operators that read a tensor of the graph's largest size, in
    order."""
    largest = max(fact.size for fact in graph.facts.values())
    return [n.op for n in graph.nodes if any(graph.facts[x].size == largest for x in n.inputs)]


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((1, 8, 6, 6), 8), ((2, 12, 5, 7), 4), ((1, 8, 9), 2), ((2, 6, 2, 3, 4), 1)],
)
def test_group_normalization_reads_the_map_twice_without_reshapes(shape, groups):
    net = Net(*shape)
    y = net.group_norm("x", groups)
    graph = net.graph(y)
    rewritten = normalize_groups(graph)
    assert wide(rewritten) == ["moments", "batch_normalization"]
    assert rewritten.outputs == graph.outputs and rewritten.facts[y] == graph.facts[y]
    inputs = {"x": net.input()["x"] * 2 + 3}
    expected, result = (CpuProgram(g).run(inputs)[y] for g in (graph, rewritten))
    assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


def test_group_normalization_is_accurate_far_from_zero():
    """The rewritten normalization is accurate if a group's spread is small against its mean."""
    net = Net(1, 8, 16, 16)
    y = net.group_norm("x", 2)
    x = net.input()["x"] * 0.1 + 100 * np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    graph = net.graph(y)
    expected, result = (CpuProgram(g).run({"x": x})[y] for g in (graph, normalize_groups(graph)))
    assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("what", ["other axes", "another shape back", "computed scale", "output"])
def test_other_normalizations_are_not_rewritten(what):
    net = Net(2, 8, 4, 6)
    parts = net("reshape(x, shape=[2, 4, 48])")
    mean, variance = net.moments(parts, [1, 2] if what == "other axes" else [2])
    scale = net(f"relu({mean})") if what == "computed scale" else net.random(1, 4)
    even = net(f"batch_normalization({parts}, {mean}, {variance}, {scale}, {scale})")
    back = [2, 8, 6, 4] if what == "another shape back" else [2, 8, 4, 6]
    y = net(f"reshape({even}, shape={back})")
    graph = net.graph(*([even, y] if what == "output" else [y]))
    assert operators(normalize_groups(graph)) == operators(graph)


def test_normalized_map_stays_in_blocks_between_convs(gpu):
    """The normalized map between two convs is stored in blocks, without reshapes of whole maps.

    A computed factor per channel follows it, as in diffusion networks.
    """
    net = Net(1, 8, 9, 11)
    h = net.group_norm(net.conv("x", 24), 4)
    h = net(f"mul({h}, sigmoid(mean_reduce({h}, axes=[2, 3])))")
    y = net.conv(net(f"silu({h})"), 8)
    graph = net.graph(y)
    optimized = optimize(graph)
    layouts = choose_layout(optimized)
    first = next(n.outputs[0] for n in optimized.nodes if n.op == "conv")
    assert layouts[first] == C4 and "reshape" not in wide(optimized)
    check_session(graph, gpu, net.input(), 1e-4)
