"""Shape and type inference: computes the facts of all tensors from those of the inputs and
constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from cml_engine.errors import CmlError, InternalError, ModelError, OperatorError, ShapeError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import (
    DTYPE_OF_KIND,
    NUMPY_DTYPE,
    Array,
    Epilogue,
    Fact,
    Graph,
    Node,
    is_whole,
)
from cml_engine.ops.common.shapes import MAX_RANK
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.spec import OpSpec

#: more elements than a GPU buffer or a 32-bit index can address
MAX_ELEMENTS = 1 << 31


def infer_facts(graph: Graph) -> Graph:
    """Returns the graph with a fact for every tensor, and its constants in the types of their
    facts.

    Raises :class:`ShapeError` with the model's line if an operator cannot take its inputs, and
    :class:`ModelError` if a name is defined twice or read before it is computed.
    """
    _check_names(graph)
    constants = {name: _constant(graph, name) for name in graph.constants}
    facts = dict(graph.facts)
    for node in graph.nodes:
        yield_to_frame()
        for name, fact in zip(node.outputs, infer_node(node, facts), strict=True):
            facts[name] = fact
    for variable, value in graph.updates:
        if facts[variable] != facts[value]:
            raise ShapeError(
                f"update of '{variable}' wants {facts[variable]}, '{value}' is {facts[value]}",
                graph.sources.get(variable),
            )
    return graph.with_(facts=facts, constants=constants)


def _check_names(graph: Graph) -> None:
    """Raises :class:`ModelError` unless every name is defined once and before it is read.

    Graphs that are built in code may violate this. Inputs and constants must have facts.
    """
    defined = {*graph.inputs, *graph.constants}
    for name in (*graph.inputs, *graph.constants):
        if name not in graph.facts:
            raise ModelError(f"graph '{graph.name}': '{name}' has no fact (a type and a shape)")
    for node in graph.nodes:
        for name in node.reads:
            if name not in defined:
                raise ModelError(
                    f"{node.title}: reads '{name}', which nothing before it gives",
                    node.source,
                )
        for name in node.outputs:
            if name in defined:
                raise ModelError(f"{node.title}: there is a tensor '{name}' already", node.source)
            defined.add(name)
    for name in graph.roots:
        if name not in defined:
            raise ModelError(f"graph '{graph.name}': nothing gives its result '{name}'")
    for variable, _ in graph.updates:
        if variable not in graph.constants:
            raise ModelError(f"graph '{graph.name}': update of '{variable}', which is no variable")


def _constant(graph: Graph, name: str) -> Array:
    """Returns a constant in the dtype of its fact, so that backends can upload it unchanged.

    Stored integers of an integer network are returned as they are. Raises :class:`ShapeError` if
    the shape or the type differs from the fact.
    """
    value, fact = np.asanyarray(graph.constants[name]), graph.facts[name]
    if graph.integer and name in graph.quantization and value.shape == fact.shape:
        return value  # the stored integers
    if value.shape != fact.shape or DTYPE_OF_KIND.get(value.dtype.kind) != fact.dtype:
        raise ShapeError(
            f"constant '{name}' is {value.dtype}{list(value.shape)}, wanted {fact}",
            graph.sources.get(name),
        )
    return value.astype(NUMPY_DTYPE[fact.dtype], copy=False)


def infer_node(node: Node, facts: Mapping[str, Fact]) -> list[Fact]:
    """Returns the facts of one node's outputs in order, from the facts of its inputs.

    An epilogue can enlarge the result: a chain may begin with a single value. Raises
    :class:`ShapeError` if the number of results differs from the node's outputs.
    """
    results = _call(node, [facts[name] for name in node.inputs])
    for epilogue in node.epilogues:
        results += _infer_epilogue(node, epilogue, facts, results)
    results = results[-1:] if node.epilogues else results
    if len(results) != len(node.outputs):
        raise ShapeError(
            f"{node.title}: gives {len(results)} results, the graph names {len(node.outputs)}. "
            "Name one tensor for each result.",
            node.source,
        )
    for fact in results:
        _check_size(node, fact)
    return results


def _infer_epilogue(
    node: Node, epilogue: Epilogue, facts: Mapping[str, Fact], results: list[Fact]
) -> list[Fact]:
    """Returns the facts of an epilogue's results, where ``results`` are those of the steps before
    it."""
    step = replace(node, op=epilogue.op, attrs=epilogue.attrs)
    try:
        operands = epilogue.operands([facts[name] for name in epilogue.inputs], results)
    except (IndexError, StopIteration):
        raise ModelError(
            f"{step.title}: its operands are steps that its chain does not have", node.source
        ) from None
    return _call(step, operands)


def _call(node: Node, facts: list[Fact]) -> list[Fact]:
    spec = lookup(node.op)
    try:
        with calling(spec.is_custom, "infer", node_fault(node)):
            result = spec.infer(node.attrs, *facts)
    except CmlError as error:
        error.locate(node.title, node.source)
        raise
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AttributeError) as e:
        inputs = ", ".join(str(f) for f in facts)
        raise ShapeError(
            f"{node.title}: cannot take inputs ({inputs}) with {node.attrs!r}: {e}", node.source
        ) from e
    return _facts(node, spec, result)


def _facts(node: Node, spec: OpSpec, result: object) -> list[Fact]:
    """Returns the result of an operator's infer function, a fact or a list of facts, as a list.

    Raises an error if the function returned anything else: :class:`OperatorError` for a game's
    operator, :class:`InternalError` for the engine's.
    """
    items = list(result) if isinstance(result, list | tuple) else [result]
    facts = [item for item in items if _is_fact(item)]
    if len(facts) == len(items):
        return facts
    error_type = OperatorError if spec.is_custom else InternalError
    raise error_type(
        f"{node.title}: its infer function gave {result!r}; wanted a cml.ops.Fact of "
        f"{', '.join(NUMPY_DTYPE)} and a tuple of whole numbers, or a list of them",
        node.source,
    )


def _is_fact(value: object) -> TypeGuard[Fact]:
    if not isinstance(value, Fact) or value.dtype not in NUMPY_DTYPE:
        return False
    shape: object = value.shape
    return isinstance(shape, tuple) and all(map(is_whole, shape))


def _check_size(node: Node, fact: Fact) -> None:
    problem = ""
    if fact.rank > MAX_RANK:
        problem = f"has rank {fact.rank}, at most {MAX_RANK} is possible; merge dimensions before"
    elif any(extent < 0 for extent in fact.shape):
        problem = (
            f"would have the shape {list(fact.shape)}; the input is too small for these attributes."
        )
    elif fact.size >= MAX_ELEMENTS:
        problem = f"{fact} has {fact.size} elements, at most {MAX_ELEMENTS - 1} are possible"
    if problem:
        raise ShapeError(f"{node.title}: result {problem}", node.source)
