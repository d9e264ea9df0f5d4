"""The report on the import of an ONNX model's nodes, for ``cml info``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cml_engine.formats.onnx.model import OnnxModelFile
from cml_engine.formats.onnx.ranges.widths import Widths

#: the most nodes that are named per operator
_NAMED = 2


@dataclass
class Summary:
    """Counts and names of imported nodes: the nodes' names in the file, by ONNX operator.

    ``folded`` nodes were computed at import, ``composed`` ones became several operators,
    ``unknown`` ones placeholders.
    """

    nodes: int = 0
    inlined: int = 0
    folded: dict[str, list[str]] = field(default_factory=dict)
    composed: dict[str, list[str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    widths: Widths = field(default_factory=Widths)

    def lines(self, model: OnnxModelFile) -> tuple[str, ...]:
        made = f" by {model.producer}" if model.producer else ""
        opset = f", opset {model.opsets['']}" if "" in model.opsets else ""
        others = (self.folded, self.composed, self.unknown)
        direct = self.nodes - sum(_count(nodes) for nodes in others)
        inlined = f", {self.inlined} functions inlined" if self.inlined else ""
        return (
            f"imported   from ONNX{opset}{made}: {self.nodes} nodes{inlined}",
            f"  {direct} are one operator or none",
            *_listed("were known and folded", self.folded),
            *_listed("are composed of several operators", self.composed),
            *self.widths.lines(),
            *_listed("are unknown and have placeholders", self.unknown),
        )


def _count(nodes: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, nodes.values()))


def _listed(what: str, nodes: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a line with the number of nodes and ``what`` they are, and a line per operator.

    Operators with the most nodes come first; each line names some of its nodes. No nodes give no
    lines.
    """
    if not nodes:
        return []
    ops = sorted(nodes, key=lambda op: -len(nodes[op]))
    return [f"  {_count(nodes)} {what}", *(f"    {op} {_some(nodes[op])}" for op in ops)]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)}: {', '.join(names[:_NAMED])}{more}"
