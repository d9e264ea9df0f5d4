"""The report on the import of an ONNX model's nodes, for ``cml info``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cml_engine.formats.onnx.model import OnnxModelFile, OnnxNode
from cml_engine.formats.onnx.op_schemas import OnnxCall
from cml_engine.formats.onnx.ranges import EXACT, INT32, INT64, Interval, of_dtype, union_of
from cml_engine.formats.onnx.values import Emitter, Value, interval_of

#: the most nodes that are named per operator, and of those whose integers may differ
_NAMED, _WIDE_NAMED = 2, 16
#: the first version of ONNX's format in which an initializer need not be an input
_FIRST_OPTIONAL = 4


@dataclass
class ImportReport:
    """Counts and names of imported nodes.

    ``folded`` nodes were computed at import, ``composed`` ones became several operators,
    ``unknown`` ones placeholders: the nodes' names in the file, by ONNX operator.

    The integers of the others may differ from ONNX's; each has a text with their bounds by the
    node's name. ``rounded`` nodes are computed in floats and may exceed the exact range of float32.
    ``cast`` nodes convert floats that may exceed 32 bits.
    """

    nodes: int = 0
    inlined: int = 0
    folded: dict[str, list[str]] = field(default_factory=dict)
    composed: dict[str, list[str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)

    def add(self, nodes: dict[str, list[str]], node: OnnxNode) -> None:
        """Adds a node to the folded, composed or unknown ones."""
        nodes.setdefault(node.op, []).append(node.shown)

    def lines(self, model: OnnxModelFile, optional: Collection[str] = ()) -> tuple[str, ...]:
        """Returns the report. ``optional`` are the constants that may become inputs."""
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
            *_wide("compute integers in floats, exact to 2^24, and may exceed that", self.rounded),
            *_wide("convert floats to integers, and clamp values beyond 32 bits", self.cast),
            *_listed("are unknown and have placeholders", self.unknown),
            *_optional_line(model, optional),
        )

    def check_widths(
        self, call: OnnxCall, emit: Emitter, values: Sequence[Value | None], mark: int
    ) -> None:
        """Records an ONNX node if its results may differ from ONNX's, and settles their bounds.

        ``mark`` is the index of the first node of the network that was added for it.
        Raises :class:`TooWide` if integers of 64 bits are computed in floats that may exceed
        32 bits.
        """
        emit.intervals.learn()
        output_names = {name for node in emit.builder.nodes[mark:] for name in node.outputs}
        for value in values:
            if value is None or value.kind != "integer" or value.tensor not in output_names:
                continue
            is_wide = value.dtype.itemsize == 8
            if is_wide and call.node.op == "Cast" and call[0].kind == "scalar":
                float_bounds = interval_of(call[0])
                if not float_bounds.within(INT32):
                    self.cast[call.node.shown] = _bounded(call.node, float_bounds)
            bounds = _through_floats(emit, mark)
            if bounds and is_wide and not bounds.within(INT32):
                message = (
                    "its integers of 64 bits are computed in floats and may exceed 32 bits: cast "
                    "its inputs to int32 or to float"
                )
                raise emit.too_wide(message, [value.tensor], emit.source)
            if bounds and not bounds.within(EXACT):
                self.rounded[call.node.shown] = _bounded(call.node, bounds)
            emit.intervals.settle(value.tensor, of_dtype(value.dtype))


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
    return union_of(*(emit.intervals[n.inputs[0]] for n in (*to_float, *from_float)))


def _bounded(node: OnnxNode, bounds: Interval) -> str:
    return f"{node.title} ({bounds if bounds.within(INT64) else 'of any size'})"


def _count(nodes: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, nodes.values()))


def _optional_line(model: OnnxModelFile, names: Collection[str]) -> list[str]:
    """Returns the line on constants that may become inputs.

    It is left out for files of the time when every constant was listed as an input.
    """
    if not names or model.ir_version < _FIRST_OPTIONAL:
        return []
    listed = ", ".join(f"'{name}'" for name in sorted(names)[:_WIDE_NAMED])
    more = f" and {len(names) - _WIDE_NAMED} more" if len(names) > _WIDE_NAMED else ""
    return [f"  {listed}{more}: constants that may be inputs (cml.load(…, inputs=), -i NAME=FILE)"]


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
