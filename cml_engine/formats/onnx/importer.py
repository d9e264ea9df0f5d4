"""The importer: turns an ONNX model into a :class:`Graph`, node by node, by the table of operators.

Nodes whose inputs are known are evaluated at import, in int64 for integers. Arithmetic on shapes
therefore leaves no nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import prod
from typing import NamedTuple

import numpy as np

from cml_engine.errors import CmlError, ModelError, ShapeError, Source, UnsupportedOp
from cml_engine.errors.arguments import check_known_names, similar_names
from cml_engine.formats.builder import registered_declarations
from cml_engine.formats.onnx import counted_rules, operators  # noqa: F401  # registers them
from cml_engine.formats.onnx.counted_statements import check_statement
from cml_engine.formats.onnx.inputs import bind_inputs, input_dtype
from cml_engine.formats.onnx.model import (
    OnnxFunction,
    OnnxGraph,
    OnnxModelFile,
    OnnxNode,
    Reference,
    ValueInfo,
)
from cml_engine.formats.onnx.op_schemas import (
    FIRST_OPSET,
    LAST_OPSET,
    OnnxCall,
    all_schemas,
    find_schema,
    find_schemas,
)
from cml_engine.formats.onnx.placeholders import Placeholders
from cml_engine.formats.onnx.qdq_reader import QdqReader
from cml_engine.formats.onnx.ranges import INPUT_BITS, of_input
from cml_engine.formats.onnx.report import ImportReport
from cml_engine.formats.onnx.tensors import OnnxTensor
from cml_engine.formats.onnx.values import (
    MAX_FOLDED,
    NOTHING,
    Emitter,
    InvalidNode,
    Value,
    has_nothing,
)
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.dependencies import Dependencies, outputs_advice
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph, Shapes
from cml_engine.ir.single_value import is_single_value

#: Microseconds to import an operator that a loop or a function repeats.
_NODE_STEPS = 100
#: The deepest nesting of functions.
MAX_DEPTH = 64


@dataclass(frozen=True)
class GraphScope:
    """The values of the names that a node can read, in its graph and in the graphs around it."""

    values: dict[str, Value]
    opsets: Mapping[str, int]
    outer: GraphScope | None = None
    prefix: str = ""
    chain: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """The name of the function whose nodes these are; "" for those of the model itself."""
        return next(filter(None, reversed(self.chain)), "")

    def find(self, name: str) -> Value | None:
        if name in self.values or self.outer is None:
            return self.values.get(name)
        return self.outer.find(name)


class Importer:
    """One import of an ONNX model to a graph.

    ``inputs`` are initializers that become inputs. With a ``reading`` a quantized model is imported
    as an integer network. With ``placeholders`` unknown operators become declarations instead of an
    error. ``bits`` are those of the magnitudes of integer inputs, by name, where a run must not
    give larger ones.
    """

    def __init__(
        self,
        model: OnnxModelFile,
        inputs: Sequence[str] = (),
        placeholders: bool = False,
        reading: QdqReader | None = None,
        bits: Mapping[str, int] | None = None,
    ) -> None:
        self._model, self._inputs, self._reading = model, inputs, reading
        self._bits = bits or {}
        self._with_placeholders = placeholders
        self._placeholders = Placeholders((), {})
        self.emit = Emitter(is_integer=reading is not None)
        self._needed_cache: dict[tuple[int, tuple[str, ...]], _NeededNodes] = {}
        self._initializers: dict[int, Value] = {}
        self.report = ImportReport()
        #: nodes of the model's graph: the one that is being imported, or all that cannot be
        self._failing: Sequence[OnnxNode] = []
        #: the inputs' shapes, once they are bound, if the caller has given any
        self._given_shapes: Mapping[str, Sequence[int]] = {}

    def graph(self, shapes: Shapes, constants: Mapping[str, Array], name: str) -> Graph:
        try:
            with self.emit.under_way():
                return self._graph(shapes, constants, name)
        except UnsupportedOp as error:
            if self._reading is None:  # otherwise the model is imported again, in floats
                error.message += outputs_advice(self._unaffected_outputs())
            raise
        except ShapeError as error:
            if self._given_shapes and NOTHING not in error.message:
                first = islice(self._given_shapes.items(), 4)
                texts = ", ".join(f"{name}={list(shape)}" for name, shape in first)
                error.message += f". Give other shapes than {texts}, or export the model again"
            raise

    def _unaffected_outputs(self) -> list[str]:
        """Returns the outputs that need none of the nodes that cannot be imported, if any."""
        if not self._failing:
            return []
        ids, nodes = set(map(id, self._failing)), self._model.graph.nodes
        failed = [number for number, node in enumerate(nodes) if id(node) in ids]
        return dependencies(nodes).unaffected(self._model.graph.output_names, failed)

    def _graph(self, shapes: Shapes, constants: Mapping[str, Array], name: str) -> Graph:
        model, graph = self._model, self._model.graph
        if not self._with_placeholders:
            self._check_operators()
        if not graph.outputs:
            raise ModelError(f"'{model.file}' has no outputs: wanted one or more, export it again")
        _check_size(model)
        given = {*self._inputs, *shapes, *constants}
        inputs = [
            _with_shape(info, graph, shapes)
            for info in graph.inputs
            if info.name in given or info.name not in graph.initializers
        ]
        self.emit.builder.reserve([info.name for info in (*inputs, *graph.outputs)])
        unreadable = {info.name for info in inputs if input_dtype(info) is None}
        readers = (node for node in graph.nodes if unreadable.intersection(_reads(node)))
        self._failing = list(readers) if unreadable else []
        values = bind_inputs(inputs, shapes, constants, self.emit.builder, model.file)
        self._given_shapes = {name: v.shape for name, v in values.items() if shapes}
        for info in inputs:
            bits = self._bits.get(info.name, INPUT_BITS[0])
            self.emit.intervals[info.name] = of_input(values[info.name].dtype, bits)
        symbols = {
            dim: extent
            for info in inputs
            for dim, extent in zip(info.shape or (), values[info.name].shape, strict=False)
            if isinstance(dim, str)
        }
        self._placeholders = Placeholders((*graph.infos, *graph.outputs), symbols)
        results = self.body(graph, GraphScope(values, model.opsets))
        if self._reading is not None:
            self._reading.check_outputs(results, graph.output_names)
        outputs = dict(zip(graph.output_names, results, strict=True))
        if len(outputs) < len(graph.outputs):
            names = graph.output_names
            repeated = next(name for name in names if names.count(name) > 1)
            raise ModelError(
                f"'{model.file}': two outputs are named '{repeated}'. Export it once, or a "
                "copy of it under another name (in PyTorch: return x, x.clone())"
            )
        bound = {info.name for info in inputs}
        optional = frozenset(info.name for info in graph.inputs) - bound
        is_unsigned = {name for name, value in values.items() if value.dtype == np.uint32}
        tensors = [name for name in self.emit.builder.inputs if name in is_unsigned | {*self._bits}]
        ranges = {name: self.emit.intervals.of(name) for name in tensors}
        limits = [
            f"  input '{name}' accepts integers from {ranges[name]}: for those all integers fit"
            for name in self._bits
        ]
        notes = (*self.report.lines(model, optional), *limits, *self._placeholders.comments)
        input_ranges = {name: (int(i.low), int(i.high)) for name, i in ranges.items()}
        defaults = self._defaults(values)
        return self.emit.graph(name, outputs).with_(
            notes=notes, input_ranges=input_ranges, optional=optional, defaults=defaults
        )

    def _defaults(self, inputs: Mapping[str, Value]) -> dict[str, Array]:
        """Returns the values of initializers that became inputs, by name.

        A value that does not fit the input is left out, so that each run has to give one.
        """
        defaults: dict[str, Array] = {}
        for name, tensor in self._model.graph.initializers.items():
            value = inputs.get(name)
            if value is None or value.array is not None or tensor.shape != value.shape:
                continue
            array, dtype = tensor.values(), NUMPY_DTYPE[value.kind]
            with np.errstate(over="ignore"):
                converted = array.astype(dtype)
            if dtype.kind != "i" or np.array_equal(converted, array):
                defaults[name] = converted
        return defaults

    # -- graphs ---------------------------------------------------------------------------------

    def body(self, graph: OnnxGraph, scope: GraphScope) -> list[Value]:
        """Imports the nodes of ``graph`` that its outputs need, and returns the outputs' values.

        ``scope`` has the values of the graph's inputs; the nodes' results are added to it.
        """
        needed = self._needed_nodes(graph.nodes, graph.output_names)
        for name in sorted(needed.names):
            if name in graph.initializers and name not in scope.values:
                scope.values[name] = self._initializer(name, graph.initializers[name])
        for node in needed.nodes:
            if graph is self._model.graph:
                self._failing = [node]
            self._node(node, needed.names, scope)
        if graph is self._model.graph:
            self._failing = []
        return [self._find(name, scope, "the graph's output") for name in graph.output_names]

    def _inner(
        self, scope: GraphScope, graph: OnnxGraph, inputs: Sequence[Value], prefix: str
    ) -> list[Value]:
        """Imports a graph that is an attribute of a node, and returns the values of its outputs.

        ``inputs`` are the values of its inputs; an If gives none. It can also read the names of
        ``scope``, around the node.
        """
        source, base = self.emit.source, self.emit.base
        if len(scope.chain) > MAX_DEPTH:
            raise ModelError(f"graphs nest more than {MAX_DEPTH} deep")
        chain = (*scope.chain, "")
        names = [info.name for info in graph.inputs] if inputs else []
        values = dict(zip(names, inputs, strict=True))
        inner = GraphScope(values, scope.opsets, scope, f"{base}_{prefix}", chain)
        try:
            return self.body(graph, inner)
        finally:
            self.emit.at(source, base)

    def _initializer(self, name: str, tensor: OnnxTensor) -> Value:
        """Returns an initializer's value.

        It is decoded once, even if a loop reads it repeatedly.
        """
        if id(tensor) not in self._initializers:
            self._initializers[id(tensor)] = Value.known(tensor.values(), name)
        return self._initializers[id(tensor)]

    def _needed_nodes(self, nodes: Sequence[OnnxNode], outputs: tuple[str, ...]) -> _NeededNodes:
        """Returns the nodes that the wanted names depend on; the result is cached.

        Bodies of loops and functions are imported repeatedly.
        """
        key = id(nodes), outputs
        if key not in self._needed_cache:
            self._needed_cache[key] = _NeededNodes(nodes, outputs, self._model.file)
        return self._needed_cache[key]

    def _node(self, node: OnnxNode, needed_names: set[str], scope: GraphScope) -> None:
        base = node.name or next((name for name in node.outputs if name), node.op)
        title = f"{node.title}{self._where(node, scope)}"
        source = Source(f"{self._model.file}: {title}")
        current_budget().charge_nodes(1, "the operator", source)
        if scope.chain:
            current_budget().charge_steps(_NODE_STEPS, "an operator of a loop or function", source)
        self.emit.at(source, scope.prefix + base)
        inputs = [
            self._find(name, scope, f"{title}: its input") if name else None for name in node.inputs
        ]
        results = self._results(node, inputs, needed_names, scope, source)
        for name, value in zip(node.outputs, results, strict=False):
            if not name or value is None:
                continue
            if name in scope.values:
                raise ModelError(f"'{name}' is made twice: export the model again", source)
            scope.values[name] = value
            if value.array is not None and value.array.base is None:
                current_budget().charge_bytes(value.array.nbytes, "its result", source)
            if value.tensor is not None and value.array is None:
                self.emit.set_name(value.tensor, scope.prefix + base)

    def _where(self, node: OnnxNode, scope: GraphScope) -> str:
        """Returns the function of a node, and its opset if that is not the model's; for errors."""
        if not scope.function:
            return ""
        opset = scope.opsets.get(node.domain)
        is_own = opset is not None and opset != self._model.opsets.get(node.domain)
        version = f" of opset {opset}" if is_own else ""
        return f"{version} in function '{scope.function}'"

    def _results(
        self,
        node: OnnxNode,
        inputs: Sequence[Value | None],
        needed_names: set[str],
        scope: GraphScope,
        source: Source,
    ) -> Sequence[Value | None]:
        opset = _opset_of(node, scope.opsets, self._model.file, scope.function)
        schema = find_schema(node.domain, node.op, opset)
        if self._reading is not None and (schema is None or schema.runs_graphs):
            self._reading.check(inputs, source)
        function = self._model.functions.get((node.domain, node.op, node.overload))
        if schema is None and function is not None:
            return self._inline(node, function, inputs, scope)
        with self._located(source, inputs):
            check_statement(node.op, node.domain, inputs)
        self.report.nodes += 1
        if schema is None and node.op in registered_declarations():
            return self._custom(node, inputs)
        if schema is None and self._with_placeholders:
            return self._placeholder(node, inputs)
        if schema is None:
            raise _unsupported_error([_Unknown(node, opset, scope.function)], self._model.file)
        with self._located(source, inputs):
            is_output_needed = [name in needed_names for name in node.outputs]
            inner = partial(self._inner, scope)
            call = OnnxCall(node, schema, opset, inputs, is_output_needed, inner)
            if schema.runs_graphs:
                return call.convert()
            integer_results = self._reading.results(call) if self._reading else None
            return self._convert(call) if integer_results is None else integer_results

    def _custom(self, node: OnnxNode, inputs: Sequence[Value | None]) -> Sequence[Value | None]:
        """Imports a node as the operator of its name that the game declares; returns its results.

        The node's domain does not matter.
        """
        operands = [value for value in inputs if value is not None]
        if len(operands) < len(inputs):
            raise ModelError("a game's own operator wants all its inputs", self.emit.source)
        return self.emit.custom(node.op, operands, len(node.outputs), node.attributes)

    def _placeholder(
        self, node: OnnxNode, inputs: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        self.report.add(self.report.unknown, node)
        with self._located(self.emit.source, inputs):
            op, attrs, facts = self._placeholders.declare(node, inputs)
        declaration = self._placeholders.declarations[op]
        return self.emit.placeholder(op, declaration, inputs, attrs, facts)

    def _convert(self, call: OnnxCall) -> Sequence[Value | None]:
        """Adds the operators of a node; those of known values are computed instead."""
        report = self.report
        is_large = call.schema.fold is None or _grows(call.inputs)
        if not is_large and (known_result := call.fold()) is not None:
            report.add(report.folded, call.node)
            return [known_result]
        mark = self.emit.mark()
        values = call.convert()
        n_operators = self.emit.mark() - mark
        if n_operators != 1:
            report.add(report.composed if n_operators else report.folded, call.node)
        report.check_widths(call, self.emit, values, mark)
        return values

    def _check_operators(self) -> None:
        """Raises one error that lists all operators that are neither supported nor the game's."""
        model, search = self._model, _UnknownOperators(self._model)
        needed = _NeededNodes(model.graph.nodes, model.graph.output_names, model.file).nodes
        self._failing = [node for node in needed if search.add(node, model.opsets)]
        if self._failing:
            raise _unsupported_error(search.found, model.file)

    # -- functions ------------------------------------------------------------------------------

    def _inline(
        self,
        node: OnnxNode,
        function: OnnxFunction,
        inputs: Sequence[Value | None],
        scope: GraphScope,
    ) -> list[Value | None]:
        """Imports a local function's nodes in place of ``node``, which calls it.

        Returns the values of the function's outputs.
        """
        chain = (*scope.chain, node.qualified)
        if node.qualified in scope.chain or len(chain) > MAX_DEPTH:
            raise ModelError(f"functions call each other without end: {' -> '.join(chain[:8])}")
        if len(inputs) > len(function.inputs):
            raise ModelError(
                f"{len(inputs)} inputs, the function takes {len(function.inputs)}: export the "
                "model again",
                self.emit.source,
            )
        self.report.inlined += 1
        values = {
            name: value
            for name, value in zip(function.inputs, inputs, strict=False)
            if value is not None
        }
        attributes = {**function.defaults, **node.attributes}
        missing = set(function.inputs) - set(values)
        prefix = f"{scope.prefix}{node.name}_" if node.name else scope.prefix
        opsets = function.opsets or scope.opsets
        inner = GraphScope(values, opsets, None, prefix, chain)
        output_names = function.outputs[: len(node.outputs)]
        needed = self._needed_nodes(function.nodes, output_names)
        for inner_node in needed.nodes:
            kept = tuple("" if name in missing else name for name in inner_node.inputs)
            bound = _bind_attributes(replace(inner_node, inputs=kept), attributes)
            self._node(bound, needed.names, inner)
        return [inner.find(name) for name in output_names]

    @contextmanager
    def _located(self, source: Source | None, inputs: Sequence[Value | None]) -> Iterator[None]:
        """Turns every error of a node's conversion into one of the engine that names the node."""
        try:
            yield
        except CmlError as error:
            if error.source is None:
                raise type(error)(error.message, source) from error
            raise
        except InvalidNode as error:
            problem = ": the model is not right, export it again"
            if has_nothing(inputs):
                problem = f": {NOTHING}"
            elif self._given_shapes:
                problem = ""  # what to do about the shapes is added to every error of shapes
            raise ShapeError(f"{error}{problem}", source) from None
        except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError) as e:
            input_types = ", ".join("nothing" if v is None else str(v) for v in inputs)
            reason: object = NOTHING if has_nothing(inputs) else e
            raise ModelError(f"cannot take inputs ({input_types}): {reason}", source) from e
        except MemoryError as e:
            raise ModelError("not enough memory for its result", source) from e

    def _find(self, name: str, scope: GraphScope, reader: str) -> Value:
        value = scope.find(name)
        if value is None:
            raise ModelError(
                f"'{self._model.file}': {reader} '{name}' comes from no node and is no input of "
                "the graph: the model is damaged, export it again"
            )
        return value


