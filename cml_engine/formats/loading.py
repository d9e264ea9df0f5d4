"""Loads a model from disk as a :class:`Graph` with known shapes, and saves graphs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np

from cml_engine import nnef
from cml_engine.compiler.integer.digest import limit_gas
from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.integer.quant_params import read_quant_params
from cml_engine.compiler.passes.infer import infer_facts, infer_node
from cml_engine.compiler.plugins import load_entry_points
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import InputError, InternalError, UnsupportedOp
from cml_engine.errors.arguments import (
    ONLY_INPUT,
    SEED,
    check_flag,
    check_instance,
    check_mapping,
    check_name_list,
    check_nonempty_names,
    check_path,
    check_paths,
    shortened,
)
from cml_engine.formats import formats
from cml_engine.formats.builder import expand, registered_declarations
from cml_engine.formats.foreign import check_foreign
from cml_engine.formats.format import ConverterOptions, Format, GraphFactory, Model
from cml_engine.formats.sliders import attribute_sliders, with_sliders
from cml_engine.io.atomic_write import write_atomically
from cml_engine.io.load_limits import LoadLimits, load_budget
from cml_engine.io.model_source import Bytes, ModelSource
from cml_engine.io.output_folder import check_new_file
from cml_engine.ir.arrays import as_array
from cml_engine.ir.graph import Array, Graph, Origin, Shapes, Slider
from cml_engine.ir.single_value import distinct
from cml_engine.nnef import NnefModel
from cml_engine.nnef.expansion.fake_quantize import insert_fake_quantize
from cml_engine.nnef.files.sources import is_archive
from cml_engine.nnef.files.weights import RandomWeights
from cml_engine.nnef.files.writer import save as save_nnef
from cml_engine.nnef.text.parser import parse_fragments
from cml_engine.nnef.text.printer import print_fragment
from cml_engine.ops.declaration.registry import is_registered, load_families

#: the tensors that a warning names
_NAMED = 3


def load(
    model: Model,
    *,
    shapes: Mapping[str, Sequence[int]] | tuple[int, ...] | None = None,
    constants: Mapping[str, Array] | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    fragments: Sequence[str | Path] = (),
    fake_quantize: bool = False,
    weights: str | Path | Bytes | None = None,
    random_weights: int | None = None,
    sliders: Mapping[str, Slider | str] | None = None,
    gas_limit: int | None = None,
    limits: LoadLimits | None = None,
) -> Graph:
    """Loads a model (NNEF, ONNX, ncnn) as a graph; a session then plans and compiles it.

    The model is an NNEF folder, the ``graph.nnef`` inside one, a ``.tgz`` of one, an ``.onnx``
    file, the bytes of a ``.tgz`` or an ``.onnx`` file, an ncnn ``.param`` with its ``.bin``
    beside it, or a :class:`ModelSource`.

    Operators that the engine knows, or that a game has registered, become nodes; other fragments
    with a body are expanded. ``fragments`` are files with fragments that the model calls and
    does not contain. With ``fake_quantize`` every tensor that ``graph.quant`` names is rounded
    to the values of its line; without it those lines are used for stored integers only.

    ``shapes`` are the shapes of inputs by name, or the shape of the only input. They replace the
    model's shapes and give its symbols values. ``graph.reshaped(shapes)`` changes them later.
    ``constants`` are inputs of an ONNX model that are the same in every run; they become
    constants of the graph.

    ``inputs`` are initializers that an ONNX model lists as inputs too. They are constants unless
    they are named here, or in ``shapes``; then their values in the file are defaults, which a run
    may omit.

    ``outputs`` are the tensors to compute, by the file's names: some of its outputs, or inner
    tensors. What they do not need is neither read nor checked, and inputs that they do not need are
    left out.

    ``weights`` is a safetensors file, or its bytes, with the variables' values by label; it
    replaces the tensor files. ``random_weights`` is the seed of random values for whatever is
    missing (tensor files, tensors of ``weights``, an ONNX model's external data). The cost of a
    network does not depend on its values, and ``graph.notes`` says that they are random.

    ``gas_limit`` is the highest cost that is accepted, in units that are the same on every
    machine (``cml info --gas``), for models that players bring. A model that costs more is
    refused.

    ``sliders`` are operands and attributes of the model that the host changes, by the names that
    they get: ``{"strength": "mul3.y"}``, or a :class:`Slider` with a range and a description.
    Each is an optional input.

    ``limits`` bound the memory and the work of this load and of later reshapes, for models that
    are not trusted. The default is half of the machine's memory (docs/your_model.md).

    Every error in the model is a :class:`ModelError` with file, line and operator.

    Examples
    --------
    >>> graph = cml.load("net.nnef")
    >>> wide = cml.load("net.nnef", shapes={"image": (1, 3, 16, 32)})
    >>> wide.facts["out"].shape
    (1, 4, 16, 32)
    """
    random = None
    if random_weights is not None:
        random = RandomWeights(SEED.check(random_weights, "random_weights"))
    options = ConverterOptions(
        constants={
            name: as_array(f"constant '{name}'", value)
            for name, value in check_mapping(
                "values by input, {'k': 3}", {} if constants is None else constants, "constants"
            ).items()
        },
        inputs=check_name_list(inputs, "inputs"),
        outputs=() if outputs is None else _distinct_names(outputs),
        random_weights=random,
        fragments=check_paths(fragments, "fragments"),
        fake_quantize=check_flag(fake_quantize, "fake_quantize"),
        weights=weights,
    )
    if limits is not None:
        check_instance(LoadLimits, limits, "limits")
    if sliders is not None:
        check_mapping("sliders by name, {'strength': 'mul3.y'}", sliders, "sliders")
    with load_budget(limits):
        make = limit_gas(gas_limit, _add_sliders(_open_model(model, options), sliders))

        def bounded(shapes: Shapes) -> Graph:
            with load_budget(limits):  # also of later reshapes
                return make(shapes)

        requested_shapes = {ONLY_INPUT: shapes} if isinstance(shapes, tuple) else shapes
        requested_shapes = {} if requested_shapes is None else requested_shapes
        return _with_warning(Origin(bounded).at(requested_shapes))


def _distinct_names(outputs: Sequence[str]) -> tuple[str, ...]:
    names = check_nonempty_names(outputs, "outputs")
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"outputs: '{name}' is given {count} times: give it once")
    return names


def _with_warning(graph: Graph) -> Graph:
    """Warns of weights that are NaN or infinite, and returns the graph with the warning as a note.

    Masks may be infinite. A graph without broken weights is returned unchanged.
    """
    broken = {name: array for name, array in graph.constants.items() if _is_broken(array)}
    if not broken:
        return graph
    counts = (
        f"{array.size - np.count_nonzero(np.isfinite(array))} of the {array.size} values of "
        f"'{name}'"
        for name, array in broken.items()
    )
    more_text = (
        f", and those of {len(broken) - _NAMED} more tensors" if len(broken) > _NAMED else ""
    )
    message = (
        f"'{graph.name}' has weights that are NaN or infinite: {', '.join(islice(counts, _NAMED))}"
        f"{more_text}. Export the model again from a checkpoint without them"
    )
    warnings.warn(message, RuntimeWarning, stacklevel=3)
    return graph.with_(notes=(*graph.notes, f"warning    {message}"), origin=graph.origin)


def _is_broken(array: Array) -> bool:
    """Returns True if a float array has NaNs or infinities and is not a mask.

    A mask has no other values than 0, 1 and infinities.
    """
    if array.dtype.kind != "f":
        return False
    array = distinct(array)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        if np.isfinite(array.sum(dtype=np.float64)):
            return False
    return not (np.isinf(array) | (array == 0) | (array == 1)).all()


def _open_model(model: Model, options: ConverterOptions) -> GraphFactory:
    """Returns the function that makes the model's graph at given input shapes.

    Raises :class:`InputError` for an option that the model's format does not support.
    """
    load_families()
    load_entry_points()
    format, defaults = _format_of(model), ConverterOptions()
    unsupported = [
        option.name
        for option in fields(options)
        if _differs(getattr(options, option.name), getattr(defaults, option.name))
        and option.name not in format.takes
    ]
    if unsupported:
        raise InputError(
            f"{_shown(model)}: {' and '.join(unsupported)} cannot be given for {format.name}: "
            "leave that out"
        )
    return format.open(model, options)


def _differs(value: object, default: object) -> bool:
    return type(value) is not type(default) or bool(value != default)


def _open_nnef(model: Model, options: ConverterOptions) -> GraphFactory:
    declarations = {**_library(options.fragments), **registered_declarations()}
    weights = None if options.weights is None else nnef.Weights(options.weights)
    random = options.random_weights
    nnef_model = NnefModel(
        model, is_registered, infer_node, declarations, weights, random, options.outputs
    )

    def make(shapes: Shapes) -> Graph:
        graph = nnef_model.graph(shapes)
        if options.fake_quantize and graph.integer:
            raise InputError(
                f"{_shown(model)} is an integer network (cml docs integer), which is computed as "
                "graph.quant says already: leave fake_quantize out"
            )
        return infer_facts(insert_fake_quantize(graph, expand) if options.fake_quantize else graph)

    return make


_NNEF = Format(
    "NNEF",
    ".nnef",
    _open_nnef,
    frozenset({"random_weights", "fragments", "fake_quantize", "weights", "outputs"}),
)


def _add_sliders(make: GraphFactory, sliders: Mapping[str, Slider | str] | None) -> GraphFactory:
    """Returns a function like ``make`` that adds the sliders to each graph."""
    if not sliders:
        return make
    return lambda shapes: with_sliders(make(shapes), sliders)


def load_with_placeholders(
    model: str | Path, shapes: Mapping[str, Sequence[int]] | None = None
) -> Graph:
    """Loads an ONNX model as a graph; unknown operators become declarations without implementation.

    The graph can be saved, and run by a game that registers operators of the declarations.
    """
    return Origin(_open_model(model, ConverterOptions(placeholders=True))).at(shapes or {})


def _format_of(model: Model) -> Format:
    """Returns a model's format, which is NNEF if no other has its suffix.

    Bytes are recognised by their content, other models by the suffix of their file.
    """
    if isinstance(model, Bytes):
        byte_formats = [format for format in formats().values() if format.in_bytes]
        return _NNEF if is_archive(model) else byte_formats[0]
    if isinstance(model, str | Path):
        check_foreign(Path(model))
        return formats().get(Path(model).suffix.lower(), _NNEF)
    if isinstance(model, ModelSource):
        return formats().get(PurePosixPath(model.graph.lower()).suffix, _NNEF)
    raise _no_model_error(model)


def _no_model_error(model: object) -> InputError:
    if isinstance(model, Graph):
        return InputError(f"'{model.name}' is loaded already: cml.Session(graph, gpu) runs it")
    parts = ("name", "graph", "size", "read")
    missing = [part for part in parts if not hasattr(model, part)]
    is_source = hasattr(model, "graph") or hasattr(model, "read")
    lacking_text = f", which has {', '.join(parts)}: {', '.join(missing)} lacking"
    return InputError(
        f"the model: wanted a path, the bytes of an .onnx or a .tgz, or a cml.ModelSource"
        f"{lacking_text if is_source else ''}, got "
        f"{shortened(repr(model))} ({type(model).__name__})"
    )


def _shown(model: Model) -> str:
    """Returns a model as messages name it, in quotes if it is a path."""
    if isinstance(model, Bytes):
        return "the bytes of a model"
    return f"'{model.name if isinstance(model, ModelSource) else model}'"


def save(
    graph: Graph,
    path: str | Path,
    *,
    overwrite: bool = False,
    opset: int | None = None,
    half: bool = False,
    dynamic: Mapping[str, Sequence[int | str]] | None = None,
) -> None:
    """Writes the graph as an NNEF folder, as a ``.tgz`` of one, or as an ``.onnx`` file, by suffix.

    ``opset``, ``half`` and ``dynamic`` are for ONNX. ``opset`` is the version of its operators
    (default 20, or 21 for integers of 16 bits). With ``half`` weights are stored in 16 bits.
    ``dynamic`` leaves axes of inputs open, by their names in place of extents:
    ``{"image": (1, 3, "height", "width")}``; an operator whose ONNX form contains the size is an
    error that names it. A game's own operator without an expression and a body becomes a node of
    the domain ``game``. Raises an error that names the operator if the opset cannot express one.
    An integer network becomes a QDQ model, which :func:`load` reads as the same integer network.

    Examples
    --------
    >>> cml.save(graph, "copy.nnef")
    >>> cml.save(graph, "copy.onnx")
    >>> cml.save(graph, "open.onnx", half=True, dynamic={"image": (1, 3, "height", "width")})
    """
    check_instance(Graph, graph, "the graph to save (cml.load gives one)")
    if graph.cooked_form is not None:
        raise InputError(f"'{graph.name}' is cooked: save the model that it was made of")
    if slider_names := attribute_sliders(graph):
        raise InputError(
            f"'{graph.name}' has the slider '{slider_names[0]}' of an attribute, which no file can "
            "hold: save the model loaded without it, and give the slider again to cml.load"
        )
    check_flag(overwrite, "overwrite")
    check_flag(half, "half")
    path = check_path(path, "the place to save to")
    if path.suffix.lower() == ".cml":
        raise InputError(f"'{path}': cooked files are written by cml cook (cml_engine.cooked.cook)")
    if path.suffix.lower() == ".onnx":
        from cml_engine.formats.onnx.export import onnx_parts

        check_new_file(path, overwrite)
        parts = onnx_parts(graph, opset, half=half, dynamic=dynamic)
        if graph.integer:
            _check_qdq(graph, b"".join(parts))
        try:
            write_atomically(path, lambda file: file.writelines(parts))
        except OSError as error:
            raise InputError(f"cannot write '{path}': {error.strerror or error}") from None
        return
    for name, value in (("opset", opset), ("half", half or None), ("dynamic", dynamic)):
        if value is not None:
            raise InputError(f"'{path}': {name} is for .onnx: leave it out for NNEF")
    save_nnef(graph, path, overwrite=overwrite, declarations=registered_declarations())


#: the runs by which an integer network and its copy are compared
_RUNS = 4


def _check_qdq(graph: Graph, data: bytes) -> None:
    """Raises :class:`UnsupportedOp` if the exported QDQ model ``data`` does not equal ``graph``.

    The model is loaded again. Its tables must be those of the integer network ``graph``, and both
    must give the same results on random words of the whole range.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnef.NnefWarning)
        reloaded = load(data, shapes={name: graph.facts[name].shape for name in graph.inputs})
    tables = [
        sorted(line["table"] for line in net.quantization.values() if line.get("table"))
        for net in (graph, reloaded)
    ]
    is_same = reloaded.integer == graph.integer and tables[0] == tables[1]
    random = np.random.default_rng(0)
    programs = [CpuProgram(lower_to_integers(net).graph) for net in (graph, reloaded) if is_same]
    for _ in range(_RUNS if is_same else 0):
        inputs = {
            name: (random.uniform(-1.1, 1.1, graph.facts[name].shape) * limit).astype(np.float32)
            for name, limit in _limits(graph).items()
        }
        outputs, reloaded_outputs = (program.run(inputs) for program in programs)
        is_same = is_same and all(
            np.array_equal(outputs[n], reloaded_outputs[n]) for n in graph.outputs
        )
    if not is_same:
        raise UnsupportedOp(
            f"'{graph.name}' has rounding points that a QDQ model has no form for: it would be "
            "read as another network. Save it as NNEF, or quantize the network of floats again"
        )


