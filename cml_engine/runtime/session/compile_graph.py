"""Compiles a graph for a backend: optimizes it, plans it and creates its program."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_args
from weakref import WeakValueDictionary

from cml_engine.compiler.optimize import NAMES, optimize
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.decisions import Decisions, check_decisions, resolve_overrides
from cml_engine.compiler.planning.dispatches import PlanOptions, Sibling, share_constants
from cml_engine.compiler.planning.layouts import Storage
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError
from cml_engine.errors.arguments import (
    ARENA_LIMIT,
    check_choice,
    check_choices,
    check_flag,
    check_instance,
    check_known_names,
    check_name_list,
)
from cml_engine.ir.graph import Array, Graph, Shapes
from cml_engine.ops import is_registered, lookup
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.runtime.live.refill_weights import refill_plan

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.preparation import OnProgress
    from cml_engine.gpu.program.program import GpuProgram


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options with which a session compiles its network.

    Parameters
    ----------
    without : names of passes to leave out; ``"views"`` (``planning/memory.py``) is one of them.
    blocked_layout : store feature maps on a GPU in blocks of four channels.
    storage : ``"half"`` stores a GPU's feature maps, and the weights that are applied to them, in
        16 bits (docs/faster.md). Arithmetic is always in 32 bits, and the CPU stores 32 bits.
    plan : see :class:`PlanOptions`.
    tuned : use the kernels of the device's table of variants (docs/faster.md), unless ``plan`` has
        its own table.
    keep : tensors of the graph as written that no pass may remove. They can be read after a run
        like the outputs (:meth:`Session.tensor`, docs/see_inside.md).
    decide : by tensor, choices for a GPU's plan that override tables and rules, such as
        ``{"conv2": {"kernel": "winograd", "storage": "half"}}`` (docs/see_inside.md).
    arena_limit : the most bytes of a GPU's activations. Above the limit, operators are computed in
        bands of rows, with bit-identical results (docs/faster.md).

    Examples
    --------
    >>> options = cml.CompileOptions(keep=("c",), without=frozenset({"fuse"}))
    >>> session = cml.Session(graph, "cpu", options)
    """

    without: frozenset[str] = frozenset()
    blocked_layout: bool = True
    storage: Storage = "float"
    plan: PlanOptions = PlanOptions()
    tuned: bool = True
    keep: tuple[str, ...] = ()
    decide: Decisions = field(default_factory=dict)
    arena_limit: int | None = None

    def __post_init__(self) -> None:
        check_choices(NAMES, self.without, "passes to leave out")
        check_choice(get_args(Storage), self.storage, "storage")
        check_flag(self.blocked_layout, "blocked_layout")
        check_flag(self.tuned, "tuned")
        check_instance(PlanOptions, self.plan, "plan")
        check_name_list(self.keep, "keep")
        check_decisions(self.decide)
        if self.arena_limit is not None:
            ARENA_LIMIT.check(self.arena_limit, "arena_limit")
        of_maps = any({"layout", "storage"} & set(kinds) for kinds in self.decide.values())
        if of_maps and not self.blocked_layout:
            raise InputError(
                "decide: layouts and storage apply to feature maps in blocks of four channels: "
                "leave blocked_layout=False out"
            )
        if self.storage == "half" and not self.blocked_layout:
            raise InputError(
                "storage 'half' applies to feature maps in blocks of four channels: leave "
                "blocked_layout=False out, or storage"
            )


# -- shape cache ----------------------------------------------------------------------------------

P = TypeVar("P")
S = TypeVar("S")
Key = tuple[tuple[str, tuple[int, ...]], ...]
#: the most requested shapes for which the full shapes are remembered
_MAX_REQUESTS = 1024


@dataclass(frozen=True)
class Compiled(Generic[P]):
    """A network compiled by a backend at one shape of its inputs.

    ``source`` is the original graph, ``graph`` the optimized one; ``program`` is the backend's.
    """

    source: Graph
    graph: Graph
    plan: Plan | None
    program: P
    #: its operators as registered at the time of planning
    specs: Mapping[str, OpSpec] = field(default_factory=dict)


class ShapeCache(Generic[P, S]):
    """The sessions of a network by the shapes of its inputs.

    The cache keeps the ``most`` recently used compiled networks. It holds sessions weakly, so the
    resources of a session are released with it. Threads that request one shape at the same time get
    one session; threads that request another shape do not wait for it.
    """

    def __init__(
        self,
        most: int,
        compile: Callable[[Graph], Compiled[P]],
        session: Callable[[Compiled[P], ShapeCache[P, S]], S],
    ) -> None:
        self._most = most
        self._compile, self._session = compile, session
        self._lock = Lock()
        self._recent: OrderedDict[Key, Compiled[P]] = OrderedDict()
        self._alive: WeakValueDictionary[Key, S] = WeakValueDictionary()
        self._compiling: dict[Key, Future[S]] = {}
        #: the shapes of all inputs by the requested shapes
        self._full: dict[Key, Key] = {}

    def add(self, graph: Graph, session: S) -> None:
        """Adds a session that the cache did not make, for the input shapes of ``graph``."""
        self._alive[key_of_inputs(graph)] = session

    def get(self, shapes: Shapes, load: Callable[[], Graph]) -> S:
        """Returns the session for these input shapes; compiles the graph that ``load`` returns if
        there is none.

        Waits if another thread compiles the same shapes.
        """
        asked = key_of(shapes)
        mine: Future[S] = Future()
        with self._lock:
            found = self._find(self._full.get(asked, asked))
            if found is not None:
                return found
            making = self._compiling.setdefault(asked, mine)
        if making is mine:
            try:
                mine.set_result(self._compile_missing(asked, load()))
            except BaseException as error:
                mine.set_exception(error)
            finally:
                with self._lock:
                    del self._compiling[asked]
        return making.result()

    def _compile_missing(self, asked: Key, graph: Graph) -> S:
        key = key_of_inputs(graph)
        with self._lock:
            if len(self._full) >= _MAX_REQUESTS:
                self._full.clear()
            self._full[asked] = key
            found = self._find(key)
        if found is not None:
            return found
        compiled = self._compile(graph)
        with self._lock:
            self._recent[key] = compiled
            while len(self._recent) > self._most:
                self._recent.popitem(last=False)
            return self._alive.setdefault(key, self._session(compiled, self))

    def _find(self, key: Key) -> S | None:
        """Returns the live session of a key, or a new one of the cached compiled network; None
        if neither exists."""
        compiled = self._recent.get(key)
        if compiled is not None:
            self._recent.move_to_end(key)
        session = self._alive.get(key)
        if session is None and compiled is not None:
            session = self._alive[key] = self._session(compiled, self)
        return session


def key_of(shapes: Shapes) -> Key:
    """Returns the cache key of input shapes: (name, shape) pairs sorted by name."""
    return tuple(sorted(shapes.items()))


def key_of_inputs(graph: Graph) -> Key:
    """Returns the cache key of a graph: the names and shapes of its inputs, sorted by name."""
    return key_of({name: graph.facts[name].shape for name in graph.inputs})


# -- compile graph --------------------------------------------------------------------------------

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
