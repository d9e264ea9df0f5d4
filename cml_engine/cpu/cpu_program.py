"""The NumPy backend: runs graphs without a GPU, and is the reference for the result of every
operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from cml_engine.errors import (
    CmlError,
    InputError,
    InternalError,
    OperatorError,
    ShapeError,
    UnsupportedOp,
)
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph, Node
from cml_engine.ir.reuse import VARIABLES, boundaries, sources_of
from cml_engine.ops.common.blas import one_thread
from cml_engine.ops.declaration.game_functions import calling, node_fault
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import Cpu, OpSpec, Prepare
from cml_engine.ops.elementwise.in_place import apply_in_place

#: called after each node with its results
Watch = Callable[[Node, Sequence[Array]], None]


def keep_results(values: dict[str, Array]) -> Watch:
    """Returns a watch that stores a copy of every result in ``values``, by name."""

    def watch(node: Node, results: Sequence[Array]) -> None:
        values.update(zip(node.outputs, map(np.array, results), strict=True))

    return watch


def run_node(
    node: Node,
    arrays: Sequence[Array],
    override: Cpu | None = None,
    find: Callable[[str], OpSpec] = lookup,
) -> list[Array]:
    """Runs one node with its epilogues in NumPy, and returns its results in the order of its
    outputs.

    ``arrays`` are the values of ``node.reads``. ``override`` replaces the operator's CPU
    function, and ``find`` returns the operator of a name. Floating-point exceptions produce inf
    and NaN, as on a GPU, and are not errors.
    """
    count = len(node.inputs)
    with np.errstate(all="ignore"):
        spec = find(node.op)
        results = _call(spec, node, node.attrs, arrays[:count], override)
        keeps_earlier = any(epilogue.own for epilogue in node.epilogues)
        earlier_results = results[:1]
        for epilogue in node.epilogues:
            extra_inputs = arrays[count : count + len(epilogue.inputs)]
            count += len(epilogue.inputs)
            step = find(epilogue.op)
            can_overwrite = (
                epilogue.position == 0
                and not keeps_earlier
                and _may_overwrite(spec, results[0], arrays)
            )
            formula = step.formula if can_overwrite else None
            if formula and apply_in_place(formula, epilogue.attrs, results[0], extra_inputs):
                continue
            operands = epilogue.operands(extra_inputs, earlier_results)
            results = _call(step, node, epilogue.attrs, operands)
            earlier_results = earlier_results + results[:1] if keeps_earlier else results[:1]
    return results


def _may_overwrite(spec: OpSpec, result: object, arrays: Sequence[Array]) -> bool:
    """Returns True if an epilogue may overwrite ``result``: it is writable and shares no memory
    with ``arrays``.

    A game's function may retain its result, so its results are never overwritten.
    """
    if spec.is_custom or not isinstance(result, np.ndarray):
        return False
    return result.flags.writeable and not any(np.may_share_memory(result, a) for a in arrays)


def _call(
    spec: OpSpec, node: Node, attrs: object, arrays: Sequence[Array], override: Cpu | None = None
) -> list[Array]:
    function = override or spec.cpu
    if function is None:
        raise UnsupportedOp(f"{node.title}: has no CPU function; run it on a GPU", node.source)
    if spec.is_custom:
        # built-in operators may return other memory orders; game functions get C order
        arrays = [np.asarray(a, order="C") for a in arrays]
    try:
        with calling(spec.is_custom, "cpu", node_fault(node)):
            results: object = function(attrs, *arrays)
    except CmlError as error:
        error.locate(node.title, node.source)
        raise
    except MemoryError as error:
        raise ShapeError(f"{node.title}: not enough memory for its result", node.source) from error
    outputs: list[object] = [results]
    if isinstance(results, Iterable) and not isinstance(results, np.ndarray | np.generic):
        outputs = list(results)
    if spec.is_custom:
        _check_results(node, outputs)
    return cast("list[Array]", outputs)


def _check_results(node: Node, results: Sequence[object]) -> None:
    """Raises :class:`OperatorError` if a game's function did not return one numeric array per
    output."""
    dtype_kinds = [np.asarray(r).dtype.kind if r is not None else "O" for r in results]
    if len(results) != len(node.outputs) or not set(dtype_kinds) <= set("fiub"):
        types = ", ".join(type(r).__name__ for r in results)
        raise OperatorError(
            f"{node.title}: its cpu function gave {types or 'nothing'}; wanted "
            f"{len(node.outputs)} of arrays of numbers",
            node.source,
        )


def convert_to_fact(node: Node, fact: Fact, value: ArrayLike) -> Array:
    """Returns a node's result as an array in the dtype of its fact, without a copy if it has that
    dtype.

    Raises :class:`OperatorError` for a game's operator, or :class:`InternalError`, if the shape
    differs from the fact.
    """
    if np.shape(value) != fact.shape:
        error_type = OperatorError if lookup(node.op).is_custom else InternalError
        raise error_type(
            f"{node.title}: CPU function gave the shape {list(np.shape(value))}, "
            f"infer said {list(fact.shape)}",
            node.source,
        )
    return np.asarray(value, NUMPY_DTYPE[fact.dtype])


@dataclass(frozen=True)
class HostTensor:
    """A tensor of a network on the CPU, as ``GpuTensor`` is one of a network on a GPU."""

    fact: Fact
    _value: Array

    def read(self) -> Array:
        """Returns the value."""
        return self._value


class HostProgram(ABC):
    """A graph that is ready to run in this process's memory, without a GPU.

    Variables that the graph updates keep their values between runs, until :meth:`reset`. Runs
    from several threads wait for each other, because they share variables and memory. With
    ``retain``, an input that is not given keeps its value.
    """

    def __init__(self, graph: Graph, retain: bool) -> None:
        self.graph = graph
        self._retains = retain
        #: retained values of inputs
        self._input_values: dict[str, Array] = {}
        self._state: dict[str, Array] = {}
        #: outputs and kept tensors of the last run
        self._results: dict[str, Array] = {}
        self._lock = RLock()
        self.reset()

    @abstractmethod
    def without_state(self) -> HostProgram:
        """Returns a program of the same network with variables of its own."""

    @abstractmethod
    def _run(self, inputs: Mapping[str, Array], watch: Watch | None, before: Watch | None) -> None:
        """Runs the graph and sets the results and the variables."""

    def build_ahead(self) -> None:  # noqa: B027
        """Does nothing: there are no pipelines to build."""

    def reset(self) -> None:
        """Resets the variables to their initial values in the model."""
        with self._lock:
            self._state = {name: self.graph.constants[name] for name, _ in self.graph.updates}

    def run(
        self,
        inputs: Mapping[str, Array],
        watch: Watch | None = None,
        before: Watch | None = None,
    ) -> dict[str, Array]:
        """Runs the graph and returns the outputs by name.

        ``before`` is called with each node and its operands, ``watch`` with each node and its
        results.
        """
        with self._lock:
            self._run(inputs, watch, before)
            return {name: self._results[name].copy() for name in self.graph.outputs}

    @property
    def known_inputs(self) -> frozenset[str]:
        """The names of the inputs that have retained values, so that a run may omit them."""
        return frozenset(self._input_values)

    def inherit(self, predecessor: HostProgram) -> None:
        """Copies the retained inputs of ``predecessor``, the program that this one replaces."""
        self._input_values = dict(predecessor._input_values)

    def _with_retained(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the inputs of a run; with ``retain`` those of earlier runs too, as copies."""
        if not self._retains:
            return dict(inputs)
        self._input_values |= {name: np.array(value) for name, value in inputs.items()}
        return dict(self._input_values)

    def tensor(self, name: str) -> HostTensor:
        """Returns a copy of an output or a kept tensor of the last run.

        Raises :class:`InputError` if the tensor is neither, or if nothing has run yet.
        """
        if name not in (names := (*self.graph.outputs, *self.graph.taps)):
            raise InputError(
                f"model '{self.graph.name}' keeps no tensor '{name}'; it has {', '.join(names)}. "
                "Name it in CompileOptions(keep=…)"
            )
        with self._lock:
            if name not in self._results:
                raise InputError(f"model '{self.graph.name}' has not run yet: there is no '{name}'")
            return HostTensor(self.graph.facts[name], self._results[name].copy())