def _with_shape(info: ValueInfo, graph: OnnxGraph, shapes: Shapes) -> ValueInfo:
    """Returns the declaration of an input, with its initializer's shape if no other is given."""
    tensor = graph.initializers.get(info.name)
    return info if tensor is None or info.name in shapes else replace(info, shape=tensor.shape)


# -- which nodes ---------------------------------------------------------------------------------


class _NeededNodes:
    """The nodes that a set of outputs depends on, in an order in which they can run.

    ``nodes`` keeps the order of the file where that is possible. ``names`` are the wanted outputs
    and all names that the nodes read. Raises :class:`ModelError` if the nodes form a cycle or make
    a needed name twice.
    """

    def __init__(self, nodes: Sequence[OnnxNode], output_names: Sequence[str], file: str) -> None:
        steps = dependencies(nodes)
        needed = steps.needed(output_names)
        self.names = set(output_names).union(*map(steps.reads, needed))
        for name in sorted(self.names):
            if len(makers := steps.writers(name)) > 1:
                titles = " and ".join(nodes[number].title for number in makers[:2])
                raise ModelError(
                    f"'{file}': '{name}' is made twice, by {titles}: export the model again"
                )
        self.nodes = [nodes[number] for number in _sorted(needed, steps, nodes, file)]
        self._keeps_the_id = nodes


