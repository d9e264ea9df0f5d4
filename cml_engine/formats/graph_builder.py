"""Builds and edits graphs in Python: a method per operator, checked when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from cml_engine.errors import CmlError, InputError, ModelError, Source
from cml_engine.formats.builder import ImportBuilder, rename_tensors
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph, Node
from cml_engine.nnef.expansion.compose import compose, expression
from cml_engine.nnef.expansion.signatures import (
    Param,
    Signature,
    declared_signature,
    operator_signatures,
    unknown_operator,
)
from cml_engine.nnef.files.memory_model import MemoryModel
from cml_engine.nnef.text.printer import print_document, print_expression

if TYPE_CHECKING:
    from cml_engine.formats.operator_methods import OperatorMethods
else:
    OperatorMethods = object

#: a tensor of the graph, a number, or an array that becomes a constant of the graph
Operand: TypeAlias = "Tensor | float | Array"


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a graph under construction; Python's arithmetic operators add operators.

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
        return self.builder._made.facts[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.fact.shape

    @property
    def dtype(self) -> str:
        """The element type: ``"scalar"`` (float32), ``"integer"`` (int32) or ``"logical"``."""
        return self.fact.dtype

    def __add__(self, other: Operand) -> Tensor:
        return self._apply("add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self._apply("add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self._apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self._apply("sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self._apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self._apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self._apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self._apply("div", other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return self._apply("matmul", self, other)

    def __neg__(self) -> Tensor:
        return self._apply("neg", self)

    def _apply(self, op: str, *operands: Operand) -> Tensor:
        return cast(Tensor, self.builder._call(op, operands, {}, _caller()))


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
        from cml_engine.formats import import_builder

        self.name = name
        self._made: ImportBuilder = import_builder()
        self._before: Graph | None = None
        self._outputs: dict[str, str] = {}

    def input(self, name: str, shape: Sequence[int], dtype: str = "scalar") -> Tensor:
        """Adds an input of the network and returns its tensor.

        The tensor's name differs from ``name`` if that is taken or is no identifier.
        """
        if dtype not in NUMPY_DTYPE:
            raise InputError(f"input '{name}' has dtype '{dtype}': choose {', '.join(NUMPY_DTYPE)}")
        found = self._made.name(name)
        return Tensor(self, self._made.exact_input(found, Fact(dtype, tuple(shape))))

    def weights(self, values: Array, name: str = "weights") -> Tensor:
        """Adds an array as weights, saved in a file called ``name``, and returns their tensor.

        Floats become float32 and integers int32. Raises :class:`InputError` for other types of
        elements.
        """
        dtype = {"f": "scalar", "i": "integer", "u": "integer", "b": "logical"}.get(
            np.asarray(values).dtype.kind
        )
        if dtype is None:
            raise InputError(f"'{name}' is an array of {np.asarray(values).dtype}")
        return Tensor(self, self._made.variable(name, np.asarray(values), dtype))

    def __getitem__(self, name: str) -> Tensor:
        """Returns the tensor of that name, or raises :class:`InputError` if there is none."""
        if name not in self._made.facts:
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
        name = old if isinstance(old, str) else old.name
        fact, made = self[name].fact, self._made
        if new.fact != fact:
            raise ModelError(f"'{new.name}' is {new.fact}, and '{name}', which it replaces, {fact}")
        sources = _ancestors(made.nodes, [new.name])
        made.nodes[:] = [
            node
            if sources.intersection(node.outputs)
            else rename_tensors(node, {name: new.name})
            if name in node.reads
            else node
            for node in made.nodes
        ]
        self._outputs = {out: new.name if t == name else t for out, t in self._outputs.items()}

    def graph(self, **outputs: Tensor) -> Graph:
        """Returns the graph that computes the given tensors.

        The keywords become the outputs' names.

        Without keywords an edited graph keeps its outputs. Nodes and inputs that no output needs
        are left out.
        """
        ends = {name: t.name for name, t in outputs.items()} or self._outputs
        if not ends:
            raise InputError("a graph has no outputs: name them, as in builder.graph(out=y)")
        made = self._made
        needed = _ancestors(made.nodes, ends.values())
        updates = self._before.updates if self._before else ()
        needed |= _ancestors(made.nodes, [new for _, new in updates])
        inputs = [name for name in made.inputs if name in needed]
        if not inputs:
            raise ModelError(f"'{self.name}' has no inputs that its outputs depend on")
        nodes = _sorted([n for n in made.nodes if needed.intersection(n.outputs)])
        names = self._output_names(ends)
        nodes = [rename_tensors(node, names) for node in nodes]
        for name, tensor in ends.items():
            if names.get(tensor, tensor) != name:  # an input, or the same tensor under two names
                nodes.append(Node("copy", (names.get(tensor, tensor),), (name,)))
        known = {*inputs, *needed}
        facts = {names.get(n, n): f for n, f in made.facts.items() if n in known}
        facts |= {name: made.facts[tensor] for name, tensor in ends.items()}
        base = self._before or Graph(self.name, (), (), (), {})
        graph = base.with_(
            name=self.name,
            inputs=tuple(inputs),
            outputs=tuple(ends),
            nodes=tuple(nodes),
            facts=facts,
            constants={n: made.constants[n] for n in made.constants if n in known},
            labels={n: made.labels[n] for n in made.labels if n in known},
            sources={n: made.sources[n] for n in made.sources if n in known},
            updates=tuple((names.get(v, v), names.get(n, n)) for v, n in updates),
        )
        return _reloaded(graph)

    def _output_names(self, ends: Mapping[str, str]) -> dict[str, str]:
        """Returns the renamings, from old to new tensor name, that give the outputs their names.

        A tensor that already has an output's name, but is another tensor, gets a new name.
        """
        computed = {name for node in self._made.nodes for name in node.outputs}
        names = {}
        for name, tensor in ends.items():
            if tensor in computed and tensor not in names:
                names[tensor] = name
        for name in ends:
            if name in self._made.facts and name not in names and ends[name] != name:
                names[name] = self._made.name(f"{name}_before")
        return names

    # --- operators

    def _call(
        self,
        op: str,
        operands: Sequence[Operand | Sequence[Operand]],
        attrs: Mapping[str, object],
        source: Source,
    ) -> Tensor | tuple[Tensor, ...]:
        from cml_engine.formats.loading import load

        try:
            declared = _signature_of(op)
            text, inputs = self._text(declared, operands, attrs)
            found = load(MemoryModel(text))
        except CmlError as error:
            error.source = source
            raise
        self._made.source = source
        names = self._made.splice(found, inputs, op)
        made = tuple(Tensor(self, name) for name in names)
        return made[0] if len(made) == 1 and declared.results[0].type.kind != "array" else made

    def _text(
        self,
        declared: Signature,
        operands: Sequence[Operand | Sequence[Operand]],
        attrs: Mapping[str, object],
    ) -> tuple[str, list[str]]:
        """Returns the NNEF text of a graph with this one call, and the graph's input tensors."""
        values = _bound(declared, operands, attrs)
        dtype = values.pop("dtype", None) if declared.generic else None
        inputs: list[str] = []
        given = []
        for param in declared.params:
            if param.name in values:
                given.append(f"{param.name} = {self._written(param, values[param.name], inputs)}")
        lines = [
            f"x{i} = external<{self._made.facts[name].dtype}>"
            f"(shape = {list(self._made.facts[name].shape)});"
            for i, name in enumerate(inputs)
        ]
        results = _results(declared, values)
        outputs = ", ".join(f"[{', '.join(r)}]" if isinstance(r, list) else r for r in results)
        flat = [name for r in results for name in (r if isinstance(r, list) else [r])]
        kind = f"<{dtype}>" if dtype else ""
        lines.append(f"{outputs} = {declared.name}{kind}({', '.join(given)});")
        ends = ", ".join(f"x{i}" for i in range(len(inputs)))
        body = "\n".join(lines)
        head = "version 1.0;\nextension KHR_enable_fragment_definitions;\n"
        return f"{head}graph g({ends}) -> ({', '.join(flat)})\n{{\n{body}\n}}\n", inputs

    def _written(self, param: Param, value: object, inputs: list[str]) -> str:
        if param.is_tensor and isinstance(value, list | tuple):
            return f"[{', '.join(self._written(param, one, inputs) for one in value)}]"
        if param.is_tensor and isinstance(value, np.ndarray):
            value = self.weights(value, param.name)
        if isinstance(value, Tensor):
            if value.builder is not self:
                raise InputError(f"'{value.name}' is a tensor of another builder")
            inputs.append(value.name)
            return f"x{len(inputs) - 1}"
        if param.is_tensor and not isinstance(value, bool | int | float | np.generic):
            raise InputError(
                f"'{param.name}' is {value!r}, expected a tensor, a number or an array"
            )
        if param.is_tensor and "scalar" in str(param.type) and isinstance(value, int):
            value = float(value)
        return print_expression(expression(value))


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
    if graph.integer or graph.ready is not None:
        kind = "an integer network" if graph.integer else "cooked"
        raise InputError(f"'{graph.name}' is {kind}: edit the float network that it was made from")
    builder = GraphBuilder(graph.name)
    made = builder._made
    made.reserve(graph.facts)
    made.inputs += graph.inputs
    made.nodes += graph.nodes
    made.facts |= graph.facts
    made.constants |= graph.constants
    made.labels |= graph.labels
    made.sources |= graph.sources
    builder._before = graph
    builder._outputs = {name: name for name in graph.outputs}
    return builder


