"""Converts ncnn's inputs and stored tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.errors import InputError, OpenShape
from cml_engine.errors.arguments import resolve_shapes
from cml_engine.formats.ncnn.conversion import Conversion
from cml_engine.formats.ncnn.layer_types import ANY, layer
from cml_engine.formats.ncnn.param import NcnnLayer
from cml_engine.ir.graph import Shapes

#: The parameter ids of width, height, depth and channels.
EXTENTS = (0, 1, 11, 2)

_RANKS = range(2, 6)


def input_shapes(
    layers: Sequence[NcnnLayer], given: Shapes, file: str
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every input, batch first; ``given`` shapes override those of the
    file."""
    stored = {b: _stored(one) for one in layers if one.type == "Input" for b in one.outputs}
    stored |= dict.fromkeys(_undefined(layers)) if not stored else {}
    written = {name: f"[{_text(shape)}]" if shape else "[?]" for name, shape in stored.items()}
    shapes = resolve_shapes(given, written, file)
    for name, shape in shapes.items():
        _check(name, shape, stored[name])
    return {name: _known(name, shapes.get(name) or stored[name], file) for name in stored}


def _undefined(layers: Sequence[NcnnLayer]) -> list[str]:
    """Returns the blobs that no layer computes; ncnn treats them as inputs."""
    made = {name for one in layers for name in one.outputs}
    read = dict.fromkeys(name for one in layers for name in one.inputs)
    return [name for name in read if name not in made]


def _stored(one: NcnnLayer) -> tuple[int, ...] | None:
    """Returns the shape that an ``Input`` layer states, or None."""
    width, height, depth, channels = (one.whole(key) for key in EXTENTS)
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


@layer("Input", params="0-2 11", inputs=(0, 0))
def _input(one: NcnnLayer, to: Conversion) -> str:
    raise AssertionError("inputs are made before the layers")


@layer("MemoryData", params="0-2 11 21", inputs=(0, 0))
def _memory_data(one: NcnnLayer, to: Conversion) -> str:
    width, height, depth, channels = (one.whole(key) for key in EXTENTS)
    extents = [n for n in (channels, depth, height, width) if n]
    if any(n < 0 for n in extents):
        raise one.damaged(f"the shape {extents}")
    count = int(np.prod(extents, dtype=object))
    if one.whole(21, 1) not in (0, 1):
        raise one.unsupported(f"values loaded as type {one.whole(21)}")
    read = to.weights.raw if one.whole(21, 1) else to.weights.flagged
    return to.builder.variable(one.outputs[0], read(count, one).reshape(1, *extents))


@layer("Split", outputs=(1, ANY))
def _split(one: NcnnLayer, to: Conversion, x: str) -> list[str]:
    return [x] * len(one.outputs)


@layer("Noop", inputs=(0, ANY), outputs=(0, ANY))
def _noop(one: NcnnLayer, to: Conversion, *inputs: str) -> list[str]:
    return list(inputs)


@layer("DeepCopy")
def _copy(one: NcnnLayer, to: Conversion, x: str) -> str:
    return x


@layer("Packing", params="0-5")
def _packing(one: NcnnLayer, to: Conversion, x: str) -> str:
    return x


@layer("Cast", params="0-1", limits="8-bit types")
def _cast(one: NcnnLayer, to: Conversion, x: str) -> str:
    if 3 in (one.whole(0), one.whole(1)):
        raise one.unsupported("8-bit values")
    return x


@layer("Dropout", params="0")
def _dropout(one: NcnnLayer, to: Conversion, x: str) -> str:
    scale = one.number(0, 1.0)
    return x if scale == 1.0 else to.op("mul", x, scale)