def dependencies(nodes: Sequence[OnnxNode]) -> Dependencies:
    return Dependencies((_reads(node), filter(None, node.outputs)) for node in nodes)


def _sorted(
    numbers: Iterable[int], steps: Dependencies, nodes: Sequence[OnnxNode], file: str
) -> list[int]:
    """Returns the numbers of nodes so that each comes after those whose results it reads."""

    def earlier_nodes(number: int) -> Iterator[int]:
        return (n for name in steps.reads(number) for n in steps.writers(name))

    done = dict[int, None]()
    for first in sorted(numbers):
        path = {first: earlier_nodes(first)} if first not in done else {}
        while path:
            number = next(reversed(path))
            earlier = next((n for n in path[number] if n not in done), None)
            if earlier is None:
                del path[number]
                done[number] = None
            elif earlier in path:
                on_path = list(path)
                cycle = [nodes[n].title for n in on_path[on_path.index(earlier) :]]
                raise ModelError(
                    f"'{file}': nodes form a cycle, in which each reads a result of the next: "
                    f"{', '.join(cycle[:_NAMED])}{', …' if len(cycle) > _NAMED else ''}. No order "
                    "runs them: export the model again"
                )
            else:
                path[earlier] = earlier_nodes(earlier)
    return list(done)


#: The nodes of a cycle that a message names.
_NAMED = 8


