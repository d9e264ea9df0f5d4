"""ncnn -> Graph: one function per layer type, in ``layers/``; ``table.py`` collects them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from cml_engine.convert.builder import GraphBuilder, Infer
from cml_engine.convert.format import Format
from cml_engine.convert.ncnn.conversion import Conversion
from cml_engine.convert.ncnn.files.bin import WeightReader
from cml_engine.convert.ncnn.files.param import Layer, read_param
from cml_engine.convert.ncnn.inputs import Shapes, input_shapes
from cml_engine.convert.ncnn.table import EXPRESSIONS, HINTS, LAYERS, REFUSED, LayerType
from cml_engine.errors import ModelError, UnsupportedOp
from cml_engine.graph import Graph

__all__ = ["FORMAT", "LAYERS", "REFUSED", "Shapes", "convert_ncnn"]

import_module(f"{__name__}.layers")


def convert_ncnn(path: Path, infer: Infer, shapes: Shapes | None = None) -> Graph:
    """Convert a ``.param`` and the ``.bin`` beside it; ``shapes`` are the inputs'."""
    layers = read_param(path)
    kinds = _kinds(layers, path)
    found = input_shapes(layers, shapes, path)
    conversion = Conversion(GraphBuilder(infer), WeightReader(path.with_suffix(".bin")), found)
    made = {name for layer in layers for name in layer.outputs}
    for blob in found:
        if blob not in made:
            conversion.feed(blob, None)
    for layer in layers:
        if layer.type == "Input":
            for blob in layer.outputs:
                conversion.feed(blob, layer)
        else:
            conversion.convert(layer, kinds[layer.type])
    conversion.weights.finish()
    return conversion.graph(path.stem)


FORMAT = Format("ncnn", ".param", convert_ncnn)


def _kinds(layers: Sequence[Layer], path: Path) -> dict[str, LayerType]:
    """The layers' types; what cannot be converted is said at once, before anything is read."""
    unknown: dict[str, list[Layer]] = {}
    for layer in layers:
        kind = LAYERS.get(layer.type)
        if kind is None:
            unknown.setdefault(layer.type, []).append(layer)
        else:
            _check(layer, kind)
    if unknown:
        lines = [_cannot(name, found) for name, found in unknown.items()]
        types = "layer type" if len(lines) == 1 else "layer types"
        message = f"'{path}' has {len(lines)} {types} of ncnn's that cannot be converted"
        raise UnsupportedOp("\n  ".join([f"{message}:", *lines]))
    return LAYERS


def _cannot(name: str, layers: Sequence[Layer]) -> str:
    """One line for a type that has no counterpart."""
    lower = {known.lower(): known for known in LAYERS}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
    todo = f"did you mean {lower[near[0]]}?" if near else "export the network without it"
    todo = REFUSED.get(name, todo)
    return f"{name}, {len(layers)} x, first in line {layers[0].source.line}: {todo}"


def _check(layer: Layer, kind: LayerType) -> None:
    """As many inputs and outputs as the type has, and only parameters that it has."""
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
        raise layer.damaged(f"parameter {texts[0]} wants a number")
    strange = sorted(layer.params.keys() - kind.params - HINTS)
    if strange:
        message = f"ncnn {layer.type} '{layer.name}': the parameter {strange[0]} is unknown"
        raise UnsupportedOp(f"{message}: what it means cannot be converted", layer.source)
