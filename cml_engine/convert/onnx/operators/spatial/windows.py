"""What convolutions and pooling share: strides, padding and automatic padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cml_engine.convert.onnx.call import OnnxCall

#: the attributes of every operator with a window
WINDOW: dict[str, Any] = {
    "auto_pad": "NOTSET",
    "dilations": None,
    "pads": None,
    "strides": None,
}


@dataclass(frozen=True, slots=True)
class SpatialWindow:
    """A window's numbers for each spatial axis."""

    size: list[int]
    stride: list[int]
    dilation: list[int]
    padding: list[tuple[int, int]]

    @property
    def reach(self) -> list[int]:
        """How many elements a dilated window spans."""
        return [(k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True)]


def window(call: OnnxCall, extents: tuple[int, ...], size: list[int]) -> SpatialWindow:
    """The window of an operator that goes down in size."""
    rank = len(extents)
    stride = _numbers(call, "strides", rank, 1)
    dilation = _numbers(call, "dilations", rank, 1)
    if len(size) != rank or min([*size, *stride, *dilation], default=1) < 1:
        raise call.wrong(
            f"a window {size}, strides {stride} and dilations {dilation} over {extents}"
        )
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    mode = call.attr("auto_pad")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        padding = []
        for n, s, r in zip(extents, stride, reach, strict=True):
            total = max((-(-n // s) - 1) * s + r - n, 0)
            padding.append(halves(total, mode == "SAME_UPPER"))
    else:
        padding = explicit_padding(call, rank)
    return SpatialWindow(size, stride, dilation, padding)


def explicit_padding(call: OnnxCall, rank: int) -> list[tuple[int, int]]:
    """The attribute ``pads``, or none with ``VALID``."""
    mode = call.attr("auto_pad")
    if mode not in ("NOTSET", "VALID", ""):
        raise call.wrong(f"auto_pad '{mode}'")
    pads = _numbers(call, "pads", 2 * rank, 0)
    if mode == "VALID":
        pads = [0] * (2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))


def halves(total: int, odd_at_end: bool) -> tuple[int, int]:
    """A padding in two, the odd element at the end or at the start."""
    small, large = total // 2, total - total // 2
    return (small, large) if odd_at_end else (large, small)


def _numbers(call: OnnxCall, name: str, count: int, default: int) -> list[int]:
    found = call.attr(name) if name in call.attributes else None
    if found is None:
        return [default] * count
    if len(found) != count:
        raise call.wrong(f"{name} {found}: wanted {count} numbers")
    return [int(n) for n in found]