def _reads(node: OnnxNode) -> Iterator[str]:
    """Yields every name that a node reads, including names that graphs in its attributes read.

    Names that such a graph defines itself are left out.
    """
    yield from filter(None, node.inputs)
    for graph in _graphs(node):
        defined = {name for inner in graph.nodes for name in inner.outputs}
        defined.update(graph.initializers, (info.name for info in graph.inputs))
        for inner in graph.nodes:
            yield from (name for name in _reads(inner) if name not in defined)
        yield from (info.name for info in graph.outputs if info.name not in defined)


def _graphs(node: OnnxNode) -> Iterator[OnnxGraph]:
    for value in node.attributes.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, OnnxGraph):
                yield item


def _bind_attributes(node: OnnxNode, attributes: Mapping[str, object]) -> OnnxNode:
    """Returns a copy of a function's node with references replaced by the call's attributes.

    A reference to an attribute that the call lacks is left out.
    """
    bound: dict[str, object] = {}
    for name, value in node.attributes.items():
        if isinstance(value, Reference):
            if value.name in attributes:
                bound[name] = attributes[value.name]
        elif isinstance(value, OnnxGraph):
            inner = tuple(_bind_attributes(n, attributes) for n in value.nodes)
            bound[name] = replace(value, nodes=inner)
        else:
            bound[name] = value
    return replace(node, attributes=bound)


