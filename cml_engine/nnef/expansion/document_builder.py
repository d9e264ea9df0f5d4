"""Converts a document to a graph, with the operations allowed in a graph's body only (3.1, 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cml_engine.errors import (
    InputError,
    ModelError,
    NnefSyntaxError,
    OpenShape,
    ShapeError,
    Source,
    UnsupportedOp,
    located,
)
from cml_engine.errors.arguments import check_known_names, check_rank, resolve_shapes
from cml_engine.ir.construction import Infer
from cml_engine.ir.dependencies import Dependencies, outputs_advice
from cml_engine.ir.graph import Fact, Graph, Shapes
from cml_engine.ir.integer_rule import RULE_VERSION
from cml_engine.nnef.expansion.evaluator import Evaluator
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.nodes import Exact, Scope, Site
from cml_engine.nnef.expansion.signatures import BoundArguments
from cml_engine.nnef.expansion.values import TensorRef, Value, describe
from cml_engine.nnef.text.lexer import SourceText
from cml_engine.nnef.text.printer import print_expression
from cml_engine.nnef.text.syntax_tree import (
    ArrayExpr,
    Assignment,
    Call,
    Document,
    Expr,
    Literal,
    Name,
    assigned_names,
    expressions,
    is_flat,
)
from cml_engine.nnef.warning import warn

FRAGMENTS = "KHR_enable_fragment_definitions"
EXPRESSIONS = "KHR_enable_operator_expressions"

#: The extension that marks an integer network (docs/integer.md), followed by the rule's version.
INTEGER = "CML_integer_"
#: The extension of an integer network that may end in float operators.
FLOAT_TAIL = "CML_float_tail"

#: The prefix of tract's extensions, which are operator registries.
TRACT = "tract_"
_DATUM_TYPES = {"f": "scalar", "bf": "scalar", "i": "integer", "u": "integer", "tdim": "integer",
                "bool": "logical"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variable:
    """A ``variable`` of the graph: its type and shape and its label.

    The values are not read yet.
    """

    name: str
    fact: Fact
    label: str
    source: Source


@dataclass(frozen=True, slots=True)
class DocumentGraph:
    """A graph and its variables, which have facts and labels, but no values yet."""

    graph: Graph
    variables: tuple[Variable, ...]


def prepare(document: Document, text: SourceText, library: Library) -> None:
    """Checks a document's extensions and registers its fragments in ``library``.

    It is called once per document.
    """
    _check_extensions(document, text)
    library.add_fragments(document.fragments, text)


def choose_outputs(document: Document, names: Sequence[str], file: str) -> Document:
    """Returns the document with these outputs of its graph and with what they need.

    An output may be any tensor of the graph's body. Raises :class:`InputError` for another name.
    """
    graph, steps = document.graph, _dependencies(document.graph.body)
    inputs = {name.id for name in graph.inputs}
    assigned = [name for name in steps.names if name not in inputs]
    allowed = dict.fromkeys((*(name.id for name in graph.outputs), *assigned))
    check_known_names(names, allowed, f"'{file}' has no tensor", "outputs")
    numbers = steps.needed(names)
    read = set[str]().union(*map(steps.reads, numbers))
    positions = {name.id: name.pos for name in graph.outputs}
    chosen = replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name.id in read),
        outputs=tuple(Name(name, positions.get(name, graph.pos)) for name in names),
        body=tuple(graph.body[number] for number in sorted(numbers)),
    )
    return replace(document, graph=chosen)


def _dependencies(body: Sequence[Assignment]) -> Dependencies:
    """Returns the dependencies of a graph's assignments.

    An ``update`` also writes its variable, so that whatever reads the variable needs it. An
    ``external`` reads its own name, which is the graph's input.
    """
    return Dependencies(_step(assignment) for assignment in body)


def _step(assignment: Assignment) -> tuple[list[str], list[str]]:
    reads = _names(assignment.value)
    writes = _names(assignment.target)
    for call in expressions(assignment.value):
        if isinstance(call, Call) and call.op in _OPERATORS:
            reads += writes
        if isinstance(call, Call) and call.op == "update":
            is_named = any(argument.name == "variable" for argument in call.arguments)
            writes += (
                name
                for position, argument in enumerate(call.arguments)
                if argument.name == "variable" or (not is_named and position == 0)
                for name in _names(argument.value)
            )
    return reads, writes


def _names(tree: Expr) -> list[str]:
    return [item.id for item in expressions(tree) if isinstance(item, Name)]


class DocumentBuilder:
    """Converts one document to a graph; :meth:`build` is called once.

    It handles the statements that make no node, such as inputs and variables, and leaves all
    others to the :class:`Evaluator` and its :class:`NodeBuilder`.
    ``shapes`` replace the shapes of inputs that the text states.
    """

    def __init__(
        self,
        document: Document,
        text: SourceText,
        library: Library,
        infer: Infer | None,
        shapes: Shapes = MappingProxyType({}),
    ) -> None:
        self._document = document
        self._graph = graph = document.graph
        self._scope = Scope(text)
        self._inputs = {name.id for name in graph.inputs}
        self._externals = Externals(document, text, shapes)
        self._lowering = Evaluator(library, infer, self._externals.symbols)
        self._lowering.special |= {
            "external": self._external,
            "variable": self._variable,
            "update": self._update,
            "tract_core_external": self._tract_external,
            "tract_core_cast": self._tract_cast,
        }
        self._builder = self._lowering.builder
        self._variables: dict[str, Variable] = {}
        self._updates: dict[str, str] = {}

    def build(self) -> DocumentGraph:
        graph = self._graph
        self._check_interface()
        self._builder.reserve(assigned_names(graph.body))
        for number, assignment in enumerate(graph.body):
            try:
                self._lowering.run([assignment], self._scope)
            except UnsupportedOp as error:
                outputs = [name.id for name in graph.outputs]
                error.message += outputs_advice(
                    _dependencies(graph.body).unaffected(outputs, [number])
                )
                raise
        for name in graph.inputs:
            if name.id not in self._builder.facts:
                raise self._error(
                    NnefSyntaxError,
                    f"graph input '{name.id}' is never defined: add {name.id} = external(...)",
                    name,
                )
        for name in graph.outputs:
            self._finish_output(name)
        return DocumentGraph(self._finish(), tuple(self._variables.values()))

    def _finish(self) -> Graph:
        builder, graph = self._builder, self._graph
        return Graph(
            name=graph.name,
            inputs=tuple(name.id for name in graph.inputs),
            outputs=tuple(name.id for name in graph.outputs),
            nodes=tuple(builder.nodes),
            facts=builder.facts,
            constants=builder.constants,
            labels={v.name: v.label for v in self._variables.values()},
            updates=tuple(self._updates.items()),
            sources=builder.sources,
            integer=rule_version(self._document),
            float_tail=any(name.id == FLOAT_TAIL for name in self._document.extensions),
            declarations=self._lowering.library.used_declarations(n.op for n in builder.nodes),
        )

    def _check_interface(self) -> None:
        names: set[str] = set()
        for name in (*self._graph.inputs, *self._graph.outputs):
            if name.id in names:
                raise self._error(
                    NnefSyntaxError,
                    f"'{name.id}' stands twice among the graph's inputs and outputs",
                    name,
                )
            names.add(name.id)

    def _finish_output(self, name: Name) -> None:
        """Copies an output that is an alias or a literal into a tensor of the output's name."""
        if name.id not in self._scope.names:
            raise self._error(
                NnefSyntaxError,
                f"graph output '{name.id}' is never assigned: assign it in the graph's body",
                name,
            )
        value = self._scope.names[name.id]
        if isinstance(value, (list, tuple, str)):
            raise self._error(
                ShapeError,
                f"graph output '{name.id}' must be a tensor, got {describe(value)}",
                name,
            )
        site = Site(self._scope, name.pos)
        with located(site.source):
            ref = self._builder.tensor(value, site)
        if ref.name != name.id:
            self._builder.copy(ref, name.id, site.source)

    # -- operators that make no node ------------------------------------------------------------

    def _external(self, bound: BoundArguments, site: Site) -> Value:
        return self._input(bound.fact, site)

    def _tract_external(self, bound: BoundArguments, site: Site) -> Value:
        dtype = _datum_type(bound.values["datum_type"])
        return self._input(replace(bound, dtype=dtype).fact, site)

    def _tract_cast(self, bound: BoundArguments, site: Site) -> Value:
        value, dtype = bound.values["input"], _datum_type(bound.values["to"])
        if isinstance(value, TensorRef) and value.dtype == dtype:
            return value
        return self._lowering.operator("cast", [value], site, dtype)

    def _input(self, fact: Fact, site: Site) -> Value:
        name = self._own_name("external", site)
        if name not in self._inputs:
            raise NnefSyntaxError(
                f"external '{name}' is not among the graph's inputs: add it to graph(...)"
            )
        fact = Fact(fact.dtype, self._externals.shape(name, fact.shape, site))
        self._builder.declare(name, fact, site.source)
        return TensorRef(name, fact.dtype)

    def _variable(self, bound: BoundArguments, site: Site) -> Value:
        name = self._own_name("variable", site)
        fact = bound.fact
        self._builder.declare(name, fact, site.source)
        self._variables[name] = Variable(name, fact, bound.values["label"], site.source)
        return TensorRef(name, fact.dtype)

    def _update(self, bound: BoundArguments, site: Site) -> Value:
        self._at_graph_level("update", site)
        variable, value = bound.values["variable"], bound.values["value"]
        if not isinstance(variable, TensorRef) or variable.name not in self._variables:
            raise ShapeError(f"update wants a variable, got {describe(variable)}")
        if variable.name in self._updates:
            raise ModelError(f"variable '{variable.name}' is updated twice: update it once")
        ref = self._builder.tensor(value, site)
        facts = self._builder.facts
        expected, fact = facts[variable.name], facts.get(ref.name)
        if fact is not None and fact != expected:
            raise ShapeError(f"update of '{variable.name}' wants {expected}, got {fact}")
        self._updates[variable.name] = ref.name
        return ref

    def _own_name(self, op: str, site: Site) -> str:
        """Returns the name that an ``external`` or ``variable`` is assigned to.

        Raises an error inside a fragment, and if the name is missing or assigned twice.
        """
        self._at_graph_level(op, site)
        if not isinstance(site.target, Exact):
            raise NnefSyntaxError(f"assign {op}(...) to a name of its own")
        if site.target in self._builder.facts:
            raise NnefSyntaxError(f"'{site.target}' is assigned twice: use another name")
        return str(site.target)

    def _at_graph_level(self, op: str, site: Site) -> None:
        if site.scope.caller is not None:
            raise NnefSyntaxError(f"{op} is not allowed in a fragment: move it to the graph's body")

    def _error(self, error_type: type[ModelError], message: str, name: Name) -> ModelError:
        return self._scope.error(error_type, message, name.pos)


