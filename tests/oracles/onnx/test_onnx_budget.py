"""Tests of the limits of loading on small ONNX files that require much memory or work."""

import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cml_engine as cml  # noqa: E402
from cml_engine.io.load_limits import OverBudget  # noqa: E402
from tests.fixtures.onnx_models import function, load, loop, model, one  # noqa: E402

MIB = 2**20
#: processor seconds that no hostile file may take; the machine may be busy
SECONDS = 20.0


def called(functions, calls):
    """Returns a model of these calls and functions; ``functions`` has the nodes of each by name."""
    made = [function(name, body) for name, body in functions.items()]
    return model(calls, functions=made)


def doubling_functions():
    functions = {f"F{i}": f"b = my:F{i + 1}(a); c = my:F{i + 1}(b)" for i in range(40)}
    return called({**functions, "F40": "c = Relu(a)"}, "y = my:F0(x)")


def dead_nodes_in_functions():
    dead = [f"d{i} = Relu(a)" for i in range(5000)]
    calls = [f"t{i + 1} = my:F(t{i})" for i in range(1000)]
    return called({"F": [*dead, "c = Relu(a)"]}, ["t0 = Relu(x)", *calls, "y = Relu(t1000)"])


def many_zeros(count, size):
    zeros = [f"c{i} = ConstantOfShape(n)" for i in range(count)]
    sums = [f"s{i + 1} = Add(s{i}, c{i})" for i in range(count)]
    nodes = ["s0 = Relu(x)", *zeros, *sums, f"y = Relu(s{count})"]
    return model(nodes, "x: [1, 1]", "y", {"n": np.array([size])})


def doubling_concat():
    doubled = [f"c{i + 1} = Concat(c{i}, c{i}, axis=0)" for i in range(40)]
    weights = {"c0": np.ones(1000, np.float32)}
    return model([*doubled, "y = Add(x, c40)"], "x: [1]", "y", weights)


def endless_loop():
    return model([loop("n")], weights={"n": np.array(2**40), "true": np.array(True)})


def long_attribute():
    """Returns a model with an attribute of 4 million numbers, each in a field of its own."""
    network = model("y = Relu(x)")
    attribute = network.graph.node[0].attribute.add()
    attribute.name, attribute.type = "many", onnx.AttributeProto.INTS
    attribute.ints.extend([1] * 4_000_000)
    return network


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
    sums = model(f"y = Sum({', '.join(['x'] * 20_000)})")
    for made in (sums, dead_nodes_in_functions()):
        start = time.process_time()
        load(made)
        assert time.process_time() - start < SECONDS


def test_constants_as_large_as_a_real_network_s_weights():
    """A ConstantOfShape of 37 million weights loads, as in AlexNet of the ONNX model zoo."""
    graph = load(many_zeros(1, 37_748_736))
    assert max(array.size for array in graph.constants.values()) == 37_748_736