class CpuProgram(HostProgram):
    """A graph that is ready to run in NumPy.

    With ``retain``, only nodes that depend on the given inputs run. Intermediate tensors are
    freed after their last use.
    """

    def __init__(
        self, graph: Graph, scratch: Scratch | None = None, *, retain: bool = False
    ) -> None:
        super().__init__(graph, retain)
        self._sources = sources_of(graph) if retain else {}
        self._retained_names = frozenset(boundaries(graph)) if retain else frozenset()
        #: retained values of tensors that a later run may skip
        self._retained_values: dict[str, Array] = {}
        #: True if the retained values come from a run that completed
        self._is_complete = False
        #: scratch memory and prepared weights, shared by all programs of the network
        self.scratch = Scratch({}) if scratch is None else scratch
        self._last_use = last_uses(graph, self._retained_names)
        # looked up once, so that later registrations do not change this program
        self._operators = {op: lookup(op) for op in graph.ops}
        self._functions = _prepare_nodes(graph, self.scratch)

    def without_state(self) -> CpuProgram:
        return CpuProgram(self.graph)

    def _retained(
        self, inputs: Mapping[str, Array]
    ) -> tuple[frozenset[str] | None, dict[str, Array]]:
        """Returns the names of the changed inputs, and the values that the run starts with.

        The names include the mark for variables, which change with every run. They are None if
        every node has to run.
        """
        initial = self._with_retained(inputs)
        is_complete, self._is_complete = self._is_complete and self._retains, False
        if not is_complete:
            return None, initial
        return frozenset({*inputs, VARIABLES}), {
            **self._results,
            **self._retained_values,
            **initial,
        }

    def _run(self, inputs: Mapping[str, Array], watch: Watch | None, before: Watch | None) -> None:
        with one_thread():
            self._run_nodes(inputs, watch, before)

    def _run_nodes(
        self, inputs: Mapping[str, Array], watch: Watch | None, before: Watch | None
    ) -> None:
        changed, initial = self._retained(inputs)
        values: dict[str, Array] = {**initial, **self.graph.constants, **self._state}
        for index, node in enumerate(self.graph.nodes):
            if changed is not None and self._sources[node.outputs[0]].isdisjoint(changed):
                continue
            arrays = [values[name] for name in node.reads]
            if before is not None:
                before(node, arrays)
            results = run_node(node, arrays, self._functions[index], self._operators.__getitem__)
            for name, value in zip(node.outputs, results, strict=True):
                values[name] = convert_to_fact(node, self.graph.facts[name], value)
            if watch is not None:
                watch(node, [values[name] for name in node.outputs])
            for name in self._last_use[index]:
                values.pop(name, None)  # absent if its node was skipped
        # copies: a value may be the caller's array or scratch memory that the next run overwrites
        self._state = {variable: values[value].copy() for variable, value in self.graph.updates}
        current = {**values, **self._state}  # variables have their new values after a run
        self._results = {name: np.array(values[name], order="C") for name in self.graph.outputs}
        self._results |= {
            name: np.array(current[source], order="C") for name, source in self.graph.taps.items()
        }
        self._retained_values |= {
            name: np.array(values[name])
            for name in self._retained_names
            if values[name] is not self._retained_values.get(name)
        }
        self._is_complete = True


