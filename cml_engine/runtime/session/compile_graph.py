"""Compiles a graph for a backend: optimizes it, plans it and creates its program."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args
from weakref import WeakValueDictionary

from cml_engine.compiler.optimize import AS_WRITTEN, NAMES, optimize
from cml_engine.compiler.passes.direct_convolutions import compute_directly, wide_range_of
from cml_engine.compiler.passes.half_products import allow_half_products
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.decisions import Decisions, check_decisions
from cml_engine.compiler.planning.draft import PlanOptions, Sibling, Storage, share_constants
from cml_engine.compiler.planning.node_order import order_for_memory
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.random_seed import with_seed
from cml_engine.compiler.tuning_tables import table_for
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError, UnsupportedOp
from cml_engine.errors.arguments import (
    ARENA_LIMIT,
    CPU_THREADS,
    RANDOM_SEED,
    Preset,
    check_choice,
    check_choices,
    check_flag,
    check_instance,
    check_known_names,
    check_name_list,
)
from cml_engine.ir.counted import counted_axes
from cml_engine.ir.graph import Array, Graph, Shapes
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.scratch import Scratch

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.memory import SharedConstants
    from cml_engine.gpu.program.preparation import OnProgress
    from cml_engine.gpu.program.program import GpuProgram


_log = logging.getLogger(__name__)
#: what runs on the CPU, and by which program
Cpu = Literal["allow", "refuse", "onnxruntime"]

#: the order of a plan's operators: the file's, or one that needs less memory
Order = Literal["file", "memory"]


class Target(Protocol):
    """The device that a plan is made for: a ``Gpu``, or the limits of one without the device."""

    @property
    def limits(self) -> Limits: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options with which a session compiles its network.

    Parameters
    ----------
    without : names of passes to leave out; ``"views"`` (``planning/arena.py``) is one of them.
    blocked_layout : store feature maps on a GPU in blocks of four channels.
    storage : ``"half"`` stores a GPU's feature maps, and the weights that are applied to them, in
        16 bits (docs/faster.md). The CPU stores 32 bits.
    arithmetic : ``"half"`` lets convolutions multiply in 16 bits what is stored in 16 bits, where a
        kernel of the device should be faster by that: hardware with the feature ``shader-f16``
        (docs/faster.md). What is slower in 16 bits is then stored in 32. It needs
        ``storage="half"``. The default is 32 bits.
    plan : see :class:`PlanOptions`.
    tuned : use the kernels of the device's table of variants (docs/faster.md), unless ``plan`` has
        its own table.
    keep : tensors of the graph as written that can be read after a run like the outputs
        (:meth:`Session.tensor`, docs/see_inside.md). Other results stay bit-identical.
    decide : by tensor, choices for a GPU's plan that override tables and rules, such as
        ``{"conv2": {"kernel": "winograd", "storage": "half"}}`` (docs/see_inside.md).
    arena_limit : the most bytes of a GPU's activations. Above the limit, operators are computed in
        bands of rows, with bit-identical results (docs/faster.md).
    cpu : ``"allow"`` computes operators without a kernel, or that a kernel refuses, in NumPy,
        between the others of a GPU session, and logs which; ``"refuse"`` raises an error instead.
        ``"onnxruntime"`` runs a session without a GPU in ONNX Runtime, which is an extra package;
        results differ from NumPy's by rounding (docs/faster.md).
    seed : the seed of random operators whose file states none, 0 to 2^32 - 1 (docs/your_model.md).
    cpu_threads : the cores that ONNX Runtime takes; the default is half of the machine's.
    order : ``"memory"`` runs the operators on a GPU in an order that needs less memory for
        activations, if there is one; results are bit-identical. The default is the file's order.
    winograd : False computes every convolution by its windows, without Winograd's tiles, in which
        bright pixels, infinities and NaN disturb their neighbours (docs/faster.md). The default is
        False for a model that declares ranges beyond 1000 and for a session that reads a texture of
        floats, else True.

    Examples
    --------
    >>> options = cml.CompileOptions(keep=("c",), without=frozenset({"fuse"}))
    >>> session = cml.Session(graph, "cpu", options)
    """

    without: frozenset[str] = frozenset()
    blocked_layout: bool = True
    storage: Storage = "float"
    arithmetic: Storage = "float"
    plan: PlanOptions = PlanOptions()
    tuned: bool = True
    keep: tuple[str, ...] = ()
    decide: Decisions = field(default_factory=dict)
    arena_limit: int | None = None
    cpu: Cpu = "allow"
    cpu_threads: int | None = None
    order: Order = "file"
    winograd: bool | None = None
    seed: int = 0

    @classmethod
    def preset(cls, name: Preset, **options: Any) -> CompileOptions:
        """Returns the options of a preset; ``options`` given by name replace those of the preset.

        ``"shipping"``: ``order="memory"``; the device's tuned kernels, as by default.
        ``"debug"``: every operator of the file by itself (``without``), so that each tensor can be
        watched, and the engine's default kernels (``tuned=False``) without Winograd's tiles.
        ``"smallest"``: ``storage="half"``, and ``order="memory"``. An integer network has no
        halves: add ``storage="float"``.

        Examples
        --------
        >>> cml.CompileOptions.preset("smallest").storage
        'half'
        >>> cml.CompileOptions.preset("smallest", storage="float").order
        'memory'
        """
        check_choice(get_args(Preset), name, "preset")
        names = [option.name for option in fields(cls)]
        check_known_names(tuple(options), names, "CompileOptions has no option", "preset")
        return cls(**{**_PRESETS[name], **options})

    def __post_init__(self) -> None:
        check_choices(NAMES, self.without, "passes to leave out")
        check_choice(get_args(Storage), self.storage, "storage")
        check_choice(get_args(Storage), self.arithmetic, "arithmetic")
        check_flag(self.blocked_layout, "blocked_layout")
        check_flag(self.tuned, "tuned")
        check_instance(PlanOptions, self.plan, "plan")
        check_name_list(self.keep, "keep")
        check_decisions(self.decide)
        check_choice(get_args(Cpu), self.cpu, "cpu")
        check_choice(get_args(Order), self.order, "order")
        if self.winograd is not None:
            check_flag(self.winograd, "winograd")
        if self.cpu_threads is not None:
            CPU_THREADS.check(self.cpu_threads, "cpu_threads")
            if self.cpu != "onnxruntime":
                raise InputError(
                    "cpu_threads is for ONNX Runtime: add cpu='onnxruntime', or leave it out"
                )
        RANDOM_SEED.check(self.seed, "seed")
        if self.arena_limit is not None:
            ARENA_LIMIT.check(self.arena_limit, "arena_limit")
        decides_maps = any(
            {"layout", "storage"} & set(decisions) for decisions in self.decide.values()
        )
        if decides_maps and not self.blocked_layout:
            raise InputError(
                "decide: layouts and storage apply to feature maps in blocks of four channels: "
                "leave blocked_layout=False out"
            )
        if self.arithmetic == "half" and self.storage != "half":
            raise InputError(
                "arithmetic 'half' multiplies what is stored in 16 bits: add storage='half', or "
                "leave arithmetic out"
            )
        if self.storage == "half" and not self.blocked_layout:
            raise InputError(
                "storage 'half' applies to feature maps in blocks of four channels: leave "
                "blocked_layout=False out, or storage"
            )


_PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "shipping": {"order": "memory"},
    "debug": {"without": AS_WRITTEN, "tuned": False, "winograd": False},
    "smallest": {"storage": "half", "order": "memory"},
}


# -- shape cache ----------------------------------------------------------------------------------

S = TypeVar("S")
Key = tuple[tuple[str, tuple[int, ...]], ...]
#: the most requested shapes for which the full shapes are remembered
_MAX_REQUESTS = 1024


class Program(Protocol):
    """The interface of a network compiled for a backend: ``GpuProgram`` or ``HostProgram``."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...
    def reset(self) -> None: ...
    def build_ahead(self) -> None: ...
    @property
    def known_inputs(self) -> frozenset[str]: ...
    def inherit(self, before: Any) -> None: ...


@dataclass(frozen=True)
class Compiled:
    """A network compiled by a backend at one shape of its inputs.

    ``source`` is the original graph, ``graph`` the optimized one; ``program`` is the backend's.
    """

    source: Graph
    graph: Graph
    plan: Plan | None
    program: Program


class ShapeCache(Generic[S]):
    """The sessions of a network by the shapes of its inputs.

    The cache keeps the ``max_networks`` compiled networks used last. It holds sessions weakly: the
    resources of a session are released with it. Threads that request one shape at the same time get
    one session; threads that request another shape do not wait for it.
    """

    def __init__(
        self,
        max_networks: int,
        compile: Callable[[Graph], Compiled],
        session: Callable[[Compiled, ShapeCache[S]], S],
    ) -> None:
        self._max_networks = max_networks
        self._compile, self._session = compile, session
        self._lock = Lock()
        self._recent: OrderedDict[Key, Compiled] = OrderedDict()
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
        request = key_of(shapes)
        own_future: Future[S] = Future()
        with self._lock:
            session = self._find(self._full.get(request, request))
            if session is not None:
                return session
            future = self._compiling.setdefault(request, own_future)
        if future is own_future:
            try:
                own_future.set_result(self._compile_missing(request, load()))
            except BaseException as error:
                own_future.set_exception(error)
            finally:
                with self._lock:
                    del self._compiling[request]
        return future.result()

    def _compile_missing(self, request: Key, graph: Graph) -> S:
        key = key_of_inputs(graph)
        with self._lock:
            if len(self._full) >= _MAX_REQUESTS:
                self._full.clear()
            self._full[request] = key
            session = self._find(key)
        if session is not None:
            return session
        compiled = self._compile(graph)
        with self._lock:
            self._recent[key] = compiled
            while len(self._recent) > self._max_networks:
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


def as_gpu_program(program: Any) -> GpuProgram:
    """Returns the program of a GPU session typed as :class:`GpuProgram`; checks nothing."""
    return program  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FirstNetwork:
    """The parts of a network that its versions at other shapes share.

    It holds no reference to the program, whose arena is freed with its session. ``constants`` are
    the weights on the GPU, ``scratch`` is the memory of the CPU's functions.
    """

    graph: Graph
    plan: Plan | None
    constants: SharedConstants | None
    scratch: Scratch | None

    @classmethod
    def of(cls, compiled: Compiled) -> FirstNetwork:
        program: Any = compiled.program
        constants, scratch = (getattr(program, name, None) for name in ("constants", "scratch"))
        return cls(compiled.graph, compiled.plan, constants, scratch)


def compile_graph(
    graph: Graph,
    gpu: Gpu | None,
    options: CompileOptions,
    deferred: bool,
    arena: str | None,
    first: FirstNetwork | None = None,
    on_progress: OnProgress | None = None,
) -> Compiled:
    """Optimizes and plans a graph for ``gpu`` (None is the CPU) and returns it with its program.

    The network of ``first`` at other shapes shares its constants, and its plan where possible.
    Raises :class:`InputError` for an integer network with 16-bit storage.
    """
    check_storage(graph, options)
    graph = with_seed(graph, options.seed)
    report = on_progress or (lambda stage, done, total: None)
    report("plan", 0, 1)
    if gpu is None and options.cpu == "onnxruntime":
        from cml_engine.runtime.session.onnxruntime_program import OnnxRuntimeProgram

        tapped = _with_taps(graph, options)  # ONNX Runtime has passes of its own
        peer_program = OnnxRuntimeProgram.of(tapped, options.cpu_threads, options.plan.retain)
        report("plan", 1, 1)
        return Compiled(graph, tapped, None, peer_program)
    optimized = optimize_for(_with_taps(graph, options), options)
    if first is not None:
        optimized = share_constants(optimized, first.graph)
    if gpu is None:
        report("plan", 1, 1)
        if graph.cooked_form is not None:
            graph.cooked_form.check_cpu()
        cpu = CpuProgram(optimized, first.scratch if first else None, retain=options.plan.retain)
        return Compiled(graph, optimized, None, cpu)
    from cml_engine.gpu.program.program import GpuProgram

    sibling = Sibling(first.graph, first.plan) if first and first.plan else None
    optimized, plan = _plan_in_order(optimized, gpu, options, sibling, graph)
    if plan.cpu_parts and options.cpu == "refuse":
        raise _kernel_error(plan)
    if plan.cpu_parts and first is None:
        parts = "; ".join(map(str, plan.cpu_parts))
        _log.warning("'%s': no kernel, so computed on the CPU: %s", graph.name, parts)
    report("plan", 1, 1)
    program = GpuProgram(
        plan,
        gpu,
        deferred=deferred,
        arena=arena,
        constants=first.constants if first else None,
        on_progress=on_progress,
        counted=counted_axes(optimized),
    )
    return Compiled(graph, optimized, plan, program)


def optimize_for(graph: Graph, options: CompileOptions) -> Graph:
    """Returns the graph after the passes, with its convolutions marked if they are to be computed
    without Winograd's tiles, or may be in 16 bits."""
    optimized = optimize(graph, options.without, retain=options.plan.retain)
    if options.arithmetic == "half":
        optimized = allow_half_products(optimized)
    return compute_directly(optimized) if why_direct(graph, options) else optimized


