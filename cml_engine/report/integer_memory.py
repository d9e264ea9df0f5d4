"""What an integer network takes in a GPU's memory beside the same network of floats: a part of
``cml info --integer``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cml_engine.graph import Graph
from cml_engine.passes import optimize
from cml_engine.plan import Plan
from cml_engine.planning.choose_storage import layouts_for
from cml_engine.planning.lower import lower
from cml_engine.report.info import PORTABLE


@dataclass(frozen=True, slots=True)
class IntegerMemory:
    """Bytes, each with those of the network of floats that has the same operators. ``weights`` are
    as kernels have them; ``arena`` is the peak, in which lie inputs, here as words where these are
    packed, and outputs, that are float32 in both (``ends``)."""

    weights: int
    weights_of_floats: int
    arena: int
    arena_of_floats: int
    ends: int

    @classmethod
    def of(cls, graph: Graph) -> IntegerMemory:
        whole, floats = _plan(graph), _plan(_of_floats(graph))
        ends = [whole.inputs[n] for n in graph.inputs] + [whole.outputs[n] for n in graph.outputs]
        return cls(
            whole.weights_bytes,
            floats.weights_bytes,
            whole.memory.peak,
            floats.memory.peak,
            sum(place.binding.nbytes for place in ends),
        )

    def __str__(self) -> str:
        return (
            f"memory: weights {_beside(self.weights, self.weights_of_floats)}; arena "
            f"{_beside(self.arena, self.arena_of_floats)} "
            f"(inputs and outputs take {self.ends / 1024:.1f} KiB)"
        )


def _beside(nbytes: int, of_floats: int) -> str:
    share = nbytes / max(of_floats, 1)
    return f"{nbytes / 1024:.1f} KiB, floats {of_floats / 1024:.1f} KiB, ratio {share:.2f}"


def _plan(graph: Graph) -> Plan:
    optimized = optimize(graph)
    return lower(optimized, PORTABLE, layouts_for(optimized))


def _of_floats(graph: Graph) -> Graph:
    """The network as if it had never been quantized; of no use but to be planned."""
    constants = {
        name: array.astype(np.float32) if graph.facts[name].dtype == "scalar" else array
        for name, array in graph.constants.items()
    }
    return graph.with_(integer=0, float_tail=False, quantization={}, constants=constants)
