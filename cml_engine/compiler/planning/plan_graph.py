"""Plans an optimized graph for a device: the stages of planning, in the order in which they run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from cml_engine.compiler.passes.partition import move_to_cpu
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.arena import (
    decide_views,
    find_lifetimes,
    place_arena,
)
from cml_engine.compiler.planning.bands.search import fit_in_bands
from cml_engine.compiler.planning.decisions import NO_DECISIONS, Decisions, resolve_overrides
from cml_engine.compiler.planning.draft import Draft, NodesRefused, PlanOptions, Sibling, Storage
from cml_engine.compiler.planning.layouts import decide_layouts, without_taps
from cml_engine.compiler.planning.lowering_stages import LOWERING_STAGES
from cml_engine.compiler.planning.modelled_storage import store_by_model
from cml_engine.compiler.planning.steps import make_steps, place_weights
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import lookup

DEFAULT = PlanOptions()
_log = logging.getLogger(__name__)

#: the stages of planning for a GPU: name, function, what it does
PLAN_STAGES: tuple[tuple[str, Callable[[Draft], Draft], str], ...] = (
    ("layouts", decide_layouts, "stores feature maps in blocks of four channels or few bits"),
    ("storage", store_by_model, "keeps 32 bits where 16 would be slower, by a model of hardware"),
    *LOWERING_STAGES,
    ("lifetimes", find_lifetimes, "finds the dispatches between which each tensor needs memory"),
    ("views", decide_views, "lets the parts of a concat or split lie in the whole"),
    ("arena", place_arena, "gives every tensor a place, and drops the copies of views"),
    ("bands", fit_in_bands, "repeats the stages from sharing on in bands of rows, over a limit"),
    ("weights", place_weights, "places the constants that dispatches read"),
    ("steps", make_steps, "checks the limits of the device, and makes each dispatch a step"),
)


def plan_graph(
    graph: Graph,
    limits: Limits,
    storage: Storage = "float",
    options: PlanOptions = DEFAULT,
    decide: Decisions = NO_DECISIONS,
    *,
    arithmetic: Storage = "float",
    written: Graph | None = None,
    sibling: Sibling | None = None,
    blocked_layout: bool = True,
    allow_cpu: bool = False,
) -> Plan:
    """Returns the plan of an optimized graph for a device with these limits.

    ``storage`` is the storage of feature maps by default. If ``arithmetic`` is ``"half"``, a model
    of hardware chooses what has 16 bits. The decisions ``decide`` may use the names of the original
    graph ``written``. Without ``blocked_layout`` all tensors are plain.
    With ``allow_cpu`` the CPU computes the nodes that their kernels refuse; without it that is an
    error. Equal arguments give equal plans. With a ``sibling`` the plan uses its kernels and packed
    weights if they are valid.
    """
    written, refusals = written or graph, dict[str, str]()
    without = frozenset[str]() if blocked_layout else frozenset({"layouts", "storage"})
    while True:
        overrides = resolve_overrides(decide, written, without_taps(graph))
        options = replace(options, overrides=overrides)
        try:
            draft = Draft(graph, limits, options, storage, arithmetic, sibling, refusals)
            plan = _run_stages(draft, without)
            break
        except NodesRefused as refusal:
            refused = _movable(graph, options, refusal) if allow_cpu else {}
            if not refused:
                raise refusal.first from None
            graph = move_to_cpu(graph, refused)
            refusals = {**refusals, **refused}
    steps, nbytes = len(plan.steps), (plan.memory.peak, plan.weights_bytes)
    _log.info("'%s' is planned: %d steps, arena %d, weights %d bytes", plan.name, steps, *nbytes)
    return plan


def _movable(graph: Graph, options: PlanOptions, refusal: NodesRefused) -> dict[str, str]:
    """Returns the reasons by first result why the CPU must compute nodes of a graph.

    Raises the error of a node that the CPU cannot compute, or if the caller decided its kernel or
    how its tensors are bound.
    """
    reasons: dict[str, str] = {}
    kernels, parts = options.decided("kernel"), options.decided("parts")
    for node in graph.nodes:
        name = node.outputs[0]
        if error := refusal.errors.get(name):
            decided = name in kernels or not parts.keys().isdisjoint(node.tensors)
            if decided or lookup(node.op).cpu is None:
                raise error
            reasons[name] = error.message
    return reasons


def lower(
    graph: Graph,
    limits: Limits,
    layouts: Mapping[str, str] | None = None,
    options: PlanOptions = DEFAULT,
    sibling: Sibling | None = None,
) -> Plan:
    """Returns the plan of a graph in the given layouts, without bands and without CPU fallback."""
    draft = Draft(graph, limits, options, sibling=sibling, layouts=dict(layouts or {}))
    try:
        return _run_stages(draft, frozenset({"layouts", "storage", "bands"}))
    except NodesRefused as refusal:
        raise refusal.first from None


def _run_stages(draft: Draft, without: frozenset[str]) -> Plan:
    """Returns the plan that the stages except those named in ``without`` make of a draft."""
    records, before = [], draft.figures
    for name, stage, description in PLAN_STAGES:
        if name not in without:
            yield_to_frame()
            draft = stage(draft)
            after = draft.figures
            changed = {unit: n for unit, n in after.items() if n != before[unit]}
            records.append((name, description, changed))
            before = after
    assert draft.plan is not None  # from the last stage
    return replace(draft.plan, stages=tuple(records))