def _limits(graph: Graph) -> dict[str, float]:
    """Returns the largest number of each input of an integer network."""
    params = read_quant_params(graph)
    return {
        name: float(params[name].range.high * params[name].scale) if name in params else 1.0
        for name in graph.inputs
    }


def save_checked(graph: Graph, path: str | Path, *, overwrite: bool = False) -> Graph:
    """Saves a graph and returns the graph that loading the saved file gives.

    The graph is first saved and loaded in a temporary folder. An existing file is replaced only if
    that succeeds with equal inputs and outputs.
    """
    with TemporaryDirectory() as folder:
        trial = Path(folder) / "model"
        save(graph, trial)
        reloaded = load(trial)
    interface, reloaded_interface = (
        [g.facts[name] for name in (*g.inputs, *g.outputs)] for g in (graph, reloaded)
    )
    if interface != reloaded_interface:
        raise InternalError(f"'{graph.name}' would be read back otherwise than it was converted")
    save(graph, path, overwrite=overwrite)
    return reloaded


def _library(files: Sequence[str | Path]) -> dict[str, str]:
    """Reads files of NNEF fragments and returns the text of each fragment by its name."""
    texts: dict[str, str] = {}
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"'{file}': cannot read the fragments: {reason}") from None
        for fragment in parse_fragments(text, str(file)):
            if fragment.name in nnef.standard_signatures():
                raise InputError(f"'{file}': '{fragment.name}' is NNEF's own: rename the fragment")
            if fragment.name in texts:
                raise InputError(f"'{file}': fragment '{fragment.name}' is there twice")
            texts[fragment.name] = print_fragment(fragment)
    return texts
