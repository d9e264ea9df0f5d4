"""Applies ``graph.quant`` as operators: rounds every tensor that the file names.

The specification (7.1) defines a line as an operator that is applied to the tensor after its
value is computed. The operator of a line is expanded as a model of its own, whose nodes are
inserted into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cml_engine.errors import CmlError, ModelError, located
from cml_engine.ir.construction import GraphRewriter
from cml_engine.ir.graph import Attrs, Fact, Graph, Node, place_of
from cml_engine.nnef.expansion.signatures import STDLIB
from cml_engine.nnef.expansion.values import TensorRef, Value

#: ``expand(op, operands, attributes, facts)`` returns the graph of one call
Expand = Callable[[str, Sequence[Value], Mapping[str, Value], Mapping[str, Fact]], Graph]


def insert_fake_quantize(graph: Graph, expand: Expand) -> Graph:
    """Returns the graph with operators that round the tensors named in its ``graph.quant``.

    The rounded values of a computed tensor get its name. An input, constant or variable is
    rounded where it is read. Names that are not in the graph are ignored, as the format
    requires. ``expand`` makes the graph of one operator.
    """
    quantized = {name: attrs for name, attrs in graph.quantization.items() if name in graph.facts}
    return _Insertion(graph, expand).run(quantized)


class _Insertion(GraphRewriter):
    def __init__(self, graph: Graph, expand: Expand) -> None:
        super().__init__(graph)
        self.expand = expand
        #: the rounded tensor that replaces a source tensor in its readers
        self.replacements: dict[str, str] = {}

    def run(self, quantized: Mapping[str, Attrs]) -> Graph:
        graph = self.graph
        computed = {name for node in graph.nodes for name in node.outputs}
        for name in quantized.keys() - computed:
            if self._complete(quantized[name]) or name not in graph.labels:
                self.replacements[name] = self.unused_name(f"{name}_rounded")
        for name in sorted(self.replacements):
            self.nodes += self._rounding(name, quantized[name], name, self.replacements[name])
        for node in graph.nodes:
            self._round_results(node, {n: quantized[n] for n in node.outputs if n in quantized})
        updates = tuple((v, self.replacements.get(value, value)) for v, value in graph.updates)
        return self.finished().with_(updates=updates)

    def _complete(self, attrs: Attrs) -> bool:
        """Returns True if a line of ``graph.quant`` has all arguments that its operator requires.

        The line of stored integers may leave out arguments that are in the file's header. Those
        values are already dequantized.
        """
        sig = STDLIB.signatures.get(attrs["op"])
        return sig is None or all(p.name in attrs for p in sig.params[1:] if p.required)

    def _round_results(self, node: Node, quantized: Mapping[str, Attrs]) -> None:
        exact = {name: self.unused_name(f"{name}_exact") for name in quantized}
        inputs = tuple(self.replacements.get(name, name) for name in node.inputs)
        outputs = tuple(exact.get(name, name) for name in node.outputs)
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        for name, attrs in quantized.items():
            self.facts[exact[name]] = self.graph.facts[name]
            self.nodes += self._rounding(name, attrs, exact[name], name)

    def _rounding(self, name: str, attrs: Attrs, source: str, target: str) -> Iterator[Node]:
        """Yields the nodes of ``target = op(source)``, and records their constants and facts.

        ``op`` is the operator that ``attrs`` states for the tensor ``name``.
        """
        fact = self.graph.facts[name]
        with located(place_of(attrs)):
            rounding = self._build_rounding(name, fact, attrs)
        names = {"x": source, rounding.outputs[0]: target}
        for inner in rounding.facts:
            if inner not in names:
                names[inner] = inner if _is_literal(inner) else self.unused_name(f"{name}_{inner}")
            self.facts[names[inner]] = rounding.facts[inner]
        self.facts[source] = fact
        self.constants |= {names[inner]: value for inner, value in rounding.constants.items()}
        for node in rounding.nodes:
            yield Node(
                node.op,
                tuple(names[n] for n in node.inputs),
                tuple(names[n] for n in node.outputs),
                node.attrs,
                self.graph.sources.get(name),
            )

    def _build_rounding(self, name: str, fact: Fact, attrs: Attrs) -> Graph:
        """Returns a graph from ``x`` that rounds a tensor as its line of ``graph.quant`` states."""
        op, arguments = attrs["op"], {key: value for key, value in attrs.items() if key != "op"}
        problem = ""
        if op not in STDLIB.signatures or not op.endswith("_quantize"):
            problem = f"{op} is unknown"
        elif fact.dtype != "scalar":
            problem = f"it is {fact}, and only scalars are quantised"
        else:
            try:
                rounding = self.expand(op, [TensorRef("x", fact.dtype)], arguments, {"x": fact})
            except CmlError as error:
                problem = error.message
            else:
                result = rounding.facts[rounding.outputs[0]]
                if result == fact:
                    return rounding
                problem = f"it is {fact}, its quantisation gives {result}"
        raise ModelError(f"the line of '{name}' in graph.quant: {problem}")


def _is_literal(name: str) -> bool:
    """Returns True if a tensor's name is a literal's text, such as ``0.5`` or ``true``."""
    return not (name[0].isalpha() or name[0] == "_") or name in ("true", "false")