# -- what cannot be imported ---------------------------------------------------------------------


def _opset_of(node: OnnxNode, opsets: Mapping[str, int], file: str, function: str) -> int:
    """Returns the version of a node's domain; a domain other than ONNX's may lack one, and has 1.

    ``opsets`` are those of the file, or of ``function``, whose node it is ("" for none). Raises an
    error for an operator of ONNX's own whose version is missing or unsupported.
    """
    opset = opsets.get(node.domain)
    if node.domain:
        return 1 if opset is None else opset
    subject = f"'{file}': function '{function}'" if function else f"'{file}'"
    if opset is None:
        raise ModelError(
            f"{subject} imports no opset of ONNX's own operators, so that {node.title} may have "
            "several meanings: export it again"
        )
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise UnsupportedOp(
            f"{subject} is of opset {opset}, wanted {FIRST_OPSET} to {LAST_OPSET}: export it with "
            "another opset_version"
        )
    return opset


def _check_size(model: OnnxModelFile) -> None:
    """Raises :class:`OverBudget` if the model would have too many nodes with its functions inlined.

    The check runs before inlining: functions that call each other twice double at every level.
    """
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Sequence[OnnxNode]) -> int:
        return sum(1 + of_call(node) + of_graphs(node) for node in nodes)

    def of_graphs(node: OnnxNode) -> int:
        return max((size(graph.nodes) for graph in _graphs(node)), default=0)

    def of_call(node: OnnxNode) -> int:
        key = (node.domain, node.op, node.overload)
        function = model.functions.get(key)
        if function is not None and key not in sizes:
            sizes[key] = 0  # recursive functions are refused later
            sizes[key] = size(_NeededNodes(function.nodes, function.outputs, model.file).nodes)
        return sizes.get(key, 0)

    node_count = size(_NeededNodes(model.graph.nodes, model.graph.output_names, model.file).nodes)
    if sizes:
        current_budget().check_nodes(node_count, f"'{model.file}', with its functions written out,")


