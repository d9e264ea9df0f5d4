"""The NumPy backend: the definition of every operator, and the fallback without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cml_engine.errors import CmlError, InternalError, OperatorError, ShapeError, UnsupportedOp
from cml_engine.graph import NUMPY_DTYPE, Graph, Node
from cml_engine.ops.spec import lookup

Array = np.ndarray[Any, Any]
#: called after each node with its results
Watch = Callable[[Node, Sequence[Array]], None]


def run_node(node: Node, arrays: Sequence[Array]) -> list[Array]:
    """One node's results in NumPy; ``arrays`` are the values of ``node.reads``.

    Floating-point exceptions give inf and NaN as on a GPU; they are no error.
    """
    count = len(node.inputs)
    with np.errstate(all="ignore"):
        results = _call(node.op, node, node.attrs, arrays[:count])
        for epilogue in node.epilogues:
            others = arrays[count : count + len(epilogue.inputs)]
            results = _call(epilogue.op, node, epilogue.attrs, [results[0], *others])
            count += len(epilogue.inputs)
    return results


def _call(op: str, node: Node, attrs: Any, arrays: Sequence[Array]) -> list[Array]:
    spec = lookup(op)
    function = spec.cpu
    if function is None:
        raise UnsupportedOp(f"{node.title}: has no CPU function; run it on a GPU", node.source)
    try:
        results = function(attrs, *arrays)
    except CmlError as error:
        if error.source is None and node.source is not None:
            raise type(error)(f"{node.title}: {error.message}", node.source) from None
        raise
    except MemoryError as error:
        raise ShapeError(f"{node.title}: not enough memory for its result", node.source) from error
    except Exception as error:
        if not spec.from_game:
            raise
        said = f"{type(error).__name__}: {error}"
        raise OperatorError(
            f"{node.title}: its cpu function failed: {said}", node.source
        ) from error
    return [results] if isinstance(results, np.ndarray | np.generic) else list(results)


class CpuProgram:
    """A graph ready to run in NumPy. Variables that the graph updates keep their values between
    runs, until :meth:`reset`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._last_use = _last_uses(graph)
        self._state: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        """Give the variables the values that they have in the model's files."""
        self._state = {name: self.graph.constants[name] for name, _ in self.graph.updates}

    def run(self, inputs: Mapping[str, Array], watch: Watch | None = None) -> dict[str, Array]:
        """Outputs by name; every tensor is freed after its last use."""
        values: dict[str, Array] = {**self.graph.constants, **self._state, **inputs}
        for index, node in enumerate(self.graph.nodes):
            results = run_node(node, [values[name] for name in node.reads])
            for name, value in zip(node.outputs, results, strict=True):
                values[name] = self._checked(node, name, value)
            if watch is not None:
                watch(node, [values[name] for name in node.outputs])
            for name in self._last_use[index]:
                del values[name]
        self._state = {variable: values[value] for variable, value in self.graph.updates}
        return {name: np.array(values[name]) for name in self.graph.outputs}

    def _checked(self, node: Node, name: str, value: Array) -> Array:
        fact = self.graph.facts[name]
        if np.shape(value) != fact.shape:
            kind = OperatorError if lookup(node.op).from_game else InternalError
            raise kind(
                f"{node.title}: CPU function gave the shape {list(np.shape(value))}, "
                f"infer said {list(fact.shape)}",
                node.source,
            )
        return np.asarray(value, NUMPY_DTYPE[fact.dtype])


def _last_uses(graph: Graph) -> list[list[str]]:
    """For each node, the computed tensors that nothing needs after it."""
    last = {name: i for i, node in enumerate(graph.nodes) for name in (*node.outputs, *node.reads)}
    uses: list[list[str]] = [[] for _ in graph.nodes]
    keep = {*graph.roots, *graph.constants, *graph.inputs}
    for name, index in last.items():
        if name not in keep:
            uses[index].append(name)
    return uses
