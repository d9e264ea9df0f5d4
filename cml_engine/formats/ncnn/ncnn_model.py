"""Reads an ncnn model and makes graphs of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath

from cml_engine.errors import InputError, ModelError, OpenShape, UnsupportedOp
from cml_engine.errors.arguments import resolve_shapes
from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.format import Engine, Model
from cml_engine.formats.ncnn.conversion import (
    EXPRESSIONS,
    LAYERS,
    REFUSED,
    LayerType,
    NcnnLayer,
    NcnnTensor,
)
from cml_engine.formats.ncnn.files import EXTENTS, LayerLine, WeightReader, read_param
from cml_engine.io.model_source import Bytes, file_source, shown
from cml_engine.ir.graph import Fact, Graph, Shapes

__all__ = ["LAYERS", "REFUSED", "NcnnModel"]

for _family in ("activations", "arithmetic", "movement", "normalization", "products", "recurrent",
                "resizing", "windows"):  # fmt: skip
    import_module(f"cml_engine.formats.ncnn.layers.{_family}")  # fills the table


class NcnnModel:
    """An ncnn model in memory: a ``.param`` and the ``.bin`` beside it.

    Makes graphs for input shapes.
    """

    def __init__(self, model: Model, engine: Engine) -> None:
        if isinstance(model, Bytes):
            raise InputError("a network of ncnn's is two files: give the .param's path or a source")
        source = file_source(Path(model)) if isinstance(model, str | Path) else model
        self._layers, self._source = read_param(source), source
        self._file = shown(source, source.graph)
        _check_types(self._layers, self._file)
        self._engine = engine

    def graph(self, shapes: Shapes) -> Graph:
        """Returns the graph for the given input shapes, by input name.

        Inputs that ``shapes`` lacks have the shapes that the file states.
        """
        path = PurePosixPath(self._source.graph)
        input_shapes = _input_shapes(self._layers, shapes, self._file)
        weights = WeightReader(self._source, str(path.with_suffix(".bin")))
        conversion = _Conversion(ImportBuilder(self._engine.infer), weights, input_shapes)
        computed = {name for layer in self._layers for name in layer.outputs}
        for blob in input_shapes:
            if blob not in computed:
                conversion.add_input(blob, None)
        for layer in self._layers:
            if layer.type == "Input":
                for blob in layer.outputs:
                    conversion.add_input(blob, layer)
            else:
                conversion.add_layer(layer)
        weights.finish()
        return conversion.graph(path.stem)


class _Conversion:
    """The state of one conversion: the graph under construction and the tensor of each blob."""

    def __init__(
        self, builder: ImportBuilder, weights: WeightReader, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._builder, self._weights, self._shapes = builder, weights, shapes
        self._blobs: dict[str, str] = {}
        self._read: set[str] = set()
        builder.reserve(shapes)

    def add_input(self, blob: str, layer: LayerLine | None) -> None:
        """Adds an input of the network for a blob.

        ``layer`` is the blob's ``Input`` layer, if it has one.
        """
        self._builder.source = layer.source if layer else None
        if layer is not None and blob in self._blobs:
            raise layer.damaged_error(f"blob '{blob}' is made twice")
        fact = Fact("scalar", tuple(self._shapes[blob]))
        self._blobs[blob] = self._builder.exact_input(blob, fact)

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
        result = LAYERS[layer.type].convert(layer, *inputs)
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

    def graph(self, name: str) -> Graph:
        """Returns the finished graph; its outputs are the blobs that no layer reads."""
        builder, outputs = self._builder, list[str]()
        for blob in [b for b in self._blobs if b not in self._read]:
            tensor = self._blobs[blob]
            if any(tensor in names for names in (builder.inputs, builder.constants, outputs)):
                # NNEF names a tensor once among inputs and outputs
                outputs.append(builder.node("copy", [tensor], blob))
            else:
                outputs.append(builder.rename(tensor, blob))
                for alias in [b for b, t in self._blobs.items() if t == tensor]:
                    self._blobs[alias] = outputs[-1]
        return builder.graph(name, outputs)


def _check_types(layers: Sequence[LayerLine], file: str) -> None:
    """Raises an error if a layer cannot be converted; it lists all types that cannot."""
    unknown: dict[str, list[LayerLine]] = {}
    for layer in layers:
        layer_type = LAYERS.get(layer.type)
        if layer_type is None:
            unknown.setdefault(layer.type, []).append(layer)
        else:
            _check_layer(layer, layer_type)
    if unknown:
        types = "layer type" if len(unknown) == 1 else "layer types"
        message = f"'{file}' has {len(unknown)} {types} of ncnn's that cannot be converted:"
        lines = (_advice(name, layers_of_type) for name, layers_of_type in unknown.items())
        raise UnsupportedOp("\n  ".join([message, *lines]))


def _advice(name: str, layers: Sequence[LayerLine]) -> str:
    """Returns the line of the error message for the layers of a type that cannot be converted."""
    lower = {layer_type.lower(): layer_type for layer_type in LAYERS}
    similar = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
    advice = f"did you mean {lower[similar[0]]}?" if similar else "export the network without it"
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
    if not set(texts) <= EXPRESSIONS:
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
