"""The graph under construction of an ONNX import: adds NNEF operators for values."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cml_engine.errors import ModelError, ShapeError, Source, TensorFileError, UnsupportedOp
from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.format import Engine
from cml_engine.formats.onnx.ranges.bounds import Intervals
from cml_engine.formats.onnx.ranges.interval import INT32, of_array
from cml_engine.formats.onnx.values import Value
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.graph import NUMPY_DTYPE, Array, AttrValue, Fact, Graph, Node
from cml_engine.nnef.expansion.compose import expression
from cml_engine.nnef.expansion.signatures import BindError, Param, coerce, declared_signature
from cml_engine.nnef.expansion.values import describe
from cml_engine.nnef.text.printer import print_expression


def clean(name: str) -> str:
    """Returns a name with ``_`` in place of all characters that an identifier cannot have."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")


class Emitter:
    """A graph under construction during an ONNX import.

    ``base`` is the name stem of the tensors of the nodes that are added next.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.builder = ImportBuilder(engine.infer)
        self.intervals = Intervals(self.builder)
        self.base = "t"
        self._expanded: dict[tuple[object, ...], Graph] = {}
        self._names: dict[str, str] = {}
        self._extra: dict[str, Value] = {}
        self._found: dict[str, tuple[int, Value]] = {}
        self.declarations: dict[str, str] = {}

    @property
    def source(self) -> Source | None:
        return self.builder.source

    def at(self, source: Source | None, base: str) -> None:
        """Sets the source and the name stem of the nodes that are added next."""
        self.builder.source = source
        self.base = clean(base) or "t"

    # -- operands -------------------------------------------------------------------------------

    def value(self, x: Value | float | int | bool) -> Value:
        """Returns a number as a known value: float32 for a float, int64 for an int, or a logical.

        A value is returned unchanged.
        """
        if isinstance(x, Value):
            return x
        dtype = np.bool_ if isinstance(x, bool) else np.int64 if isinstance(x, int) else np.float32
        return Value.known(np.array(x, dtype))

    def tensor(self, value: Value) -> str:
        """Returns the name of the value's tensor in the graph.

        A known value is first added as a literal or a variable.
        """
        if value.tensor is None or value.tensor not in self.builder.facts:
            assert value.array is not None
            value.tensor = self._constant(value.array, value.kind, value.name)
        return value.tensor

    def _constant(self, array: Array, kind: str, name: str) -> str:
        size = array.size * NUMPY_DTYPE[kind].itemsize
        current_budget().check_bytes(size, f"the constant '{name or self.base}'", self.source)
        if kind == "integer" and array.size and array.dtype.itemsize >= 4:
            bounds = of_array(array)
            if not bounds.within(INT32):
                raise _too_large_error(bounds.low, bounds.high, self.source)
        if array.dtype == np.float64:
            # the limits of float64 mean "no limit", as infinity does
            kept = array[np.abs(array) < np.finfo(np.float64).max]
            if kept.size and np.abs(kept).max() > np.finfo(np.float32).max:
                raise _too_large_error(kept.min(), kept.max(), self.source)
        with np.errstate(over="ignore"):
            array = array.astype(NUMPY_DTYPE[kind])
        if array.ndim == 0 and not (kind == "scalar" and np.isnan(array)):
            return self.builder.literal(array, kind)
        return self.builder.variable(clean(name) or f"{self.base}_constant", array, kind)

    # -- operators ------------------------------------------------------------------------------

    def node(
        self, op: str, inputs: Sequence[Value], results: int, attrs: Mapping[str, Any]
    ) -> list[Value]:
        names = [self.tensor(value) for value in inputs]
        wanted = [f"{self.base}_{op}"] * results
        outputs = self.builder.split_node(op, names, wanted, **attrs)
        return [Value.computed(name, self.builder.facts[name]) for name in outputs]

    def custom(
        self, op: str, inputs: Sequence[Value], results: int, attrs: Mapping[str, Any]
    ) -> list[Value]:
        """Adds an operator that the game declares and returns its results.

        Raises an error if the node's inputs, outputs or attributes do not fit the declaration.
        """
        declared = declared_signature(self._engine.declarations[op], f"<declaration of {op}>")
        known = [param.name for param in declared.attrs]
        for name in attrs:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise UnsupportedOp(f"unknown attribute '{name}': it has {listed}", self.source)
        for param in declared.attrs:
            if param.required and param.name not in attrs:
                raise ShapeError(f"attribute '{param.name}' is missing", self.source)
        if len(inputs) != len(declared.tensors) or results != len(declared.results):
            raise ShapeError(
                f"{len(inputs)} inputs and {results} outputs, wanted {declared}", self.source
            )
        attrs = {
            p.name: self._attribute(p, attrs[p.name]) for p in declared.attrs if p.name in attrs
        }
        self.declarations[op] = self._engine.declarations[op]
        names = [self.tensor(value) for value in inputs]
        wanted = [f"{self.base}_{op}"] * results
        outputs = self.builder.split_node(op, names, wanted, declared, **attrs)
        return [Value.computed(name, self.builder.facts[name]) for name in outputs]

    def placeholder(
        self,
        op: str,
        declaration: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, AttrValue],
        facts: Sequence[Fact],
    ) -> list[Value]:
        """Adds an operator that is unknown to the engine and returns its results.

        ``declaration`` is its NNEF signature, which the graph records. ``facts`` are the types
        and shapes of its results.
        """
        self.declarations[op] = declaration
        names = [self.tensor(value) for value in inputs if value is not None]
        outputs = self.builder.unknown_node(op, names, f"{self.base}_{op}", attrs, facts)
        return [Value.computed(name, self.builder.facts[name]) for name in outputs]

    def _attribute(self, param: Param, value: Any) -> Any:
        """Returns an ONNX attribute converted to its declared type.

        ONNX has 0 and 1 for logical values.
        """
        if str(param.type) == "logical" and value in (0, 1):
            return bool(value)
        try:
            return coerce(param.type, value, None)
        except BindError:
            wanted, got = param.type, describe(value)
            message = f"attribute '{param.name}' wants {wanted}, got {got}"
            raise ModelError(message, self.source) from None

    def has(self, op: str) -> bool:
        """Returns True if the game declares an operator of that name."""
        return op in self._engine.declarations

    def fragment(
        self, op: str, inputs: Sequence[Value], results: int, attrs: Mapping[str, Any]
    ) -> list[Value]:
        """Adds the operators that a compound operator expands to and returns its results."""
        names = [self.tensor(value) for value in inputs]
        facts = tuple(self.builder.facts[name] for name in names)
        text = _call_text(op, facts, results, attrs)
        graph = self._expanded.get((text,))
        if graph is None:
            graph = self._expanded[(text,)] = self._engine.expand(text)
        outputs = self.builder.splice(graph, names, self.base)
        return [Value.computed(name, self.builder.facts[name]) for name in outputs]

    # -- folding --------------------------------------------------------------------------------

    def mark(self) -> int:
        """Returns the number of nodes so far.

        :meth:`evaluate` takes it as the index of the first node.
        """
        return len(self.builder.nodes)

    def evaluate(self, values: Sequence[Value | None], mark: int) -> list[Value | None]:
        """Runs and removes the nodes added since the mark; returns the values with their arrays.

        An entry that is None or already known is returned unchanged.
        """
        nodes = self.builder.nodes[mark:]
        del self.builder.nodes[mark:]
        self.intervals.forget(mark)
        arrays = ChainMap[str, Array]({}, self.builder.constants)
        for node in nodes:
            size = sum(self.builder.facts[name].size for name in node.outputs)
            current_budget().check_bytes(4 * size, "its result", self.source)
            results = self._engine.run(node, [arrays[name] for name in node.inputs])
            arrays.update(zip(node.outputs, results, strict=True))
        for node in nodes:
            for name in node.outputs:
                del self.builder.facts[name]
        return [
            v
            if v is None or v.array is not None
            else Value.known(arrays[v.tensor or ""].astype(v.dtype))
            for v in values
        ]

    def origins(self, value: Value) -> tuple[str, ...]:
        """Returns the names of the graph's inputs from which a value is computed, in order."""
        wanted = {value.tensor}
        for node in reversed(self.builder.nodes):
            if not wanted.isdisjoint(node.outputs):
                wanted.update(node.inputs)
        return tuple(name for name in self.builder.inputs if name in wanted)

    # -- the end --------------------------------------------------------------------------------

    def call(self, tensor: str, wanted: str) -> None:
        """Records the name that a node's result gets in the finished graph.

        Inputs, and results that already have a name, keep it.
        """
        if tensor not in self._names and tensor not in self.builder.inputs:
            self._names[tensor] = self.builder.name(clean(wanted) or "t")

    def also(self, wanted: str, count: Value, result: Value, axis: int) -> None:
        """Adds the graph output ``wanted``: ``count``, the number of valid elements of a result.

        The result has a fixed size, of which the first ``count`` elements along ``axis`` are valid.
        """
        self._extra[self.builder.name(clean(wanted) or "count")] = count
        self._found[self.tensor(result)] = axis, count

    def found(self, value: Value) -> tuple[int, Value] | None:
        """Returns the axis along which a value is valid only in part, and how far it is valid.

        The second item is the number of valid elements, a value that is computed at run time.

        Returns None if the whole value is valid.
        """
        if not self._found or value.tensor is None:
            return None
        axes = {name: axis for name, (axis, _) in self._found.items()}
        counts = {name: count for name, (_, count) in self._found.items()}
        for node in self.builder.nodes:
            if node.op in _KEEP_AXES and node.inputs[0] in axes:
                (source, *_), (name, *_) = node.inputs, node.outputs
                axis = axes[source]
                axes[name] = node.attrs.axes.index(axis) if node.op == "transpose" else axis
                counts[name] = counts[source]
        return (axes[value.tensor], counts[value.tensor]) if value.tensor in axes else None

    def graph(self, name: str, outputs: Mapping[str, Value]) -> Graph:
        """Returns the finished graph with the given outputs, by name, then those of :meth:`also`.

        Nodes and constants that no output needs are left out.
        """
        builder = self.builder
        outputs = {**outputs, **self._extra}
        computed = {out for node in builder.nodes for out in node.outputs}
        exact: dict[str, str] = {}
        for output, value in outputs.items():
            tensor = self.tensor(value)
            is_input = tensor == output and tensor in builder.inputs
            if not is_input and (tensor not in computed or tensor in exact):
                builder.source = None
                tensor = builder.node("copy", [tensor], output)
            exact[tensor] = output
        builder.rename_all({**self._names, **exact})
        made = builder.any_graph(name or "graph", list(exact.values()))
        return _prune(made).with_(declarations=self.declarations)


