"""Tabulates functions of one tensor as lookup tables of integers."""

from __future__ import annotations

import numpy as np

from cml_engine.compiler.integer.quant_params import word_range
from cml_engine.compiler.integer.quantizer.ranges import QuantScale
from cml_engine.cpu.cpu_program import run_node
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.integer_rule import LARGE_TABLE, SMALL_TABLE


def table_words(bits: int, signed: bool) -> Array:
    """Returns the words for which a lookup table has entries, in ascending order.

    They are all words of 8 bits, or every 64th word of 16 bits.
    """
    first = -(1 << (bits - 1)) if signed else 0
    if bits == 16:
        return first + 64 * np.arange(LARGE_TABLE)
    return first + np.arange(SMALL_TABLE)


def tabulate(graph: Graph, base: str, name: str, numbers: Array, to: QuantScale) -> list[int]:
    """Returns the lookup table of a function: the words of tensor ``name`` where ``base`` has
    ``numbers``.

    ``to`` is the scale and type of the returned words, which are clamped to their range. NaN
    becomes 0.
    """
    values = _evaluate(graph, base, name, numbers.astype(np.float32))
    ends = word_range(to.bits, to.signed)
    with np.errstate(invalid="ignore"):
        steps = np.floor(values.astype(np.float64) / to.scale + 0.5)
    whole = np.nan_to_num(steps, nan=0.0).clip(ends.low, ends.high)
    return [int(v) for v in whole]


def _evaluate(graph: Graph, base: str, name: str, numbers: Array) -> Array:
    values: dict[str, Array] = {base: numbers}
    for node in nodes_between(graph, base, name):
        operands = [
            values[n] if n in values else graph.constants[n].reshape(1) for n in node.inputs
        ]
        (values[node.outputs[0]],) = run_node(node, operands)
    return np.broadcast_to(values[name].reshape(-1), numbers.shape)


def nodes_between(graph: Graph, base: str, name: str) -> list[Node]:
    """Returns the nodes that compute tensor ``name`` from tensor ``base`` and constants, in
    execution order."""
    producers = {out: node for node in graph.nodes for out in node.outputs}
    wanted, pending = set[str](), [name]
    while pending:
        tensor = pending.pop()
        if tensor in wanted or tensor == base or tensor in graph.constants:
            continue
        wanted.add(tensor)
        pending += producers[tensor].inputs
    return [node for node in graph.nodes if node.outputs[0] in wanted]
