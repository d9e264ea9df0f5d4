"""The messages of ``onnx.proto`` that an importer needs, as plain data.

Tensors stay views of the file until their values are asked for (``tensors.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cml_engine.convert.onnx.protobuf import Field, Message
from cml_engine.convert.onnx.tensors import ELEMENT_TYPES, ExternalData, OnnxTensor, read_tensor
from cml_engine.errors import ModelError, UnsupportedOp

#: an extent: a number, a symbol ("batch"), or nothing at all
Dim = int | str | None


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """A graph's input or output; ``kind`` is ``tensor`` or what else it is."""

    name: str
    element: int = 0
    shape: tuple[Dim, ...] | None = None
    kind: str = "tensor"

    @property
    def type_name(self) -> str:
        return ELEMENT_TYPES.get(self.element, f"type {self.element}")

    def __str__(self) -> str:
        dims = (
            "" if self.shape is None else ",".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.type_name}[{dims}]"


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a function's node that is an attribute of the function's call."""

    name: str


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node; attributes are numbers, texts, tensors, graphs or lists of them."""

    op: str
    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    overload: str = ""

    @property
    def title(self) -> str:
        """``Conv '/conv1/Conv'``, as messages name it."""
        return f"{self.qualified} {self.shown}"

    @property
    def shown(self) -> str:
        """Its name, or its first output's, in quotes."""
        return f"'{self.name or next((name for name in self.outputs if name), '')}'"

    @property
    def qualified(self) -> str:
        return f"{self.domain}:{self.op}" if self.domain else self.op


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph, or the body of a control-flow operator. ``infos`` are what the file says of tensors
    that are neither inputs nor outputs."""

    name: str
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, OnnxTensor]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    infos: tuple[ValueInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class OnnxFunction:
    """A local function: nodes in the place of a node of its name."""

    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[OnnxNode, ...]
    opsets: Mapping[str, int]
    overload: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A whole file."""

    file: str
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    graph: OnnxGraph
    functions: Mapping[tuple[str, str, str], OnnxFunction] = field(default_factory=dict)


def read_model(data: memoryview, file: str, folder: ExternalData) -> Model:
    """The model in a file's bytes; ``folder`` has its external data."""
    return _Reader(folder).model(Message(data, file))


def domain_name(domain: str) -> str:
    """ONNX's own domain has two names."""
    return "" if domain == "ai.onnx" else domain


_KINDS = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}


