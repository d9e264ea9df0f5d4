"""Compiles a graph for a backend: optimizes it, plans it and creates its program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.decisions import resolve_overrides
from cml_engine.compiler.planning.dispatches import PlanOptions, Sibling, share_constants
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.planning.shape_cache import Compiled
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError
from cml_engine.errors.arguments import check_known_names
from cml_engine.ir.graph import Array, Graph
from cml_engine.ops import is_registered, lookup
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.runtime.live.refill_weights import refill_plan
from cml_engine.runtime.session.options import CompileOptions

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.preparation import OnProgress
    from cml_engine.gpu.program.program import GpuProgram

_log = logging.getLogger(__name__)


class Program(Protocol):
    """The interface of a network compiled for a backend: ``GpuProgram`` or ``CpuProgram``."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...
    def reset(self) -> None: ...
    def build_ahead(self) -> None: ...
    @property
    def known_inputs(self) -> frozenset[str]: ...
    def inherit(self, before: Any) -> None: ...


def as_gpu_program(program: Any) -> GpuProgram:
    """Returns the program of a GPU session typed as :class:`GpuProgram`; checks nothing."""
    return program  # type: ignore[no-any-return]


def compile_graph(
    graph: Graph,
    gpu: Gpu | None,
    options: CompileOptions,
    deferred: bool,
    arena: str | None,
    before: Compiled[Program] | None = None,
    on_progress: OnProgress | None = None,
) -> Compiled[Program]:
    """Optimizes and plans a graph for ``gpu`` (None is the CPU) and returns it with its program.

    A graph that replaces ``before`` and differs only in its weights reuses the plan of ``before``.
    Raises :class:`InputError` for an integer network with 16-bit storage.
    """
    if graph.integer and options.storage != "float":
        raise InputError(
            f"'{graph.name}' is an integer network, which 16-bit floats cannot hold: leave "
            "storage='half' (--half) out"
        )
    report = on_progress or (lambda stage, done, total: None)
    report("plan", 0, 1)
    optimized = _optimize(graph, options)
    if gpu is None:
        report("plan", 1, 1)
        if graph.ready is not None:
            graph.ready.check_cpu()
        return Compiled(graph, optimized, None, CpuProgram(optimized, retain=options.plan.retain))
    from cml_engine.gpu.program.program import GpuProgram

    specs = _specs(optimized)
    if before is not None and before.plan is not None and before.specs == specs:
        optimized = share_constants(optimized, before.graph)
        plan = _refill_plan(graph, optimized, gpu, options, Sibling(before.graph, before.plan))
        constants = None if plan is None else as_gpu_program(before.program).constants_of(plan)
        if plan is not None and constants is not None:
            _log.info("'%s' has other weights, and the plan and kernels that it had", graph.name)
            program = GpuProgram(plan, gpu, deferred=deferred, arena=arena, constants=constants)
            return Compiled(graph, optimized, plan, program, specs)
    plan = make_plan(optimized, gpu, options, written=graph)
    report("plan", 1, 1)
    program = GpuProgram(plan, gpu, deferred=deferred, arena=arena, on_progress=on_progress)
    return Compiled(graph, optimized, plan, program, specs)


def _specs(graph: Graph) -> dict[str, OpSpec]:
    """Returns the current registrations of the graph's operators, by name."""
    ops = dict.fromkeys(op for n in graph.nodes for op in (n.op, *(e.op for e in n.epilogues)))
    return {op: lookup(op) for op in ops if is_registered(op)}


def _refill_plan(
    graph: Graph, optimized: Graph, gpu: Gpu, options: CompileOptions, before: Sibling
) -> Plan | None:
    """Returns the plan of ``before`` with new weights; None if more than the weights differs."""
    if graph.ready is not None or options.plan.stub:
        return None
    overrides = resolve_overrides(options.decide, graph, optimized)
    return refill_plan(before, optimized, gpu.limits, _plan_options(gpu, options), overrides)


def _optimize(graph: Graph, options: CompileOptions) -> Graph:
    """Returns the graph after the passes, with the tensors that ``options.keep`` names.

    Raises :class:`InputError` if it names an unknown tensor.
    """
    outputs = set(graph.outputs)
    computed = (name for node in graph.nodes for name in node.outputs)
    known = dict.fromkeys((*computed, *graph.inputs, *graph.constants))
    check_known_names(options.keep, known, f"'{graph.name}' has no tensor", "keep")
    kept = tuple(name for name in dict.fromkeys(options.keep) if name not in outputs)
    graph = graph.with_(kept=kept, ready=graph.ready)
    return optimize(graph, options.without, retain=options.plan.retain)


def make_recompiler(
    first: Compiled[Program], gpu: Gpu | None, options: CompileOptions, arena: str | None
) -> Callable[[Graph], Compiled[Program]]:
    """Returns a function that compiles a graph: the network of ``first`` at other shapes.

    The function shares constants with ``first`` and its plan where possible. It holds no
    reference to the first program, whose arena is freed with its session.
    """
    before = first.graph
    if gpu is None or first.plan is None:
        assert isinstance(first.program, CpuProgram)
        scratch = first.program.scratch

        def on_cpu(graph: Graph) -> Compiled[Program]:
            optimized = share_constants(_optimize(graph, options), before)
            program = CpuProgram(optimized, scratch, retain=options.plan.retain)
            return Compiled(graph, optimized, None, program)

        return on_cpu
    from cml_engine.gpu.program.program import GpuProgram

    assert isinstance(first.program, GpuProgram)
    sibling, constants = Sibling(before, first.plan), first.program.constants
    # the table of variants is read here, once
    options = replace(options, plan=_plan_options(gpu, options), tuned=False)

    def on_gpu(graph: Graph) -> Compiled[Program]:
        optimized = share_constants(_optimize(graph, options), before)
        plan = make_plan(optimized, gpu, options, sibling, graph)
        program = GpuProgram(plan, gpu, deferred=True, arena=arena, constants=constants)
        return Compiled(graph, optimized, plan, program, _specs(optimized))

    return on_gpu


def make_plan(
    graph: Graph,
    gpu: Gpu,
    options: CompileOptions,
    sibling: Sibling | None = None,
    written: Graph | None = None,
) -> Plan:
    """Returns the plan of an optimized graph for a GPU session; a cooked graph brings its own.

    With a ``sibling``, the plan reuses as much of the sibling's as possible. ``written`` is the
    graph before the passes; decisions of the caller may use its tensor names.
    """

    def lowered() -> Plan:
        return plan_graph(
            graph, gpu.limits, options.storage, _plan_options(gpu, options), options.decide,
            written=written, sibling=sibling, blocked_layout=options.blocked_layout,
        )  # fmt: skip

    if graph.ready is None:
        return lowered()
    plain = replace(options, storage="float", tuned=True) == CompileOptions()
    return graph.ready.plan(gpu.limits, options.storage, plain, lowered)


def _plan_options(gpu: Gpu, options: CompileOptions) -> PlanOptions:
    plan = options.plan
    if options.arena_limit is not None:
        plan = replace(plan, arena_limit=options.arena_limit)
    if "views" in options.without:
        plan = replace(plan, views=False)
    if options.tuned and plan.variants is NO_VARIANTS:
        plan = replace(plan, variants=table_for(gpu.name))
    return plan
