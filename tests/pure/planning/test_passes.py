"""Tests of the passes on hand-built graphs: removal, folding, fusion, blocking and lowering."""

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.bypass import bypass
from cml_engine.compiler.passes.cleanup import (
    eliminate_dead_code,
    merge_common_subexpressions,
)
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.lower import lower
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import DeviceError, ModelError, ShapeError, Source
from cml_engine.ir.graph import Attrs, Epilogue, Fact, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.ops import load_families
from cml_engine.tools.testing import full_attrs
from tests.fixtures.graphs import Net

load_families()


def node(text, **attrs):
    """Returns the node of a text like ``y = add(x, k)``."""
    output, op, operands = re.fullmatch(r"(\w+) = (\w+)\((.*)\)", text).groups()
    inputs = tuple(operands.split(", "))
    return Node(op, inputs, (output,), full_attrs(op, attrs), Source("m.nnef", 7))


def conv_chain(tail=()):
    """Returns the graph x -> conv -> prelu -> conv with 8 channels, followed by the nodes of
    ``tail``.

    The results of its last node are the outputs.
    """
    rng = np.random.default_rng(0)
    constants = {
        "w1": rng.standard_normal((8, 3, 3, 3), np.float32),
        "w2": rng.standard_normal((8, 8, 3, 3), np.float32),
        "zero": np.array(0, np.float32),
        "slope": np.full((1, 8), 0.25, np.float32),
    }
    nodes = [
        node("c1 = conv(x, w1, zero)"),
        node("r1 = prelu(c1, slope)"),
        node("c2 = conv(r1, w2, zero)"),
        *tail,
    ]
    facts = {"x": Fact("scalar", (1, 3, 9, 7))}
    facts |= {k: Fact("scalar", v.shape) for k, v in constants.items()}
    outputs = nodes[-1].outputs
    return Graph("chain", ("x",), outputs, tuple(nodes), facts, constants)


def run(graph, seed=0):
    x = np.random.default_rng(seed).standard_normal((1, 3, 9, 7), np.float32)
    return CpuProgram(graph).run({"x": x})


def test_nodes_merge_only_if_attributes_are_equal():
    """Nodes with the same operator and input are merged only if their attributes are equal.

    The results stay the same.
    """
    net = Net(1, 4, 3, 5)
    sums = [net(f"sum_reduce(x, axes={axes})") for axes in ([2], [3], [2])]
    graph = net.graph(net(f"mul(mul({sums[0]}, {sums[1]}), {sums[2]})"))
    merged = merge_common_subexpressions(graph)
    assert [n.attrs["axes"] for n in merged.nodes if n.op == "sum_reduce"] == [[2], [3]]
    inputs = net.input()
    wanted, got = CpuProgram(graph).run(inputs), CpuProgram(merged).run(inputs)
    assert_array_equal(got[graph.outputs[0]], wanted[graph.outputs[0]])


def test_nodes_of_an_update_are_not_dead():
    net = Net(1, 4)
    state = net.constant(np.ones((1, 4)))
    new = net(f"add(x, {state})")
    graph = net.graph(net("relu(x)")).with_(updates=((state, new),))
    kept = eliminate_dead_code(graph)
    assert {n.op for n in kept.nodes} == {"add", "relu"} and state in kept.constants
    without = eliminate_dead_code(graph.with_(updates=()))
    assert {n.op for n in without.nodes} == {"relu"} and state not in without.constants


def test_two_transposes_are_one_in_their_order():
    """Two transposes become one with the product of their permutations in the right order."""
    net = Net(2, 3, 4, 5)
    h = net("transpose(transpose(x, axes=[1, 2, 0]), axes=[0, 2, 3, 1])")
    graph, inputs = net.graph(h), net.input()
    (node_,) = bypass(graph).nodes
    assert node_.attrs["axes"] == [1, 0, 3, 2]
    assert_array_equal(CpuProgram(bypass(graph)).run(inputs)[h],
                                  CpuProgram(graph).run(inputs)[h])  # fmt: skip