def why_direct(graph: Graph, options: CompileOptions) -> str:
    """Returns the reason why a graph's convolutions are computed without Winograd's tiles, or "".

    A cooked graph keeps what was decided when it was cooked.
    """
    if options.winograd is not None:
        return "" if options.winograd else "winograd=False"
    kernels = [decisions.get("kernel", "") for decisions in options.decide.values()]
    if graph.integer or graph.cooked_form or any(k.startswith("winograd") for k in kernels):
        return ""
    return wide_range_of(graph)


def check_storage(graph: Graph, options: CompileOptions) -> None:
    """Raises :class:`InputError` for an integer network with 16-bit storage."""
    if graph.integer and options.storage != "float":
        raise InputError(
            f"'{graph.name}' is an integer network, which 16-bit floats cannot hold: leave "
            "storage='half' (--half) out, or add storage='float' to the preset 'smallest'"
        )


def _kernel_error(plan: Plan) -> UnsupportedOp:
    """Returns the error for a plan with operators that the caller does not allow on the CPU."""
    node = plan.cpu_parts[0].graph.nodes[0]
    return UnsupportedOp(
        f"{node.title}: has no GPU kernel; give it one, use the CPU backend (--backend cpu), or "
        "allow it on the CPU between the others: leave CompileOptions(cpu='refuse') out",
        node.source,
    )


