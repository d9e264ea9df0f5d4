"""Reads an ncnn model and makes graphs of it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cml_engine.errors import InputError, ModelError, UnsupportedOp
from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.format import Engine, Model
from cml_engine.formats.ncnn import layers as _layers
from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.inputs import input_shapes
from cml_engine.formats.ncnn.layer_types import EXPRESSIONS, HINTS, LAYERS, REFUSED, LayerType
from cml_engine.formats.ncnn.param import NcnnLayer, read_param
from cml_engine.formats.ncnn.weight_reader import WeightReader
from cml_engine.io.model_source import Bytes, file_source, shown
from cml_engine.ir.graph import Graph, Shapes

__all__ = ["LAYERS", "REFUSED", "NcnnModel"]
del _layers  # importing them fills the table


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
        self._name = PurePosixPath(source.graph).stem
        self._kinds = _kinds(self._layers, self._file)
        self._engine = engine

    def graph(self, shapes: Shapes) -> Graph:
        """Returns the graph for the given input shapes, by input name.

        Inputs that ``shapes`` lacks have the shapes that the file states.
        """
        found = input_shapes(self._layers, shapes, self._file)
        bin_name = str(PurePosixPath(self._source.graph).with_suffix(".bin"))
        weights = WeightReader(self._source, bin_name)
        builder = ImportBuilder(self._engine.infer)
        builder.reserve(found)
        conversion = Conversion(builder, weights, found)
        made = {name for layer in self._layers for name in layer.outputs}
        for blob in found:
            if blob not in made:
                conversion.add_input(blob, None)
        for layer in self._layers:
            if layer.type == "Input":
                for blob in layer.outputs:
                    conversion.add_input(blob, layer)
            else:
                conversion.convert(layer, self._kinds[layer.type])
        weights.finish()
        return conversion.graph(self._name)


def _kinds(layers: Sequence[NcnnLayer], file: str) -> dict[str, LayerType]:
    """Checks that every layer can be converted and returns the table of layer types, by name.

    Raises one error that lists all types that cannot be converted.
    """
    unknown: dict[str, list[NcnnLayer]] = {}
    for layer in layers:
        kind = LAYERS.get(layer.type)
        if kind is None:
            unknown.setdefault(layer.type, []).append(layer)
        else:
            _check(layer, kind)
    if unknown:
        lines = [_cannot(name, found) for name, found in unknown.items()]
        types = "layer type" if len(lines) == 1 else "layer types"
        message = f"'{file}' has {len(lines)} {types} of ncnn's that cannot be converted"
        raise UnsupportedOp("\n  ".join([f"{message}:", *lines]))
    return LAYERS


def _cannot(name: str, layers: Sequence[NcnnLayer]) -> str:
    """Returns the line of the error message for the layers of a type that cannot be converted."""
    lower = {known.lower(): known for known in LAYERS}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
    todo = f"did you mean {lower[near[0]]}?" if near else "export the network without it"
    todo = REFUSED.get(name, todo)
    return f"{name}, {len(layers)} x, first in line {layers[0].source.line}: {todo}"


def _check(layer: NcnnLayer, kind: LayerType) -> None:
    """Raises an error if the inputs, outputs or parameters of a layer do not fit its type."""
    for what, got, (least, most) in (
        ("inputs", len(layer.inputs), kind.inputs),
        ("outputs", len(layer.outputs), kind.outputs),
    ):
        if not least <= got <= most:
            wanted = f"{least}" if least == most else f"{least} or more"
            message = f"ncnn {layer.type} '{layer.name}' has {got} {what}: wanted {wanted}"
            raise ModelError(f"{message}, export it again", layer.source)
    texts = [key for key, value in layer.params.items() if isinstance(value, str)]
    if not set(texts) <= EXPRESSIONS:
        raise layer.damaged_error(f"parameter {texts[0]} wants a number")
    strange = sorted(layer.params.keys() - kind.params - HINTS)
    if strange:
        message = f"ncnn {layer.type} '{layer.name}': the parameter {strange[0]} is unknown"
        raise UnsupportedOp(f"{message}: what it means cannot be converted", layer.source)
