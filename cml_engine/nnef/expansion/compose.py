"""Converts a graph to a syntax tree, the inverse of ``build``; calls get their canonical form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cml_engine.errors import InputError, ModelError
from cml_engine.io.output_folder import is_device
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, AttrValue, Graph, Node, numbered_name
from cml_engine.ir.single_value import distinct
from cml_engine.nnef.expansion.document_builder import FLOAT_TAIL, FRAGMENTS, INTEGER
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.nodes import literal_name
from cml_engine.nnef.expansion.signatures import Param, Signature
from cml_engine.nnef.expansion.values import kind_of
from cml_engine.nnef.files.tensor_file import tensor_file_name
from cml_engine.nnef.text.lexer import KEYWORDS
from cml_engine.nnef.text.parser import parse_fragments
from cml_engine.nnef.text.syntax_tree import (
    Argument,
    ArrayExpr,
    Assignment,
    Call,
    Document,
    Expr,
    FragmentResult,
    GraphDef,
    Literal,
    Name,
    TupleExpr,
    Type,
)

#: The most elements of an unlabelled constant that is written into the text.
_INLINE = 256

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ComposedDocument:
    """The contents of a model's files: the text as a tree, tensors by label, and quantisation."""

    document: Document
    tensors: Mapping[str, Array]
    quantization: Mapping[str, Attrs]
    comments: Sequence[str] = ()
    #: labels of tensors whose integers a line of ``graph.quant`` reads
    quantized: frozenset[str] = frozenset()


def compose(graph: Graph, declarations: Mapping[str, str]) -> ComposedDocument:
    """Returns a graph as a syntax tree, tensors by label, and the lines of ``graph.quant``.

    ``declarations`` are fragment declarations of operators that are not NNEF's own, by name.
    """
    return _Composer(graph, declarations).compose()


