"""Tests that kept tensors have the values of the graph as written, whatever the passes change.

A watch sees every operator.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from tests.fixtures.graphs import BLOCKS, random_graph
from tests.fuzz import computed_values


def assert_kept(graph, inputs, names):
    expected = computed_values(graph, inputs)
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=names))
    outputs = session.run(inputs)
    assert set(outputs) == set(graph.outputs)
    for name in (*names, *graph.outputs):
        assert_allclose(session.tensor(name), expected[name], 1e-4, 1e-4, err_msg=name)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_tensor_can_be_retained_alone_or_with_others(block):
    net = BLOCKS[block]()
    last = net.nodes[-1].outputs[-1]
    graph, inputs = net.graph(last), net.input()
    every = tuple(name for node in graph.nodes for name in node.outputs)
    for names in (every, *((name,) for name in every)):
        assert_kept(graph, inputs, names)


@pytest.mark.parametrize("seed", range(6))
def test_tensors_of_random_graphs_can_be_retained(seed):
    graph, inputs = random_graph(seed)
    every = [name for node in graph.nodes for name in node.outputs]
    assert_kept(graph, inputs, tuple(every[seed % 3 :: 3]))


def test_retained_inputs_and_constants_keep_their_values():
    net = BLOCKS["se"]()
    graph, inputs = net.graph(), net.input()
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=("x", "k0")))
    session.run(inputs)
    assert_array_equal(session.tensor("x"), inputs["x"])
    assert_array_equal(session.tensor("k0"), graph.constants["k0"])


def test_unknown_tensor_name_suggests_the_nearest():
    graph = BLOCKS["se"]().graph("t3")
    with pytest.raises(cml.InputError, match="has no tensor 't33'; did you mean 't3'"):
        cml.Session(graph, "cpu", cml.CompileOptions(keep=("t33",)))
    with pytest.raises(cml.InputError, match=r"keep: wanted names in parentheses, .* got 't3'"):
        cml.CompileOptions(keep="t3")


def test_tensor_not_retained_error_says_what_to_do():
    net = BLOCKS["se"]()
    session = cml.Session(net.graph("t3"), "cpu", cml.CompileOptions(keep=("t1",)))
    with pytest.raises(cml.InputError, match="has not run yet"):
        session.tensor("t1")
    session.run(net.input())
    with pytest.raises(cml.InputError, match=r"keeps no tensor 't0'; it has t3, t1. .*keep="):
        session.tensor("t0")


def test_reshaped_session_has_retained_tensors():
    text = (
        "version 1.0; graph n(x) -> (y) {x = external(shape=[1,2]); a = x + 1.0; y = relu(a) * a;}"
    ).replace("version 1.0;", "version 1.0;\nextension KHR_enable_operator_expressions;\n")
    graph = cml.load(cml.MemoryModel(text))
    session = cml.Session(graph, "cpu", cml.CompileOptions(keep=("a",))).reshaped({"x": (1, 3)})
    session.run({"x": np.ones((1, 3), np.float32)})
    assert_array_equal(session.tensor("a"), [[2, 2, 2]])


def test_an_error_of_a_watch_ends_the_run():
    net = BLOCKS["se"]()
    session = cml.Session(net.graph("t3"), "cpu")
    with pytest.raises(ZeroDivisionError):
        session.run(net.input(), watch=lambda node, results: 1 // 0)
    for name in ("watch", "before"):
        with pytest.raises(cml.InputError, match=f"{name}: wanted a function"):
            session.run(net.input(), **{name: 7})
