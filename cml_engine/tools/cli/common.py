"""Code shared by the commands of ``cml``: reads their files, and makes graphs and sessions."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cml_engine.errors import DeviceError, InputError, NeedsConstant, OpenShape
from cml_engine.errors.arguments import EXTENT
from cml_engine.io import arrays as array_files
from cml_engine.io.arrays import Known, Shape
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.json_files import read_json
from cml_engine.io.named_file import NamedFile, named_file
from cml_engine.ir.graph import Array, Fact, Graph, Shapes
from cml_engine.tools.cli.options import given, refuse
from cml_engine.tools.cli.terminal import narrator, progress

if TYPE_CHECKING:
    from cml_engine.compiler.plan import Plan
    from cml_engine.compiler.planning.decisions import Decisions
    from cml_engine.gpu.gpu import Gpu
    from cml_engine.runtime.session import CompileOptions, Session
    from cml_engine.tools.report.model_facts import ModelFacts

ShapeOf = Callable[[str, str, Known], Shape | None]


def load_for_inputs(a: Namespace, shape_of: ShapeOf = array_files.shape_of) -> Graph:
    """Loads and returns the model; inputs without a shape get the shapes of their ``-i`` files.

    An input whose value an operator needs at load, such as the condition of an ``If``, becomes a
    constant with the value of its file. A constant that the model declares as an input too becomes
    an input if it has a file.
    """
    files = dict(_name_and_file(pair) for pair in a.input)

    def file_shape(name: str, extents: Known) -> Shape | None:
        return shape_of(files[name], name, extents) if files.get(name) else None

    constants: dict[str, Array] = {}
    inputs: list[str] = []
    while True:
        try:
            graph = load_open(a, file_shape, constants, inputs)
        except OpenShape as error:
            if files and error.input not in files:
                names = ", ".join(f"'{name}'" for name in files)
                error.message = f"-i has {names}, not '{error.input}': {error.message}"
            raise
        except NeedsConstant as error:
            missing = [name for name in error.inputs if name not in constants]
            are_given = shape_of is array_files.shape_of and all(map(files.get, missing))
            if not missing or not are_given:
                raise
            constants |= {name: array_files.read_any(files[name], name) for name in missing}
        else:
            if given_names := [name for name in graph.optional if name in files]:
                inputs += given_names
                continue
            a.input = [pair for pair in a.input if pair.partition("=")[0] not in constants]
            return graph


def load_open(
    a: Namespace,
    shape_of: Callable[[str, Known], Shape | None],
    constants: Mapping[str, Array] | None = None,
    inputs: Sequence[str] = (),
) -> Graph:
    """Loads and returns the model; inputs without a shape get their shapes from ``shape_of``.

    ``shape_of`` receives the name of the input and the known extents. If it returns None, the load
    fails with :class:`OpenShape`.
    """
    shapes = named_shapes(a.shape)
    while True:
        try:
            return load_model(a, shapes, constants, inputs)
        except OpenShape as open:
            shape = None if open.input in shapes else shape_of(open.input, open.known)
            if shape is None:
                raise
            shapes[open.input] = shape


def load_model(
    a: Namespace,
    shapes: Shapes | None = None,
    constants: Mapping[str, Array] | None = None,
    inputs: Sequence[str] = (),
) -> Graph:
    """Returns the graph of the model file that the command line names, cooked files included.

    Prints a note if its weights are random. Raises :class:`InputError` for options that cannot
    change a cooked file.
    """
    random = getattr(a, "random_weights", None)
    with narrator.stage(f"loading '{a.model}'"):
        from cml_engine.cooked import load_cooked
        from cml_engine.formats.loading import load

        if is_cooked(a.model):
            reason = f"'{a.model}' is cooked, so its shapes, weights and outputs cannot change"
            options = "fragments", "shape", "weights", "constant", "output", "random-weights"
            refuse(a, reason, *options)
            return load_cooked(a.model, trusted=getattr(a, "trusted", False))
        refuse(a, f"'{a.model}' is not cooked, so its kernels are the engine's own", "trusted")
        graph = load(
            a.model,
            fragments=a.fragments,
            shapes=named_shapes(a.shape) if shapes is None else shapes,
            weights=a.weights,
            random_weights=random,
            inputs=inputs,
            outputs=_chosen_outputs(a.output),
            constants={**_named_constants(a.constant), **(constants or {})},
        )
    if random is not None and a.command_name != "info":  # info shows all notes itself
        is_table = not (getattr(a, "json", False) or getattr(a, "csv", False))
        print(graph.notes[-1], file=sys.stdout if is_table else sys.stderr)
    return graph


def _chosen_outputs(names: Sequence[str]) -> Sequence[str] | None:
    """Returns the names of ``--output``, or None without the option."""
    if mistaken := next((name for name in names if "=" in name), None):
        raise InputError(
            f"--output '{mistaken}': wanted the name of an output to compute; -o NAME=FILE writes "
            "one"
        )
    return names or None


def _named_constants(pairs: Iterable[str]) -> dict[str, Array]:
    """Returns the arrays of the ``NAME=VALUE`` and ``NAME=FILE`` pairs of ``--constant``.

    A value is a number or a list of numbers.
    """
    constants: dict[str, Array] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value or name in constants:
            raise InputError(
                f"--constant '{pair}': wanted NAME=VALUE or NAME=FILE.npy, each name once"
            )
        if Path(value).suffix.lower() in (".npy", ".npz"):
            constants[name] = array_files.read_any(value, name)
            continue
        with contextlib.suppress(ValueError, RecursionError):
            constants[name] = np.array(json.loads(value))
        if name not in constants or constants[name].dtype.kind not in "biuf":
            raise InputError(
                f"--constant '{pair}': wanted a number, true or false, a list such as [1,2], or a "
                ".npy file"
            )
    return constants


def is_cooked(model: str) -> bool:
    """Returns True if the file is a cooked model, by its suffix ``.cml`` or its first bytes."""
    from cml_engine.cooked.schema import MAGIC

    if Path(model).suffix.lower() == ".cml":
        return True
    with contextlib.suppress(OSError), Path(model).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def named_shapes(pairs: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Returns shapes by name from ``NAME=1,3,64,64`` pairs; the name is "" if a pair has none.

    A pair without extents is the shape of a scalar.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for pair in pairs:
        name, equals, extents = pair.rpartition("=")
        if equals and not name:
            raise InputError(f"--shape '{pair}': wanted NAME=1,3,64,64")
        if name in shapes:
            subject = f"'{name}'" if name else "the only input"
            raise InputError(f"--shape '{pair}': {subject} has a shape already")
        try:
            shapes[name] = tuple(map(EXTENT.parse, extents.split(","))) if extents else ()
        except InputError as error:
            message = f"--shape '{extents}': {error.message}; write it as 1,3,64,64"
            raise InputError(message) from None
    return shapes


def named_axes(pairs: Iterable[str]) -> dict[str, tuple[int | str, ...]]:
    """Returns axes by input from ``NAME=1,3,height,width`` pairs, as :func:`named_shapes` does."""
    axes: dict[str, tuple[int | str, ...]] = {}
    for pair in pairs:
        name, _, extents = pair.rpartition("=")
        if name in axes or not extents:
            raise InputError(f"--dynamic '{pair}': wanted NAME=1,3,height,width, each input once")
        parts = [part.strip() for part in extents.split(",")]
        axes[name] = tuple(EXTENT.parse(w) if w.isdecimal() else w for w in parts)
    return axes


def compile_options(a: Namespace) -> CompileOptions:
    """Returns the compile options of the command line; other options win over ``--preset``."""
    from cml_engine.runtime.session import CompileOptions

    preset = getattr(a, "preset", None)
    options = CompileOptions.preset(preset) if preset else CompileOptions()
    if getattr(a, "half", False):
        options = replace(options, storage="half")
    if getattr(a, "half_arithmetic", False):
        options = replace(options, storage="half", arithmetic="half")
    if getattr(a, "no_winograd", False):
        options = replace(options, winograd=False)
    if getattr(a, "backend", None) == "onnxruntime":
        options = replace(options, cpu="onnxruntime")
    mib = getattr(a, "arena_limit_mib", None)
    arena_limit = None if mib is None else max(int(mib * 2**20), 1)
    return replace(options, decide=read_decisions(a), arena_limit=arena_limit)


def read_decisions(a: Namespace) -> Decisions:
    """Returns the planning decisions in the JSON file of ``--decide``; {} without that option."""
    from cml_engine.compiler.planning.decisions import parse_decisions

    file = getattr(a, "decide", None)
    if file is None:
        return {}
    try:
        return parse_decisions(read_json(Path(file)))
    except OSError as error:
        raise InputError(f"--decide: cannot read '{file}': {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--decide: '{file}' is not valid JSON: {error}") from None


def write_decisions(
    a: Namespace, graph: Graph, optimized: Graph, plan: Plan | None, device: str
) -> None:
    """Writes the decisions of a plan to the file of ``--decisions``, in the format of ``--decide``.

    Does nothing without that option.
    """
    if not getattr(a, "decisions", None):
        return
    if graph.cooked_form is not None:
        raise InputError(f"'{a.model}' is cooked, with its plans decided: leave --decisions out")
    if plan is None:
        raise InputError("--decisions describes a GPU's plan: leave --backend cpu out")
    from cml_engine.tools.report.model_facts import decisions_on

    array_files.check_place(Path(a.decisions), a.model)
    decisions = decisions_on(device, graph, optimized, plan, read_decisions(a))
    write_atomically(a.decisions, json.dumps([asdict(d) for d in decisions], indent=1) + "\n")


def load_facts(a: Namespace) -> ModelFacts:
    """Loads the model and returns its facts, which are computed when they are read; runs nothing.

    Writes the file of ``--decisions`` if requested.
    """
    from cml_engine.tools.report.model_facts import ModelFacts

    graph = load_model(a)
    facts = ModelFacts(graph, compile_options(a))
    if getattr(a, "decisions", None):
        write_decisions(a, graph, facts.optimized, facts.plan, facts.device)
    return facts


def session_of(
    a: Namespace,
    graph: Graph,
    backend: Gpu | str,
    options: CompileOptions | None = None,
    retain: bool = False,
) -> Session:
    """Compiles the graph for a backend and returns the session; writes the file of ``--decisions``.

    A terminal shows the progress of the compilation.
    """
    from cml_engine.runtime.session import Session

    target = "the CPU" if backend == "cpu" else "the GPU"
    with narrator.stage(f"preparing '{a.model}' for {target}"), progress() as show:
        session = Session(
            graph, backend, options or compile_options(a), on_progress=show, retain=retain
        )
    name = session.gpu.name if session.gpu else ""
    write_decisions(a, session.source_graph, session.graph, session.plan, name)
    return session


def facts_of(graph: Graph, names: Iterable[str]) -> dict[str, Fact]:
    """Returns the facts of some tensors of the graph by name, such as those of its inputs."""
    return {name: graph.facts[name] for name in names}


def named_files(pairs: Iterable[str], facts: Mapping[str, Fact], role: str) -> dict[str, NamedFile]:
    """Returns the files of ``NAME=FILE`` pairs by name; each name must be one of ``facts``.

    After the file, a conversion of its values may follow: ``NAME=FILE:scale=2,shift=-1``.
    ``role`` is "input" or "output", for messages. The files are not opened.
    """
    files: dict[str, NamedFile] = {}
    for pair in pairs:
        name, file = _name_and_file(pair)
        if name not in facts:
            listed = ", ".join(f"{n}: {fact}" for n, fact in facts.items()) or "(none)"
            raise InputError(f"unknown {role} '{name}'; the model's {role}s are {listed}")
        if name in files:
            raise InputError(f"{role} '{name}' is given twice")
        files[name] = named_file(file)
        array_files.check_suffix(files[name])
    return files


def _name_and_file(pair: str) -> tuple[str, str]:
    name, _, file = pair.partition("=")
    if not name or not file:
        raise InputError(f"'{pair}': wanted NAME=FILE")
    return name, file


def read_inputs(
    a: Namespace, facts: Mapping[str, Fact], defaults: Mapping[str, Array]
) -> dict[str, Array]:
    """Returns the checked inputs by name: from the ``-i`` files, else from ``defaults``."""
    from cml_engine.runtime.session import check_inputs

    files = named_files(a.input, facts, "input")
    read = {name: array_files.read(file, name, facts[name]) for name, file in files.items()}
    return check_inputs(facts, {**defaults, **read})


def is_on_host(a: Namespace) -> bool:
    """Returns True if ``--backend`` is no GPU.

    Raises :class:`InputError` for options that need a GPU with such a backend.
    """
    if a.backend not in ("cpu", "onnxruntime"):
        return False
    needy = "half", "half-arithmetic", "decide", "arena-limit-mib", "adapter"
    if names := given(a, *needy, "dump-kernels", "debug-kernels"):
        raise InputError(f"{names} needs a GPU: leave --backend {a.backend} out")
    return True


def backend_of(a: Namespace) -> Gpu | str:
    """Returns the requested backend: ``"auto"``, ``"gpu"``, ``"cpu"`` or a GPU object.

    It is a GPU object if options need one, such as those that dump kernels or show their prints.
    """
    if is_on_host(a):
        return "cpu"
    if getattr(a, "dump_kernels", None) or getattr(a, "debug_kernels", False):
        return gpu_of(a)
    return "gpu" if a.adapter else str(a.backend)


def gpu_of(a: Namespace) -> Gpu:
    """Returns this machine's GPU, which dumps its kernels or shows their prints if requested."""
    with narrator.stage("opening the GPU"):
        from cml_engine.gpu.gpu import Gpu

        gpu = Gpu(debug_kernels=getattr(a, "debug_kernels", False))
    gpu.dump_kernels = a.dump_kernels or gpu.dump_kernels
    return gpu


def timed_session(a: Namespace) -> tuple[Session, Gpu, dict[str, Array]]:
    """Returns a session on a GPU with timestamp queries, the GPU, and the inputs by name.

    The inputs are from ``-i`` files, else random.

    Raises :class:`DeviceError` if the GPU cannot time frames.
    """
    from cml_engine.runtime.session import random_inputs

    session = session_of(a, load_for_inputs(a), "gpu")
    gpu = session.gpu
    assert gpu is not None
    if not gpu.has_timestamps:
        raise DeviceError(
            f"{gpu.name} has no timestamp queries, so frames cannot be timed: name another GPU "
            "with --adapter"
        )
    return session, gpu, read_inputs(a, session.inputs, random_inputs(session.inputs))