class _Reader:
    def __init__(self, folder: ExternalData) -> None:
        self._folder = folder

    def model(self, message: Message) -> Model:
        ir_version, producer, graph = 0, "", None
        opsets: dict[str, int] = {}
        functions: dict[tuple[str, str, str], OnnxFunction] = {}
        for f in message.fields():
            if f.number == 1:
                ir_version = f.whole()
            elif f.number == 2:
                producer = f.text()
            elif f.number == 7:
                graph = f.nested()
            elif f.number == 8:
                opsets.update([self._opset(f)])
            elif f.number == 25:
                function = self._function(f.nested())
                key = (function.domain, function.name, function.overload)
                if key in functions:
                    raise f.damaged(f"the function '{function.name}' is there twice")
                functions[key] = function
        if graph is None or not opsets:
            raise message.damaged("it has no graph" if graph is None else "it names no opset")
        return Model(message.file, ir_version, producer, opsets, self.graph(graph), functions)

    def graph(self, message: Message) -> OnnxGraph:
        name, nodes = "", list[OnnxNode]()
        tensors: dict[str, OnnxTensor] = {}
        inputs, outputs, infos = list[ValueInfo](), list[ValueInfo](), list[ValueInfo]()
        for f in message.fields():
            if f.number == 1:
                nodes.append(self._node(f.nested()))
            elif f.number == 2:
                name = f.text()
            elif f.number == 5:
                tensor = read_tensor(f.nested(), self._folder)
                if tensor.name in tensors:
                    raise f.damaged(f"the initializer '{tensor.name}' is there twice")
                tensors[tensor.name] = tensor
            elif f.number == 11:
                inputs.append(_value_info(f.nested()))
            elif f.number == 12:
                outputs.append(_value_info(f.nested()))
            elif f.number == 13:
                infos.append(_value_info(f.nested()))
            elif f.number == 15:
                raise _sparse(f, message.file)
        known = (tuple(inputs), tuple(outputs), tuple(infos))
        return OnnxGraph(name, tuple(nodes), tensors, *known)

    def _function(self, message: Message) -> OnnxFunction:
        texts: dict[int, list[str]] = {number: [] for number in (1, 4, 5, 6, 10, 13)}
        nodes, defaults, opsets = list[OnnxNode](), dict[str, Any](), dict[str, int]()
        for f in message.fields():
            if f.number in texts:
                texts[f.number].append(f.text())
            elif f.number == 7:
                nodes.append(self._node(f.nested()))
            elif f.number == 9:
                opsets.update([self._opset(f)])
            elif f.number == 11:
                defaults.update([self._attribute(f.nested())])
        return OnnxFunction(
            name="".join(texts[1]),
            domain=domain_name("".join(texts[10])),
            inputs=tuple(texts[4]),
            outputs=tuple(texts[5]),
            attributes=tuple(texts[6]),
            defaults=defaults,
            nodes=tuple(nodes),
            opsets=opsets,
            overload="".join(texts[13]),
        )

    def _opset(self, f: Field) -> tuple[str, int]:
        domain, version = "", 0
        for part in f.nested().fields():
            if part.number == 1:
                domain = part.text()
            elif part.number == 2:
                version = part.whole()
        return domain_name(domain), version

    def _node(self, message: Message) -> OnnxNode:
        inputs, outputs = list[str](), list[str]()
        texts = {3: "", 4: "", 7: "", 8: ""}
        attributes: dict[str, Any] = {}
        for f in message.fields():
            if f.number == 1:
                inputs.append(f.text())
            elif f.number == 2:
                outputs.append(f.text())
            elif f.number in texts:
                texts[f.number] = f.text()
            elif f.number == 5:
                attributes.update([self._attribute(f.nested())])
        return OnnxNode(
            op=texts[4],
            name=texts[3],
            domain=domain_name(texts[7]),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            attributes=attributes,
            overload=texts[8],
        )

    def _attribute(self, message: Message) -> tuple[str, Any]:
        """Name and value; what the value is, is told by the type or by the field that is there."""
        name, kind, reference = "", 0, ""
        values: dict[int, list[Any]] = {}
        for f in message.fields():
            if f.number == 1:
                name = f.text()
            elif f.number == 20:
                kind = f.whole()
            elif f.number == 21:
                reference = f.text()
            elif f.number in self._VALUES:
                values.setdefault(f.number, []).extend(self._VALUES[f.number](self, f))
            elif f.number in (22, 23):
                raise _sparse(f, message.file)
        if reference:
            return name, Reference(reference)
        number = _FIELD_OF_KIND.get(kind) or next(iter(values), 0)
        if not name or not number:
            raise message.damaged(f"the attribute '{name}' has no value that is known")
        found = values.get(number, [])
        if number in _REPEATED:
            return name, found
        return name, found[-1] if found else _EMPTY.get(number)

    #: how the values of an attribute's field are read, in a list
    _VALUES: Mapping[int, Callable[[_Reader, Field], list[Any]]] = {
        2: lambda self, f: [f.real()],
        3: lambda self, f: [f.whole()],
        4: lambda self, f: [_text_or_bytes(f)],
        5: lambda self, f: [read_tensor(f.nested(), self._folder)],
        6: lambda self, f: [self.graph(f.nested())],
        7: lambda self, f: f.numbers("<f4").tolist(),
        8: lambda self, f: f.wholes(),
        9: lambda self, f: [_text_or_bytes(f)],
        10: lambda self, f: [read_tensor(f.nested(), self._folder)],
        11: lambda self, f: [self.graph(f.nested())],
    }


#: the field that holds an attribute of a type, which of them are repeated, and what they are when
#: the file leaves them out, as it may where they are 0 or empty
_FIELD_OF_KIND = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10, 10: 11}
_REPEATED = (7, 8, 9, 10, 11)
_EMPTY: Mapping[int, Any] = {2: 0.0, 3: 0, 4: ""}


def _text_or_bytes(f: Field) -> str | bytes:
    try:
        return str(f.view(), "utf-8")
    except UnicodeDecodeError:
        return bytes(f.view())


def _value_info(message: Message) -> ValueInfo:
    name, element, shape, kind = "", 0, None, "nothing"
    for f in message.fields():
        if f.number == 1:
            name = f.text()
        elif f.number == 2:
            for part in f.nested().fields():
                if part.number == 1:
                    kind = "tensor"
                    element, shape = _tensor_type(part.nested())
                elif part.number in _KINDS:
                    kind = _KINDS[part.number]
    return ValueInfo(name, element, shape, kind)


def _tensor_type(message: Message) -> tuple[int, tuple[Dim, ...] | None]:
    element, shape = 0, None
    for f in message.fields():
        if f.number == 1:
            element = f.whole()
        elif f.number == 2:
            shape = tuple(_dim(d.nested()) for d in f.nested().fields() if d.number == 1)
    return element, shape


def _dim(message: Message) -> Dim:
    for f in message.fields():
        if f.number == 1:
            return f.whole()
        if f.number == 2:
            text = f.text()
            return text if text.isidentifier() else None  # "?" names nothing
    return None


def _sparse(f: Field, file: str) -> ModelError:
    name = ""
    for part in f.nested().fields():
        if part.number == 1 and part.wire == 2:
            name = next((p.text() for p in part.nested().fields() if p.number == 8), "")
    return UnsupportedOp(
        f"'{file}': the sparse tensor '{name}' is not supported: store it as a dense one"
    )