def _with_taps(graph: Graph, options: CompileOptions) -> Graph:
    """Returns the graph with the tensors that ``options.keep`` names as taps.

    Raises :class:`InputError` if it names an unknown tensor.
    """
    outputs = set(graph.outputs)
    computed = (name for node in graph.nodes for name in node.outputs)
    tensors = dict.fromkeys((*computed, *graph.inputs, *graph.constants))
    check_known_names(options.keep, tensors, f"'{graph.name}' has no tensor", "keep")
    taps_by_name = {name: name for name in options.keep if name not in outputs}
    return graph.with_(taps=taps_by_name, cooked_form=graph.cooked_form)


def make_recompiler(
    first: Compiled, gpu: Gpu | None, options: CompileOptions, arena: str | None
) -> Callable[[Graph], Compiled]:
    """Returns a function that compiles a graph: the network of ``first`` at other shapes."""
    shared = FirstNetwork.of(first)
    if gpu is not None:  # the table of variants is read here, once
        options = replace(options, plan=_plan_options(gpu, options), tuned=False)
    return lambda graph: compile_graph(graph, gpu, options, True, arena, shared)


def make_plan(
    graph: Graph, gpu: Target, options: CompileOptions, written: Graph | None = None
) -> Plan:
    """Returns the plan of an optimized graph for a GPU session; a cooked graph brings its own.

    ``written`` is the graph before the passes; decisions of the caller may use its tensor names.
    """
    return _plan_in_order(graph, gpu, options, None, written)[1]


def _plan_in_order(
    graph: Graph,
    gpu: Target,
    options: CompileOptions,
    sibling: Sibling | None,
    written: Graph | None,
) -> tuple[Graph, Plan]:
    """Returns the graph in the requested order, and its plan; see :func:`make_plan`.

    For the least memory the file's order is planned too, so that the arena is never larger.
    """

    def lowered(ordered: Graph) -> Plan:
        return plan_graph(
            ordered, gpu.limits, options.storage, _plan_options(gpu, options), options.decide,
            written=written, arithmetic=options.arithmetic, sibling=sibling,
            blocked_layout=options.blocked_layout,
            allow_cpu=options.cpu != "refuse",
        )  # fmt: skip

    if graph.cooked_form is not None:
        free = replace(
            options, storage="float", arithmetic="float", tuned=True, order="file", winograd=None
        )
        # the file's plans have the file's kernels: not if convolutions were marked since
        plain = free == CompileOptions() and (written is None or graph.nodes is written.nodes)
        planned = graph.cooked_form.plan(gpu.limits, options.storage, plain, lambda: lowered(graph))
        return graph, planned
    planned = lowered(graph)
    if options.order == "memory" and not planned.cpu_parts:  # another order may cut more parts
        ordered = order_for_memory(graph)
        reordered = lowered(ordered)
        if reordered.memory.peak < planned.memory.peak:
            return ordered, reordered
    return graph, planned


def _plan_options(gpu: Target, options: CompileOptions) -> PlanOptions:
    plan = options.plan
    if options.arena_limit is not None:
        plan = replace(plan, arena_limit=options.arena_limit)
    if "views" in options.without:
        plan = replace(plan, views=False)
    if options.tuned and plan.variants is NO_VARIANTS:
        plan = replace(plan, variants=table_for(gpu.name) if gpu.name else NO_VARIANTS)
    return plan