def _datum_type(text: str) -> str:
    """Returns the NNEF type for tract's name of a type, such as ``f32``.

    Ignores the number of bits.
    """
    dtype = _DATUM_TYPES.get(text.lower().rstrip("0123456789"))
    if dtype is None:
        expected = "f32, i64, bool and the like"
        raise ShapeError(f"the type '{text[:40]}' is unknown: wanted {expected}")
    return dtype


def rule_version(document: Document) -> int:
    """Returns the version of the integer rule if a document is an integer network, else 0."""
    return RULE_VERSION if any(n.id.startswith(INTEGER) for n in document.extensions) else 0


def _check_extensions(document: Document, text: SourceText) -> None:
    extension_names = {name.id for name in document.extensions}
    for name in document.extensions:
        if name.id.startswith(INTEGER) and name.id != f"{INTEGER}{RULE_VERSION}":
            message = f"'{name.id}' is another rule than this engine's, {INTEGER}{RULE_VERSION}"
            raise text.error(f"{message}: quantize the network again, or use its engine", name.pos)
        if name.id == FLOAT_TAIL and not any(
            extension.startswith(INTEGER) for extension in extension_names
        ):
            raise text.error(
                f"'{name.id}' is for integer networks, which name {INTEGER}{RULE_VERSION} too",
                name.pos,
            )
        if name.id not in (FRAGMENTS, EXPRESSIONS, FLOAT_TAIL) and not name.id.startswith(
            (TRACT, INTEGER)
        ):
            message = f"unknown extension '{name.id}': wanted {FRAGMENTS} or {EXPRESSIONS}"
            raise text.error(f"{message}, export without it", name.pos)
    if document.version is None:
        warn("the line 'version 1.0;' is missing: add it above all others", text.at(0))
    if document.fragments and FRAGMENTS not in extension_names:
        source = text.at(document.fragments[0].pos)
        warn(f"fragments without 'extension {FRAGMENTS};': add that line", source)
    first = next((a for a in document.graph.body if not is_flat(a.value)), None)
    is_tracts = bool(document.symbols) or any(name.startswith(TRACT) for name in extension_names)
    if first is not None and EXPRESSIONS not in extension_names and not is_tracts:
        warn(f"expressions without 'extension {EXPRESSIONS};': add that line", text.at(first.pos))