def _too_large_error(low: float, high: float, source: Source | None) -> TensorFileError:
    return TensorFileError(
        f"a constant has values from {low} to {high}, and the network computes with 32 bits: "
        "give it values that fit",
        source,
    )


#: operators that keep their operand's axes, possibly permuted
_KEEP_AXES = ("transpose", "cast", "copy")


def _call_text(op: str, facts: Sequence[Any], results: int, attrs: Mapping[str, Any]) -> str:
    inputs = [f"x{i}" for i in range(len(facts))]
    outputs = ", ".join(f"y{i}" for i in range(results))
    given = "".join(f", {k} = {print_expression(expression(v))}" for k, v in attrs.items())
    operands = f"[{', '.join(inputs)}]" if op in _OF_ARRAYS else ", ".join(inputs)
    lines = [
        f"{name} = external<{fact.dtype}>(shape = {list(fact.shape)});"
        for name, fact in zip(inputs, facts, strict=True)
    ]
    body = "\n".join([*lines, f"{outputs} = {op}({operands}{given});"])
    return (
        "version 1.0;\nextension KHR_enable_fragment_definitions;\n"
        f"graph g({', '.join(inputs)}) -> ({outputs})\n{{\n{body}\n}}\n"
    )


#: compound operators that take an array of tensors
_OF_ARRAYS = ("einsum", "add_n")


def _prune(graph: Graph) -> Graph:
    """Returns the graph without the nodes and constants that no output needs."""
    wanted, nodes = set(graph.outputs), list[Node]()
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs):
            nodes.append(node)
            wanted.update(node.inputs)
    kept = {*wanted, *graph.inputs, *(name for node in nodes for name in node.outputs)}

    def known(of: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in of.items() if name in kept}

    return graph.with_(
        nodes=tuple(reversed(nodes)),
        facts=known(graph.facts),
        constants=known(graph.constants),
        labels=known(graph.labels),
        sources=known(graph.sources),
    )
