"""Builds and edits graphs in Python: a method per operator, checked when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import numpy as np

from cml_engine.compiler.passes.cleanup import eliminate_dead_code
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.errors import CmlError, InputError, ModelError, Source
from cml_engine.errors.arguments import (
    check_choice,
    check_instance,
    check_rank,
    check_shape,
    check_text,
    resolve_shapes,
)
from cml_engine.formats import expression
from cml_engine.formats.builder import (
    ImportBuilder,
    expand,
    registered_declarations,
    rename_in_graph,
    rename_tensors,
)
from cml_engine.formats.expression import TensorArithmetic
from cml_engine.ir.graph import (
    DTYPE_OF_KIND,
    NUMPY_DTYPE,
    Array,
    Fact,
    Graph,
    Node,
    Origin,
    Shapes,
    ancestors,
)
from cml_engine.nnef.expansion.compose import to_identifier
from cml_engine.nnef.expansion.library import Library
from cml_engine.nnef.expansion.signatures import (
    Param,
    Signature,
    declared_signature,
    operator_signatures,
    unknown_operator,
)
from cml_engine.nnef.expansion.values import TensorRef
from cml_engine.ops.declaration.registry import is_registered, lookup

if TYPE_CHECKING:
    from cml_engine.formats.operator_methods import OperatorMethods
else:
    OperatorMethods = object

T = TypeVar("T")

#: a tensor of the graph, a number, or an array that becomes a constant of the graph
Operand: TypeAlias = "Tensor | float | Array"


@dataclass(frozen=True, eq=False)
class Tensor(TensorArithmetic["float | Array"]):
    """A tensor of a graph under construction; Python's arithmetic operators add operators.

    All other operators are methods of the :class:`GraphBuilder`, which checks each call.

    Examples
    --------
    >>> builder = cml.GraphBuilder("half")
    >>> x = builder.input("x", [1, 4])
    >>> (x / 2 + 1).shape
    (1, 4)
    """

    builder: GraphBuilder = field(repr=False)
    name: str

    @property
    def fact(self) -> Fact:
        """The type and shape of the tensor."""
        return self.builder._construction.facts[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.fact.shape

    @property
    def dtype(self) -> str:
        """The element type: ``"scalar"`` (float32), ``"integer"`` (int32) or ``"logical"``."""
        return self.fact.dtype

    def __matmul__(self, other: Operand) -> Tensor:
        return self.apply("matmul", self, other)

    def apply(self, op: str, *operands: Operand, **attrs: object) -> Tensor:
        return cast(Tensor, self.builder._call(op, operands, attrs, _caller()))


class GraphBuilder(OperatorMethods):
    """Builds a graph: a method per operator of NNEF, of this engine, and of the game.

    Operands are tensors, numbers, and arrays, which become weights. Attributes that are left out
    have their defaults. Shapes are inferred at once, so an error names the line of the caller.
    An operator that is a word of Python has an underscore: ``builder.not_(x)``.

    Raises :class:`ModelError` for operands or attributes that an operator does not take.

    Examples
    --------
    >>> builder = cml.GraphBuilder("blur")
    >>> x = builder.input("image", [1, 3, 64, 64])
    >>> y = builder.box(x, size=[1, 1, 3, 3], normalize=True)
    >>> graph = builder.graph(blurred=builder.clamp(y, 0.0, 1.0))
    >>> graph.facts["blurred"].shape
    (1, 3, 64, 64)
    """

    def __init__(self, name: str = "network") -> None:
        self.name = check_text(name, "the name of a graph")
        self._construction = ImportBuilder()
        self._original = Graph(name, (), (), (), {})
        self._outputs: dict[str, str] = {}

    def input(self, name: str, shape: Sequence[int], dtype: str = "scalar") -> Tensor:
        """Adds an input of the network and returns its tensor.

        The tensor's name differs from ``name`` if that is taken or is no identifier.
        """
        unused_name = self._construction.name(check_text(name, "the name of an input"))
        check_choice(tuple(NUMPY_DTYPE), dtype, f"the dtype of input '{name}'")
        fact = Fact(dtype, check_shape(shape, f"the shape of input '{name}'"))
        return Tensor(self, self._construction.exact_input(unused_name, fact))

    def weights(self, values: Array, name: str = "weights") -> Tensor:
        """Adds an array as weights, saved in a file called ``name``, and returns their tensor.

        Floats become float32 and integers int32. Raises :class:`InputError` for other types of
        elements.
        """
        array = np.asarray(values)
        dtype = DTYPE_OF_KIND.get(array.dtype.kind)
        check_text(name, "the name of weights")
        if dtype is None:
            raise InputError(
                f"'{name}' is an array of {array.dtype}: wanted floats, integers or truth values"
            )
        return Tensor(self, self._construction.variable(name, array, dtype))

    def __getitem__(self, name: str) -> Tensor:
        """Returns the tensor of that name, or raises :class:`InputError` if there is none."""
        if check_text(name, "the name of a tensor") not in self._construction.facts:
            raise InputError(f"'{self.name}' has no tensor '{name}'")
        return Tensor(self, name)

    def __getattr__(self, op: str) -> Callable[..., Tensor | tuple[Tensor, ...]]:
        if op.startswith("_"):
            raise AttributeError(op)

        def call(*operands: Operand | Sequence[Operand], **attrs: object) -> object:
            return self._call(op.rstrip("_"), operands, attrs, _caller())

        return cast("Callable[..., Tensor | tuple[Tensor, ...]]", call)

    def replace(self, old: Tensor | str, new: Tensor) -> None:
        """Makes all operators and outputs that read ``old`` read ``new`` instead.

        Operators that ``new`` is computed from still read ``old``. ``old`` may be an input; if
        nothing reads it afterwards, the graph no longer has it. Raises :class:`ModelError` if
        the types or shapes differ.
        """
        name = old if isinstance(old, str) else self._own(old).name
        fact, construction = self[name].fact, self._construction
        self._own(new)
        if new.fact != fact:
            raise ModelError(f"'{new.name}' is {new.fact}, and '{name}', which it replaces, {fact}")
        nodes_of_new, tensors_of_new = ancestors(construction.nodes, [new.name])
        other_nodes = [
            rename_tensors(node, {name: new.name}) if name in node.reads else node
            for node in construction.nodes
            if tensors_of_new.isdisjoint(node.outputs)
        ]
        # what ``new`` is computed from needs nothing of the rest
        construction.nodes[:] = nodes_of_new + other_nodes
        self._outputs = {out: new.name if t == name else t for out, t in self._outputs.items()}

    def graph(self, **outputs: Tensor) -> Graph:
        """Returns the graph that computes the given tensors.

        The keywords become the outputs' names.

        Without keywords an edited graph keeps its outputs. Nodes and inputs that no output needs
        are left out.
        """
        output_tensors = {name: self._own(t).name for name, t in outputs.items()} or self._outputs
        if not output_tensors:
            raise InputError("a graph has no outputs: name them, as in builder.graph(out=y)")
        construction, original = self._construction, self._original
        names = self._output_names(output_tensors)
        unpruned = original.with_(
            name=to_identifier(self.name, "t_"),
            inputs=tuple(construction.inputs),
            nodes=tuple(construction.nodes),
            facts=construction.facts,
            constants=construction.constants,
            labels=construction.labels,
            sources=construction.sources,
            unfused=(),
            quantization={},
            optional=frozenset(),
        )
        unpruned = rename_in_graph(unpruned, names)
        copies = [  # of inputs, and of tensors that are two outputs
            Node("copy", (names.get(tensor, tensor),), (name,))
            for name, tensor in output_tensors.items()
            if names.get(tensor, tensor) != name
        ]
        nodes = (*unpruned.nodes, *copies)
        graph = eliminate_dead_code(unpruned.with_(outputs=tuple(output_tensors), nodes=nodes))
        used_names = {name for node in graph.nodes for name in node.reads} | {*graph.persistent}

        def of_used(values: Mapping[str, T]) -> dict[str, T]:
            renamed = {names.get(name, name): value for name, value in values.items()}
            return {name: value for name, value in renamed.items() if name in used_names}

        inputs = tuple(name for name in graph.inputs if name in used_names)
        if not inputs:
            raise ModelError(f"'{self.name}' has no inputs that its outputs depend on")
        library = Library(is_registered, {**registered_declarations(), **original.declarations})
        graph = graph.with_(
            inputs=inputs,
            declarations=library.used_declarations(node.op for node in graph.nodes),
            unfused=tuple(of_used(dict.fromkeys(original.unfused))),
            input_ranges=of_used(original.input_ranges),
            sliders=of_used(original.sliders),
            defaults=of_used(original.defaults),
        )
        return Origin(partial(_at_shapes, graph)).at({})

    def _output_names(self, output_tensors: Mapping[str, str]) -> dict[str, str]:
        """Returns the renamings, from old to new tensor name, that give the outputs their names.

        A tensor that already has an output's name, but is another tensor, gets a new name.
        """
        computed = {name for node in self._construction.nodes for name in node.outputs}
        names = {}
        for name, tensor in output_tensors.items():
            if tensor in computed and tensor not in names:
                names[tensor] = name
        for name in output_tensors:
            if (
                name in self._construction.facts
                and name not in names
                and output_tensors[name] != name
            ):
                names[name] = self._construction.name(f"{name}_before")
        return names

    def _own(self, tensor: object) -> Tensor:
        """Returns a tensor of this builder; raises :class:`InputError` for anything else."""
        own = check_instance(Tensor, tensor, f"a tensor of '{self.name}'")
        if own.builder is not self:
            raise InputError(
                f"'{own.name}' is a tensor of another builder: compute it with this one"
            )
        return own

    # --- operators

    def _call(
        self,
        op: str,
        operands: Sequence[Operand | Sequence[Operand]],
        attrs: Mapping[str, object],
        source: Source,
    ) -> Tensor | tuple[Tensor, ...]:
        try:
            inputs: list[str] = []
            declared = _signature_of(check_text(op, "the name of an operator"))
            params = declared.params
            values = [
                self._value(value, params[i] if i < len(params) else None, inputs)
                for i, value in enumerate(operands)
            ]
            params_by_name = {param.name: param for param in params}
            keywords = {key if key in params_by_name else key.rstrip("_"): key for key in attrs}
            attributes = {
                name: self._value(attrs[key], params_by_name.get(name), inputs)
                for name, key in keywords.items()
            }
            facts = {f"x{i}": self._construction.facts[name] for i, name in enumerate(inputs)}
            expanded = expand(op, values, attributes, facts, source)
        except CmlError as error:
            error.source = source
            raise
        self._construction.source = source
        results = tuple(
            Tensor(self, name) for name in self._construction.splice(expanded, inputs, op)
        )
        gives_array = declared.results[0].type.kind == "array"
        return results[0] if len(results) == 1 and not gives_array else results

    def _value(self, value: object, param: Param | None, inputs: list[str]) -> object:
        """Returns an argument as a value of NNEF; its tensors are appended to ``inputs``."""
        is_tensor = param is not None and param.is_tensor
        if is_tensor and isinstance(value, list | tuple):
            return [self._value(item, param, inputs) for item in value]
        if is_tensor and param is not None and isinstance(value, np.ndarray):
            value = self.weights(value, param.name)
        if isinstance(value, Tensor):
            inputs.append(self._own(value).name)
            return TensorRef(f"x{len(inputs) - 1}", value.dtype)
        return value.item() if isinstance(value, np.generic) else value


def edit(graph: Graph) -> GraphBuilder:
    """Returns a builder that holds a graph's inputs, nodes, constants and outputs, to change it.

    The graph itself does not change. Raises :class:`InputError` for an integer or cooked
    network: edit the float network it was made from.

    Examples
    --------
    Byte pictures in, and the index of the largest channel out:

    >>> builder = cml.edit(graph)
    >>> photo = builder.input("photo", [1, 8, 8, 3])
    >>> builder.replace("image", builder.transpose(photo / 255, axes=[0, 3, 1, 2]))
    >>> best = builder.argmax_reduce(builder["out"], axes=[1])
    >>> builder.graph(best=best, out=builder["out"]).inputs
    ('photo',)
    """
    check_instance(Graph, graph, "the graph to edit (cml.load gives one)")
    if graph.integer or graph.cooked_form is not None:
        network_type = "an integer network" if graph.integer else "cooked"
        raise InputError(
            f"'{graph.name}' is {network_type}: edit the float network that it was made from"
        )
    builder = GraphBuilder(graph.name)
    construction = builder._construction
    construction.reserve(graph.facts)
    construction.inputs += graph.inputs
    construction.nodes += graph.nodes
    construction.facts |= graph.facts
    construction.constants |= graph.constants
    construction.labels |= graph.labels
    construction.sources |= graph.sources
    builder._original = graph
    builder._outputs = {name: name for name in graph.outputs}
    return builder


def _caller() -> Source:
    """Returns the file and line of the code outside the builder that called into it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, expression.__file__):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno)


def _signature_of(op: str) -> Signature:
    if is_registered(op) and (text := lookup(op).signature) and lookup(op).is_custom:
        return declared_signature(text, f"<declaration of {op}>")
    names = operator_signatures().keys() - {"external", "variable", "update"}
    if op not in names:
        raise ModelError(unknown_operator(op, names))
    return operator_signatures()[op]


def _at_shapes(graph: Graph, shapes: Shapes) -> Graph:
    """Returns the graph with other shapes of inputs, by name, and with the facts inferred again."""
    facts = dict(graph.facts)
    stated_shapes = {name: list(facts[name].shape) for name in graph.inputs}
    for name, shape in resolve_shapes(shapes, stated_shapes, graph.name).items():
        stated = stated_shapes[name]
        check_rank(name, shape, len(stated), str(stated), graph.sources.get(name))
        facts[name] = Fact(facts[name].dtype, shape)
    return infer_facts(graph.with_(facts=facts))