def _prepare_nodes(graph: Graph, scratch: Scratch) -> list[Cpu | None]:
    """Returns for each node the CPU function that its operator prepared for the node's
    constants, or None."""
    functions: list[Cpu | None] = []
    for node in graph.nodes:
        prepare = lookup(node.op).prepare
        facts = graph.facts_of(node.inputs)
        values = [graph.constant(n) for n in node.inputs]
        functions.append(_prepare(node, prepare, facts, values, scratch) if prepare else None)
    return functions


def _prepare(
    node: Node, prepare: Prepare, facts: list[Fact], values: list[Array | None], scratch: Scratch
) -> Cpu | None:
    with calling(lookup(node.op).is_custom, "prepare", node_fault(node)):
        function: object = prepare(node.attrs, facts, values, scratch)
    if function is not None and not callable(function):
        message = f"{node.title}: its prepare function gave {function!r}; wanted a function or None"
        raise OperatorError(message, node.source)
    return function


def last_uses(graph: Graph, retained: Collection[str]) -> list[list[str]]:
    """Returns for each node the computed tensors that can be freed after it, because no later node
    reads them.

    Outputs and the ``retained`` tensors are never freed.
    """
    last = {name: i for i, node in enumerate(graph.nodes) for name in (*node.outputs, *node.reads)}
    uses: list[list[str]] = [[] for _ in graph.nodes]
    never_freed = {*graph.roots, *graph.constants, *graph.inputs, *retained}
    for name, index in last.items():
        if name not in never_freed:
            uses[index].append(name)
    return uses
