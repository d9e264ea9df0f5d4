"""The report on the import of an ONNX model's nodes, for ``cml info``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cml_engine.errors import UnsupportedOp
from cml_engine.formats.onnx.model import OnnxModelFile, OnnxNode
from cml_engine.formats.onnx.op_schemas import OnnxCall
from cml_engine.formats.onnx.ranges import EXACT, INT32, MOVES, Interval, of_dtype
from cml_engine.formats.onnx.values import Emitter, Value, interval_of
from cml_engine.nnef.warning import warn

#: the most nodes that are named per operator, and of those whose integers may differ
_NAMED, _WIDE_NAMED = 2, 16
#: messages give no numbers for bounds beyond these
_LONG = Interval(-(1 << 63), 1 << 63)
#: operators of the network with the same result bits for signed and unsigned integers
_OF_BITS = frozenset(
    "int_add int_sub int_mul int_neg int_eq int_ne bit_and bit_or bit_xor bit_not shift_left "
    "shift_right int_matmul".split(" ")
) | (MOVES - {"max_reduce", "min_reduce"})


@dataclass
class ImportReport:
    """Counts and names of imported nodes.

    ``folded`` nodes were computed at import, ``composed`` ones became several operators,
    ``unknown`` ones placeholders: the nodes' names in the file, by ONNX operator.

    The integers of the others may differ from ONNX's; each has a text with their bounds by the
    node's name. ``wrapped`` nodes may exceed 32 bits. ``rounded`` nodes are computed in floats and
    may exceed the exact range of float32. ``cast`` nodes convert floats that may exceed 32 bits.
    """

    nodes: int = 0
    inlined: int = 0
    folded: dict[str, list[str]] = field(default_factory=dict)
    composed: dict[str, list[str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    wrapped: dict[str, str] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)

    def add(self, nodes: dict[str, list[str]], node: OnnxNode) -> None:
        """Adds a node to the folded, composed or unknown ones."""
        nodes.setdefault(node.op, []).append(node.shown)

    def lines(self, model: OnnxModelFile) -> tuple[str, ...]:
        producer = f" by {model.producer}" if model.producer else ""
        opset = f", opset {model.opsets['']}" if "" in model.opsets else ""
        special_nodes = (self.folded, self.composed, self.unknown)
        direct = self.nodes - sum(_count(nodes) for nodes in special_nodes)
        inlined = f", {self.inlined} functions inlined" if self.inlined else ""
        return (
            f"imported   from ONNX{opset}{producer}: {self.nodes} nodes{inlined}",
            f"  {direct} became one operator each, or none",
            *_listed("were computed at load time", self.folded),
            *_listed("became several operators", self.composed),
            *_wide("compute integers that may exceed 32 bits and then wrap around", self.wrapped),
            *_wide("compute integers in floats, exact to 2^24, and may exceed that", self.rounded),
            *_wide("convert floats to integers, and clamp values beyond 32 bits", self.cast),
            *_listed("are unknown and have placeholders", self.unknown),
        )

    def warn(self, file: str) -> None:
        """Warns, if nodes may wrap around, of the first one, and counts the others."""
        if self.wrapped:
            first, count = next(iter(self.wrapped.values())), len(self.wrapped)
            more_text = f"; {count - 1} more may too, `cml info` names them" if count > 1 else ""
            warn(
                f"'{file}': {first} may exceed the 32 bits that the network computes with, and "
                f"then wraps around{more_text}"
            )

    def check_widths(
        self, call: OnnxCall, emit: Emitter, values: Sequence[Value | None], mark: int
    ) -> None:
        """Records an ONNX node if its results may differ from ONNX's, and settles their bounds.

        ``mark`` is the index of the first node of the network that was added for it.
        Raises :class:`UnsupportedOp` if none of the values can fit into 32 bits.
        """
        intervals = emit.intervals
        intervals.learn()
        nodes = emit.builder.nodes[mark:]
        output_names = {name for node in nodes for name in node.outputs}
        if _reads_upper_half(call, values, {node.op for node in nodes}):
            self.wrapped[call.node.shown] = f"{call.node.title} (of integers of 2^31 and more)"
        for value in values:
            if value is None or value.kind != "integer" or value.tensor not in output_names:
                continue
            is_wide = value.dtype.itemsize == 8
            type_range = of_dtype(value.dtype) if is_wide else INT32
            bounds = intervals[value.tensor]
            if is_wide and bounds.outside(INT32):
                raise UnsupportedOp(
                    f"its values are {bounds}, and the network computes with 32 bits: give the "
                    "model numbers that fit"
                )
            if is_wide and not bounds.within(type_range):
                of_floats = call.node.op == "Cast" and call[0].kind == "scalar"
                records = self.cast if of_floats else self.wrapped
                records[call.node.shown] = _bounded(call.node, bounds)
            if (float_bounds := _through_floats(emit, mark)) and not float_bounds.within(EXACT):
                self.rounded[call.node.shown] = _bounded(call.node, float_bounds)
            intervals.settle(value.tensor, type_range)


def _reads_upper_half(call: OnnxCall, values: Sequence[Value | None], ops: set[str]) -> bool:
    """Returns True if a node interprets the sign bit of uint32 inputs that may be 2^31 or more.

    ``ops`` are the operators added for the node. Operators with the same bits for signed and
    unsigned integers do not count, unless a result has 64 bits.
    """
    uint32_inputs = [
        v for v in call.inputs if v is not None and v.array is None and v.dtype == np.uint32
    ]
    is_wider = any(v is not None and v.kind == "integer" and v.dtype.itemsize == 8 for v in values)
    if not uint32_inputs or (ops <= _OF_BITS and not is_wider):
        return False
    return not all(interval_of(v).within(of_dtype(v.dtype)) for v in uint32_inputs)


def _through_floats(emit: Emitter, mark: int) -> Interval | None:
    """Returns the bounds of the integers that a node computes in floats, or None.

    They are integers that nodes from index ``mark`` on cast to floats, and the floats cast back.
    """
    casts = [node for node in emit.builder.nodes[mark:] if node.op == "cast"]
    facts = emit.builder.facts
    to_float = [n for n in casts if n.attrs["dtype"] == "scalar"]
    to_float = [n for n in to_float if facts[n.inputs[0]].dtype == "integer"]
    if not to_float:
        return None
    from_float = [n for n in casts if n.attrs["dtype"] == "integer"]
    intervals = [emit.intervals.stored(n.inputs[0]) for n in (*to_float, *from_float)]
    return Interval(min(i.low for i in intervals), max(i.high for i in intervals))


def _bounded(node: OnnxNode, bounds: Interval) -> str:
    return f"{node.title} ({bounds if bounds.within(_LONG) else 'of any size'})"


def _count(nodes: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, nodes.values()))


def _listed(description: str, nodes: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a line with the number of nodes and ``description`` they are, and one per operator.

    Operators with the most nodes come first; each line names some of its nodes. No nodes give no
    lines.
    """
    if not nodes:
        return []
    ops = sorted(nodes, key=lambda op: -len(nodes[op]))
    return [
        f"  {_count(nodes)} {description}",
        *(f"    {op} {_shortened_list(nodes[op])}" for op in ops),
    ]


def _shortened_list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)}: {', '.join(names[:_NAMED])}{more}"


def _wide(description: str, nodes: Mapping[str, str]) -> list[str]:
    """Returns a line with the number of nodes and ``description`` they do, and a line per node."""
    if not nodes:
        return []
    more = [f"    and {len(nodes) - _WIDE_NAMED} more"] if len(nodes) > _WIDE_NAMED else []
    texts = list(nodes.values())[:_WIDE_NAMED]
    return [f"  {len(nodes)} {description}", *(f"    {text}" for text in texts), *more]
