"""Sessions: graphs that are compiled for one backend and run many times."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from cml_engine.compiler.plan import Plan
from cml_engine.cpu.cpu_program import HostProgram, Watch
from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import (
    SHAPES_KEPT,
    TIMES,
    check_flag,
    check_input_mapping,
    check_instance,
    check_known_names,
    check_name_list,
    check_shapes,
    check_text,
)
from cml_engine.ir.arrays import as_array
from cml_engine.ir.counted import counted_axes, trimmed
from cml_engine.ir.graph import Array, Fact, Graph, Slider
from cml_engine.ir.textures import TextureInput, on_device
from cml_engine.ops.declaration.registry import load_families
from cml_engine.runtime.live.replacement import Replacement, check_interface
from cml_engine.runtime.rank import (
    AblationReport,
    RankReport,
    check_operator,
    rank_cpu,
    rank_gpu,
    time_interleaved,
    time_run,
)
from cml_engine.runtime.session.compile_graph import (
    Compiled,
    CompileOptions,
    Program,
    ShapeCache,
    as_gpu_program,
    compile_graph,
    make_recompiler,
)
from cml_engine.runtime.session.inputs import (
    check_inputs,
    check_ranges,
    listed,
    random_inputs,
    take_words,
    with_defaults,
    with_unsigned,
)

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.gpu.program.preparation import OnProgress

_log = logging.getLogger(__name__)


class SessionTensor(Protocol):
    """A tensor of a session on any backend."""

    @property
    def fact(self) -> Fact:
        """The type and shape."""
        ...

    def read(self) -> Array:
        """Returns the value as a NumPy array; blocks on a GPU."""
        ...


class Session:
    """A compiled network, ready to run.

    Parameters
    ----------
    graph : from :func:`cml_engine.load`.
    backend : a :class:`cml_engine.Gpu`, ``"cpu"`` (NumPy), ``"gpu"`` (a new device), or
        ``"auto"``: a GPU if there is one, otherwise the CPU with a warning.
    deferred : upload no weights and build no pipelines now; a frame scheduler does it, a little in
        every frame. (:meth:`run` does the rest at once.)
    arena : ``"shared:NAME"``: sessions with the same name share the memory of their activations,
        so only one of them runs at a time; a frame scheduler enforces that.
    shapes_kept : the number of networks at other shapes that stay compiled (see :meth:`reshaped`).
    retain : an input that a run or job omits keeps its value, and only operators that depend on
        the given inputs or on variables run (docs/see_inside.md).
    on_progress : called with the stage, the number of finished units and their total:
        ``("plan", 0, 1)``, then ``("kernels", 3, 17)`` after each kernel that is compiled for a
        GPU. Kernels are compiled by threads, which make the calls one at a time. An exception
        raised in the call ends the compilation.

    Example
    -------
    >>> session = cml.Session(cml.load("upres.nnef"), cml.Gpu())    # doctest: +SKIP
    >>> session.run({"image": array})["enlarged"].shape             # doctest: +SKIP
    (1, 3, 512, 512)
    """

    #: True after :meth:`close`
    _closed = False

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
        check_instance(Graph, graph, "a session's graph (cml.load gives one)")
        check_instance(CompileOptions, options, "options")
        check_flag(deferred, "deferred")
        if arena is not None:
            check_instance(str, arena, "arena")
        SHAPES_KEPT.check(shapes_kept, "shapes_kept")
        if check_flag(retain, "retain"):
            options = replace(options, plan=replace(options.plan, retain=True))
        if on_progress is not None and not callable(on_progress):
            raise InputError(
                f"on_progress is {on_progress!r}, wanted a function of a stage and two numbers"
            )
        load_families()  # a graph that was built in code has not loaded the operators yet
        self.options = options
        self.gpu = _choose(backend)
        if options.cpu == "onnxruntime" and self.gpu is not None and backend != "auto":
            raise InputError(
                "cpu='onnxruntime' is for sessions without a GPU: say backend 'cpu', or leave it "
                "out"
            )
        self._arena, self._shapes_kept = arena, shapes_kept
        self._coming: Replacement | None = None
        self._swapping = Lock()
        self._begin(
            compile_graph(graph, self.gpu, options, deferred, arena, on_progress=on_progress)
        )

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"the session of '{self.source_graph.name}' was closed: make another one"
            )

    def _begin(self, first: Compiled) -> None:
        """Switches to a compiled network and drops the cached shapes of the previous one."""
        self._take(first)
        #: the network at other shapes, shared by all sessions that ``reshaped`` returns
        self._shapes: ShapeCache[Session] = ShapeCache(
            self._shapes_kept,
            make_recompiler(first, self.gpu, self.options, self._arena),
            partial(_session_of, self.gpu, self.options, self._arena, self._shapes_kept),
        )
        self._shapes.add(first.source, self)

    def _take(self, compiled: Compiled) -> None:
        self.source_graph: Graph = compiled.source
        #: the inputs that a host may omit or set to a number (``cml.load(..., sliders=)``)
        self.sliders: Mapping[str, Slider] = compiled.source.sliders
        self.graph: Graph = compiled.graph
        self._counted = counted_axes(compiled.source)
        self.plan: Plan | None = compiled.plan
        self._program: Program = compiled.program

    def __repr__(self) -> str:
        return f"<Session on {self.gpu or 'the CPU'} of {self.source_graph}>"

    @property
    def backend(self) -> str:
        """The name of the backend: ``"cpu"`` or ``"gpu"``."""
        return "cpu" if self.gpu is None else "gpu"

    @property
    def inputs(self) -> dict[str, Fact]:
        """The dtype and shape of every input, by name."""
        return {name: self.graph.facts[name] for name in self.graph.inputs}

    @property
    def outputs(self) -> dict[str, Fact]:
        """The dtype and shape of every output, by name; along a counted axis the largest extent."""
        return {name: self.graph.facts[name] for name in self.graph.outputs}

    @property
    def program(self) -> Program:
        """The backend's program of the network, for tools."""
        return self._program

    def current_program(self) -> Program:
        """Switches to a replacement network that is ready, and returns the program to run.

        For schedulers, which call it for every job.
        """
        self._check_open()
        self._take_coming()
        return self._program

    def replace(self, graph: Graph | Callable[[], Graph]) -> Replacement:
        """Replaces the network with another one that has the same inputs and outputs.

        The new network may have new weights or new operators. ``graph`` may be a function that
        loads it. Returns at once: a thread compiles the network, and a scheduler that has jobs
        of this session uploads it within its budget. Pipelines that exist are not built again.
        :meth:`take_replacement` waits for the new network.

        The old network runs until the new one is ready. If the replacement fails, the old
        network stays and the replacement's ``error`` holds the reason. Variables start with the
        values in the new model's files.
        """
        self._check_open()
        if not callable(graph):
            check_instance(Graph, graph, "replace (a graph, or a function that gives one)")
            check_interface(self.source_graph, graph)
        new_graph, before = graph, self.source_graph

        def compiled() -> Compiled:
            new = new_graph() if callable(new_graph) else new_graph
            check_instance(Graph, new, "what is to replace a network")
            check_interface(before, new)
            return compile_graph(new, self.gpu, self.options, True, self._arena)

        if self._coming is not None:
            self._coming.supersede()
        program_of = (
            (lambda network: None) if self.gpu is None else (lambda network: network.program)
        )
        self._coming = Replacement(self.source_graph.name, compiled, program_of)
        if self.gpu is not None:
            as_gpu_program(self._program).successor = self._coming
        return self._coming

    def take_replacement(self) -> None:
        """Waits for the network of :meth:`replace` and switches to it; for tools.

        Raises the replacement's error if it failed; the session then keeps the old network.
        """
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
        """Returns a session of the same network at other input shapes, by name.

        Inputs that are not named keep their shapes from :func:`cml_engine.load`. Weights are
        shared, variables are not. If the kernels are the same, no file is read, nothing is
        compiled and nothing is uploaded. On a GPU the session is prepared like a deferred one.

        The last ``shapes_kept`` shapes stay compiled and return the same session at once. Any
        other shape takes as long as making a plan: within a frame, request only shapes that were
        requested before.

        Raises :class:`InputError` if there is no such input, and :class:`ModelError` if the
        network does not support the shapes. A graph that was changed after it was loaded
        supports no other shapes.
        """
        self._check_open()
        source = self.source_graph
        all_shapes = dict(source.origin.shapes) if source.origin else {}
        all_shapes |= check_shapes(shapes)
        return self._shapes.get(all_shapes, lambda: source.reshaped(shapes))

    def build_ahead(self) -> None:
        """Starts building a deferred session's pipelines on all cores and returns at once.

        Intended for loading screens. Without this call, one core builds them when a job first
        needs them.
        """
        self._check_open()
        self._program.build_ahead()

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        watch: Watch | None = None,
        before: Watch | None = None,
    ) -> dict[str, Array]:
        """Runs the network and returns the outputs by name; blocks until they are computed.

        An output whose number of elements is known only at run time comes with its true length.
        Intended for tools and tests: a game submits jobs to a :class:`cml_engine.FrameScheduler`.
        Runs from several threads wait for each other. Inputs are arrays or, on a GPU, textures
        (:class:`TextureInput`) and ``gpu.tensor(...)``. A constant that the model's file declares
        as an input too may be given; the first such run compiles the network with it as an input.

        Raises :class:`InputError` if an input
        is missing, unknown, or of another shape or type than :attr:`inputs` states, and if a job
        is running in the session's memory.

        ``before(node, operands)`` is called before each operator of :attr:`graph` with the values
        that it reads (``node.reads``), ``watch(node, results)`` after it with its results. The
        arrays are valid only during the call. An exception raised in a call ends the run. On a
        GPU every operator then costs a readback. In a session that retains its inputs, only
        operators that depend on the given inputs run and are shown.
        """
        for name, function in (("watch", watch), ("before", before)):
            if function is not None and not callable(function):
                raise InputError(
                    f"{name}: wanted a function of a node and its arrays, got {function!r}"
                )
        self._check_open()
        self._take_coming()
        if names := self._optional(inputs):
            shapes = {name: as_array(f"input '{name}'", inputs[name]).shape for name in names}
            return self.reshaped(shapes).run(inputs, watch=watch, before=before)
        outputs = self._run(_take_inputs(self, inputs), watch, before)
        return {name: trimmed(name, array, self._counted, outputs)
                for name, array in outputs.items()}  # fmt: skip

    def _run(
        self, arrays: dict[str, Any], watch: Watch | None, before: Watch | None
    ) -> dict[str, Array]:
        if watch is None and before is None:
            return self._program.run(arrays)
        if self.gpu is None:
            return _on_cpu(self._program).run(arrays, watch, before)
        from cml_engine.gpu.program.inspect import run_watched

        return run_watched(as_gpu_program(self._program), self.graph, arrays, watch, before)

    def tensor(self, name: str) -> SessionTensor:
        """Returns an output, or a tensor of ``CompileOptions(keep=…)``, as the last run left it.

        On a GPU it is a :class:`cml_engine.gpu.GpuTensor` in the session's memory, which the next
        run overwrites; on the CPU it is a copy. Raises :class:`InputError` if the tensor has no
        value now.
        """
        check_text(name, "a tensor's name")
        self._check_open()
        if self.gpu is None:
            return _on_cpu(self._program).tensor(name)
        from cml_engine.gpu.frames.outputs import network_tensor

        return network_tensor(as_gpu_program(self._program), name)

    def check_inputs(
        self, inputs: Mapping[str, Any], skip: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Returns the inputs by name, converted to the network's dtypes.

        Inputs named in ``skip`` must exist but are not converted. Missing inputs with a default,
        such as sliders, get it. Raises :class:`InputError` if an input does not fit or is missing.
        """
        self._check_open()
        if name := next(iter(self._optional(inputs)), None):
            raise InputError(
                f"input '{name}' is a constant of this session. Load the model with "
                f"inputs=['{name}'] to give it in each run"
            )
        graph, known_inputs = self.source_graph, self._program.known_inputs
        inputs = with_defaults(graph, self.inputs, known_inputs, check_input_mapping(inputs))
        self._expect_range_of(inputs)
        inputs = with_unsigned(graph, inputs)
        words = take_words(self.graph, self.plan, inputs)
        inputs, skip = {**inputs, **words}, skip | words.keys()
        facts = {name: fact for name, fact in self.inputs.items() if name not in skip}
        if unknown := skip - set(self.inputs):
            raise InputError(f"unknown input '{min(unknown)}'; inputs are {listed(self.inputs)}")
        host = {k: v for k, v in inputs.items() if k not in skip}
        checked = check_inputs(facts, host, known_inputs)
        check_ranges(graph, checked)
        return {**checked, **{name: inputs[name] for name in skip}}

    def _expect_range_of(self, inputs: Mapping[str, Any]) -> None:
        """Compiles the network again without Winograd's tiles if one of the inputs is a texture
        whose values may be large, unless ``options.winograd`` says otherwise."""
        if self.options.winograd is not None or self.plan is None:
            return
        wide = [n for n, v in inputs.items() if isinstance(v, TextureInput) and v.is_wide]
        if not wide or not any(Path(step.path).stem == "winograd" for step in self.plan.steps):
            return
        if self.source_graph.cooked_form is not None:
            _log.warning(
                "'%s': input '%s' is a texture of floats, and the file was cooked with Winograd's "
                "tiles: cook it with --no-winograd", self.source_graph.name, wide[0],
            )  # fmt: skip
            return
        _log.info("'%s': no Winograd, for '%s' is a texture of floats", self.graph.name, wide[0])
        with self._swapping:
            self.options = replace(self.options, winograd=False)
            before = self._program
            self._begin(compile_graph(self.source_graph, self.gpu, self.options, True, self._arena))
            self._program.inherit(before)

    def _optional(self, inputs: Mapping[str, Any]) -> list[str]:
        """Returns the given inputs that are constants here and that the file declares as inputs."""
        if not self.source_graph.optional or not isinstance(inputs, Mapping):
            return []
        return sorted(self.source_graph.optional.intersection(inputs))

    def close(self) -> None:
        """Frees the network's memory on the device now instead of with the last reference.

        Any later use of the session raises :class:`InputError`, as does closing it during a run
        or a job. In a shared arena it waits while another session runs or is prepared. A
        replacement that is not ready is discarded. On the CPU there is nothing to free.
        """
        if self.gpu is not None:
            as_gpu_program(self._program).close()
        self._closed = True
        if self._coming is not None:
            self._coming.supersede()
            self._coming = None

    def reset(self) -> None:
        """Resets the variables that the network updates to the values in its files."""
        self._check_open()
        self._program.reset()

    def rank(
        self,
        inputs: Mapping[str, Array] | None = None,
        *,
        runs: int = 10,
        given: Sequence[str] | None = None,
    ) -> RankReport:
        """Measures the time per operator over ``runs`` runs, after a warm-up; returns a report.

        Without ``inputs``, random ones are used. In a session that retains its inputs, ``given``
        names the inputs that each run provides; only operators that depend on them are timed.
        ``str()`` of the report is a table.
        """
        self._check_open()
        TIMES.check(runs, "runs")
        if given is not None:
            check_known_names(
                check_name_list(given, "given"),
                self.inputs,
                f"'{self.graph.name}' has no input",
                "given",
            )
            if not self.options.plan.retain:
                raise InputError(
                    "given: this session runs the whole network each time; make it with retain=True"
                )
        if self.gpu is None and self.options.cpu == "onnxruntime":
            raise InputError(
                "rank: ONNX Runtime runs a network as a whole: leave cpu='onnxruntime' out, then "
                "NumPy's operators are measured"
            )
        arrays = check_inputs(self.inputs, random_inputs(self.inputs) if inputs is None else inputs)
        if self.gpu is None:
            return rank_cpu(self.graph, arrays, runs, given)
        return rank_gpu(as_gpu_program(self._program), arrays, runs, given)

    def rank_without(
        self, operator: str, inputs: Mapping[str, Array] | None = None, *, runs: int = 10
    ) -> AblationReport:
        """Measures the end-to-end cost of the named operator and returns a report; on a GPU only.

        Whole runs of the network alternate with runs in which the operator does nothing,
        ``runs`` of each.
        """
        self._check_open()
        if self.gpu is None:
            raise InputError(
                "an operator is replaced by a stub on a GPU only: make the session on one"
            )
        TIMES.check(runs, "runs")
        check_text(operator, "operator")
        check_operator(self.graph, operator)
        options = replace(self.options, plan=replace(self.options.plan, stub=operator))
        stubbed = Session(self.source_graph, self.gpu, options)
        times = time_interleaved(runs, self.timer(inputs), stubbed.timer(inputs))
        clock = "timestamps" if self.gpu.has_timestamps else "wall clock"
        return AblationReport.of(self.graph, operator, self.gpu.name, clock, times)

    def timer(self, inputs: Mapping[str, Array] | None = None) -> Callable[[], float]:
        """Returns a function that runs the whole network once and returns the milliseconds.

        It has exclusive use of the session and reads ``inputs``, by default random ones. On a
        GPU the time is that of the computation without upload and readback.
        """
        self._check_open()
        arrays = check_inputs(self.inputs, random_inputs(self.inputs) if inputs is None else inputs)
        if self.gpu is None:
            timed = _on_cpu(self._program).without_state()  # the session's variables stay
            return lambda: _wall_ms(lambda: timed.run(arrays))
        from cml_engine.gpu.program.program import GpuProgram
        from cml_engine.gpu.timing.frame_timer import PassTimer

        program, timer = self._program, PassTimer(self.gpu)
        assert isinstance(program, GpuProgram)

        def run() -> float:
            with program.residency.exclusive():
                program.write_inputs(arrays)
                return time_run(program, timer)

        return run


def _take_inputs(session: Session, inputs: Mapping[str, object]) -> dict[str, Any]:
    """Returns a run's inputs by name: checked arrays; textures and GPU tensors unchanged.

    Raises :class:`InputError` if an input is on a GPU and the session runs on the CPU.
    """
    is_mapping = isinstance(inputs, Mapping)
    on_gpu = {name for name, value in inputs.items() if on_device(value)} if is_mapping else ()
    if on_gpu and session.gpu is None:
        raise InputError(
            f"input '{min(on_gpu)}' lies on a GPU and the session runs on the CPU: read it, "
            "and give the array"
        )
    return session.check_inputs(inputs, frozenset(on_gpu))


def _on_cpu(program: Program) -> HostProgram:
    assert isinstance(program, HostProgram)
    return program


def _session_of(
    gpu: Gpu | None,
    options: CompileOptions,
    arena: str | None,
    shapes_kept: int,
    compiled: Compiled,
    shapes: ShapeCache[Session],
) -> Session:
    session = object.__new__(Session)
    session.options, session.gpu, session._shapes = options, gpu, shapes
    session._arena, session._shapes_kept, session._coming = arena, shapes_kept, None
    session._swapping = Lock()
    session._take(compiled)
    return session


def _choose(backend: Gpu | str) -> Gpu | None:
    """Returns the GPU to use, or None for the CPU; ``"auto"`` warns if it falls back to the CPU."""
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


def _wall_ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)
