"""A graph compiled for one backend, run many times."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.shape_cache import Compiled, ShapeCache
from cml_engine.cpu.cpu import CpuProgram, Watch
from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import (
    SHAPES_KEPT,
    TIMES,
    an_object,
    check_names,
    flag,
    names,
    shapes_by_name,
    text,
)
from cml_engine.ir.graph import Array, Fact, Graph, Slider
from cml_engine.ir.textures import on_device
from cml_engine.ops import load_families
from cml_engine.runtime.live.replacement import Replacement, check_interface
from cml_engine.runtime.rank import RankReport, rank_cpu, rank_gpu
from cml_engine.runtime.session.compiling import Program, as_gpu_program, compile_graph, recompiler
from cml_engine.runtime.session.inputs import check_inputs, listed, random_inputs, with_defaults
from cml_engine.runtime.session.options import CompileOptions
from cml_engine.runtime.stub import StubReport, check_stub, time_in_turns

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.preparation import OnProgress


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
        on those which are given, or on variables (docs/see_inside.md).
    on_progress : called with the stage, the units done and their total: ``("plan", 0, 1)``, then
        ``("kernels", 3, 17)`` after each kernel that is compiled for a GPU. Kernels are compiled
        by threads, which make the calls one at a time. An error raised in it ends the compilation.

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
        on_progress: OnProgress | None = None,
    ) -> None:
        an_object(Graph, graph, "a session's graph (cml.load gives one)")
        an_object(CompileOptions, options, "options")
        flag(deferred, "deferred")
        if arena is not None:
            an_object(str, arena, "arena")
        SHAPES_KEPT.check(shapes_kept, "shapes_kept")
        if flag(retain, "retain"):
            options = replace(options, plan=replace(options.plan, retain=True))
        if on_progress is not None and not callable(on_progress):
            raise InputError(
                f"on_progress is {on_progress!r}, wanted a function of a stage and two numbers"
            )
        load_families()  # a graph that was not loaded from a file may be the first use
        self.options = options
        self.gpu = _choose(backend)
        self._arena, self._shapes_kept = arena, shapes_kept
        self._coming: Replacement | None = None
        self._swapping = Lock()
        self._begin(
            compile_graph(graph, self.gpu, options, deferred, arena, on_progress=on_progress)
        )

    def _begin(self, first: Compiled[Program]) -> None:
        """Take a network that was compiled, and forget the shapes of the one before."""
        self._take(first)
        #: the network at other shapes, of all sessions that are made of this one
        self._shapes: ShapeCache[Program, Session] = ShapeCache(
            self._shapes_kept,
            recompiler(first, self.gpu, self.options, self._arena),
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
            return compile_graph(new, self.gpu, self.options, True, self._arena, before)

        if self._coming is not None:
            self._coming.supersede()
        program_of = (lambda made: None) if self.gpu is None else (lambda made: made.program)
        self._coming = Replacement(self.source_graph.name, compiled, program_of)
        if self.gpu is not None:
            as_gpu_program(self._program).successor = self._coming
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

        return run_watched(as_gpu_program(self._program), self.graph, taken, watch)

    def tensor(self, name: str) -> Any:
        """An output, or a tensor of ``CompileOptions(keep=…)``, as the last run left it: a NumPy
        array on the CPU; on a GPU a tensor in its memory, whose value the next run changes and
        ``read()`` copies. :class:`InputError` where there is none now."""
        text(name, "a tensor's name")
        if self.gpu is None:
            return _on_cpu(self._program).tensor(name)
        from cml_engine.gpu.frames.outputs import held_tensor

        return held_tensor(as_gpu_program(self._program), name)

    def check_inputs(
        self, inputs: Mapping[str, Any], skip: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """The inputs in the network's own types; those named in ``skip`` only have to exist. A
        slider that is left out has its default."""
        inputs = with_defaults(self.sliders, self.inputs, self._program.known_inputs, inputs)
        if not skip:
            return check_inputs(self.inputs, inputs, self._program.known_inputs)
        facts = {name: fact for name, fact in self.inputs.items() if name not in skip}
        if unknown := skip - set(self.inputs):
            raise InputError(f"unknown input '{min(unknown)}'; inputs are {listed(self.inputs)}")
        host = {k: v for k, v in inputs.items() if k not in skip}
        checked = check_inputs(facts, host, self._program.known_inputs)
        return {**checked, **{name: inputs[name] for name in skip}}

    def close(self) -> None:
        """Give the network's memory on the device back now; with the last reference it would go as
        well. Whatever is asked of the session afterwards is an :class:`InputError`, as closing it
        is while a run or a job is under way. On the CPU there is nothing to give back."""
        self._coming = None
        if self.gpu is not None:
            as_gpu_program(self._program).close()

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
        arrays = check_inputs(self.inputs, random_inputs(self.inputs) if inputs is None else inputs)
        if self.gpu is None:
            return rank_cpu(self.graph, arrays, runs, given)
        return rank_gpu(as_gpu_program(self._program), arrays, runs, given)

    def rank_without(
        self, operator: str, inputs: Mapping[str, Array] | None = None, *, runs: int = 10
    ) -> StubReport:
        """What the operator of that name costs end to end: ``runs`` whole runs with it against
        as many with one that does nothing in its place, in turns. The GPU only."""
        if self.gpu is None:
            raise InputError("an operator can be replaced by a stub on the GPU only")
        TIMES.check(runs, "runs")
        text(operator, "operator")
        check_stub(self.graph, operator)
        options = replace(self.options, plan=replace(self.options.plan, stub=operator))
        stubbed = Session(self.source_graph, self.gpu, options)
        times = time_in_turns(runs, self.timer(inputs), stubbed.timer(inputs))
        clock = "timestamps" if self.gpu.has_timestamps else "wall clock"
        return StubReport.of(self.graph, operator, self.gpu.name, clock, times)

    def timer(self, inputs: Mapping[str, Array] | None = None) -> Callable[[], float]:
        """A function that runs the whole network once, undisturbed, and returns the milliseconds:
        on a GPU of its computation alone, without upload and readback."""
        arrays = check_inputs(self.inputs, random_inputs(self.inputs) if inputs is None else inputs)
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


def _choose(backend: Gpu | str) -> Gpu | None:
    """The GPU to use, or None for the CPU."""
    if (
        not isinstance(backend, str | type)
        and hasattr(backend, "limits")
        and hasattr(backend, "memory")
    ):
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
