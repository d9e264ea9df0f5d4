"""Tests of variables that a network updates, on both backends, in whole runs and in frames.

A run reads the old values everywhere, and all variables change at once when it ends.
"""

import functools

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.runtime.node_check import check_nodes
from cml_engine.runtime.session import CompileOptions
from cml_engine.scheduler.planning.plan import operators_per_frame
from cml_engine.testing import full_attrs
from tests.fixtures.frames.host import Host
from tests.fixtures.graphs import Net
from tests.fixtures.results import close

pytestmark = pytest.mark.gpu


def in_frames(session, gpu, inputs):
    """Runs a job with one operator per frame and returns its outputs by name."""
    host = Host(gpu, budget_ms=100.0)
    host.scheduler.planner = operators_per_frame(1)
    job = host.submit(session, inputs)
    return {name: host.finish(job, name=name)[0] for name in session.outputs}


def simple(updates, outputs, nodes=(), **variables):
    facts = {"x": Fact("scalar", (3,))} | {v: Fact("scalar", (3,)) for v in variables}
    constants = {v: np.full(3, value, np.float32) for v, value in variables.items()}
    return infer_facts(
        Graph("simple", ("x",), outputs, tuple(nodes), facts, constants, updates=updates)
    )


X = {"x": np.full(3, 7, np.float32)}


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ((("a", "b"), ("b", "c"), ("c", "x")), [[1, 2, 3], [2, 3, 7], [3, 7, 7]]),
        ((("a", "b"), ("b", "a")), [[1, 2, 3], [2, 1, 3], [1, 2, 3]]),
        ((("a", "x"), ("b", "a")), [[1, 2, 3], [7, 1, 3], [7, 7, 3]]),
        ((("a", "c"), ("b", "b")), [[1, 2, 3], [3, 2, 3], [3, 2, 3]]),
        ((("a", "b"), ("b", "c"), ("c", "a")), [[1, 2, 3], [2, 3, 1], [3, 1, 2]]),
    ],
    ids=["shift register", "swap", "input", "constant", "ring"],
)
def test_permuted_variables(updates, expected, backend, gpu):
    session = cml.Session(simple(updates, ("a", "b", "c"), a=1, b=2, c=3), backend)
    sliced = functools.partial(in_frames, session, gpu)
    for run in [session.run] if backend == "cpu" else [session.run, sliced]:
        session.reset()
        for values in expected:
            got = run(X)
            assert [got[n][0] for n in "abc"] == values


def test_validation_checks_the_run_and_not_the_values_after_it(gpu):
    nodes = [
        Node("reshape", ("a",), ("r",), full_attrs("reshape", {"shape": [3, 1]})),
        Node("add", ("a", "x"), ("sum",), full_attrs("add", {})),
        Node("neg", ("r",), ("n",), full_attrs("neg", {})),
    ]
    graph = simple((("a", "sum"),), ("r", "n", "sum"), nodes, a=1)
    assert all(check.ok for check in check_nodes(optimize(graph), gpu, X))


def test_a_feature_map_as_state_in_16_bits(gpu):
    net = Net(1, 3, 6, 8)
    state = net.random(1, 8, 6, 8)
    summed = net(f"add(conv(x, 8), {state})")
    graph = net.graph(net.conv(net(f"relu({summed})"), 3), state).with_(updates=((state, summed),))
    turns = [net.input() for _ in range(3)]
    half, full = (
        cml.Session(graph, backend, CompileOptions(storage=storage))
        for backend, storage in ((gpu, "half"), ("cpu", "float"))
    )
    for inputs in turns:
        close(half.run(inputs), full.run(inputs), 0.02)


def test_variable_update_of_another_shape_is_refused():
    graph = simple((), ("a",), a=1)
    facts = {**graph.facts, "y": Fact("scalar", (4,))}
    wrong = graph.with_(inputs=("x", "y"), facts=facts, updates=(("a", "y"),))
    with pytest.raises(
        cml.ModelError, match=r"update of 'a' wants scalar\[3\], 'y' is scalar\[4\]"
    ):
        cml.Session(wrong, "cpu")
