"""A plan with other weights, where a graph differs from the one before in its constants' values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cml_engine.compiler.plan import Binding, Plan, Step
from cml_engine.compiler.planning.asked import NOTHING_ASKED, Asked
from cml_engine.compiler.planning.lower import Draft, PlanOptions, bound, lower_node, step_of
from cml_engine.compiler.planning.sibling import Sibling, is_same
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.limits import Limits

Placed = Mapping[str, tuple[int, Array]]


def refilled(
    before: Sibling,
    graph: Graph,
    limits: Limits,
    options: PlanOptions,
    asked: Asked = NOTHING_ASKED,
) -> Plan | None:
    """The plan of ``graph``, which differs from that of ``before`` in the weights alone; None where
    more than constants' values differs, or where a kernel has one of these in its parameters. Only
    nodes that read another value are lowered, to see that they become the same steps."""
    if not _is_alike(before.graph, graph):
        return None
    options = replace(options, kernels=asked.kernel, parts=asked.parts)
    plan, old = before.plan, before.graph.constants
    values = {name: a for name, a in graph.constants.items() if not is_same(a, old[name])}
    draft = Draft()
    for node in graph.nodes:
        if not values.keys().isdisjoint(node.reads):
            lower_node(draft, graph, node, limits, dict(plan.layouts), options, before)
    if not _has_steps(plan, draft):
        return None
    values |= draft.packed
    weights, own = _filled(plan.weights, values), _filled(plan.own, values)
    bound_names = {b.tensor for step in plan.steps for b in step.bindings} | {*graph.roots}
    stale = plan.weights.keys() - bound_names  # of other shapes: nobody knows what these would be
    if weights is None or own is None or stale:
        return None
    return replace(plan, weights=weights, own=own)


def _is_alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs differ in nothing but the values of constants."""
    if one.constants.keys() != other.constants.keys():
        return False
    pairs = ((array, other.constants[name]) for name, array in one.constants.items())
    if any((a.dtype, a.shape) != (b.dtype, b.shape) for a, b in pairs):
        return False
    return one.with_(constants={}, notes=()) == other.with_(constants={}, notes=())


def _has_steps(plan: Plan, draft: Draft) -> bool:
    """Whether the plan does what the draft says, in the same memory."""
    whole = _whole(plan.steps)
    by_title: dict[str, list[Step]] = {}
    for step in plan.steps:
        by_title.setdefault(step.title, []).append(step)
    for node, kernel, dispatch, cost in draft.dispatches:
        steps = by_title.get(node.title)
        if not steps or any(name not in whole for name in dispatch.tensors):
            return False
        step, locate = steps.pop(0), whole.__getitem__
        if not _is_step(
            step, step_of(step.index, node, kernel, dispatch, cost, locate, draft.parts)
        ):
            return False
    if any(by_title[node.title] for node, *_ in draft.dispatches):
        return False
    known = dict.fromkeys(plan.choices)
    same_room = (whole[n].nbytes == bound(4 * w) for n, w in draft.scratch.items() if n in whole)
    return all(choice in known for choice in draft.choices) and all(same_room)


def _is_step(one: Step, other: Step) -> bool:
    """Whether two steps are the same, to the bits of their parameters."""
    if one.params.keys() != other.params.keys() or one != replace(other, params=one.params):
        return False
    return all(
        is_same(np.asarray(value), np.asarray(other.params[name]))
        for name, value in one.params.items()
    )


def _whole(steps: Sequence[Step]) -> dict[str, Binding]:
    """Every tensor's binding, of those in parts that of all."""
    found: dict[str, Binding] = {}
    for step in steps:
        for b in step.bindings:
            known = found.get(b.tensor, b)
            start, end = min(known.offset, b.offset), max(known.end, b.end)
            found[b.tensor] = replace(b, offset=start, nbytes=end - start)
    return found


def _filled(placed: Placed, values: Mapping[str, Array]) -> dict[str, tuple[int, Array]] | None:
    """The same places with these values; None where one is of another kind."""
    found = {}
    for name, (offset, array) in placed.items():
        value = values.get(name, array)
        if (value.dtype, value.shape) != (array.dtype, array.shape):
            return None
        found[name] = offset, value
    return found
