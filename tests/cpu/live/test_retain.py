"""Tests that sessions which retain their inputs run only the nodes that the given inputs reach.

The results are bit-identical to a full run.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ops import load_families
from cml_engine.tools.testing import full_attrs

load_families()
Array = np.ndarray[Any, Any]
SHAPE = (1, 4, 3, 3)
OPS = ("relu", "sigmoid", "add", "mul", "concat", "split", "conv", "reshape", "sqr")


@st.composite
def graphs(draw):
    """Draws a random graph: one to three inputs and outputs, up to two variables."""
    inputs = [f"in{i}" for i in range(draw(st.integers(1, 3)))]
    variables = [f"v{i}" for i in range(draw(st.integers(0, 2)))]
    facts = dict.fromkeys([*inputs, *variables], Fact("scalar", SHAPE))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    constants = {name: rng.standard_normal(SHAPE).astype(np.float32) for name in variables}
    constants["w"] = rng.standard_normal((4, 4, 1, 1)).astype(np.float32) / 2
    constants["b"] = np.zeros((1, 4), np.float32)
    facts |= {name: Fact("scalar", constants[name].shape) for name in ("w", "b")}
    maps, nodes = [*inputs, *variables], list[Node]()

    def add(op, read, results=1, **attrs):
        names = [f"t{len(nodes)}_{i}" for i in range(results)]
        nodes.append(Node(op, read, tuple(names), full_attrs(op, attrs)))
        return names

    for _ in range(draw(st.integers(1, 8))):
        op, x, y = draw(st.sampled_from(OPS)), *(draw(st.sampled_from(maps)) for _ in "xy")
        if op in ("relu", "sigmoid", "sqr"):
            maps += add(op, (x,))
        elif op in ("add", "mul"):
            maps += add(op, (x, y))
        elif op == "conv":
            maps += add(op, (x, "w", "b"))
        elif op == "reshape":
            flat = add(op, (x,), shape=[1, 36])
            maps += add(op, (flat[0],), shape=list(SHAPE))
        else:  # the halves of the joined tensor
            joined = add("concat", (x, y), axis=1)
            maps += add("split", (joined[0],), 2, axis=1, ratios=[1, 1])
    computed = maps[len(inputs) + len(variables) :]
    outputs = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3, unique=True))
    updates = tuple((name, draw(st.sampled_from(maps))) for name in variables)
    graph = Graph("net", tuple(inputs), tuple(outputs), tuple(nodes), facts, constants)
    return infer_facts(graph.with_(updates=updates))


def arrays(names, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(SHAPE).astype(np.float32) for name in sorted(names)}


def reached(graph, given):
    """Returns the titles of the nodes that must run again when inputs ``given`` change."""
    changed = given | {variable for variable, _ in graph.updates}
    found = set()
    for node in graph.nodes:
        if changed.intersection(node.reads):
            changed.update(node.outputs)
            found.add(node.title)
    return found


def check_retained(graph, backend, choices):
    """Runs a retaining session with all inputs, then with each set of inputs in ``choices``.

    Asserts that only reached nodes run, and that results are bit-identical to full runs.
    """
    session = cml.Session(graph, backend, retain=True)
    full = cml.Session(graph, backend, session.options)
    values = arrays(graph.inputs, 0)
    for number, chosen in enumerate([set(graph.inputs), *choices]):
        new = arrays(chosen, number + 1)
        values |= new
        ran = set()
        if number % 2:  # a watch sees the nodes that run; without one the results are the same
            got = session.run(new, watch=lambda node, _, ran=ran: ran.add(node.title))  # type: ignore[misc]
            assert ran == reached(session.graph, chosen)
        else:
            got = session.run(new)
        wanted = full.run(values)
        for name in graph.outputs:
            np.testing.assert_array_equal(got[name], wanted[name], f"{name} of run {number}")


subsets = st.lists(st.sets(st.integers(0, 2), max_size=3), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None)
@given(graphs(), subsets)
def test_retained_run_equals_a_full_run(graph, chosen):
    names = graph.inputs
    check_retained(graph, "cpu", [{names[i] for i in some if i < len(names)} for some in chosen])


TWO = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(image, style) -> (y)
{
    image = external(shape = [1, 4, 3, 3]);
    style = external(shape = [1, 4, 3, 3]);
    encoded = relu(image * 2.0);
    y = sigmoid(encoded + style);
}
"""


def two(backend="cpu", **options):
    return cml.Session(cml.load(cml.MemoryModel(TWO)), backend, retain=True, **options)


def test_retained_input_without_value_is_required():
    session = two()
    given_once = arrays(["style"], 0)
    with pytest.raises(cml.InputError, match="input 'image' is missing"):
        session.run(given_once)
    session.run(arrays(["image", "style"], 1))
    session.run(given_once)
    session.run({})


def test_failed_run_invalidates_retained_values():
    session = two()
    values = arrays(["image", "style"], 0)
    session.run(values)
    fresh = arrays(["image"], 5)

    def fail(node, results):
        raise KeyError(node.title)

    with pytest.raises(KeyError):
        session.run(fresh, watch=fail)
    got = session.run({})["y"]  # the image was given, so everything runs again
    wanted = two().run({**values, **fresh})["y"]
    np.testing.assert_array_equal(got, wanted)


def test_ordinary_session_requires_all_inputs():
    session = cml.Session(cml.load(cml.MemoryModel(TWO)), "cpu")
    session.run(arrays(["image", "style"], 0))
    with pytest.raises(cml.InputError, match="input 'image' is missing"):
        session.run(arrays(["style"], 0))


def test_reshaped_session_has_separate_retained_values():
    session = two()
    session.run(arrays(["image", "style"], 0))
    other = session.reshaped({"image": (2, 4, 3, 3), "style": (2, 4, 3, 3)})
    with pytest.raises(cml.InputError, match="input 'style' is missing"):
        other.run({"image": np.zeros((2, 4, 3, 3), np.float32)})


def test_rank_given_times_dependent_operators_only():
    session = two()
    assert "relu" in str(session.rank(runs=1))
    only = session.rank(runs=1, given=["style"])
    assert "relu" not in str(only) and "sigmoid" in str(only)
    with pytest.raises(cml.InputError, match="has no input 'stile'; did you mean 'style'"):
        session.rank(given=["stile"])
    usual = cml.Session(cml.load(cml.MemoryModel(TWO)), "cpu")
    with pytest.raises(cml.InputError, match="make it with retain=True"):
        usual.rank(given=["style"])
    with pytest.raises(cml.InputError, match="retain: wanted True or False, got 1"):
        cml.Session(usual.source_graph, "cpu", retain=1)
