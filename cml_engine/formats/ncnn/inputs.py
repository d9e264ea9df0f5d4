"""Finds the inputs of an ncnn network, and converts its layers for inputs and stored tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.errors import InputError, OpenShape
from cml_engine.errors.arguments import resolve_shapes
from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import ANY, converts
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.ir.graph import Shapes

#: The parameter ids of width, height, depth and channels.
EXTENTS = (0, 1, 11, 2)

_RANKS = range(2, 6)


def input_shapes(
    layers: Sequence[NcnnLayer], given: Shapes, file: str
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every input by name, batch first.

    ``given`` shapes override the shapes that the file states. Raises an error for an input that has
    neither.
    """
    stored = {b: _stored(layer) for layer in layers if layer.type == "Input" for b in layer.outputs}
    stored |= dict.fromkeys(_undefined_inputs(layers)) if not stored else {}
    written = {name: f"[{_text(shape)}]" if shape else "[?]" for name, shape in stored.items()}
    shapes = resolve_shapes(given, written, file)
    for name, shape in shapes.items():
        _check(name, shape, stored[name])
    return {name: _known(name, shapes.get(name) or stored[name], file) for name in stored}


def _undefined_inputs(layers: Sequence[NcnnLayer]) -> list[str]:
    """Returns the blobs that layers read but none computes, in the order of their first use.

    ncnn treats them as inputs.
    """
    made = {name for layer in layers for name in layer.outputs}
    read = dict.fromkeys(name for layer in layers for name in layer.inputs)
    return [name for name in read if name not in made]


def _stored(layer: NcnnLayer) -> tuple[int, ...] | None:
    """Returns the shape that an ``Input`` layer states, batch first, or None if it states none."""
    width, height, depth, channels = (layer.integer(key) for key in EXTENTS)
    extents = [channels, depth, height, width]
    while extents and not extents[0]:
        extents.pop(0)
    if len(extents) == 4 and not depth:
        del extents[1]
    return (1, *extents) if extents and min(extents) > 0 else None


def _check(name: str, shape: tuple[int, ...], held: tuple[int, ...] | None) -> None:
    wanted = (
        f"{len(held)} numbers, like {_text(held)}" if held else "2 to 5 numbers, like 1,3,64,64"
    )
    if len(shape) not in _RANKS or (held and len(shape) != len(held)):
        message = f"the shape {_text(shape)} of '{name}' has {len(shape)} numbers: wanted {wanted}"
        raise InputError(f"{message}, the batch first")


def _known(name: str, shape: tuple[int, ...] | None, file: str) -> tuple[int, ...]:
    if shape is None:
        message = f"'{file}' does not hold the size of its input '{name}'"
        raise OpenShape(f"{message}: give --shape {name}=1,3,H,W", name, None)
    return shape


def _text(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


@converts("Input", params="0-2 11", inputs=(0, 0))
def _input(layer: NcnnLayer, graph: Conversion) -> str:
    raise AssertionError("inputs are made before the layers")


@converts("MemoryData", params="0-2 11 21", inputs=(0, 0))
def _memory_data(layer: NcnnLayer, graph: Conversion) -> str:
    width, height, depth, channels = (layer.integer(key) for key in EXTENTS)
    extents = [n for n in (channels, depth, height, width) if n]
    if any(n < 0 for n in extents):
        raise layer.damaged_error(f"the shape {extents}")
    count = int(np.prod(extents, dtype=object))
    if layer.integer(21, 1) not in (0, 1):
        raise layer.unsupported_error(f"values loaded as type {layer.integer(21)}")
    read = graph.weights.raw if layer.integer(21, 1) else graph.weights.flagged
    return graph.builder.variable(layer.outputs[0], read(count, layer).reshape(1, *extents))


@converts("Split", outputs=(1, ANY))
def _split(layer: NcnnLayer, graph: Conversion, x: str) -> list[str]:
    return [x] * len(layer.outputs)


@converts("Noop", inputs=(0, ANY), outputs=(0, ANY))
def _noop(layer: NcnnLayer, graph: Conversion, *inputs: str) -> list[str]:
    return list(inputs)


@converts("DeepCopy")
def _copy(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return x


@converts("Packing", params="0-5")
def _packing(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    return x


@converts("Cast", params="0-1", limits="8-bit types")
def _cast(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    if 3 in (layer.integer(0), layer.integer(1)):
        raise layer.unsupported_error("8-bit values")
    return x


@converts("Dropout", params="0")
def _dropout(layer: NcnnLayer, graph: Conversion, x: str) -> str:
    scale = layer.number(0, 1.0)
    return x if scale == 1.0 else graph.op("mul", x, scale)