#: tract's symbol for the streaming extent.
STREAMING = "S"
_OPERATORS = ("external", "tract_core_external")


@dataclass(frozen=True, slots=True)
class _Line:
    """An ``external`` line of the text: the input's name and its extents as expressions."""

    name: str
    extents: tuple[Expr, ...]
    source: Source

    def symbols_of(self, extent: Expr, symbols: tuple[str, ...]) -> list[str]:
        return [e.id for e in expressions((extent,)) if isinstance(e, Name) and e.id in symbols]

    def __str__(self) -> str:
        return f"[{','.join(map(print_expression, self.extents))}]"


class Externals:
    """The shapes of a graph's inputs; ``symbols`` has the values of symbolic extents by name."""

    def __init__(self, document: Document, text: SourceText, shapes: Shapes) -> None:
        self._symbol_names = document.symbols
        if any(name.id.startswith("tract_") for name in document.extensions):
            self._symbol_names = (*self._symbol_names, STREAMING)  # older files do not declare it
        self._lines = {line.name: line for line in _lines(document, text)}
        shape_texts = {n.id: str(self._lines.get(n.id, "?")) for n in document.graph.inputs}
        self._requested_shapes = shapes = resolve_shapes(shapes, shape_texts, text.file)
        self.symbols: dict[str, int] = {}
        for name, shape in shapes.items():
            self._solve(name, shape)
        for line in self._lines.values():
            self._check_known(line)

    def _solve(self, name: str, shape: tuple[int, ...]) -> None:
        """Records the values of the symbols that an input's given shape determines.

        Raises :class:`InputError` if two values conflict.
        """
        line = self._lines.get(name)
        if line is None:
            return
        check_rank(name, shape, len(line.extents), str(line), line.source)
        for expression, extent in zip(line.extents, shape, strict=True):
            if isinstance(expression, Name) and expression.id in self._symbol_names:
                value = self.symbols.setdefault(expression.id, extent)
                if value != extent:
                    raise InputError(
                        f"the shapes give '{expression.id}' as {value} and {extent}: wanted "
                        "the same",
                        line.source,
                    )

    def _check_known(self, line: _Line) -> None:
        used = [s for extent in line.extents for s in line.symbols_of(extent, self._symbol_names)]
        if unknown := [symbol for symbol in dict.fromkeys(used) if symbol not in self.symbols]:
            symbol_list = ", ".join(f"'{symbol}'" for symbol in unknown)
            raise OpenShape(
                f"input '{line.name}' is {line}, which leaves {symbol_list} open: say "
                f"--shape {line.name}={str(line)[1:-1]} with numbers, or "
                f"cml.load(…, shapes={{'{line.name}': …}})",
                line.name,
                tuple(_number(extent) for extent in line.extents),
                line.source,
            )

    def shape(self, name: str, stated_shape: tuple[int, ...], site: Site) -> tuple[int, ...]:
        """Returns an input's shape: the caller's, or else ``stated_shape``, the value of its line.

        Raises :class:`InputError` if the caller's shape contradicts symbols in the line.
        """
        requested_shape = self._requested_shapes.get(name)
        if requested_shape is None:
            return stated_shape
        check_rank(name, requested_shape, len(stated_shape), str(list(stated_shape)), site.source)
        line = self._lines.get(name)
        for i, extent in enumerate(line.extents if line else ()):
            if (
                stated_shape[i] != requested_shape[i]
                and line
                and line.symbols_of(extent, self._symbol_names)
            ):
                raise InputError(
                    f"the shape {list(requested_shape)} of '{name}' does not fit: the model wants "
                    f"{line}, which is {list(stated_shape)}",
                    site.source,
                )
        return requested_shape


def _number(extent: Expr) -> int | None:
    """Returns the value of an extent that is written as an integer, else None."""
    return extent.value if isinstance(extent, Literal) and isinstance(extent.value, int) else None


def _lines(document: Document, text: SourceText) -> Iterator[_Line]:
    for assignment in document.graph.body:
        call, target = assignment.value, assignment.target
        if isinstance(call, Call) and isinstance(target, Name) and call.op in _OPERATORS:
            for i, argument in enumerate(call.arguments):
                shape = argument.value
                is_shape = argument.name == "shape" or (argument.name is None and i == 0)
                if is_shape and isinstance(shape, ArrayExpr):
                    yield _Line(target.id, shape.items, text.at(assignment.pos))
