"""Tests of a game's operators in integer networks: exact ones work, others are refused by name."""

import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.errors import OperatorError, RangeError
from cml_engine.runtime.node_check import check_bits, random_words
from cml_engine.testing import check
from tests.fixtures.graphs import Net
from tests.fixtures.integer.networks import IntegerNet, line
from tests.fixtures.pages import example
from tests.integer.test_quantize import samples_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_operators")]


def own(source, function, name="own", **more):
    """Registers an operator of one tensor that computes ``source`` on the GPU and ``function``
    in NumPy."""
    spec = {
        "infer": ops.same_as(0),
        "cpu": lambda attrs, x: function(x),
        "kernel": cml.Kernel(source=f"void kernel(uint i) {{ y[i] = {source}; }}"),
        "signature": f"fragment {name}(x: tensor<scalar>) -> (y: tensor<scalar>)",
        "cases": [ops.Case(((2, 5),))],
    }
    cml.register(cml.OpSpec(name, **{**spec, **more}))


def one(op="own", **how):
    net = IntegerNet()
    return net.graph(net.op(op, net.input("x", (2, 5), 0.25), **how))


def test_an_exact_operator_joins(gpu):
    exec(example("docs/custom_operators.md", "bounds="), {"cml": cml, "np": np})
    check("steepness", gpu)
    net = Net(1, 2, 5, 7)
    y = net.op("relu", net.op("mul", "x", net.constant(2.0)))
    graph = net.graph(net.op("steepness", y))
    quantized, report = cml.quantize(graph, samples_of(graph), sixteen=[])
    point = next(node for node in report.nodes if node.title.startswith("steepness"))
    assert (point.carrier, point.bound) == ("float32", 4 * 255) and report.error < 0.02
    bits = check_bits(quantized, gpu, random_words(quantized, 3))
    assert bits.ok, bits


def test_exact_operator_without_bounds_keeps_the_scale():
    """An exact operator without bounds keeps its operand's scale, so nothing is rounded after
    it."""
    own("x[x_size - 1 - i]", lambda x: x[::-1, ::-1], exact=True)
    graph = one()
    x = np.arange(-5, 5, dtype=np.float32).reshape(2, 5) / 4
    np.testing.assert_array_equal(*cml.Session(graph, "cpu").run({"x": x}).values(), x[::-1, ::-1])
    assert [point.title for point in lower_to_integers(graph).points] == ["input"]


def test_operator_not_declared_exact_is_refused():
    own("x[i]", lambda x: x)
    with pytest.raises(cml.ModelError, match="own 't0' .* a game's own operator.*exact=True"):
        cml.Session(one(), "cpu")
    net = Net(2, 5)
    graph = net.graph(net.op("own", "x"))
    with pytest.raises(cml.ModelError, match="own 't0' .* a game's own operator.*exact=True"):
        cml.quantize(graph, samples_of(graph))


def test_replacement_of_an_engine_operator_is_refused():
    ops.unregister("relu")
    own("max(x[i], 0.0)", lambda x: np.maximum(x, 0), "relu")
    with pytest.raises(cml.ModelError, match="relu 't0' .* a game's own operator"):
        cml.Session(one("relu"), "cpu")
    ops.unregister("relu")


#: messages of check() and of validate --integer about an operator that breaks its declaration
WRONG = {
    "fractions": ({}, "0.5 * x[i]", lambda x: np.float32(0.5) * x, "whole numbers"),
    "too large": ({}, "x[i] + 2.0", lambda x: x + 2, r"wanted -\d+ to \d+"),
    "bounds": ({"bounds": lambda attrs, x: (0, 9)}, "x[i]", lambda x: x, "wanted 0 to 9"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_exact_operator_is_detected(case, gpu):
    more, source, cpu, message = WRONG[case]
    own(source, cpu, exact=True, **more)
    graph = one(to=line(0.25))
    bits = check_bits(graph, gpu, random_words(graph, 1))
    assert not bits.ok
    assert re.match(f"own 't0.* gives .*{message}", bits.first)
    with pytest.raises(AssertionError, match=f"own, case .* gives .*{message}"):
        check("own", gpu)


def test_different_gpu_result_is_detected(gpu):
    own("x[i] + 1.0", lambda x: x, exact=True)
    with pytest.raises(AssertionError):
        check("own", gpu)


DECLARED = {
    "no kernel": ({"exact": True, "kernel": None}, "wants a cpu function and a kernel.*no kernel"),
    "no NumPy": ({"exact": True, "cpu": None}, "it has no cpu"),
    "bounds alone": ({"bounds": lambda attrs, x: (0, 1)}, "bounds is for exact=True"),
}  # fmt: skip


@pytest.mark.parametrize("case", DECLARED)
def test_a_wrong_declaration_is_refused(case):
    more, message = DECLARED[case]
    with pytest.raises(OperatorError, match=message):
        own("x[i]", lambda x: x, **more)


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        (lambda attrs, x: (0, 1 << 24), RangeError, r"0 to 16,777,216 .*wanted whole numbers"),
        (lambda attrs, x: x.least, OperatorError, "own '.*bounds function failed: AttributeError"),
    ],
)
def test_declared_bounds_are_checked(bounds, error, message):
    own("x[i]", lambda x: x, exact=True, bounds=bounds)
    with pytest.raises(error, match=message):
        cml.Session(one(to=line(0.25)), "cpu")
