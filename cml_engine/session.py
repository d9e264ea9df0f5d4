"""A graph compiled for one backend, run many times."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from cml_engine.backends.cpu import CpuProgram, Watch
from cml_engine.errors import DeviceError, InputError
from cml_engine.graph import NUMPY_DTYPE, Fact, Graph, Node, Slider
from cml_engine.live.refill import refilled
from cml_engine.live.replacement import Replacement, check_interface
from cml_engine.ops import is_registered, load_families, lookup
from cml_engine.ops.declaration.choice import NO_VARIANTS
from cml_engine.ops.declaration.spec import OpSpec
from cml_engine.passes import NAMES, optimize
from cml_engine.plan import Plan
from cml_engine.planning.asked import Decide, asked_for, checked
from cml_engine.planning.choose_storage import Storage
from cml_engine.planning.lower import PlanOptions
from cml_engine.planning.plan_graph import plan_graph
from cml_engine.planning.shape_cache import Compiled, ShapeCache
from cml_engine.planning.sibling import Sibling, share_constants
from cml_engine.ranges import (
    ARENA_LIMIT,
    SEED,
    SHAPES_KEPT,
    TIMES,
    an_object,
    check_names,
    flag,
    names,
    one_of,
    shapes_by_name,
    some_of,
)
from cml_engine.report.rank import OpTime, RankReport
from cml_engine.report.stub import StubReport, check_stub, time_in_turns
from cml_engine.textures.inputs import on_device
from cml_engine.tuning.tables import table_for

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.program import GpuProgram

Array = np.ndarray[Any, Any]
_log = logging.getLogger(__name__)


class Program(Protocol):
    """What a backend makes of a network."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...
    def reset(self) -> None: ...
    def build_ahead(self) -> None: ...
    @property
    def known_inputs(self) -> frozenset[str]: ...
    def inherit(self, before: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """``without``: names of passes to leave out, ``"views"`` (``passes/views.py``) among them;
    ``storage``: ``"half"`` keeps a GPU's feature maps and the weights that meet them in 16 bits
    (docs/half.md); arithmetic is in 32 bits in any case, and the CPU stores 32 bits too;
    ``tuned``: take the kernels that the device's table of variants has (docs/tuning.md), where
    ``plan`` brings no table of its own; ``plan``: see :class:`PlanOptions`;
    ``keep``: tensors of the graph as it is written that no pass takes away, to be read after a run
    beside the outputs (:meth:`Session.tensor`, docs/live.md);
    ``decide``: by tensor, what a GPU's plan takes instead of what tables and rules would,
    ``{"conv2": {"kernel": "winograd", "storage": "half"}}`` (docs/report.md);
    ``arena_limit``: bytes that a GPU's activations may take: where they would take more, operators
    are computed in bands of rows, to the same bits (docs/memory.md)."""

    without: frozenset[str] = frozenset()
    blocked_layout: bool = True
    storage: Storage = "float"
    plan: PlanOptions = PlanOptions()
    tuned: bool = True
    keep: tuple[str, ...] = ()
    decide: Decide = field(default_factory=dict)
    arena_limit: int | None = None

    def __post_init__(self) -> None:
        some_of(NAMES, self.without, "passes to leave out")
        one_of(get_args(Storage), self.storage, "storage")
        flag(self.blocked_layout, "blocked_layout")
        flag(self.tuned, "tuned")
        an_object(PlanOptions, self.plan, "plan")
        names(self.keep, "keep")
        checked(self.decide)
        if self.arena_limit is not None:
            ARENA_LIMIT.check(self.arena_limit, "arena_limit")
        of_maps = any({"layout", "storage"} & set(kinds) for kinds in self.decide.values())
        if of_maps and not self.blocked_layout:
            raise InputError(
                "decide: layouts and storage are of feature maps in blocks of four channels: leave "
                "blocked_layout=False out"
            )
        if self.storage == "half" and not self.blocked_layout:
            raise InputError(
                "storage 'half' is of feature maps in blocks of four channels: leave "
                "blocked_layout=False out, or storage"
            )


class Session:
    """A network ready to run.

    Parameters
    ----------
    graph : from :func:`cml_engine.load`.
    backend : a :class:`cml_engine.Gpu`, ``"cpu"`` (NumPy), ``"gpu"`` (a device of its own), or
        ``"auto"``: a GPU if there is one, else the CPU with one line of notice.
    deferred : upload no weights and build no pipelines now; a frame scheduler does it, a little in
        every frame. (:meth:`run` does the rest at once.)
    arena : ``"shared:NAME"``: sessions with the same name have their activations in the same
        memory, so only one of them runs at a time; a frame scheduler sees to that.
    shapes_kept : how many networks at other shapes stay compiled (see :meth:`reshaped`).
    retain : an input that a run or job leaves out keeps its value, and only operators run that hang
        on those which are given, or on variables (docs/live.md).

    Example
    -------
    >>> session = cml.Session(cml.load("upres.nnef"), cml.Gpu())    # doctest: +SKIP
    >>> session.run({"image": array})["enlarged"].shape             # doctest: +SKIP
    (1, 3, 512, 512)
    """

    def __init__(
        self,
        graph: Graph,
        backend: Gpu | str = "auto",
        options: CompileOptions = CompileOptions(),
        *,
        deferred: bool = False,
        arena: str | None = None,
        shapes_kept: int = 8,
        retain: bool = False,
    ) -> None:
        an_object(Graph, graph, "a session's graph (cml.load gives one)")
        an_object(CompileOptions, options, "options")
        flag(deferred, "deferred")
        if arena is not None:
            an_object(str, arena, "arena")
        SHAPES_KEPT.check(shapes_kept, "shapes_kept")
        if flag(retain, "retain"):
            options = replace(options, plan=replace(options.plan, retain=True))
        load_families()  # a graph that was not loaded from a file may be the first use
        self.options = options
        self.gpu = _choose(backend)
        self._arena, self._shapes_kept = arena, shapes_kept
        self._coming: Replacement | None = None
        self._swapping = Lock()
        self._begin(_compiled(graph, self.gpu, options, deferred, arena))

    def _begin(self, first: Compiled[Program]) -> None:
        """Take a network that was compiled, and forget the shapes of the one before."""
        self._take(first)
        #: the network at other shapes, of all sessions that are made of this one
        self._shapes: ShapeCache[Program, Session] = ShapeCache(
            self._shapes_kept,
            _recompiler(first, self.gpu, self.options, self._arena),
            partial(_session_of, self.gpu, self.options, self._arena, self._shapes_kept),
        )
        self._shapes.add(first.source, self)

    def _take(self, compiled: Compiled[Program]) -> None:
        self._compiled = compiled
        self.source_graph: Graph = compiled.source
        #: the inputs that a host may move or leave out, by name (``cml.load(..., sliders=)``)
        self.sliders: Mapping[str, Slider] = compiled.source.sliders
        self.graph: Graph = compiled.graph
        self.plan: Plan | None = compiled.plan
        self._program: Program = compiled.program

    @property
    def backend(self) -> str:
        """``"cpu"`` or ``"gpu"``."""
        return "cpu" if self.gpu is None else "gpu"

    @property
    def inputs(self) -> dict[str, Fact]:
        """Dtype and shape of every input, by name."""
        return {name: self.graph.facts[name] for name in self.graph.inputs}

    @property
    def outputs(self) -> dict[str, Fact]:
        """Dtype and shape of every output, by name."""
        return {name: self.graph.facts[name] for name in self.graph.outputs}

    @property
    def program(self) -> Program:
        """The backend's own view of the network, for tools and the scheduler."""
        self._take_coming()
        return self._program

    def replace(self, graph: Graph | Callable[[], Graph]) -> Replacement:
        """Another network in the place of this one, with the same inputs and outputs: new weights,
        or new operators. Returns at once; ``graph`` may be a function that loads it. It is compiled
        by another thread, and uploaded within the budget of a scheduler that has jobs of this
        session; where only weights differ its plan stays, and pipelines that are there already are
        not built. Until it is ready the old one
        serves, and where it fails for good: the replacement's ``error`` says why. Variables begin
        with the values of the new model's files. A tool waits by :meth:`take_replacement`."""
        if not callable(graph):
            an_object(Graph, graph, "replace (a graph, or a function that gives one)")
            check_interface(self.source_graph, graph)
        given, before = graph, self._compiled

        def compiled() -> Compiled[Program]:
            new = given() if callable(given) else given
            an_object(Graph, new, "what is to replace a network")
            check_interface(before.source, new)
            return _compiled(new, self.gpu, self.options, True, self._arena, before)

        if self._coming is not None:
            self._coming.supersede()
        program_of = (lambda made: None) if self.gpu is None else (lambda made: made.program)
        self._coming = Replacement(self.source_graph.name, compiled, program_of)
        if self.gpu is not None:
            _on_gpu(self._program).successor = self._coming
        return self._coming

    def take_replacement(self) -> None:
        """Wait for a network of :meth:`replace` and take it: for tools. Raises what is wrong with
        it; the session then goes on with the old one."""
        coming = self._coming
        if coming is not None:
            coming.finish()
            self._take_coming()
            if coming.error is not None:
                raise coming.error

    def _take_coming(self) -> None:
        coming = self._coming
        if coming is None:
            return
        with self._swapping:
            if coming is not self._coming or coming.state == "compiling":
                return
            if coming.ready:
                old = self._program
                self._coming = None
                self._begin(coming.compiled)
                self._program.inherit(old)
                coming.state = "done"
            elif coming.state == "failed":
                self._coming = None

    def reshaped(self, shapes: Mapping[str, Sequence[int]]) -> Session:
        """The same network at other shapes of its inputs, by name; inputs that are not named have
        those of :func:`cml_engine.load`. Weights are shared, variables are not; where the kernels
        are the same, no file is read, nothing compiled and nothing uploaded.

        A shape that was asked for lately gives the same session at once: the last ``shapes_kept``
        stay compiled. Another takes as long as making a plan: in a frame ask for shapes that you
        asked for before. On a GPU it is prepared as a deferred session is.
        :class:`InputError` where there is no such input, :class:`ModelError` where the network
        cannot have such shapes; a graph that was changed after it was loaded has no others.
        """
        source = self.source_graph
        given = dict(source.origin.shapes) if source.origin else {}
        given |= shapes_by_name(shapes)
        return self._shapes.get(given, lambda: source.reshaped(shapes))

    def build_ahead(self) -> None:
        """Begin to build a deferred session's pipelines on all cores, and return at once: for a
        loading screen. Without it one core builds them, when a job first wants them."""
        self._program.build_ahead()

    def run(self, inputs: Mapping[str, Any], *, watch: Watch | None = None) -> dict[str, Array]:
        """Outputs by name; blocks until they are there. For tools and tests: a game submits to a
        :class:`scheduler.FrameScheduler`. Runs of several threads wait for each other. Inputs are
        arrays or, on a GPU, textures (:class:`TextureInput`) and ``gpu.tensor(...)``.
        :class:`InputError` where an input is missing, unknown, or of another shape or type than
        :attr:`inputs` says, and while a job is running in the session's memory.

        ``watch(node, results)`` is called after each operator of :attr:`graph` with its results,
        which are its own only during the call; what it raises ends the run. On a GPU that is a
        readback for each operator. A session that retains its inputs runs, and shows, what those
        change that are given."""
        if watch is not None and not callable(watch):
            raise InputError(f"watch: wanted a function of a node and its results, got {watch!r}")
        self._take_coming()
        taken = _taken(self, inputs)
        if watch is None:
            return self._program.run(taken)
        if self.gpu is None:
            return _on_cpu(self._program).run(taken, watch)
        from cml_engine.gpu.program.watching import run_watched

        return run_watched(_on_gpu(self._program), self.graph, taken, watch)

    def tensor(self, name: str) -> Any:
        """An output, or a tensor of ``CompileOptions(keep=…)``, as the last run left it: a NumPy
        array on the CPU; on a GPU a tensor in its memory, whose value the next run changes and
        ``read()`` copies. :class:`InputError` where there is none now."""
        if self.gpu is None:
            return _on_cpu(self._program).tensor(name)
        from cml_engine.gpu.frames.outputs import held_tensor

        return held_tensor(_on_gpu(self._program), name)

    def check_inputs(
        self, inputs: Mapping[str, Any], skip: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """The inputs in the network's own types; those named in ``skip`` only have to exist. A
        slider that is left out has its default."""
        inputs = _with_defaults(self.sliders, self.inputs, self._program.known_inputs, inputs)
        if not skip:
            return check_inputs(self.inputs, inputs, self._program.known_inputs)
        facts = {name: fact for name, fact in self.inputs.items() if name not in skip}
        if unknown := skip - set(self.inputs):
            raise InputError(f"unknown input '{min(unknown)}'; inputs are {_listed(self.inputs)}")
        host = {k: v for k, v in inputs.items() if k not in skip}
        checked = check_inputs(facts, host, self._program.known_inputs)
        return {**checked, **{name: inputs[name] for name in skip}}

    def close(self) -> None:
        """Give the network's memory on the device back now; with the last reference it would go as
        well. Whatever is asked of the session afterwards is an :class:`InputError`, as closing it
        is while a run or a job is under way. On the CPU there is nothing to give back."""
        self._coming = None
        if self.gpu is not None:
            _on_gpu(self._program).close()

    def reset(self) -> None:
        """Give the variables that the network updates the values in its files."""
        self._program.reset()

    def rank(
        self,
        inputs: Mapping[str, Array] | None = None,
        *,
        runs: int = 10,
        given: Sequence[str] | None = None,
    ) -> RankReport:
        """Time per operator over ``runs`` runs, after one that is not counted. Without ``inputs``
        random ones are used. ``given``, of a session that retains its inputs: what runs where only
        these are given anew. ``str()`` of the report is the table."""
        TIMES.check(runs, "runs")
        if given is not None:
            check_names(
                names(given, "given"), self.inputs, f"'{self.graph.name}' has no input", "given"
            )
            if not self.options.plan.retain:
                raise InputError("given: the session runs all of it; make it with retain=True")
        arrays = check_inputs(self.inputs, inputs or random_inputs(self.inputs))
        if self.gpu is None:
            return _rank_cpu(self.graph, arrays, runs, given)
        return _rank_gpu(_on_gpu(self._program), arrays, runs, given)

    def rank_without(
        self, operator: str, inputs: Mapping[str, Array] | None = None, *, runs: int = 10
    ) -> StubReport:
        """What the operator of that name costs end to end: ``runs`` whole runs with it against
        as many with one that does nothing in its place, in turns. The GPU only."""
        if self.gpu is None:
            raise InputError("an operator can be replaced by a stub on the GPU only")
        TIMES.check(runs, "runs")
        check_stub(self.graph, operator)
        options = replace(self.options, plan=replace(self.options.plan, stub=operator))
        stubbed = Session(self.source_graph, self.gpu, options)
        times = time_in_turns(runs, self.timer(inputs), stubbed.timer(inputs))
        clock = "timestamps" if self.gpu.has_timestamps else "wall clock"
        return StubReport.of(self.graph, operator, self.gpu.name, clock, times)

    def timer(self, inputs: Mapping[str, Array] | None = None) -> Callable[[], float]:
        """A function that runs the whole network once, undisturbed, and returns the milliseconds:
        on a GPU of its computation alone, without upload and readback."""
        arrays = check_inputs(self.inputs, inputs or random_inputs(self.inputs))
        if self.gpu is None:
            alone = CpuProgram(self.graph)  # the session's variables stay as they are
            return lambda: _wall_ms(lambda: alone.run(arrays))
        from cml_engine.gpu.program.program import GpuProgram
        from cml_engine.gpu.timing.timers import PassTimer

        program, timer = self._program, PassTimer(self.gpu)
        assert isinstance(program, GpuProgram)

        def encode(compute: Any, _: int) -> None:
            for step in program.plan.steps:
                program.encode_all(compute, step.index)

        def run() -> float:
            with program.exclusive():
                program.write_inputs(arrays)
                return timer.time([0], encode)[0]

        return run


def _rank_cpu(
    graph: Graph, arrays: Mapping[str, Array], runs: int, given: Sequence[str] | None
) -> RankReport:
    program = CpuProgram(graph, retain=given is not None)
    program.run(arrays)
    again = arrays if given is None else {name: arrays[name] for name in given}
    seen: list[Node] = []
    program.run(again, lambda node, _: seen.append(node))
    operators = [OpTime.of_node(node, graph) for node in seen]
    times = np.array([_time_nodes(program, again) for _ in range(runs)])
    return RankReport.of(graph.name, "CPU (NumPy)", "wall clock", operators, times)


def _rank_gpu(
    program: GpuProgram, arrays: Mapping[str, Array], runs: int, given: Sequence[str] | None
) -> RankReport:
    from cml_engine.gpu.program import inspect

    plan, gpu = program.plan, program.gpu
    steps = None if given is None or plan.reuse is None else plan.reuse.steps(given)
    inspect.time_steps(program, arrays, 1)
    times = inspect.time_steps(program, arrays, runs, steps)
    operators = [OpTime.of_step(s) for s in plan.steps if steps is None or s.index in steps]
    clock = "timestamps" if gpu.has_timestamps else "wall clock"
    return RankReport.of(plan.name, gpu.name, clock, operators, times)


def _taken(session: Session, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The checked inputs of a run."""
    there = isinstance(inputs, Mapping)
    present = {name for name, value in inputs.items() if on_device(value)} if there else ()
    if present and session.gpu is None:
        raise InputError(
            f"input '{min(present)}' lies on a GPU and the session runs on the CPU: read it, "
            "and give the array"
        )
    return session.check_inputs(inputs, frozenset(present))


def _on_cpu(program: Program) -> CpuProgram:
    assert isinstance(program, CpuProgram)
    return program


def _on_gpu(program: Any) -> GpuProgram:
    return program  # type: ignore[no-any-return]


def _compiled(
    graph: Graph,
    gpu: Gpu | None,
    options: CompileOptions,
    deferred: bool,
    arena: str | None,
    before: Compiled[Program] | None = None,
) -> Compiled[Program]:
    """A graph compiled for its backend; one that comes in the place of ``before`` has its plan
    where they differ in weights alone."""
    if graph.integer and options.storage != "float":
        raise InputError(
            f"'{graph.name}' is an integer network, whose words 16 bits do not hold: leave storage "
            "(--half) out"
        )
    optimized = _optimized(graph, options)
    if gpu is None:
        if graph.ready is not None:
            graph.ready.check_cpu()
        return Compiled(graph, optimized, None, CpuProgram(optimized, retain=options.plan.retain))
    from cml_engine.gpu.program.program import GpuProgram

    specs = _specs(optimized)
    if before is not None and before.plan is not None and before.specs == specs:
        optimized = share_constants(optimized, before.graph)
        plan = _refilled(graph, optimized, gpu, options, Sibling(before.graph, before.plan))
        common = None if plan is None else _on_gpu(before.program).common_of(plan)
        if plan is not None and common is not None:
            _log.info("'%s' has other weights, and the plan and kernels that it had", graph.name)
            program = GpuProgram(plan, gpu, deferred=deferred, arena=arena, common=common)
            return Compiled(graph, optimized, plan, program, specs)
    plan = make_plan(optimized, gpu, options, written=graph)
    program = GpuProgram(plan, gpu, deferred=deferred, arena=arena)
    return Compiled(graph, optimized, plan, program, specs)


def _specs(graph: Graph) -> dict[str, OpSpec]:
    """The graph's operators as they are registered now."""
    ops = dict.fromkeys(op for n in graph.nodes for op in (n.op, *(e.op for e in n.epilogues)))
    return {op: lookup(op) for op in ops if is_registered(op)}


def _refilled(
    graph: Graph, optimized: Graph, gpu: Gpu, options: CompileOptions, before: Sibling
) -> Plan | None:
    """The plan before with the weights of a graph that is the same but for these."""
    if graph.ready is not None or options.plan.stub:
        return None
    asked = asked_for(options.decide, graph, optimized)
    return refilled(before, optimized, gpu.limits, _plan_options(gpu, options), asked)


def _optimized(graph: Graph, options: CompileOptions) -> Graph:
    """The graph after the passes, with the tensors that the options keep."""
    outputs = set(graph.outputs)
    computed = (name for node in graph.nodes for name in node.outputs)
    known = dict.fromkeys((*computed, *graph.inputs, *graph.constants))
    check_names(options.keep, known, f"'{graph.name}' has no tensor", "keep")
    kept = tuple(name for name in dict.fromkeys(options.keep) if name not in outputs)
    graph = graph.with_(kept=kept, ready=graph.ready)
    return optimize(graph, options.without, retain=options.plan.retain)


def _recompiler(
    first: Compiled[Program], gpu: Gpu | None, options: CompileOptions, arena: str | None
) -> Callable[[Graph], Compiled[Program]]:
    """What compiles the network of ``first`` at other shapes. It does not hold the first program,
    whose arena goes with its session."""
    before = first.graph
    if gpu is None or first.plan is None:
        assert isinstance(first.program, CpuProgram)
        scratch = first.program.scratch

        def on_cpu(graph: Graph) -> Compiled[Program]:
            optimized = share_constants(_optimized(graph, options), before)
            program = CpuProgram(optimized, scratch, retain=options.plan.retain)
            return Compiled(graph, optimized, None, program)

        return on_cpu
    from cml_engine.gpu.program.program import GpuProgram

    assert isinstance(first.program, GpuProgram)
    sibling, common = Sibling(before, first.plan), first.program.common
    options = replace(options, plan=_plan_options(gpu, options), tuned=False)  # reads no table

    def on_gpu(graph: Graph) -> Compiled[Program]:
        optimized = share_constants(_optimized(graph, options), before)
        plan = make_plan(optimized, gpu, options, sibling, graph)
        program = GpuProgram(plan, gpu, deferred=True, arena=arena, common=common)
        return Compiled(graph, optimized, plan, program, _specs(optimized))

    return on_gpu


def _session_of(
    gpu: Gpu | None,
    options: CompileOptions,
    arena: str | None,
    shapes_kept: int,
    compiled: Compiled[Program],
    shapes: ShapeCache[Program, Session],
) -> Session:
    made = object.__new__(Session)
    made.options, made.gpu, made._shapes = options, gpu, shapes
    made._arena, made._shapes_kept, made._coming = arena, shapes_kept, None
    made._swapping = Lock()
    made._take(compiled)
    return made


def make_plan(
    graph: Graph,
    gpu: Gpu,
    options: CompileOptions,
    sibling: Sibling | None = None,
    written: Graph | None = None,
) -> Plan:
    """The plan that a GPU session runs; with a sibling as much as may be like that one. What is
    decided may be said by the names of the graph as it is ``written``."""

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


def _with_defaults(
    sliders: Mapping[str, Slider],
    facts: Mapping[str, Fact],
    kept: frozenset[str],
    inputs: Mapping[str, Any],
) -> Mapping[str, Any]:
    """The inputs with the sliders that are left out, or given as plain numbers."""
    if not sliders or not isinstance(inputs, Mapping):
        return inputs
    numbers = {
        name: inputs.get(name, slider.default)
        for name, slider in sliders.items()
        if name in facts and (name in inputs or name not in kept)
    }
    values = {
        name: np.full(facts[name].shape, number, np.float32)
        for name, number in numbers.items()
        if _is_number(number)
    }
    return {**inputs, **values}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_inputs(
    facts: Mapping[str, Fact],
    given: Mapping[str, Array],
    known: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """The given arrays in the network's own types; :class:`InputError` where they do not fit, or
    where one is missing that is not ``known``."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"wanted inputs as a dictionary of arrays by name, got {type(given).__name__}"
        )
    for name in given:
        if name not in facts:
            raise InputError(f"unknown input '{name}'; the model's inputs are {_listed(facts)}")
    if missing := [name for name in facts if name not in given and name not in known]:
        raise InputError(
            f"input {', '.join(repr(n) for n in missing)} is missing; the model's inputs are "
            f"{_listed(facts)}"
        )
    return {
        name: _checked(name, fact, given[name]) for name, fact in facts.items() if name in given
    }


def check_shape(name: str, fact: Fact, shape: tuple[int, ...]) -> None:
    """:class:`InputError` where an input of that shape does not fit."""
    if shape != fact.shape:
        raise InputError(
            f"input '{name}': wanted shape {list(fact.shape)}, got {list(shape)}. Another shape "
            f"is another session: --shape {name}=..., in Python cml.load(..., shapes=) or "
            "session.reshaped"
        )


def _checked(name: str, fact: Fact, given: Array) -> Array:
    try:
        array = np.asarray(given)
    except Exception as error:  # whatever it is, it is no array
        shown = f"{type(given).__name__}: {error}"
        raise InputError(f"input '{name}': wanted an array, got a {shown}") from None
    check_shape(name, fact, array.shape)
    wanted = NUMPY_DTYPE[fact.dtype]
    kinds = {"scalar": "fiu", "integer": "iu", "logical": "b"}[fact.dtype]
    if array.dtype.kind not in kinds:
        raise InputError(
            f"input '{name}': wanted {fact.dtype} ({wanted.name}), got {array.dtype.name}"
        )
    if fact.dtype == "integer" and array.size and array.dtype != wanted:
        limits = np.iinfo(wanted)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"input '{name}': values do not fit into {wanted.name}")
    return array.astype(wanted, copy=False)


def random_inputs(facts: Mapping[str, Fact], seed: int = 0) -> dict[str, Array]:
    """Inputs for a measurement: uniform in [0, 1), small integers, coin flips."""
    generator = np.random.default_rng(SEED.check(seed, "seed"))
    made: dict[str, Array] = {}
    for name, fact in facts.items():
        if fact.dtype == "scalar":
            made[name] = generator.random(fact.shape, np.float32)
        else:
            made[name] = generator.integers(0, 2, fact.shape).astype(NUMPY_DTYPE[fact.dtype])
    return made


def _choose(backend: Gpu | str) -> Gpu | None:
    """The GPU to use, or None for the CPU."""
    if not isinstance(backend, str) and hasattr(backend, "limits") and hasattr(backend, "memory"):
        return backend
    if not isinstance(backend, str) or backend not in ("auto", "gpu", "cpu"):
        raise InputError(f"unknown backend {backend!r}; wanted a Gpu, 'auto', 'gpu' or 'cpu'")
    if backend == "cpu":
        return None
    try:
        from cml_engine.gpu.gpu import Gpu

        return Gpu()
    except ImportError as error:
        refused = DeviceError(f"wgpu is not installed ({error}); pip install wgpu")
    except DeviceError as error:
        refused = error
    if backend == "gpu":
        raise refused
    warnings.warn(f"running on the CPU: {refused}", RuntimeWarning, stacklevel=3)
    return None


def _wall_ms(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def _time_nodes(program: CpuProgram, arrays: Mapping[str, Array]) -> list[float]:
    times: list[float] = []
    last = time.perf_counter()

    def watch(node: Node, results: Any) -> None:
        nonlocal last
        now = time.perf_counter()
        times.append(1e3 * (now - last))
        last = time.perf_counter()

    program.run(arrays, watch)
    return times


def _listed(facts: Mapping[str, Fact]) -> str:
    return ", ".join(f"{name}: {fact}" for name, fact in facts.items()) or "(none)"
