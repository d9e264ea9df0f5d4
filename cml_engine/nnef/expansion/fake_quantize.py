"""Applies ``graph.quant`` as operators: rounds every tensor that the file names.

The specification (7.1) defines a line as an operator that is applied to the tensor after its
value is computed. The operator of a line is expanded as a model of its own, whose nodes are
inserted into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cml_engine.errors import ModelError, located
from cml_engine.ir.graph import Array, Attrs, Fact, Graph, Node, place_of, unused_name
from cml_engine.nnef.expansion.signatures import STDLIB, Signature

#: builds a graph from its text, which has an input ``x`` and an output ``y``
BuildText = Callable[[str], Graph]


def insert_fake_quantize(graph: Graph, build: BuildText) -> Graph:
    """Returns the graph with operators that round the tensors named in its ``graph.quant``.

    The rounded values of a computed tensor get its name. An input, constant or variable is
    rounded where it is read. Names that are not in the graph are ignored, as the format
    requires. ``build`` makes a graph from NNEF text.
    """
    named = {name: attrs for name, attrs in graph.quantization.items() if name in graph.facts}
    return _Insertion(graph, build).run(named)


@dataclass
class _Insertion:
    graph: Graph
    build: BuildText
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    #: the rounded tensor that replaces a source tensor in its readers
    instead: dict[str, str] = field(default_factory=dict)

    def run(self, named: Mapping[str, Attrs]) -> Graph:
        graph = self.graph
        self.facts, self.constants = dict(graph.facts), dict(graph.constants)
        computed = {name for node in graph.nodes for name in node.outputs}
        for name in named.keys() - computed:
            if self._complete(named[name]) or name not in graph.labels:
                self.instead[name] = self._unused_name(f"{name}_rounded")
        for name in sorted(self.instead):
            self.nodes += self._rounding(name, named[name], name, self.instead[name])
        for node in graph.nodes:
            self._add(node, {n: named[n] for n in node.outputs if n in named})
        updates = tuple((v, self.instead.get(value, value)) for v, value in graph.updates)
        return graph.with_(
            nodes=tuple(self.nodes), constants=self.constants, facts=self.facts, updates=updates
        )

    def _complete(self, attrs: Attrs) -> bool:
        """Returns True if a line of ``graph.quant`` has all arguments that its operator requires.

        The line of stored integers may leave out arguments that are in the file's header. Those
        values are already dequantized.
        """
        sig = STDLIB.signatures.get(attrs["op"])
        return sig is None or all(p.name in attrs for p in sig.params[1:] if p.required)

    def _add(self, node: Node, named: Mapping[str, Attrs]) -> None:
        exact = {name: self._unused_name(f"{name}_exact") for name in named}
        inputs = tuple(self.instead.get(name, name) for name in node.inputs)
        outputs = tuple(exact.get(name, name) for name in node.outputs)
        self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        for name, attrs in named.items():
            self.facts[exact[name]] = self.graph.facts[name]
            self.nodes += self._rounding(name, attrs, exact[name], name)

    def _rounding(self, name: str, attrs: Attrs, source: str, target: str) -> Iterator[Node]:
        """Yields the nodes of ``target = op(source)``, and records their constants and facts.

        ``op`` is the operator that ``attrs`` states for the tensor ``name``.
        """
        fact = self.graph.facts[name]
        with located(place_of(attrs)):
            made = self._build_rounding(name, fact, attrs)
        names = {"x": source, "y": target}
        for inner in made.facts:
            if inner not in names:
                names[inner] = inner if _is_literal(inner) else self._unused_name(f"{name}_{inner}")
            self.facts[names[inner]] = made.facts[inner]
        self.facts[source] = fact
        self.constants |= {names[inner]: value for inner, value in made.constants.items()}
        for node in made.nodes:
            yield Node(
                node.op,
                tuple(names[n] for n in node.inputs),
                tuple(names[n] for n in node.outputs),
                node.attrs,
                self.graph.sources.get(name),
            )

    def _build_rounding(self, name: str, fact: Fact, attrs: Attrs) -> Graph:
        """Returns a graph from ``x`` to ``y`` that rounds a tensor as ``attrs`` states."""
        made = self.build(_model(name, fact, attrs))
        if made.facts["y"] != fact:
            raise _quantization_error(
                name, f"it is {fact}, its quantisation gives {made.facts['y']}"
            )
        return made

    def _unused_name(self, name: str) -> str:
        name = unused_name(name, self.facts)
        self.facts[name] = Fact("scalar", ())  # reserves the name; the node sets its fact
        return name


def _is_literal(name: str) -> bool:
    """Returns True if a tensor's name is a literal's text, such as ``0.5`` or ``true``."""
    return not (name[0].isalpha() or name[0] == "_") or name in ("true", "false")


def _model(name: str, fact: Fact, attrs: Attrs) -> str:
    """Returns the NNEF text of a model from ``x`` to ``y`` that rounds a tensor by ``attrs``.

    Raises an error that names the tensor if the line of ``graph.quant`` is not valid.
    """
    sig = STDLIB.signatures.get(attrs["op"])
    if sig is None or not sig.name.endswith("_quantize"):
        raise _quantization_error(name, f"{attrs['op']} is unknown")
    if fact.dtype != "scalar":
        raise _quantization_error(name, f"it is {fact}, and only scalars are quantised")
    if unknown := set(attrs) - {"op"} - {p.name for p in sig.params[1:]}:
        raise _quantization_error(name, f"{sig.name} has no parameter '{min(unknown)}'")
    lines = [f"x = external<scalar>(shape = {list(fact.shape)});"]
    arguments = []
    for key, value in attrs.items():
        if key != "op":
            lines += _constant(name, sig, key, value)
            arguments.append(f"{key} = {key if isinstance(value, list) else _literal(value)}")
    lines.append(f"y = {sig.name}(x, {', '.join(arguments)});")
    return "version 1.0; graph rounding(x) -> (y) {\n" + "\n".join(lines) + "\n}\n"


def _quantization_error(name: str, what: str) -> ModelError:
    return ModelError(f"the line of '{name}' in graph.quant: {what}")


def _constant(name: str, sig: Signature, key: str, value: object) -> list[str]:
    """Returns the text lines that declare an array argument; none for a number.

    Numbers are written into the call.
    """
    if not isinstance(value, list):
        return []
    kind = sig.by_name[key].type.name
    try:
        array = np.array(value, np.int64 if kind == "integer" else np.float64)
    except (ValueError, TypeError, OverflowError):
        raise _quantization_error(name, f"'{key}' wants numbers in equal rows") from None
    values = ", ".join(_literal(v) for v in array.ravel().tolist())
    return [f"{key} = constant<{kind}>(shape = {list(array.shape)}, value = [{values}]);"]


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
