"""A builder that assembles a graph operator by operator, for converters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from cml_engine.compiler.passes.infer import infer_node
from cml_engine.errors import ModelError, ShapeError, Source, UnsupportedOp
from cml_engine.io.load_limits import current_budget
from cml_engine.ir.block_weights import copy_of
from cml_engine.ir.construction import GraphConstruction
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Attrs, Fact, Graph, Node
from cml_engine.ir.single_value import distinct, is_single_value
from cml_engine.nnef.expansion.compose import to_identifier
from cml_engine.nnef.expansion.evaluator import Evaluator, expand_call
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.nodes import literal_name
from cml_engine.nnef.expansion.signatures import (
    REQUIRED,
    BindError,
    Param,
    Signature,
    coerce,
    declared_signature,
    operator_signatures,
    signature,
    standard_signatures,
)
from cml_engine.nnef.expansion.values import TensorRef, Value, describe
from cml_engine.nnef.text.syntax_tree import Type
from cml_engine.ops.declaration.registry import is_registered, load_families, registered

T = TypeVar("T")

#: Names become labels and file names, which file systems limit to 255 characters.
_LONGEST = 100


class ImportBuilder(GraphConstruction):
    """A graph that a converter builds: tensors are given by name, and get the requested names.

    ``source`` is the source position that is recorded for the nodes added next.

    Examples
    --------
    >>> builder = ImportBuilder()
    >>> x = builder.input("x", (1, 4))
    >>> y = builder.node("relu", [x], "y")
    >>> builder.graph("net", [y]).outputs
    ('y',)
    """

    def __init__(self) -> None:
        load_families()
        super().__init__(infer_node)
        self._reserved: set[str] = set()
        #: by base name: ``base_2``, ``base_3``, … up to this number are taken
        self._numbers: dict[str, int] = {}
        self.source: Source | None = None
        self.inputs: list[str] = []
        self.labels: dict[str, str] = {}

    def name(self, wanted: str) -> str:
        """Returns an unused identifier that resembles the requested name, and reserves it.

        Two names differ by more than their case, because labels become file names.
        """
        base = to_identifier(wanted[:_LONGEST], "t")
        unused, key = base, base.lower()
        if key in self._reserved:
            number = self._numbers.get(key, 1) + 1
            while f"{key}_{number}" in self._reserved:
                number += 1
            unused, self._numbers[key] = f"{base}_{number}", number
        self._reserved.add(unused.lower())
        return unused

    def _check_unused(self, name: str) -> None:
        self._reserved.discard(name.lower())
        base, _, number = name.lower().rpartition("_")
        if base in self._numbers and number.isdigit():
            self._numbers[base] = min(self._numbers[base], int(number) - 1)

    def reserve(self, names: Iterable[str]) -> None:
        """Reserves names so that :meth:`name` does not return them.

        They need not be identifiers.
        """
        self._reserved.update(name.lower() for name in names)

    def input(self, wanted: str, shape: Sequence[int]) -> str:
        """Adds a float32 input of the network and returns its name, which resembles ``wanted``."""
        return self.exact_input(self.name(wanted), Fact("scalar", tuple(shape)))

    def exact_input(self, name: str, fact: Fact) -> str:
        """Adds an input of the network under exactly this name and returns the name.

        The caller has reserved the name; it is not checked here.
        """
        self.inputs.append(name)
        self.declare(name, fact, self.source)
        return name

    def variable(self, wanted: str, values: Array, dtype: str = "scalar") -> str:
        """Adds an array as weights and returns their name, which is also the label of their file.

        The values are copied, and charged to the load budget. A large array of one value stays one,
        and has no file.
        """
        name = self.name(wanted)
        size = distinct(values).size * NUMPY_DTYPE[dtype].itemsize
        current_budget().charge_bytes(size, f"the constant '{name}'", self.source)
        values = copy_of(values, NUMPY_DTYPE[dtype])
        if not is_single_value(values):
            self.labels[name] = name
        self.declare(name, Fact(dtype, values.shape), self.source, values)
        return name

    def literal(self, value: object, dtype: str = "scalar") -> str:
        """Adds a constant of one element and returns its name; equal constants share one name."""
        array = np.array(value, NUMPY_DTYPE[dtype])
        name = literal_name(array)
        while name.lower() in self._reserved:  # an input may be named "0.5"
            name += "'"
        self.declare(name, Fact(dtype, ()), self.source, array)
        return name

    def node(self, op: str, inputs: Sequence[str], wanted: str, **attrs: Any) -> str:
        """Adds an operator with one result and returns the result's name.

        Attributes that are left out get their defaults. The shape of the result is inferred at
        once.
        """
        return self.split_node(op, inputs, [wanted], **attrs)[0]

    def split_node(
        self,
        op: str,
        inputs: Sequence[str],
        wanted: Sequence[str],
        declared: Signature | None = None,
        **attrs: object,
    ) -> list[str]:
        """Adds an operator with several results and returns their names, in the operator's order.

        ``declared`` is the signature of an operator that is neither NNEF's nor the engine's.
        """
        declared = declared or operator_signatures().get(op) or signature(op)
        node_attrs = {
            p.name: attrs[p.name] if p.name in attrs else deepcopy(p.default)
            for p in declared.attrs
            if p.name in attrs or p.default is not REQUIRED
        }
        if declared.needs_dtype:
            node_attrs["dtype"] = attrs["dtype"]
        current_budget().charge_nodes(len(wanted), f"the operator {op}", self.source)
        outputs = tuple(self.name(name) for name in wanted)
        return list(self.append(Node(op, tuple(inputs), outputs, Attrs(node_attrs), self.source)))

    def own_node(
        self,
        declaration: str,
        inputs: Sequence[str],
        wanted: Sequence[str],
        attrs: Mapping[str, object],
    ) -> list[str]:
        """Adds an operator of the game's own and returns the names of its results.

        ``declaration`` is its NNEF signature. Raises an error if the inputs, the results or the
        attributes do not fit it.
        """
        declared = declared_signature(declaration, "<declaration of an operator>")
        params = {param.name: param for param in declared.attrs}
        for name in attrs:
            if name not in params:
                listed = ", ".join(params) or "none"
                raise UnsupportedOp(f"unknown attribute '{name}': it has {listed}", self.source)
        for name, param in params.items():
            if param.required and name not in attrs:
                raise ShapeError(f"attribute '{name}' is missing", self.source)
        if len(inputs) != len(declared.tensors) or len(wanted) != len(declared.results):
            raise ShapeError(
                f"{len(inputs)} inputs and {len(wanted)} outputs, wanted {declared}", self.source
            )
        typed_attrs = {name: self._attribute(params[name], value) for name, value in attrs.items()}
        return self.split_node(declared.name, inputs, wanted, declared, **typed_attrs)

    def _attribute(self, param: Param, value: object) -> object:
        try:
            return coerce(param.type, _from_flat(param.type, value), None)
        except BindError:
            message = f"attribute '{param.name}' wants {param.type}, got {describe(value)}"
            raise ModelError(message, self.source) from None

    def expand(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Value], is_list: bool = False
    ) -> Graph:
        """Returns the graph of a compound operator that these tensors are the operands of.

        With ``is_list`` its first operand is the list of them.
        """
        facts = {f"x{i}": self.facts[name] for i, name in enumerate(inputs)}
        operands = [TensorRef(name, fact.dtype) for name, fact in facts.items()]
        return expand(op, [operands] if is_list else operands, attrs, facts, self.source)

    def splice(self, graph: Graph, inputs: Sequence[str], base: str) -> list[str]:
        """Copies the nodes and constants of ``graph`` and returns the new names of its outputs.

        ``inputs`` are the tensors of this graph that replace the inputs of ``graph``, in order.
        New names begin with ``base``, an operator's name.
        """
        names = dict(zip(graph.inputs, inputs, strict=True))
        for name, array in graph.constants.items():
            dtype = graph.facts[name].dtype
            literal_or_empty = self.literal(array, dtype) if not array.ndim else ""
            names[name] = literal_or_empty or self.variable(f"{base}_constant", array, dtype)
        current_budget().charge_nodes(len(graph.nodes), "the compound operator", self.source)
        for node in graph.nodes:
            if node.op == "copy":  # an output that only renames a tensor
                names[node.outputs[0]] = names[node.inputs[0]]
                continue
            for name in node.outputs:
                names[name] = self.name(base if node.op == base else f"{base}_{node.op}")
                self.facts[names[name]] = graph.facts[name]
            source = self.source if self.source is not None else node.source
            self.nodes.append(replace(rename_tensors(node, names), source=source))
        return [names[name] for name in graph.outputs]

    def rename(self, tensor: str, wanted: str, first: int = 0) -> str:
        """Renames ``tensor``, a result of a node from index ``first`` on, and returns its new name.

        No node before ``first`` may read the tensor.
        """
        self._check_unused(tensor)
        new = self.name(wanted)
        self.rename_all({tensor: new}, first)
        return new

    def rename_all(self, names: Mapping[str, str], first: int = 0) -> None:
        """Renames tensors, from old to new name, in the nodes from index ``first`` on.

        The new names must be unused, and no node before ``first`` may read the tensors.
        """
        self.nodes[first:] = [rename_tensors(node, names) for node in self.nodes[first:]]
        for old, new in names.items():
            self.facts[new] = self.facts.pop(old)

    def graph(self, name: str, outputs: Sequence[str]) -> Graph:
        """Returns the finished graph; ``outputs`` are the names of its output tensors.

        Raises :class:`ModelError` if it has no inputs or no outputs.
        """
        if not outputs or not self.inputs:
            raise ModelError(f"'{name}' has no {'outputs' if self.inputs else 'inputs'}")
        return self.any_graph(name, outputs)

    def any_graph(self, name: str, outputs: Sequence[str]) -> Graph:
        """Returns the finished graph.

        Unlike with :meth:`graph`, inputs and outputs may be missing.
        """
        return Graph(
            name=self.name(name),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            nodes=tuple(self.nodes),
            facts=self.facts,
            constants=self.constants,
            labels=self.labels,
            sources=self.sources,
        )


def expand(
    op: str,
    operands: Sequence[Value],
    attrs: Mapping[str, Value],
    facts: Mapping[str, Fact],
    source: Source | None = None,
) -> Graph:
    """Returns the graph of one call of a known operator; see :func:`expand_call`."""
    library = Library(is_registered, registered_declarations())
    return expand_call(Evaluator(library, infer_node), op, operands, attrs, facts, source)


def registered_declarations() -> dict[str, str]:
    """Returns the NNEF signatures, by name, of the registered operators that NNEF lacks."""
    return {
        name: spec.signature
        for name, spec in registered().items()
        if name not in standard_signatures() and spec.signature
    }


def _from_flat(declared_type: Type, value: object) -> object:
    """Returns an attribute of a foreign file with the truth values and tuples of a declared type.

    Such files have 0 and 1 for truth values, and the items of tuples one after another.
    """
    if declared_type.name == "logical" and value in (0, 1):
        return bool(value)
    if not isinstance(value, list):
        return value
    if declared_type.kind == "tuple":
        return tuple(map(_from_flat, declared_type.items, value))
    tuple_size = len(declared_type.items[0].items) if declared_type.items else 0
    if tuple_size:
        value = [value[i : i + tuple_size] for i in range(0, len(value), tuple_size)]
    return (
        [_from_flat(declared_type.items[0], item) for item in value]
        if declared_type.items
        else value
    )


def rename_tensors(node: Node, names: Mapping[str, str]) -> Node:
    """Returns a copy of the node with its inputs, outputs and epilogue inputs renamed by ``names``.

    Tensors that ``names`` lacks keep their names.
    """
    epilogues = tuple(replace(e, inputs=_renamed(e.inputs, names)) for e in node.epilogues)
    inputs, outputs = _renamed(node.inputs, names), _renamed(node.outputs, names)
    return replace(node, inputs=inputs, outputs=outputs, epilogues=epilogues)


def _renamed(tensors: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(name, name) for name in tensors)


def rename_in_graph(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Returns the graph with tensors renamed by ``names``, from old to new, everywhere."""

    def keys(old: Mapping[str, T]) -> dict[str, T]:
        return {names.get(name, name): value for name, value in old.items()}

    return graph.with_(
        inputs=_renamed(graph.inputs, names),
        outputs=_renamed(graph.outputs, names),
        nodes=tuple(rename_tensors(node, names) for node in graph.nodes),
        facts=keys(graph.facts),
        constants=keys(graph.constants),
        labels=keys(graph.labels),
        sources=keys(graph.sources),
        quantization=keys(graph.quantization),
        updates=tuple((names.get(a, a), names.get(b, b)) for a, b in graph.updates),
    )
