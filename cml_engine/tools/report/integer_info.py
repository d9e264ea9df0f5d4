"""The facts about an integer network for ``cml info --integer`` and ``--gas``.

They are its rounding points, the gas of its operators, and its GPU memory compared with a network
of floats.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from cml_engine.compiler.integer.digest import float_network_error, gas_by_node
from cml_engine.compiler.integer.lowering.lower_network import lower_to_integers
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.graph import Graph
from cml_engine.tools.report.model_info import PORTABLE


@dataclass(frozen=True, slots=True)
class IntegerMemory:
    """The bytes of GPU memory of an integer network and of a float network with the same operators.

    ``weights`` are in the format of the kernels. ``arena`` is the peak; it includes the inputs,
    which are packed integers here if possible. ``ends`` are the inputs and outputs; outputs are
    float32 in both networks.
    """

    weights: int
    weights_of_floats: int
    arena: int
    arena_of_floats: int
    ends: int

    @classmethod
    def of(cls, graph: Graph) -> IntegerMemory:
        integers, floats = _plan(graph), _plan(_float_graph(graph))
        ends = (*integers.inputs.values(), *integers.outputs.values())
        return cls(
            integers.weights_bytes,
            floats.weights_bytes,
            integers.memory.peak,
            floats.memory.peak,
            sum(place.binding.nbytes for place in ends),
        )

    def __str__(self) -> str:
        return (
            f"memory: weights {_share_text(self.weights, self.weights_of_floats)}; arena "
            f"{_share_text(self.arena, self.arena_of_floats)} "
            f"(inputs and outputs take {self.ends / 1024:.1f} KiB)"
        )


def _share_text(nbytes: int, of_floats: int) -> str:
    share = nbytes / max(of_floats, 1)
    return f"{nbytes / 1024:.1f} KiB, floats {of_floats / 1024:.1f} KiB, ratio {share:.2f}"


def _plan(graph: Graph) -> Plan:
    optimized = optimize(graph)
    return lower(optimized, PORTABLE, layouts_for(optimized))


def _float_graph(graph: Graph) -> Graph:
    """Returns the integer network as a float network, which can only be planned, not run."""
    constants = {
        name: array.astype(np.float32) if graph.facts[name].dtype == "scalar" else array
        for name, array in graph.constants.items()
    }
    return graph.with_(integer=0, float_tail=False, quantization={}, constants=constants)


@dataclass(frozen=True, slots=True)
class PointInfo:
    """A rounding point: its integer type, and the type and bound of the sums before it."""

    name: str
    title: str
    words: str
    scale: float
    carrier: str
    bound: int


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """The rounding points of an integer network and the gas of each operator, if requested."""

    model: str
    points: tuple[PointInfo, ...]
    gas: dict[str, int]
    #: outputs that are computed in floats, and the first operator in floats
    not_identical: tuple[str, ...] = ()
    first_float: str = ""
    memory: IntegerMemory | None = None

    @classmethod
    def of(cls, graph: Graph, *, points: bool, gas: bool) -> IntegerInfo:
        infos: tuple[PointInfo, ...] = ()
        floats: tuple[str, ...] = ()
        first = ""
        if points:
            if not graph.integer:
                raise float_network_error(graph)
            network = lower_to_integers(graph)
            floats, first = network.not_identical, network.first_float
            infos = tuple(
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
        return cls(graph.name, infos, costs, floats, first, memory)

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