def test_epilogues_are_fused_in_order():
    tail = [node("s = add(c2, r1)"), node("y = relu(s)")]
    fused = optimize(conv_chain(tail))
    assert [n.op for n in fused.nodes] == ["conv", "conv"]
    assert fused.nodes[0].epilogues == (Epilogue("prelu", ("slope",), Attrs()),)
    assert [e.op for e in fused.nodes[1].epilogues] == ["add", "relu"]
    assert fused.nodes[1].outputs == ("y",)


def test_a_result_with_two_readers_is_not_fused_away():
    graph = optimize(conv_chain([node("a = relu(c2)"), node("y = sub(a, c2)")]))
    assert [n.op for n in graph.nodes] == ["conv", "conv", "relu"]
    assert graph.nodes[2].epilogues == (Epilogue("sub", ("c2",), Attrs()),)


def test_an_output_is_not_fused_away():
    graph = conv_chain([node("y = relu(c2)")])
    graph = optimize(graph.with_(outputs=("c2", "y")))
    assert [n.op for n in graph.nodes] == ["conv", "conv", "relu"]


def test_constants_are_folded_but_not_variables_that_change():
    graph = conv_chain([node("k = mul(slope, slope)"), node("y = mul(c2, k)")])
    folded = optimize(graph, frozenset({"affine"}))
    assert "k" in folded.constants
    assert_array_equal(folded.constants["k"], np.full((1, 8), 0.0625, np.float32))
    changing = optimize(graph.with_(updates=(("slope", "k"),)), frozenset({"affine"}))
    assert "k" not in changing.constants


def test_tensor_with_a_row_major_reader_stays_row_major():
    tail = [node("t = transpose(r1)", axes=[0, 1, 3, 2])]
    graph = optimize(conv_chain(tail).with_(outputs=("c2", "t")))
    assert "r1" not in choose_layout(graph)


def test_shape_errors_name_line_and_operator():
    graph = conv_chain([node("y = add(c2, w1)")])
    with pytest.raises(ShapeError, match=r"m\.nnef:7: add 'y'"):
        infer_facts(graph)


def test_a_model_too_large_for_the_device_is_refused_with_numbers():
    graph = optimize(conv_chain())
    with pytest.raises(DeviceError, match="allows buffers of 100"):
        lower(graph, replace(Limits(), max_buffer_bytes=100))


WRONG_GRAPHS = [
    ({"nodes": (node("y = neg(z)"),)}, "neg 'y': reads 'z', which nothing before"),
    ({"nodes": (node("x = neg(x)"),)}, "there is a tensor 'x' already"),
    ({"nodes": (node("k = neg(x)"),)}, "there is a tensor 'k' already"),
    ({"outputs": ("nobody",)}, "nothing gives its result 'nobody'"),
    ({"updates": (("k", "nobody"),)}, "nothing gives its result 'nobody'"),
    ({"updates": (("x", "y"),)}, "update of 'x', which is no variable"),
    ({"inputs": ("x", "z")}, "'z' has no fact"),
    ({"constants": {"k": np.zeros(3, np.float32)}}, r"constant 'k' is float32\[3\], wanted scalar"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG_GRAPHS)
def test_graph_built_in_code_is_checked(changes, says):
    facts = dict.fromkeys(("x", "k"), Fact("scalar", (2,)))
    graph = Graph("g", ("x",), ("y",), (node("y = neg(x)"),), facts, {"k": np.zeros(2, np.float32)})
    optimize(graph)
    with pytest.raises(ModelError, match=says):
        optimize(graph.with_(**changes))


def test_constants_are_converted_to_their_facts_dtype():
    facts = {"k": Fact("scalar", (2,)), "i": Fact("integer", ())}
    constants = {"k": np.array([0.5, 1.5]), "i": np.array(3)}
    made = infer_facts(Graph("g", (), ("k", "i"), (), facts, constants))
    assert made.constants["k"].dtype == np.float32 and made.constants["i"].dtype == np.int32
