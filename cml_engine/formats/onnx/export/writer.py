"""Writes a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.errors import InputError, InternalError
from cml_engine.formats.onnx.export.call import (
    ExportCall,
    ExportOperand,
    ExportRule,
)
from cml_engine.formats.onnx.export.game_operators import GAME, export_rule
from cml_engine.formats.onnx.export.wire import (
    OutFunction,
    OutNode,
    OutValue,
    body_bytes,
    function_bytes,
    graph_bytes,
    model_bytes,
)
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact, Graph, Node, unused_name

#: the domain of the local functions, and the model's producer
DOMAIN = "cml_engine"
#: Protocol Buffers' own limit of a message
MOST_BYTES = 2**31 - 1
#: the suffix of the output with a variable's next value
NEXT = "_next"


class OnnxWriter:
    """Writes one graph as an ONNX model; keeps the nodes, initializers and functions so far."""

    def __init__(self, graph: Graph, opset: int) -> None:
        self._graph, self._opset = graph, opset
        self._nodes: list[OutNode] = []
        self._tensors: dict[str, Array] = {}
        self._made: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._functions: dict[tuple[str, bytes, int], OutFunction] = {}
        self._taken = {*graph.facts, *graph.inputs, *graph.outputs}
        self._state = {variable for variable, _ in graph.updates}

    def parts(self) -> list[bytes]:
        """Writes the graph and returns the bytes of the file, in parts. It is called once."""
        graph = self._graph
        self._check_size()
        for name in self._ordered_state():
            self._tensors[name] = graph.constants[name]
        for node in graph.nodes:
            self._write(node)
        next_values = [self._next(variable, value) for variable, value in graph.updates]
        inputs = [self._value(name) for name in (*graph.inputs, *self._ordered_state())]
        outputs = [self._output(name) for name in graph.outputs]
        made = [name for node in self._nodes if node.domain == GAME for name in node.outputs]
        inner = [self._value(name) for name in made if name not in graph.outputs]
        body = graph_bytes(
            graph.name, self._nodes, self._tensors.items(), inputs, [*outputs, *next_values], inner
        )
        domains = dict.fromkeys(node.domain for node in self._nodes if node.domain)
        opsets = {"": self._opset, **dict.fromkeys(domains, 1)}
        functions = [function_bytes(f, DOMAIN, self._opset) for f in self._functions.values()]
        return model_bytes(body, DOMAIN, opsets, functions)

    # -- the graph's own tensors ----------------------------------------------------------------

    def _ordered_state(self) -> list[str]:
        return [variable for variable, _ in self._graph.updates]

    def _value(self, name: str, called: str = "") -> OutValue:
        fact = self._graph.facts[name]
        return OutValue(called or name, NUMPY_DTYPE[fact.dtype].name, fact.shape)

    def _output(self, name: str) -> OutValue:
        """Returns the declaration of an output.

        An input or a constant is first copied to a tensor of another name.
        """
        graph = self._graph
        if name in graph.inputs or name in graph.constants:
            called = unused_name(f"{name}_out", self._taken)
            self._copy(name, called)
            return self._value(name, called)
        return self._value(name)

    def _next(self, variable: str, value: str) -> OutValue:
        called = unused_name(f"{variable}{NEXT}", self._taken)
        self._copy(value, called)
        return self._value(value, called)

    def _copy(self, name: str, called: str) -> None:
        self._taken.add(called)
        operand = self._operand(name)
        source = name if operand.value is None else self._constant(operand.value, name)
        self._nodes.append(OutNode("Identity", (source,), (called,)))

    def _operand(self, name: str) -> ExportOperand:
        value = None if name in self._state else self._graph.constants.get(name)
        return ExportOperand(name, self._graph.facts[name], value)

    def _constant(self, array: Array, name: str = "") -> str:
        """Stores an array as an initializer and returns the initializer's name.

        A constant of the graph keeps its name; other constants of equal values are shared.
        """
        if name and self._tensors.setdefault(name, array).shape == array.shape:
            return name
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._made:
            base = name or "constant"
            made, count = f"{base}_1", 1
            while made in self._taken:
                count += 1
                made = f"{base}_{count}"
            self._taken.add(made)
            self._made[key] = made
            self._tensors[made] = array
        return self._made[key]

    # -- nodes ----------------------------------------------------------------------------------

    def _write(self, node: Node) -> None:
        if node.epilogues:
            raise InternalError(f"{node.title} is fused already: export the graph as it was loaded")
        row = export_rule(node.op, self._graph.declarations)
        operands = [self._operand(name) for name in node.inputs]
        facts = [self._graph.facts[name] for name in node.outputs]
        if all(fact.size == 0 for fact in facts):
            self._write_empty(node, facts)
        elif row.function:
            self._write_function(node, row, operands, facts)
        else:
            self._write_nodes(node, row, operands, facts)

    def _write_nodes(
        self, node: Node, row: ExportRule, operands: Sequence[ExportOperand], facts: Sequence[Fact]
    ) -> None:
        prefix = f"{node.outputs[0]}/"
        call = ExportCall(
            node=node,
            operands=operands,
            results=facts,
            opset=self._opset,
            constants=self._constant,
            prefix=prefix,
            taken=self._taken,
        )
        self._nodes += call.write(row, node.outputs)

    def _write_empty(self, node: Node, facts: Sequence[Fact]) -> None:
        """Writes a node's results, which have no elements, as copies of empty constants.

        Many runtimes fail if they compute empty tensors.
        """
        for name, fact in zip(node.outputs, facts, strict=True):
            empty = self._constant(np.zeros(fact.shape, NUMPY_DTYPE[fact.dtype]))
            self._nodes.append(OutNode("Identity", (empty,), (name,)))

    def _write_function(
        self, node: Node, row: ExportRule, operands: Sequence[ExportOperand], facts: Sequence[Fact]
    ) -> None:
        """Writes a node as a call of a local function; calls with equal bodies share the function.

        Large constants are initializers that the call passes as arguments; small ones are in the
        body.
        """
        inner, given = list[ExportOperand](), list[str]()
        for operand in operands:
            formal = ExportOperand(f"x{len(given)}", operand.fact, operand.value, stored=True)
            if operand.value is None:
                given.append(operand.name)
            elif operand.value.size > _INLINED:
                given.append(self._constant(operand.value, operand.name))
            else:
                formal = operand
            inner.append(formal)
        body = _Body()
        inputs = tuple(f"x{i}" for i in range(len(given)))
        results = tuple(f"y{i}" for i in range(len(facts)))
        taken = {*inputs, *results}
        call = ExportCall(
            node=node,
            operands=inner,
            results=facts,
            opset=self._opset,
            constants=body.constant,
            prefix="",
            taken=taken,
            nodes=body.nodes,
        )
        nodes = call.write(row, results)
        whole = sum(made.op != "Constant" for made in nodes)
        # a single node needs no function, and functions do not declare the domain of placeholders
        if whole == 1 or any(made.domain == GAME for made in nodes):
            self._write_nodes(node, row, operands, facts)
            return
        content = body_bytes(nodes)
        key = (node.op, content, len(inputs))
        if key not in self._functions:
            count = sum(op == node.op for op, _, _ in self._functions)
            name = f"{node.op}_{count + 1}" if count else node.op
            self._functions[key] = OutFunction(name, inputs, results, content)
        name = self._functions[key].name
        self._nodes.append(OutNode(name, tuple(given), node.outputs, {}, DOMAIN))

    def _check_size(self) -> None:
        size = sum(array.nbytes for array in self._graph.constants.values())
        if size > MOST_BYTES:
            raise InputError(
                f"'{self._graph.name}' has {size:,} bytes of weights, and an ONNX file holds "
                f"{MOST_BYTES:,}: save it as NNEF (cml convert), or split the network"
            )


#: constants of up to this many values are stored in a function, larger ones are arguments
_INLINED = 16


class _Body:
    """The nodes of a local function under construction, including nodes for its constants."""

    def __init__(self) -> None:
        self.nodes: list[OutNode] = []
        self._made: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def constant(self, array: Array, name: str = "") -> str:
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = f"c{len(self._made)}"
            self.nodes.append(OutNode("Constant", (), (self._made[key],), {"value": array}))
        return self._made[key]
