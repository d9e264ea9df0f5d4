"""The strides and padding that convolutions and pooling share, including automatic padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cml_engine.formats.onnx.attributes import one_of, per_axis
from cml_engine.formats.onnx.call import OnnxCall

#: the attributes of every operator with a window
WINDOW: dict[str, Any] = {
    "auto_pad": one_of("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
    "dilations": per_axis(1, 1),
    "pads": per_axis(0, 0, times=2),
    "strides": per_axis(1, 1),
}


@dataclass(frozen=True, slots=True)
class SpatialWindow:
    """A window's size, stride, dilation and padding, a list with an entry per spatial axis each."""

    size: list[int]
    stride: list[int]
    dilation: list[int]
    padding: list[tuple[int, int]]

    @property
    def reach(self) -> list[int]:
        """The numbers of elements that the dilated window spans, one per spatial axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True)]


def window(call: OnnxCall, extents: tuple[int, ...], size: list[int]) -> SpatialWindow:
    """Returns the window of a convolution or pooling of a given size, with resolved padding."""
    stride, dilation = call.attr("strides"), call.attr("dilations")
    if len(size) != len(extents) or min(size, default=1) < 1:
        raise call.shape_error(f"a window {size} over {extents}")
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    mode = call.attr("auto_pad")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        padding = []
        for n, s, r in zip(extents, stride, reach, strict=True):
            total = max((-(-n // s) - 1) * s + r - n, 0)
            padding.append(halves(total, mode == "SAME_UPPER"))
    else:
        padding = explicit_padding(call)
    return SpatialWindow(size, stride, dilation, padding)


def explicit_padding(call: OnnxCall) -> list[tuple[int, int]]:
    """Returns the padding before and after each axis by the attribute ``pads``.

    Zeros for ``VALID``.
    """
    pads = call.attr("pads")
    if call.attributes.get("auto_pad") == "VALID":
        pads = [0] * len(pads)
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))


def halves(total: int, odd_at_end: bool) -> tuple[int, int]:
    """Returns ``total`` padding elements split into those before and those after an axis.

    An odd element goes to the end with ``odd_at_end``, else to the start.
    """
    small, large = total // 2, total - total // 2
    return (small, large) if odd_at_end else (large, small)
