"""The table of ncnn layers that can be converted, filled by :func:`converts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

#: ``convert(layer, conversion, *inputs)`` returns the tensors of the layer's outputs: a name, or a
#: list of names.
Convert: TypeAlias = Callable[..., Any]

#: Parameters of any layer that do not affect results: the shapes of its outputs, and the CPU
#: instructions that ncnn may use.
HINTS = frozenset((30, 31))

#: The parameters that may be text: computed shapes, sizes and positions.
EXPRESSIONS = frozenset((6, 9, 19, 20, 21))

ANY = 10_000


@dataclass(frozen=True, slots=True)
class LayerType:
    """A layer type of ncnn: its converter, parameter ids, and numbers of inputs and outputs.

    ``inputs`` and ``outputs`` are the smallest and largest number. ``limits`` describes, for the
    documentation, the variants that are refused.
    """

    name: str
    convert: Convert
    params: frozenset[int]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    limits: str


LAYERS: dict[str, LayerType] = {}


def converts(
    *names: str,
    params: str = "",
    inputs: tuple[int, int] = (1, 1),
    outputs: tuple[int, int] = (1, 1),
    limits: str = "",
) -> Callable[[Convert], Convert]:
    """Returns a decorator that registers a function as the converter of the named layer types.

    ``params`` lists the known parameter ids, such as ``"0-6 9"``.
    """

    def declare(convert: Convert) -> Convert:
        for name in names:
            LAYERS[name] = LayerType(name, convert, _ids(params), inputs, outputs, limits)
        return convert

    return declare


def _ids(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


_DECODE = (
    "end the network before it (the blobs that it reads become outputs) and decode in the game"
)
_QUANTISED = "convert the model before it is quantised"

#: Layers that cannot be converted, with the advice for the error message.
REFUSED: dict[str, str] = {
    "DetectionOutput": _DECODE,
    "PriorBox": _DECODE,
    "Proposal": _DECODE,
    "PSROIPooling": _DECODE,
    "ROIAlign": _DECODE,
    "ROIPooling": _DECODE,
    "YoloDetectionOutput": _DECODE,
    "Yolov3DetectionOutput": _DECODE,
    "Quantize": _QUANTISED,
    "Dequantize": _QUANTISED,
    "Requantize": _QUANTISED,
}
