"""Reuses a plan with new weights for a graph that differs only in the values of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cml_engine.compiler.plan import Binding, Plan, Step
from cml_engine.compiler.planning.decisions import NO_OVERRIDES, Overrides
from cml_engine.compiler.planning.dispatches import Draft, PlanOptions, Sibling, is_same, lower_node
from cml_engine.compiler.planning.lower import aligned_bytes, step_of
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Array, Graph
from cml_engine.ir.limits import Limits

Placed = Mapping[str, tuple[int, Array]]


def refill_plan(
    before: Sibling,
    graph: Graph,
    limits: Limits,
    options: PlanOptions,
    overrides: Overrides = NO_OVERRIDES,
) -> Plan | None:
    """Returns the plan of ``before`` with the weights of ``graph``; None if it does not fit.

    It does not fit if more than the values of constants differs, or if a changed value affects a
    kernel's parameters. Only nodes that read a changed value are lowered, to verify that their
    steps stay the same.
    """
    if not _is_alike(before.graph, graph):
        return None
    options = replace(options, kernels=overrides.kernel, parts=overrides.parts)
    plan, old = before.plan, before.graph.constants
    values = {name: a for name, a in graph.constants.items() if not is_same(a, old[name])}
    draft = Draft()
    for node in graph.nodes:
        yield_to_frame()
        if not values.keys().isdisjoint(node.reads):
            lower_node(draft, graph, node, limits, dict(plan.layouts), options, before)
    if not _has_steps(plan, draft):
        return None
    values |= draft.packed
    weights, own = _fill(plan.weights, values), _fill(plan.own, values)
    bound_names = {b.tensor for step in plan.steps for b in step.bindings} | {*graph.roots}
    # weights that belong to other shapes cannot be refilled: this graph has no values for them
    stale = plan.weights.keys() - bound_names
    if weights is None or own is None or stale:
        return None
    return replace(plan, weights=weights, own=own)


def _is_alike(one: Graph, other: Graph) -> bool:
    """Returns True if two graphs differ only in the values of constants."""
    if one.constants.keys() != other.constants.keys():
        return False
    pairs = ((array, other.constants[name]) for name, array in one.constants.items())
    if any((a.dtype, a.shape) != (b.dtype, b.shape) for a, b in pairs):
        return False
    return one.with_(constants={}, notes=()) == other.with_(constants={}, notes=())


def _has_steps(plan: Plan, draft: Draft) -> bool:
    """Returns True if the plan contains the draft's dispatches unchanged, in the same memory."""
    whole = _scratch_bindings(plan.steps)
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
    same_room = (
        whole[n].nbytes == aligned_bytes(4 * w) for n, w in draft.scratch.items() if n in whole
    )
    return all(choice in known for choice in draft.choices) and all(same_room)


def _is_step(one: Step, other: Step) -> bool:
    """Returns True if two steps are equal and their parameters are bit-identical."""
    if one.params.keys() != other.params.keys() or one != replace(other, params=one.params):
        return False
    return all(
        is_same(np.asarray(value), np.asarray(other.params[name]))
        for name, value in one.params.items()
    )


def _scratch_bindings(steps: Sequence[Step]) -> dict[str, Binding]:
    """Returns a binding that covers the whole tensor, by name, for each tensor of the steps."""
    found: dict[str, Binding] = {}
    for step in steps:
        for b in step.bindings:
            known = found.get(b.tensor, b)
            start, end = min(known.offset, b.offset), max(known.end, b.end)
            found[b.tensor] = replace(b, offset=start, nbytes=end - start)
    return found


def _fill(placed: Placed, values: Mapping[str, Array]) -> dict[str, tuple[int, Array]] | None:
    """Returns placed constants, ``{name: (offset, array)}``, with the new ``values`` where given.

    Returns None if a dtype or shape differs.
    """
    found = {}
    for name, (offset, array) in placed.items():
        value = values.get(name, array)
        if (value.dtype, value.shape) != (array.dtype, array.shape):
            return None
        found[name] = offset, value
    return found