def choose_outputs(model: OnnxModelFile, names: Sequence[str]) -> OnnxModelFile:
    """Returns the model with these outputs and with what they need, and nothing else.

    An output may be the result of any node of the graph. Raises :class:`InputError` for another
    name.
    """
    graph, steps = model.graph, dependencies(model.graph.nodes)
    known = {info.name: info for info in (*graph.infos, *graph.outputs)}
    allowed = dict.fromkeys((*graph.output_names, *steps.names))
    check_known_names(names, allowed, f"'{model.file}' has no tensor", "outputs")
    numbers = steps.needed(names)
    read = set(names).union(*map(steps.reads, numbers))
    chosen = replace(
        graph,
        nodes=tuple(graph.nodes[number] for number in sorted(numbers)),
        inputs=tuple(info for info in graph.inputs if info.name in read),
        outputs=tuple(known.get(name, ValueInfo(name)) for name in names),
    )
    return replace(model, graph=chosen)


class _Unknown(NamedTuple):
    """A node whose operator is unknown, and the function whose node it is; "" for none."""

    node: OnnxNode
    opset: int
    function: str


class _UnknownOperators:
    """The nodes whose operators are neither supported nor the game's.

    ``found`` lists them in the order in which they were added.
    """

    def __init__(self, model: OnnxModelFile) -> None:
        self._model = model
        self._functions: dict[tuple[str, str, str], bool] = {}
        self.found: list[_Unknown] = []

    def add(self, node: OnnxNode, opsets: Mapping[str, int], inside: str = "") -> bool:
        """Returns True if a node, a graph in it or the function that it calls has such a node.

        ``inside`` is the function whose node it is. Nodes of a function are listed once.
        """
        opset = _opset_of(node, opsets, self._model.file, inside)
        key = (node.domain, node.op, node.overload)
        function, is_unknown = self._model.functions.get(key), False
        if find_schema(node.domain, node.op, opset) is None:
            if function is None:
                is_unknown = node.op not in registered_declarations()
                self.found += [_Unknown(node, opset, inside)] if is_unknown else []
            elif key not in self._functions:
                self._functions[key] = False  # functions that call each other are refused later
                inner_opsets = function.opsets or opsets
                self._functions[key] = self._add_all(
                    function.nodes, function.outputs, inner_opsets, node.qualified
                )
            is_unknown = is_unknown or self._functions.get(key, False)
        for graph in _graphs(node):
            output_names = graph.output_names
            is_unknown = self._add_all(graph.nodes, output_names, opsets, inside) or is_unknown
        return is_unknown

    def _add_all(
        self,
        nodes: Sequence[OnnxNode],
        output_names: Sequence[str],
        opsets: Mapping[str, int],
        inside: str,
    ) -> bool:
        needed = _NeededNodes(nodes, output_names, self._model.file).nodes
        return sum(self.add(node, opsets, inside) for node in needed) > 0  # adds every one


