"""Tests of the limits of loading on small ONNX files that require much memory or work."""

import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

import cml_engine as cml  # noqa: E402
from cml_engine.io.load_limits import OverBudget  # noqa: E402
from tests.fixtures.onnx_models import loop, model, node, one, value  # noqa: E402

X, Y = value("x", [1, 4]), value("y", None)
ONE, MIB = value("x", [1, 1]), 2**20
#: processor seconds that no hostile file may take; the machine may be busy
SECONDS = 20.0


def called(functions, calls):
    """Returns a model of these calls and functions; ``functions`` has the nodes of each by name.

    Every function computes ``c`` from ``a``.
    """
    opsets = [helper.make_opsetid("my", 1), helper.make_opsetid("", 17)]
    made = [
        helper.make_function("my", name, ["a"], ["c"], body, opsets)
        for name, body in functions.items()
    ]
    return model(calls, [X], [Y], domains={"my": 1}, functions=made)


def call(name, from_, to):
    return helper.make_node(name, [from_], [to], domain="my")


def doubling_functions():
    functions = {f"F{i}": [call(f"F{i + 1}", *names) for names in ("ab", "bc")] for i in range(40)}
    return called({**functions, "F40": [node("c = Relu(a)")]}, [call("F0", "x", "y")])


def dead_nodes_in_functions():
    dead = [helper.make_node("Relu", ["a"], [f"d{i}"]) for i in range(5000)]
    calls = [call("F", f"t{i}", f"t{i + 1}") for i in range(1000)]
    ends = [node("t0 = Relu(x)"), node("y = Relu(t1000)")]
    return called({"F": [*dead, node("c = Relu(a)")]}, [ends[0], *calls, ends[1]])


def many_zeros(count, size):
    zeros = [node(f"c{i} = ConstantOfShape(n)") for i in range(count)]
    sums = [node(f"s{i + 1} = Add(s{i}, c{i})") for i in range(count)]
    ends = [node("s0 = Relu(x)"), node(f"y = Relu(s{count})")]
    return model([ends[0], *zeros, *sums, ends[1]], [ONE], [Y], {"n": np.array([size])})


def doubling_concat():
    doubled = [node(f"c{i + 1} = Concat(c{i}, c{i}, axis=0)") for i in range(40)]
    weights = {"c0": np.ones(1000, np.float32)}
    return model([*doubled, node("y = Add(x, c40)")], [value("x", [1])], [Y], weights)


def endless_loop():
    weights = {"n": np.array(2**40), "true": np.array(True)}
    return model([loop("n")], [X], [Y], weights)


def long_attribute():
    """Returns a model with an attribute of 4 million numbers, each in a field of its own."""
    made = model([node("y = Relu(x)")], [X], [Y])
    attribute = made.graph.node[0].attribute.add()
    attribute.name, attribute.type = "many", onnx.AttributeProto.INTS
    attribute.ints.extend([1] * 4_000_000)
    return made


HOSTILE = {
    "Split into 2^30": (
        lambda: one("Split", opset=18, num_outputs=2**30),
        cml.LoadLimits(),
        "Split 'y': .* needs 1,073,741,824 nodes",
    ),
    "functions that double": (doubling_functions, cml.LoadLimits(), "functions written out"),
    "a loop without end": (endless_loop, cml.LoadLimits(steps=10**5), "a loop or function needs"),
    "seventy tensors of 6 M": (
        lambda: many_zeros(70, 6_000_000),
        cml.LoadLimits(memory=52 * MIB),
        "ConstantOfShape 'c2': its tensor of the shape .6000000. needs 24,000,000 bytes",
    ),
    "a tensor that doubles": (doubling_concat, cml.LoadLimits(memory=64 * MIB), "Concat 'c1.'"),
    "Expand": (
        lambda: one("Expand", "w s", {"w": np.ones(1, np.float32), "s": np.array([2**28])}),
        cml.LoadLimits(memory=64 * MIB),
        "1,073,741,824 bytes",
    ),
    "Gather": (
        lambda: one("Gather", "w i", {"w": np.ones((2, 4000), np.float32),
                                      "i": np.zeros(16_000, np.int64)}),
        cml.LoadLimits(memory=64 * MIB),
        "Gather 'y'",
    ),
    "a list of integers": (long_attribute, cml.LoadLimits(steps=10**6), "4,000,000 steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name):
    make, limits, said = HOSTILE[name]
    data, start = bytes(make().SerializeToString()), time.process_time()
    with pytest.raises(OverBudget, match=said) as caught:
        cml.load(data, limits=limits)
    assert time.process_time() - start < SECONDS
    assert "raise the limit: --load-limits" in str(caught.value)


def test_hostile_graphs_load_in_linear_time():
    """A Sum of 20,000 inputs and functions of dead nodes load within ``SECONDS`` of processor
    time."""
    sums = model([helper.make_node("Sum", ["x"] * 20_000, ["y"])], [X], [Y])
    for made in (sums, dead_nodes_in_functions()):
        data, start = made.SerializeToString(), time.process_time()
        cml.load(data)
        assert time.process_time() - start < SECONDS


def test_constants_as_large_as_a_real_network_s_weights():
    """A ConstantOfShape of 37 million weights loads, as in AlexNet of the ONNX model zoo."""
    graph = cml.load(many_zeros(1, 37_748_736).SerializeToString())
    assert max(array.size for array in graph.constants.values()) == 37_748_736
