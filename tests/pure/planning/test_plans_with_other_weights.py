"""Tests that a plan refilled with other weights equals a new plan, and that other changes give
None."""

from dataclasses import replace

import numpy as np
import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.dispatches import PlanOptions, Sibling, share_constants
from cml_engine.ir.limits import Limits
from cml_engine.ops import load_families
from cml_engine.runtime.live import refill_weights
from cml_engine.runtime.live.refill_weights import refill_plan
from tests.fixtures.graphs import Net, mobilenet_block, random_graph
from tests.pure.planning.test_plans_at_other_shapes import NETWORKS, plan_of

load_families()


def changed(graph, seed, of=()):
    """Returns the graph with other values of the constants in ``of``, or of about half of all
    constants."""
    rng = np.random.default_rng(seed)
    constants = dict(graph.constants)
    for name in of or [name for name in constants if rng.random() < 0.5]:
        constants[name] = (constants[name] * np.float32(1.25) + np.float32(0.5)).astype(np.float32)
    return graph.with_(constants=constants)


def refilled_plan(graph, other, storage="float"):
    """Returns two plans of ``other``: that of ``graph`` refilled with its weights, and a new one.

    The first is None if it cannot be refilled.
    """
    limits = Limits(subgroup_size=32)
    before, after = optimize(graph), optimize(other)
    sibling = Sibling(before, plan_of(before, limits, storage))
    made = plan_of(after, limits, storage)
    return refill_plan(sibling, share_constants(after, before), limits, PlanOptions()), made


def assert_equal_plans(got, wanted):
    for one, other in zip(got.steps, wanted.steps, strict=True):
        assert replace(one, params={}) == replace(other, params={})
        np.testing.assert_equal(one.params, other.params)
    assert got.memory == wanted.memory and got.places == wanted.places
    for placed, others in ((got.weights, wanted.weights), (got.own, wanted.own)):
        assert {n: at for n, (at, _) in placed.items()} == {n: at for n, (at, _) in others.items()}
        for name, (_, array) in placed.items():
            np.testing.assert_array_equal(array, others[name][1], strict=True)


@pytest.mark.parametrize("storage", ["float", "half"])
@pytest.mark.parametrize("name", NETWORKS)
def test_other_weights_give_the_plan_that_is_made_of_them(name, storage):
    graph = NETWORKS[name](24)
    for seed in range(3):
        weights = [name for name, a in graph.constants.items() if a.ndim > 1]
        other = changed(graph, seed, tuple(weights[seed:]))
        got, made = refilled_plan(graph, other, storage)
        assert got is not None
        assert_equal_plans(got, made)


@pytest.mark.parametrize("seed", range(40))
def test_of_any_network_it_is_that_plan_or_none(seed):
    graph, _ = random_graph(seed)
    got, made = refilled_plan(graph, changed(graph, seed))
    if got is not None:
        assert_equal_plans(got, made)


def test_one_weight_lowers_one_operator(monkeypatch):
    lowered = []

    def counted(draft, graph, node, *rest):
        lowered.append(node.op)  # type: ignore[attr-defined]
        original(draft, graph, node, *rest)  # type: ignore[arg-type]

    original = refill_weights.lower_node
    monkeypatch.setattr(refill_weights, "lower_node", counted)
    graph = NETWORKS["wide"](24)
    weight = next(node.inputs[1] for node in graph.nodes if node.op == "conv")
    got, made = refilled_plan(graph, changed(graph, 0, (weight,)))
    assert got is not None and lowered == ["conv"]
    assert_equal_plans(got, made)


def small(op="relu", size=12):
    net = Net(1, 8, size, size)
    return net.graph(net(f"{op}(conv(x, 8))"))


def clamped():
    net = mobilenet_block()
    return net.graph(net.nodes[-1].outputs[0])


OTHERS = {
    "an operator": (small(), small("tanh")),
    "a shape": (small(), small(size=16)),
    "a number in a kernel's parameters": (clamped(), changed(clamped(), 0, ("k1",))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_otherwise_has_a_plan_of_its_own(name):
    got, _ = refilled_plan(*OTHERS[name])
    assert got is None
