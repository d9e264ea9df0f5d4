"""Tests that optimized graphs give the results of the original ones, on the CPU and on the GPU."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes import rules
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.runtime.session import Session
from cml_engine.testing import SENTINEL, full_attrs
from tests.fixtures.graphs import BLOCKS, Net, check_session, random_graph
from tests.fixtures.results import same_bits

pytestmark = pytest.mark.gpu

REWRITING = (
    *("common", "bypass", "slices", "padding", "affine", "normalization"),
    *("raise", "fuse", "chains", "views"),
)
#: passes that change the kernels, not only the parameters; the others run in the long suite
ON_THE_GPU = ("", "chains", "views")
WITHOUT = [
    pytest.param(without, backend, marks=marks)
    for without in ("", *REWRITING)
    for backend, marks in (("cpu", ()), ("gpu", () if without in ON_THE_GPU else pytest.mark.long))
]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("without", "backend"), WITHOUT)
def test_blocks_give_equal_results_without_each_pass(block, without, backend, gpu):
    net = BLOCKS[block]()
    graph = net.graph(net.nodes[-1].outputs[0])
    without = frozenset({without} - {""})
    check_session(graph, gpu if backend == "gpu" else "cpu", net.input(), 1e-4, without=without)


def run_planned(graph, inputs, gpu, **options):
    plan = lower(graph, gpu.limits, choose_layout(graph), PlanOptions(**options))
    program = GpuProgram(plan, gpu)
    inspect.fill_arena(program, SENTINEL)
    return program.run(inputs)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1))
def test_chains_and_views_are_bit_identical_to_single_operators(seed, gpu):
    graph, inputs = random_graph(seed)
    apart, fused = (optimize(graph, frozenset(w)) for w in ({"chains"}, set[str]()))
    expected = run_planned(apart, inputs, gpu, views=False)
    same_bits(run_planned(apart, inputs, gpu), expected)
    same_bits(run_planned(fused, inputs, gpu), expected)


def test_a_tree_rounds_after_every_operator(gpu):
    """A fused tree of operators is bit-identical to NumPy, which rounds after every operator.

    A driver might otherwise contract a sum of products, and simplify ``(h + b) - h`` to ``b``.
    """
    net = Net(4, 256)
    b, c, d = (net.random(4, 256, low=10.0, high=1000.0) for _ in range(3))
    h = net(f"add(mul(x, {b}), mul({c}, {d}))")
    back = net(f"sub(add({h}, {b}), {h})")
    graph, inputs = net.graph(f"mul({back}, {back})"), net.input()
    x, (b, c, d) = inputs["x"], (graph.constants[n] for n in (b, c, d))
    session = Session(graph, gpu)
    assert session.plan is not None and len(session.plan.steps) == 1
    expected = x * b + c * d
    expected = (expected + b) - expected
    assert_array_equal(session.run(inputs)[graph.outputs[0]], expected * expected)


def test_rule_may_add_integer_constants(gpu):
    """A rewriting rule can add a constant of integers: here it replaces ``abs(x)`` by a gather
    of rows."""
    net = Net(2, 3)
    graph = net.graph("abs(x)")

    def reordered(match):
        rows = match.add_constant("rows", np.array([1, 0]))
        return match.node("gather", (match.last.inputs[0], rows), full_attrs("gather", {"axis": 0}))

    rule = rules.register_rule(rules.Rule("reordered", ("abs",), reordered))
    try:
        sessions = [Session(graph, backend) for backend in ("cpu", gpu)]
    finally:
        rules.unregister_rule(rule)
    inputs = net.input()
    for session in sessions:
        assert_array_equal(session.run(inputs)["t0"], inputs["x"][::-1])