def _unsupported_error(missing: Sequence[_Unknown], file: str) -> UnsupportedOp:
    counts = Counter((unknown.node.qualified, unknown.opset) for unknown in missing)
    first = {(unknown.node.qualified, unknown.opset): unknown for unknown in reversed(missing)}
    lines = [_line(first[key], count) for key, count in counts.items()]
    summary = "an operator" if len(lines) == 1 else f"{len(lines)} operators"
    return UnsupportedOp(
        f"'{file}' has {summary} that cannot be imported ('cml docs onnx_operators' lists all):\n"
        + "\n".join(lines)
        + "\n  bring your own (--ops FILE.py), or look at the rest: cml convert --placeholders"
    )


#: the least similarity of a suggested name; names that only share a long word are below it
_NEAR = 0.85


def _line(unknown: _Unknown, count: int) -> str:
    node, opset, function = unknown
    name = node.name or next(iter(node.outputs), "")
    times = f"{count} nodes, first '{name}'" if count > 1 else f"'{name}'"
    times += f" in function '{function}'" if function else ""
    line = f"  {node.qualified} (opset {opset}): {times}"
    if rows := find_schemas(node.domain, node.op):
        return f"{line}; known in opsets {', '.join(row.opsets for row in rows)}"
    qualified_names = {row.name: row.qualified for row in reversed(all_schemas())}
    for similar in similar_names(node.op, qualified_names, cutoff=_NEAR):
        line += f"; did you mean {qualified_names[similar]}?"
    if node.domain:
        line += f"; if '{node.op}' is an operator of your own, register it (--ops FILE.py)"
    return line


#: the most elements of a single value from which a result is computed at import
_MAX_FOLDED_SINGLE = 1 << 20


def _grows(inputs: Sequence[Value | None]) -> bool:
    """Returns True if the result is too large to be computed at import.

    It is too large if the inputs broadcast to a tensor larger than the limit and than each input,
    or if one is a single value that is larger than the limit for these.
    """
    operands = [v for v in inputs if v is not None]
    if any(
        v.size > _MAX_FOLDED_SINGLE and v.array is not None and is_single_value(v.array)
        for v in operands
    ):
        return True
    try:
        shape = np.broadcast_shapes(*(v.shape for v in operands))
    except ValueError:  # not elementwise, or its form raises the error
        return False
    return prod(shape) > max(MAX_FOLDED, *(v.size for v in operands))
