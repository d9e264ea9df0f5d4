"""Reports the nodes that compute integers that may exceed 32 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cml_engine.errors import UnsupportedOp
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.ranges.interval import EXACT, INT32, Interval, of_dtype
from cml_engine.formats.onnx.ranges.rules import PASSED
from cml_engine.formats.onnx.values import Value
from cml_engine.nnef.warning import warn

#: messages give no numbers for bounds beyond these
_LONG = Interval(-(1 << 63), 1 << 63)
#: the most nodes that are named; the others are counted
_NAMED = 16


@dataclass
class Widths:
    """The nodes whose integers may differ from ONNX's: a text with the bounds by the node's name.

    ``wrapped`` nodes may exceed 32 bits. ``rounded`` nodes are computed in floats and may exceed
    the exact range of float32. ``cast`` nodes convert floats that may exceed 32 bits.
    """

    wrapped: dict[str, str] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)

    def check(self, call: OnnxCall, values: Sequence[Value | None], mark: int) -> None:
        """Records an ONNX node if its results may differ from ONNX's, and settles their bounds.

        ``mark`` is the index of the first node of the network that was added for it.
        Raises :class:`UnsupportedOp` if none of the values can fit into 32 bits.
        """
        intervals = call.emit.intervals
        intervals.learn()
        nodes = call.emit.builder.nodes[mark:]
        made = {name for node in nodes for name in node.outputs}
        if _reads_upper_half(call, values, {node.op for node in nodes}):
            self.wrapped[call.node.shown] = f"{call.node.title} (of integers of 2^31 and more)"
        for value in values:
            if value is None or value.kind != "integer" or value.tensor not in made:
                continue
            if value.dtype.itemsize == 8:
                self._check_wide(call, intervals[value.tensor], of_dtype(value.dtype))
            if (through := _floats(call, mark)) and not through.within(EXACT):
                self.rounded[call.node.shown] = _shown(call, through)
            intervals.settle(
                value.tensor, of_dtype(value.dtype) if value.dtype.itemsize == 8 else INT32
            )

    def _check_wide(self, call: OnnxCall, bounds: Interval, fitting: Interval) -> None:
        if bounds.outside(INT32):
            raise UnsupportedOp(
                f"its values are {bounds}, and the network computes with 32 bits: give the model "
                "numbers that fit",
                call.emit.source,
            )
        if not bounds.within(fitting):
            of_floats = call.node.op == "Cast" and call[0].kind == "scalar"
            found = self.cast if of_floats else self.wrapped
            found[call.node.shown] = _shown(call, bounds)

    def warn(self, file: str) -> None:
        """Warns, if nodes may wrap around, of the first one, and counts the others."""
        if self.wrapped:
            first, count = next(iter(self.wrapped.values())), len(self.wrapped)
            others = f"; so may {count - 1} more, cml info names them" if count > 1 else ""
            warn(
                f"'{file}': {first} may leave the 32 bits that the network computes with, and wrap "
                f"around there{others}"
            )

    def lines(self) -> list[str]:
        """Returns the report's lines for ``cml info``, one group per type of node.

        There are none if no node is recorded.
        """
        return [
            *_lines("compute integers that may leave 32 bits, and wrap around", self.wrapped),
            *_lines("compute integers in floats, exact to 2^24, and may leave that", self.rounded),
            *_lines("make integers of floats: beyond 32 bits the nearest", self.cast),
        ]


def _reads_upper_half(call: OnnxCall, values: Sequence[Value | None], ops: set[str]) -> bool:
    """Returns True if a node interprets the sign bit of uint32 inputs that may be 2^31 or more.

    ``ops`` are the operators added for the node. Operators with the same bits for signed and
    unsigned integers do not count, unless a result has 64 bits.
    """
    given = [v for v in call.inputs if v is not None and v.array is None]
    given = [v for v in given if v.dtype == np.uint32]
    wider = any(v is not None and v.kind == "integer" and v.dtype.itemsize == 8 for v in values)
    if not given or (ops <= _OF_BITS and not wider):
        return False
    return not all(call.emit.intervals.of(v).within(of_dtype(v.dtype)) for v in given)


#: operators of the network with the same result bits for signed and unsigned integers
_OF_BITS = frozenset(
    "int_add int_sub int_mul int_neg int_eq int_ne bit_and bit_or bit_xor bit_not shift_left "
    "shift_right int_matmul".split(" ")
) | (PASSED - {"max_reduce", "min_reduce"})


def _floats(call: OnnxCall, mark: int) -> Interval | None:
    """Returns the bounds of the integers that a node computes in floats, or None.

    They are integers that nodes from index ``mark`` on cast to floats, and the floats cast back.
    """
    nodes, intervals = call.emit.builder.nodes[mark:], call.emit.intervals
    casts = [node for node in nodes if node.op == "cast"]
    facts = call.emit.builder.facts
    into = [n for n in casts if n.attrs["dtype"] == "scalar"]
    into = [n for n in into if facts[n.inputs[0]].dtype == "integer"]
    if not into:
        return None
    back = [n for n in casts if n.attrs["dtype"] == "integer"]
    found = [intervals.stored_interval(n.inputs[0]) for n in (*into, *back)]
    return Interval(min(i.low for i in found), max(i.high for i in found))


def _shown(call: OnnxCall, bounds: Interval) -> str:
    if not bounds.within(_LONG):
        return f"{call.node.title} (of any size)"
    return f"{call.node.title} ({bounds})"


def _lines(what: str, nodes: Mapping[str, str]) -> list[str]:
    if not nodes:
        return []
    named = list(nodes.values())[:_NAMED]
    more = [f"    and {len(nodes) - _NAMED} more"] if len(nodes) > _NAMED else []
    return [f"  {len(nodes)} {what}", *(f"    {shown}" for shown in named), *more]
