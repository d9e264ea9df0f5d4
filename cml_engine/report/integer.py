"""``cml info --integer`` and ``--gas``: what is proven of a network before it runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cml_engine.graph import Graph
from cml_engine.integer.floats import of_floats
from cml_engine.integer.gas import gas_by_node
from cml_engine.integer.lowering.network import lowered
from cml_engine.report.integer_memory import IntegerMemory


@dataclass(frozen=True, slots=True)
class PointInfo:
    """A rounding point: its words, and what carries its sums up to which bound."""

    name: str
    title: str
    words: str
    scale: float
    carrier: str
    bound: int


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """The rounding points of an integer network, and the gas of each operator, as asked for."""

    model: str
    points: tuple[PointInfo, ...]
    gas: dict[str, int]
    #: outputs that are computed in floats, and the operator with which these begin
    not_identical: tuple[str, ...] = ()
    first_float: str = ""
    memory: IntegerMemory | None = None

    @classmethod
    def of(cls, graph: Graph, *, points: bool, gas: bool) -> IntegerInfo:
        found: tuple[PointInfo, ...] = ()
        floats: tuple[str, ...] = ()
        first = ""
        if points:
            if not graph.integer:
                raise of_floats(graph)
            network = lowered(graph)
            floats, first = network.not_identical, network.first_float
            found = tuple(
                PointInfo(
                    p.name,
                    p.title,
                    f"{'' if p.signed else 'u'}int{p.bits}",
                    float(p.scale),
                    p.carrier,
                    p.bound,
                )
                for p in network.points
            )
        costs = dict(gas_by_node(graph)) if gas else {}
        memory = IntegerMemory.of(graph) if points else None
        return cls(graph.name, found, costs, floats, first, memory)

    @property
    def total_gas(self) -> int:
        return sum(self.gas.values())

    def json(self) -> str:
        return json.dumps({**asdict(self), "total_gas": self.total_gas}, indent=2)

    def __str__(self) -> str:
        lines = [f"model {self.model}"]
        if self.points:
            lines.append(
                f"{'rounding point':24s} {'of':32s} {'words':6s} {'scale':>12s} {'carrier':8s} "
                f"{'bound':>14s}"
            )
        for p in self.points:
            lines.append(
                f"{p.name[:24]:24s} {p.title[:32]:32s} {p.words:6s} {p.scale:12.6g} "
                f"{p.carrier:8s} {p.bound:14,d}"
            )
        lines += [
            f"output '{name}' is not identical on all machines: from {self.first_float} on it is "
            "computed in floats"
            for name in self.not_identical
        ]
        lines += [str(self.memory)] if self.memory else []
        lines += [f"{title[:48]:48s} {gas:16,d}" for title, gas in self.gas.items()]
        if self.gas:
            lines.append(f"{'gas':48s} {self.total_gas:16,d}")
        return "\n".join(lines)