def expression(value: object) -> Expr:
    """Returns a plain value as the syntax tree of a literal, or of an array or tuple of literals.

    Raises :class:`InputError` for NaN and other values that NNEF cannot write.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list):
        return ArrayExpr(tuple(map(expression, value)))
    if isinstance(value, tuple):
        return TupleExpr(tuple(map(expression, value)))
    if not isinstance(value, (bool, int, float, str)) or value != value:
        raise InputError(f"{value!r} cannot be written as NNEF")
    return Literal(value, kind_of(value))


@dataclass
class _Names:
    """Maps tensor names of a graph to NNEF identifiers; the same name always gets the same one.

    ``reserved`` are the identifiers in use.
    """

    reserved: set[str]
    identifiers: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        identifier = self.identifiers.get(name)
        if identifier is None:
            identifier = self.identifiers[name] = self._new(name)
        return identifier

    def fresh(self, base: str) -> str:
        name = numbered_name(base, self.reserved.__contains__)
        self.reserved.add(name)
        return name

    def _new(self, name: str) -> str:
        if is_identifier(name):
            return name
        return self.fresh(to_identifier(name or "t", "t_"))


def is_identifier(name: str) -> bool:
    return _IDENTIFIER.fullmatch(name) is not None and name not in KEYWORDS


def to_identifier(name: str, prefix: str) -> str:
    """Returns a name with ``_`` in place of all characters that an identifier cannot have.

    The result begins with ``prefix`` if it would be no identifier otherwise.
    """
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return identifier if is_identifier(identifier) else prefix + identifier


class _Composer:
    def __init__(self, graph: Graph, declarations: Mapping[str, str]) -> None:
        self._graph = graph
        self._library = Library(lambda op: True, declarations)
        self._names = _Names({n for n in _all_names(graph) if is_identifier(n)})
        self._literals = {n for n, a in graph.constants.items() if self._is_literal(n, a)}
        self._tensors: dict[str, Array] = {}
        self._files: dict[str, str] = {}
        #: the label of each constant that is a tensor file
        self._labels: dict[str, str] = {}

    def compose(self) -> ComposedDocument:
        graph = self._graph
        ops = list(dict.fromkeys(node.op for node in graph.nodes))
        fragments = self._library.used_declarations(ops)
        self._check_interface()
        body = [self._external(name) for name in graph.inputs]
        body += [
            self._constant(n, a) for n, a in graph.constants.items() if n not in self._literals
        ]
        body += [self._node(node) for node in graph.nodes]
        body += [self._update(*update) for update in graph.updates]
        document = Document(
            version="1.0",
            extensions=self._extensions(bool(fragments)),
            fragments=tuple(f for text in fragments.values() for f in parse_fragments(text, "")),
            graph=GraphDef(
                self._names.of(graph.name) if not is_identifier(graph.name) else graph.name,
                self._plain_names(graph.inputs),
                self._plain_names(graph.outputs),
                tuple(body),
            ),
        )
        quantization = {self._names.of(n): attrs for n, attrs in graph.quantization.items()}
        labels = frozenset(self._labels.get(name, "") for name in self._quantized)
        return ComposedDocument(document, self._tensors, quantization, graph.notes, labels)

    def _extensions(self, fragments: bool) -> tuple[Name, ...]:
        integer = self._graph.integer
        names = [f"{INTEGER}{integer}"] * bool(integer) + [FLOAT_TAIL] * self._graph.float_tail
        names += [FRAGMENTS] * fragments
        return tuple(map(Name, names))

    @property
    def _quantized(self) -> list[str]:
        """The names of the constants that are stored as quantised integers."""
        return [n for n, a in self._graph.constants.items() if self._is_stored(n, a)]

    def _is_stored(self, name: str, values: Array) -> bool:
        is_named = bool(self._graph.integer) and name in self._graph.quantization
        return is_named and values.dtype.kind in "iu"

    def _check_interface(self) -> None:
        for name in self._graph.outputs:
            if name in self._graph.inputs:
                raise ModelError(f"'{name}' is both input and output: NNEF needs a copy between")

    # -- statements -----------------------------------------------------------------------------

    def _external(self, name: str) -> Assignment:
        fact = self._graph.facts[name]
        return self._declare(name, "external", fact.dtype, shape=list(fact.shape))

    def _constant(self, name: str, values: Array) -> Assignment:
        dtype = "scalar" if self._is_stored(name, values) else _dtype_of(values)
        shape = list(values.shape)
        different = distinct(values)
        if name in self._graph.labels or not _fits_text(different):
            label = self._labels[name] = self._label(name, values)
            return self._declare(name, "variable", dtype, shape=shape, label=label)
        flat = different.reshape(-1)
        if flat.size and (flat == flat[0]).all():
            flat = flat[:1]
        return self._declare(
            name, "constant", dtype, shape=shape, value=list(map(_to_python_number, flat))
        )

    def _declare(self, name: str, op: str, dtype: str, **attrs: AttrValue) -> Assignment:
        arguments = tuple(Argument(key, expression(value)) for key, value in attrs.items())
        return Assignment(Name(self._names.of(name)), Call(op, arguments, dtype))

    def _update(self, variable: str, value: str) -> Assignment:
        target = self._names.fresh(f"{self._names.of(variable)}_update")
        arguments = (Argument(None, self._operand(variable)), Argument(None, self._operand(value)))
        return Assignment(Name(target), Call("update", arguments))

    def _node(self, node: Node) -> Assignment:
        if node.epilogues:
            raise InputError(f"{node.title} is fused already: save the graph before it is compiled")
        sig = self._library.lookup(node.op).signature
        generic = node.attrs.get("dtype") if sig.needs_dtype else None
        call = Call(node.op, tuple(self._arguments(sig, node)), generic)
        return Assignment(self._targets(sig, node), call)

    # -- calls ----------------------------------------------------------------------------------

    def _arguments(self, sig: Signature, node: Node) -> list[Argument]:
        operands = self._operands(sig, node)
        arguments: list[Argument] = []
        positional = True
        for param in sig.params:
            positional = positional and param.is_tensor
            if param.is_tensor:
                arguments.append(Argument(None if positional else param.name, operands[param.name]))
            elif not _is_default(param, node):
                arguments.append(Argument(param.name, expression(_attr(param, node))))
        return arguments

    def _operands(self, sig: Signature, node: Node) -> dict[str, Expr]:
        """Returns a node's inputs as expressions, by the names of the tensor parameters."""
        shapes = [param.type for param in sig.tensors]
        groups = regroup(node, shapes, node.inputs, "inputs")
        return {
            param.name: self._grouped(group)
            for param, group in zip(sig.tensors, groups, strict=True)
        }

    def _grouped(self, group: str | list[str]) -> Expr:
        if isinstance(group, str):
            return self._operand(group)
        return ArrayExpr(tuple(map(self._operand, group)))

    def _operand(self, name: str) -> Expr:
        if name in self._literals:
            return expression(_to_python_number(self._graph.constants[name][()]))
        return Name(self._names.of(name))

    def _targets(self, sig: Signature, node: Node) -> Expr:
        results: Sequence[FragmentResult] = sig.results
        groups = regroup(node, [result.type for result in results], node.outputs, "outputs")
        items = [
            Name(self._names.of(g)) if isinstance(g, str) else ArrayExpr(self._plain_names(g))
            for g in groups
        ]
        return items[0] if len(items) == 1 else TupleExpr(tuple(items))

    def _plain_names(self, names: Iterable[str]) -> tuple[Name, ...]:
        return tuple(Name(self._names.of(name)) for name in names)

    # -- constants ------------------------------------------------------------------------------

    def _is_literal(self, name: str, values: Array) -> bool:
        """Returns True if NNEF text holds the constant as a literal argument, not as a variable.

        It then has rank 0 and no file of its own, and is not an output.
        """
        graph = self._graph
        if values.ndim or name in graph.labels or name in graph.outputs or not _fits_text(values):
            return False
        return name == literal_name(values) or not is_identifier(name)

    def _label(self, name: str, values: Array) -> str:
        """Records a constant as a tensor file and returns the file's label.

        It is the constant's own label, or a new one if other values have that label, or if Windows
        has no file of that name. Stored integers that two lines of ``graph.quant`` read differently
        are two tensors at this point.
        """
        label = self._graph.labels.get(name)
        if label is None or is_device(label):
            return self._new_label(self._names.of(name), values)
        first = self._files.setdefault(tensor_file_name(label).lower(), name)
        if not are_same(self._graph.constants[first], values):
            return self._new_label(self._names.of(name), values)
        self._tensors.setdefault(label, values)
        return label

    def _new_label(self, base: str, values: Array) -> str:
        labels = self._graph.labels.values()
        reserved = {*self._files, *(tensor_file_name(label).lower() for label in labels)}
        label = numbered_name(
            base, lambda name: is_device(name) or tensor_file_name(name).lower() in reserved
        )
        self._files[tensor_file_name(label).lower()] = label
        self._tensors[label] = values
        return label


