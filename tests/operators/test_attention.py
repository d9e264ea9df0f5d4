"""Tests of attention and of the normalization before it: products that store heads, and rows."""

from dataclasses import replace

import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.runtime.session import CompileOptions, Session
from tests.fixtures.graphs import Net, attention, check_session

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("sizes", [(2, 7, 3, 5), (1, 9, 2, 32), (1, 1, 1, 1)])
def test_attention_gives_the_reference(sizes, software, gpu, set_limits):
    set_limits(software=software)
    net = attention(*sizes)
    graph = net.graph()

    ops = [node.op for node in optimize(graph).nodes]
    assert "standardize" in ops and "transpose" not in ops
    assert ("matmul_heads" in ops) == (sizes != (1, 1, 1, 1))  # whose transposes move nothing
    assert ("matmul_parts" in ops) == (sizes != (1, 1, 1, 1))
    check_session(graph, gpu, net.input())


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("sizes", [(2, 13, 3, 12), (1, 1, 2, 24)])
def test_joined_products_are_bit_identical(sizes, software, gpu, set_limits):
    """Joined products change no bit; only on hardware do they run as one dispatch."""
    set_limits(software=software)
    net = attention(*sizes)
    graph, inputs = net.graph(), net.input()
    options = CompileOptions(plan=PlanOptions(keep=True))
    alone = replace(options, without=frozenset({"products"}))
    sessions = [Session(graph, gpu, options=o) for o in (options, alone)]
    fewer = 0 if software else 2
    assert len(sessions[1].plan.steps) - len(sessions[0].plan.steps) == fewer
    results = [session.run(inputs) for session in sessions]
    for name in results[0]:
        assert results[0][name].tobytes() == results[1][name].tobytes()


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("rows", [1, 7])
def test_joined_linears_are_bit_identical(rows, software, gpu, set_limits):
    """Linears of one input change no bit when joined; a software driver runs each by itself."""
    set_limits(software=software)
    net = Net(rows, 36)
    biases = ("random(1, 25)", "random(1, 25)", "random(25)")
    graph = net.graph(*[net(f"linear(x, random(25, 36), {bias})") for bias in biases])
    sessions = [
        Session(graph, gpu, options=CompileOptions(without=without))
        for without in (frozenset(), frozenset({"products"}))
    ]
    counts = [len(session.plan.steps) for session in sessions]
    assert counts == ([3, 3] if software else [1, 3])
    if software:
        steps = [[(s.path, s.defines, s.params) for s in x.plan.steps] for x in sessions]
        assert steps[0] == steps[1]
    inputs = net.input()
    results = [session.run(inputs) for session in sessions]
    for name in results[0]:
        assert results[0][name].tobytes() == results[1][name].tobytes()
    check_session(graph, gpu, net.input())
