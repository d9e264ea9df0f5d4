"""Tests that a game's replacement of an operator is never taken for the engine's own.

This holds for every pass and every backend.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.optimize import STAGES, optimize
from cml_engine.compiler.passes.rules import Rule, register_rule, unregister_rule
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.ir.graph import Attrs
from cml_engine.ops import load_file
from cml_engine.ops.declaration.registry import load_families, lookup
from cml_engine.runtime.session import CompileOptions
from tests.fixtures.graphs import BLOCKS, Net, random_graph

load_families()


@contextmanager
def overridden(name, kernel=None):
    """Within the context, replaces an operator by one that adds 1 to its results.

    A use of the engine's own version then shows.
    """
    ours = lookup(name)
    cpu = ours.cpu
    assert cpu is not None

    def more(attrs, *arrays):
        results = cpu(attrs, *arrays)
        several = not isinstance(results, np.ndarray | np.generic)
        return [r + 1 for r in results] if several else results + 1

    ops.unregister(name)
    try:
        made = cml.register(cml.OpSpec(name, ours.infer, cpu=more, kernel=kernel))
        assert made.is_custom
        yield
    finally:
        ops.unregister(name)
        assert lookup(name) is ours


def some_graphs():
    for make in BLOCKS.values():
        net = make()
        yield net.graph(), net.input()
    for seed in range(12):
        yield random_graph(seed)
    # an operator that the other graphs lack
    net = Net(1, 4, 5, 6)
    one = net.constant(1.0)
    padded = net(f"pad(mul(copy(x), {one}), padding={[(0, 0)] * 4})")
    turned = net(f"transpose(transpose({padded}, axes=[0, 2, 3, 1]), axes=[0, 3, 1, 2])")
    still = net(f"transpose(silu({turned}), axes=[0, 1, 2, 3])")
    yield net.graph(f"leaky_relu({still}, alpha=0.1)"), net.input()


GRAPHS = list(some_graphs())
NAMES = sorted({n.op for graph, _ in GRAPHS for n in graph.nodes} | {"sqrt", "reshape"})
EVERY_PASS = frozenset(name for name, _, _ in STAGES if name != "infer")


@pytest.mark.parametrize("name", NAMES)
def test_passes_ignore_game_replacements_of_operators(name):
    with overridden(name):
        for graph, inputs in GRAPHS:
            expected = CpuProgram(optimize(graph, EVERY_PASS)).run(inputs)
            got = CpuProgram(optimize(graph)).run(inputs)
            for output, value in expected.items():
                size = float(np.abs(value).max(initial=1.0))
                if size < 1e4:  # the rounding error of larger values exceeds any tolerance
                    assert_allclose(got[output], value, 1e-3, 1e-4 * size)


@pytest.mark.parametrize("storage", ["float", "half"])
def test_a_convolution_and_a_chain_on_the_gpu(storage, gpu):
    net = Net(1, 3, 6, 8)
    h = net("relu(conv(x, 8))")
    h = net(f"add(relu(exp(conv({h}, 8))), {h})")
    graph = net.graph(net.conv(h, 3))
    kernel = "void kernel(uint thread) { y[thread] = max(x[thread], 0.0) + 1.0; }"
    agree_on_the_gpu("relu", kernel, graph, net.input(), gpu, CompileOptions(storage=storage), 5e-3)


def test_a_view_on_the_gpu(gpu):
    net = Net(4, 8)
    parts = [net("exp(neg(x))") for _ in range(2)]
    graph = net.graph(net.op("neg", net.op("concat", *parts, axis=0)))
    kernel = (
        "void kernel(uint t) { value[t] = values_load(t / values0_size, t % values0_size) + 1; }"
    )
    agree_on_the_gpu("concat", kernel, graph, net.input(), gpu, CompileOptions(), 1e-5)


def agree_on_the_gpu(name, source, graph, inputs, gpu, options, tolerance):
    with overridden(name, cml.Kernel(source=source)):
        expected = CpuProgram(graph).run(inputs)
        session = cml.Session(graph, gpu, options)
        got = session.run(inputs)
        assert name in {step.op for step in session.plan.steps}
    for output, value in expected.items():
        atol = tolerance * float(np.abs(value).max())
        assert_allclose(got[output], value, rtol=tolerance, atol=atol)


def test_session_keeps_its_operator_registrations(gpu):
    net = Net(1, 4)
    graph = net.graph("neg(relu(x))")
    inputs = net.input()
    sessions = [cml.Session(graph, backend) for backend in ("cpu", gpu)]
    expected = [session.run(inputs)["t1"] for session in sessions]
    with overridden("relu"):
        for session, value in zip(sessions, expected, strict=True):
            assert_array_equal(session.run(inputs)["t1"], value)
        later = cml.Session(graph, "cpu")
    assert not np.allclose(later.run(inputs)["t1"], expected[0])


def test_game_rule_matches_game_operator():
    net = Net(2, 3)
    graph = net.graph("relu(neg(x))")
    rule = register_rule(
        Rule("abs", ("neg", "relu"), lambda m: m.node("relu", m.first.inputs, Attrs()))
    )
    try:
        with overridden("relu"):
            assert [node.op for node in optimize(graph).nodes] == ["relu"]
    finally:
        unregister_rule(rule)


def test_ops_file_may_replace_an_engine_operator(tmp_path):
    ours = lookup("relu")
    file = tmp_path / "mine.py"
    text = """
import cml_engine as cml
cml.ops.unregister("relu")
cml.register(cml.OpSpec("relu", cml.ops.same_as(0), cpu=lambda attrs, x: x + 1))
"""
    file.write_text(text)
    try:
        assert load_file(file) == ("relu",) and lookup("relu").is_custom
        assert load_file(file) == ("relu",)
        file.write_text(text + "oh no")
        with pytest.raises(cml.CmlError, match="mine.py:5"):
            load_file(file)
        assert lookup("relu").is_custom  # a bad edit keeps the previous operator
        ops.unregister("relu")
        assert lookup("relu") is ours
    finally:
        ops.unregister("relu") if lookup("relu") is not ours else None