def are_same(a: Array, b: Array) -> bool:
    """Returns True if two arrays have the same type and values; NaNs are equal."""
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _all_names(graph: Graph) -> Iterable[str]:
    yield from graph.facts
    yield from graph.constants
    for node in graph.nodes:
        yield from node.outputs


def regroup(
    node: Node, types: Sequence[Type], names: Sequence[str], ports: str
) -> list[str | list[str]]:
    """Groups flat names by types: a name for a tensor, a list of names for an array of tensors.

    Raises :class:`ModelError` if their number does not fit; ``ports`` is ``"inputs"``, for example.
    """
    arrays = [type for type in types if type.kind == "array"]
    array_length = len(names) - (len(types) - len(arrays))
    if array_length < 0 or len(arrays) > 1 or (not arrays and array_length):
        expected = f"{len(types)}" if not arrays else f"at least {len(types) - 1}"
        raise ModelError(f"{node.title} has {len(names)} {ports}: wanted {expected}", node.source)
    groups: list[str | list[str]] = []
    index = 0
    for type in types:
        count = array_length if type.kind == "array" else 1
        groups.append(list(names[index : index + count]) if type.kind == "array" else names[index])
        index += count
    return groups


def _attr(param: Param, node: Node) -> object:
    if param.name not in node.attrs:
        raise ModelError(f"{node.title} has no attribute '{param.name}': give it", node.source)
    return _typed(param.type, node.attrs[param.name])


def _typed(declared_type: Type, value: Any) -> object:
    """Returns an attribute converted to its declared type, such as a tuple or a float."""
    if declared_type.kind == "array":
        return [_typed(declared_type.items[0], item) for item in value]
    if declared_type.kind == "tuple":
        return tuple(_typed(k, v) for k, v in zip(declared_type.items, value, strict=True))
    return float(value) if declared_type.name == "scalar" else value


def _is_default(param: Param, node: Node) -> bool:
    if param.required:
        return False
    return param.name not in node.attrs or bool(node.attrs[param.name] == param.default)


def _fits_text(values: Array) -> bool:
    if values.size > _INLINE and not (values == values.reshape(-1)[0]).all():
        return False
    return values.size > 0 and not (values.dtype.kind == "f" and bool(np.isnan(values).any()))


def _to_python_number(value: object) -> bool | int | float:
    """Returns a NumPy number as Python's.

    A float gets the fewest digits that identify the float32.
    """
    if isinstance(value, (np.floating, float)):
        return float(str(np.float32(value)))
    number: bool | int = np.asarray(value).item()
    return number


def _dtype_of(values: Array) -> str:
    for name, dtype in NUMPY_DTYPE.items():
        if values.dtype == dtype:
            return name
    raise InputError(f"a constant of {values.dtype}: wanted float32, int32 or bool")
