"""Digests of integer networks and of their outputs, and their gas."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from math import ceil

import numpy as np

from cml_engine.compiler.planning.dispatches import node_cost
from cml_engine.errors import InputError, ModelError
from cml_engine.errors.arguments import GAS, check_instance, check_known_names, check_mapping
from cml_engine.ir.graph import Array, Graph, Shapes
from cml_engine.ir.integer_rule import RULE_VERSION
from cml_engine.nnef.files.writer import model_files
from cml_engine.ops.declaration.registry import lookup

__all__ = ["RULE_VERSION", "model_digest", "run_digest"]

#: the prefix of a note that explains why a quantized model is a float network
WHY = "of floats  because it has no integer form:"


def float_network_error(graph: Graph) -> InputError:
    """Returns an :class:`InputError` that explains why the model is not an integer network and
    how to get one."""
    if graph.cooked_form is not None:
        return InputError(
            f"'{graph.name}' is cooked, and its rounding points are no part of that: give the "
            "model that it was made of"
        )
    why = [note.removeprefix(WHY).strip() for note in graph.notes if note.startswith(WHY)]
    if why:
        return InputError(f"'{graph.name}' is quantized, and computed in floats: {why[0]}")
    return InputError(f"'{graph.name}' is a network of floats: make an integer one by cml quantize")


# -- digest ---------------------------------------------------------------------------------------


def model_digest(graph: Graph) -> bytes:
    """Returns the SHA-256 digest of an integer network, taken over the files that NNEF export
    writes.

    The digest covers the text, the constants and the quantization. It does not depend on the
    path or the notes of the model, nor on saving and reading it back. A cooked graph returns the
    digest of the integer network that it was cooked from, and raises :class:`InputError` if that
    was none.

    Examples
    --------
    >>> len(model_digest(integer))
    32
    """
    check_instance(Graph, graph, "graph")
    if graph.cooked_form is not None:
        if graph.cooked_form.integer_digest is None:
            raise InputError(
                f"'{graph.name}' is cooked: a digest is of the model itself, give that"
            )
        return graph.cooked_form.integer_digest
    hasher = hashlib.sha256()
    # constants as they are read back: numbers in the text before those in files
    constants = dict(sorted(graph.constants.items(), key=lambda item: item[0] in graph.labels))
    for name, data in model_files(graph.with_(notes=(), constants=constants)):
        _add(hasher, name.encode(), data)
    return hasher.digest()


def nonidentical_outputs(graph: Graph) -> tuple[str, ...]:
    """Returns the names of the outputs of an integer network that are computed in floats."""
    from cml_engine.compiler.integer.lowering.lower_network import (
        lower_to_integers,  # which the passes import first
    )

    return lower_to_integers(graph).not_identical if graph.float_tail else ()


def run_digest(graph: Graph, outputs: Mapping[str, Array]) -> str:
    """Returns ``sha256:<hex>`` of a run, equal for every run of one integer network on equal
    inputs.

    Outputs that are computed in floats are left out. Raises :class:`InputError` if all of them are.

    Examples
    --------
    >>> outputs = cml.Session(integer, "cpu").run({"image": image})
    >>> run_digest(integer, outputs)[:7]
    'sha256:'
    """
    check_instance(Graph, graph, "graph")
    check_mapping("arrays by output, {'out': array}", outputs, "outputs")
    check_known_names(graph.outputs, outputs, "there is no output", "outputs")
    floats = nonidentical_outputs(graph)
    if floats and len(floats) == len(graph.outputs):
        raise InputError(
            f"'{graph.name}': all of its outputs are computed in floats and may differ from "
            "machine to machine: there is nothing to take a digest of"
        )
    hasher = hashlib.sha256()
    _add(hasher, b"cml", str(RULE_VERSION).encode(), model_digest(graph))
    for name in graph.outputs:
        if name in floats:
            continue
        array = np.asarray(outputs[name])
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
        shape = ",".join(map(str, array.shape))
        _add(hasher, name.encode(), shape.encode(), little.dtype.str.encode(), little.tobytes())
    return f"sha256:{hasher.hexdigest()}"


def _add(hasher: hashlib._Hash, *parts: bytes) -> None:
    """Updates the hash object ``hasher`` with the length and the bytes of each part, so that no
    two lists of parts give the same digest."""
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)


# -- gas ------------------------------------------------------------------------------------------
# Gas: the cost of a network as a whole number, computed from its graph alone and equal everywhere.
#
# A game that runs models of its players refuses a model that costs too much before running it. One
# unit is one operation on a number, or one number read or written.


def gas_by_node(graph: Graph) -> Mapping[str, int]:
    """Returns the gas of each operator of a graph by the operator's title, in execution order.

    Gas is the number of operations plus the number of 32-bit words read and written. Raises
    :class:`InputError` if the graph is cooked.
    """
    if graph.cooked_form is not None:
        raise InputError(f"'{graph.name}' is cooked: gas is of the model itself, give that")
    gas = {}
    for node in graph.nodes:
        cost = node_cost(lookup(node.op), node, graph)
        gas[node.title] = ceil(cost.flops) + ceil(cost.bytes / 4)
    return gas


def gas_of(graph: Graph) -> int:
    """Returns the gas of one run of a graph; raises :class:`InputError` if the graph is cooked."""
    return sum(gas_by_node(graph).values())


def limit_gas(limit: int | None, make: Callable[[Shapes], Graph]) -> Callable[[Shapes], Graph]:
    """Returns a function like ``make``, which builds a graph from input shapes, that raises
    :class:`ModelError` for graphs that cost more than ``limit`` gas.

    Returns ``make`` itself if ``limit`` is None.
    """
    if limit is None:
        return make
    max_gas = GAS.check(limit, "gas_limit")

    def checked(shapes: Shapes) -> Graph:
        graph = make(shapes)
        costs = gas_by_node(graph)
        total = sum(costs.values())
        if total > max_gas:
            dearest = max(costs, key=lambda title: costs[title])
            raise ModelError(
                f"'{graph.name}' costs {total:,} gas, wanted at most {max_gas:,}; the dearest "
                f"operator is {dearest} with {costs[dearest]:,}. Make it smaller, or its inputs"
            )
        return graph

    return checked
