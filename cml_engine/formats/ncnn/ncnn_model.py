"""Reads an ncnn model and makes graphs of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.errors import InputError, ModelError, OpenShape, ShapeError, UnsupportedOp
from cml_engine.errors.arguments import check_known_names, resolve_shapes, similar_names
from cml_engine.formats.builder import ImportBuilder, registered_declarations
from cml_engine.formats.format import Model
from cml_engine.formats.ncnn.conversion import (
    EXPRESSION,
    FORMULAS,
    LAYERS,
    REFUSED,
    WITHOUT_WEIGHTS,
    LayerType,
    NcnnLayer,
    NcnnTensor,
)
from cml_engine.formats.ncnn.files import (
    EXTENTS,
    FORMULA,
    LayerLine,
    Parameter,
    WeightReader,
    read_param,
)
from cml_engine.io.model_source import Bytes, file_source, shown
from cml_engine.ir.dependencies import Dependencies, outputs_advice
from cml_engine.ir.graph import Fact, Graph, Shapes
from cml_engine.nnef.expansion.compose import to_identifier
from cml_engine.nnef.expansion.signatures import declared_signature

__all__ = ["LAYERS", "REFUSED", "NcnnModel"]

#: the outputs that a message may name
_MOST_EXAMINED = 64

for _family in ("activations", "arithmetic", "attention", "columns", "movement", "normalization",
                "products", "recurrent", "resizing", "spectra", "windows"):  # fmt: skip
    import_module(f"cml_engine.formats.ncnn.layers.{_family}")  # fills the table


class NcnnModel:
    """An ncnn model in memory: a ``.param`` and the ``.bin`` beside it.

    Makes graphs for input shapes. ``outputs`` are the blobs to compute; without them these are the
    blobs that no layer reads.
    """

    def __init__(self, model: Model, outputs: Sequence[str] = ()) -> None:
        if isinstance(model, Bytes):
            raise InputError("a network of ncnn's is two files: give the .param's path or a source")
        source = file_source(Path(model)) if isinstance(model, str | Path) else model
        self._source, self._outputs = source, outputs
        self._file, layers = shown(source, source.graph), _needed_layers(read_param(source))
        steps = _dependencies(layers)
        read_blobs = {name for layer in layers for name in layer.inputs}
        ends = [name for name in steps.names if name not in read_blobs]
        if outputs:
            allowed = dict.fromkeys((*ends, *steps.names))
            check_known_names(outputs, allowed, f"'{self._file}' has no tensor", "outputs")
        #: the layers to convert, and whether they are all of the file
        numbers = _converted(layers, steps, outputs) if outputs else range(len(layers))
        self._layers = [layers[number] for number in numbers]
        self._is_whole = len(self._layers) == len(layers)
        self._steps, self._ends = _dependencies(self._layers), outputs or ends
        self._check_types()

    def _check_types(self) -> None:
        """Raises an error if a layer cannot be converted; it lists all types that cannot."""
        unknown: dict[str, list[LayerLine]] = {}
        failing: list[int] = []
        for number, layer in enumerate(self._layers):
            layer_type = LAYERS.get(layer.type)
            if layer_type is not None:
                with self._advised([number]):
                    _check_layer(layer, layer_type)
            elif _own_operator(layer.type) not in registered_declarations():
                unknown.setdefault(layer.type, []).append(layer)
                failing.append(number)
        if unknown:
            types = "layer type" if len(unknown) == 1 else "layer types"
            message = (
                f"'{self._file}' has {len(unknown)} {types} of ncnn's that cannot be converted:"
            )
            lines = (_advice(name, layers_of_type) for name, layers_of_type in unknown.items())
            with self._advised(failing):
                raise UnsupportedOp("\n  ".join([message, *lines]))

    def graph(self, shapes: Shapes) -> Graph:
        """Returns the graph for the given input shapes, by input name.

        Inputs that ``shapes`` lacks have the shapes that the file states.
        """
        path = PurePosixPath(self._source.graph)
        input_shapes = _input_shapes(self._layers, shapes, self._file)
        weights = WeightReader(self._source, str(path.with_suffix(".bin")))
        conversion = _Conversion(weights, input_shapes)
        computed = {name for layer in self._layers for name in layer.outputs}
        for blob in input_shapes:
            if blob not in computed:
                conversion.add_input(blob, None)
        for number, layer in enumerate(self._layers):
            if layer.type == "Input":
                for blob in layer.outputs:
                    conversion.add_input(blob, layer)
            else:
                with self._advised([number]), _naming_shapes(input_shapes if shapes else {}):
                    conversion.add_layer(layer)
        if self._is_whole:
            weights.finish()
        return conversion.graph(path.stem, self._outputs)

    @contextmanager
    def _advised(self, failing: Sequence[int]) -> Iterator[None]:
        """Adds to an :class:`UnsupportedOp` of the block the outputs that can be loaded without it.

        ``failing`` are the numbers of the layers that cannot be converted.
        """
        try:
            yield
        except UnsupportedOp as error:
            error.message += outputs_advice(self._loadable(failing))
            raise

    def _loadable(self, failing: Sequence[int]) -> list[str]:
        """Returns the outputs that can be loaded without the layers with these numbers."""
        failed = set(failing)
        return [
            name
            for name in self._ends[:_MOST_EXAMINED]
            if failed.isdisjoint(_converted(self._layers, self._steps, [name]))
        ]


@contextmanager
def _naming_shapes(shapes: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Adds the ``shapes`` that were given for inputs to errors that they may have caused."""
    try:
        yield
    except ModelError as error:
        if shapes and type(error) in (ModelError, ShapeError):
            listed = " ".join(f"{name}={_extents_text(shape)}" for name, shape in shapes.items())
            error.message += f"\n  or correct the shape that was given, batch first: {listed}"
        raise