def _caller() -> Source:
    """Returns the file and line of the code outside this module that called into it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno)


def _signature_of(op: str) -> Signature:
    from cml_engine.ops.declaration.registry import is_registered, lookup

    if is_registered(op) and (text := lookup(op).signature) and lookup(op).is_custom:
        return declared_signature(text, f"<declaration of {op}>")
    known = operator_signatures()
    if op not in known or op in ("external", "variable"):
        raise ModelError(unknown_operator(op, known))
    return known[op]


def _bound(
    declared: Signature,
    operands: Sequence[Operand | Sequence[Operand]],
    attrs: Mapping[str, object],
) -> dict[str, object]:
    """Returns the operands and attributes of a call by the names of the operator's parameters.

    Raises :class:`ModelError` for too many operands, and for unknown, repeated or missing
    parameters.
    """
    if len(operands) > len(declared.params):
        raise ModelError(f"{len(operands)} operands given, expected {declared}")
    values: dict[str, object] = dict(zip((p.name for p in declared.params), operands, strict=False))
    for key, value in attrs.items():
        name = key.rstrip("_") if key not in declared.by_name else key
        if name not in declared.by_name and not (declared.generic and name == "dtype"):
            raise ModelError(f"'{declared.name}' has no parameter '{name}', expected {declared}")
        if name in values:
            raise ModelError(f"'{name}' is given twice, expected {declared}")
        values[name] = value
    missing = [p.name for p in declared.params if p.required and p.name not in values]
    if missing:
        raise ModelError(f"'{missing[0]}' is missing, expected {declared}")
    return values


def _results(declared: Signature, values: Mapping[str, object]) -> list[str | list[str]]:
    """Returns new names for the results of a call.

    A result that is an array gets a list of names.
    """
    found: list[str | list[str]] = []
    for i, result in enumerate(declared.results):
        if result.type.kind != "array":
            found.append(f"y{i}")
            continue
        count = values.get("times", 0)
        if "ratios" in values:
            count = len(cast("Sequence[int]", values["ratios"]))
        elif isinstance(value := values.get("value"), Tensor) and "axis" in values:
            count = value.shape[cast(int, values["axis"])]
        found.append([f"y{i}_{k}" for k in range(cast(int, count))])
    return found


def _ancestors(nodes: Sequence[Node], names: object) -> set[str]:
    """Returns the named tensors and all tensors that they are computed from."""
    by_output = {name: node for node in nodes for name in node.outputs}
    found: set[str] = set()
    waiting = list(cast("Sequence[str]", names))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if name in by_output:
                waiting += by_output[name].reads
    return found


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes in an order in which each node follows the nodes whose results it reads.

    Raises :class:`ModelError` if a node depends on itself.
    """
    by_output = {name: node for node in nodes for name in node.outputs}
    done: dict[str, Node] = {}
    for last in nodes:
        waiting = [last]
        while waiting:
            node = waiting[-1]
            ahead = [
                by_output[name]
                for name in node.reads
                if name in by_output and by_output[name].outputs[0] not in done
            ]
            if ahead and node.outputs[0] not in done:
                waiting += ahead
                if len(waiting) > len(nodes) + len(ahead) + 1:
                    raise ModelError(f"'{node.outputs[0]}' is computed from itself")
                continue
            done.setdefault(node.outputs[0], node)
            waiting.pop()
    return list(done.values())


def _reloaded(graph: Graph) -> Graph:
    """Returns the graph as it is after saving it as NNEF in memory and loading it again.

    Unlike the graph that was built, it can be reshaped.
    """
    from cml_engine.formats.loading import load

    composed = compose(graph, graph.declarations)
    text = print_document(composed.document)
    return load(MemoryModel(text, composed.tensors, name=graph.name))