def _dependencies(layers: Sequence[LayerLine]) -> Dependencies:
    return Dependencies((layer.inputs, layer.outputs) for layer in layers)


def _converted(
    layers: Sequence[LayerLine], steps: Dependencies, outputs: Sequence[str]
) -> list[int]:
    """Returns the numbers of the layers that have to be converted for some outputs.

    The ``.bin`` has the weights in the order of the layers, without their sizes. So a layer that
    may have weights is converted too if the weights of a needed one follow.
    """
    needed = steps.needed(outputs)
    weighted = [n for n, layer in enumerate(layers) if layer.type not in WITHOUT_WEIGHTS]
    last = max(needed.intersection(weighted), default=-1)
    skipped = [number for number in weighted if number < last]
    inputs = (name for number in skipped for name in layers[number].inputs)
    return sorted(needed.union(skipped, steps.needed(inputs)))


class _Conversion:
    """The state of one conversion: the graph under construction and the tensor of each blob."""

    def __init__(self, weights: WeightReader, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._builder = ImportBuilder()
        self._weights, self._shapes = weights, shapes
        self._blobs: dict[str, str] = {}
        self._read: set[str] = set()
        #: the blobs of inputs and of stored tensors
        self._given: set[str] = set()
        #: the blobs of each Split
        self._copies: list[tuple[str, ...]] = []
        #: the game's own operators that the network uses, by name
        self._declarations: dict[str, str] = {}
        self._builder.reserve(shapes)

    def add_input(self, blob: str, layer: LayerLine | None) -> None:
        """Adds an input of the network for a blob.

        ``layer`` is the blob's ``Input`` layer, if it has one.
        """
        self._builder.source = layer.source if layer else None
        if layer is not None and blob in self._blobs:
            raise layer.damaged_error(f"blob '{blob}' is made twice")
        fact = Fact("scalar", tuple(self._shapes[blob]))
        self._blobs[blob] = self._builder.exact_input(blob, fact)
        self._given.add(blob)

    def add_layer(self, line: LayerLine) -> None:
        """Adds the operators of one layer and binds the layer's output blobs to the results.

        Tensors that the layer computes are renamed to their blobs.
        """
        builder, blobs = self._builder, self._blobs
        layer = NcnnLayer(**vars(line), builder=builder, weights=self._weights)
        builder.source = layer.source
        for name in layer.inputs:
            if name not in blobs:
                raise layer.damaged_error(f"its input '{name}' comes from no layer before it")
            self._read.add(name)
        first_node = len(builder.nodes)
        inputs = (NcnnTensor(blobs[name], layer) for name in layer.inputs)
        if layer.type == "Split":
            self._copies.append(layer.outputs)
        if layer.type == "MemoryData":
            self._given.update(layer.outputs)
        if layer.type in LAYERS:
            result = LAYERS[layer.type].convert(layer, *inputs)
        else:
            result = self._convert_own(layer, list(inputs))
        tensors = [x.name for x in (result if isinstance(result, list) else [result])]
        if len(tensors) != len(layer.outputs):
            raise layer.damaged_error(f"it has {len(layer.outputs)} outputs, wanted {len(tensors)}")
        new_tensors = {name for node in builder.nodes[first_node:] for name in node.outputs}
        names: dict[str, str] = {}  # one tensor may be two outputs
        for name, tensor in zip(layer.outputs, tensors, strict=True):
            if name in blobs:
                raise layer.damaged_error(f"blob '{name}' is made twice")
            if tensor in new_tensors and tensor not in names:
                names[tensor] = builder.rename(tensor, name, first_node)
            blobs[name] = names.get(tensor, tensor)

    def _convert_own(self, layer: NcnnLayer, inputs: Sequence[NcnnTensor]) -> list[NcnnTensor]:
        """Converts a layer of the game's own: the operator that is registered under its type.

        Parameter ``k`` is the operator's attribute number ``k``, counted from 0.
        """
        op = _own_operator(layer.type)
        declaration = registered_declarations()[op]
        attrs = declared_signature(declaration, f"<declaration of {op}>").attrs
        values: dict[str, Parameter] = {}
        for key, value in layer.params.items():
            if not 0 <= key < len(attrs):
                message = f"ncnn {layer.type} '{layer.name}': parameter {key} of an operator with "
                raise UnsupportedOp(
                    f"{message}{len(attrs)} attributes: declare one for each parameter from 0 on",
                    layer.source,
                )
            values[attrs[key].name] = value
        self._declarations[op] = declaration
        names = [x.name for x in inputs]
        results = self._builder.own_node(declaration, names, layer.outputs, values)
        return [NcnnTensor(name, layer) for name in results]

    def _is_output(self, blob: str) -> bool:
        """Returns True for a blob that no layer reads, and for the outputs that pnnx names.

        A copy that no layer reads is none if a layer reads another copy of that Split.
        """
        if blob in self._read:
            return _is_pnnx_output(blob) and "in0" in self._builder.inputs
        return not any(
            blob in copies and not self._read.isdisjoint(copies) for copies in self._copies
        )

    def graph(self, name: str, chosen: Sequence[str]) -> Graph:
        """Returns the finished graph.

        Its outputs are the ``chosen`` blobs, or else the network's. Unread inputs and stored
        tensors are outputs only if there is nothing else.
        """
        builder, outputs = self._builder, list[str]()
        blobs = [blob for blob in self._blobs if self._is_output(blob)]
        computed = [blob for blob in blobs if blob not in self._given or _is_pnnx_output(blob)]
        for blob in chosen or computed or blobs:
            tensor = self._blobs[blob]
            if any(tensor in names for names in (builder.inputs, builder.constants, outputs)):
                # NNEF names a tensor once among inputs and outputs
                outputs.append(builder.node("copy", [tensor], blob))
            else:
                outputs.append(builder.rename(tensor, blob))
                for alias in [b for b, t in self._blobs.items() if t == tensor]:
                    self._blobs[alias] = outputs[-1]
        graph = builder.graph(name, outputs).with_(declarations=self._declarations)
        if chosen:
            graph = eliminate_dead_code(graph)
            read = {name for node in graph.nodes for name in node.reads}
            inputs = tuple(name for name in graph.inputs if name in read)
            left_out = set(graph.inputs).difference(inputs)
            facts = {name: fact for name, fact in graph.facts.items() if name not in left_out}
            graph = graph.with_(inputs=inputs, facts=facts)
        return graph


def _is_pnnx_output(blob: str) -> bool:
    return re.fullmatch("out[0-9]+", blob) is not None


def _own_operator(layer_type: str) -> str:
    """Returns the name of the operator that a game registers for a layer type of its own."""
    return to_identifier(layer_type, "op_")


def _needed_layers(layers: Sequence[LayerLine]) -> list[LayerLine]:
    """Returns the layers without those that do not compute.

    These are layers of unknown types without outputs, such as metadata, and what pnnx leaves of
    sizes and types: a ``pnnx.Expression`` without a formula or inputs that no layer reads.
    """
    needed, read = list[LayerLine](), set[str]()
    for layer in reversed(layers):
        is_read = any(name in read or _is_pnnx_output(name) for name in layer.outputs)
        is_rest = layer.type == EXPRESSION and not (layer.text(FORMULA) and layer.inputs)
        is_known = layer.type in LAYERS or layer.type in REFUSED
        if is_read or not (is_rest or (not is_known and not layer.outputs)):
            needed.append(layer)
            read.update(layer.inputs)
    return needed[::-1]


def _advice(name: str, layers: Sequence[LayerLine]) -> str:
    """Returns the line of the error message for the layers of a type that cannot be converted."""
    lower = {layer_type.lower(): layer_type for layer_type in LAYERS}
    own = f"or bring it as an operator of your own '{_own_operator(name)}' (--ops FILE.py)"
    similar = similar_names(name.lower(), lower, cutoff=0.8)
    if name.startswith(_PYTORCH):
        advice = f"PyTorch's, which ncnn lacks: export the network without it, {own}"
    elif similar:
        advice = f"did you mean {lower[similar[0]]}?"
    else:
        advice = f"export the network without it, {own}"
    return f"{name}, {len(layers)} x, first in line {layers[0].source.line}: " + REFUSED.get(
        name, advice
    )


def _check_layer(layer: LayerLine, layer_type: LayerType) -> None:
    """Raises an error if the inputs, outputs or parameters of a layer do not fit its type."""
    title = f"ncnn {layer.type} '{layer.name}'"
    for ports, count, (low, high) in (
        ("inputs", len(layer.inputs), layer_type.inputs),
        ("outputs", len(layer.outputs), layer_type.outputs),
    ):
        if not low <= count <= high:
            expected = f"{low}" if low == high else f"{low} or more"
            raise ModelError(
                f"{title} has {count} {ports}: wanted {expected}, export it again", layer.source
            )
    texts = [key for key, value in layer.params.items() if isinstance(value, str)]
    if not set(texts) <= FORMULAS:
        raise layer.damaged_error(f"parameter {texts[0]} wants a number")
    if unknown := sorted(layer.params.keys() - layer_type.params):
        raise UnsupportedOp(
            f"{title}: the parameter {unknown[0]} is unknown: what it means cannot be converted",
            layer.source,
        )


def _input_shapes(
    layers: Sequence[LayerLine], requested_shapes: Shapes, file: str
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every input by name, batch first.

    ``requested_shapes`` override the shapes that the file states. Without ``Input`` layers the
    inputs are the blobs that no layer computes. Raises an error for an input without a shape.
    """
    stored = {b: _stated(layer) for layer in layers if layer.type == "Input" for b in layer.outputs}
    if not stored:
        computed = {name for layer in layers for name in layer.outputs}
        read_blobs = (name for layer in layers for name in layer.inputs)
        stored = dict.fromkeys(name for name in read_blobs if name not in computed)
    shape_texts = {
        name: f"[{_extents_text(shape)}]" if shape else "[?]" for name, shape in stored.items()
    }
    shapes = resolve_shapes(requested_shapes, shape_texts, file)
    input_shapes = {}
    for name, stored_shape in stored.items():
        shape = shapes.get(name) or stored_shape
        if shape is None:
            message = f"'{file}' does not hold the size of its input '{name}'"
            raise OpenShape(f"{message}: give --shape {name}=1,3,H,W", name, None)
        if not 2 <= len(shape) <= 5 or len(shape) != len(stored_shape or shape):
            expected = (
                f"{len(stored_shape)} numbers, like {_extents_text(stored_shape)}"
                if stored_shape
                else _ANY_SHAPE
            )
            message = (
                f"the shape {_extents_text(shape)} of '{name}' has {len(shape)} numbers: wanted"
            )
            raise InputError(f"{message} {expected}, the batch first")
        input_shapes[name] = shape
    return input_shapes


#: The first letters of the names of PyTorch's operators, which pnnx keeps if ncnn has no layer.
_PYTORCH = ("F.", "nn.", "torch.", "Tensor.", "torchvision.", "aten::", "prim::")

_ANY_SHAPE = "2 to 5 numbers, like 1,3,64,64"


def _stated(layer: LayerLine) -> tuple[int, ...] | None:
    """Returns the shape that an ``Input`` layer states, batch first, or None if it states none."""
    width, height, depth, channels = (layer.integer(key) for key in EXTENTS)
    extents = [channels, depth, height, width]
    while extents and not extents[0]:
        extents.pop(0)
    if len(extents) == 4 and not depth:
        del extents[1]
    return (1, *extents) if extents and min(extents) > 0 else None


def _extents_text(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
