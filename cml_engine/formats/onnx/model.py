"""The messages of ``onnx.proto`` that an importer needs, as dataclasses.

Tensors stay views of the file until their values are read (``tensors.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cml_engine.errors import ModelError, UnsupportedOp
from cml_engine.formats.onnx.protobuf import BYTES, Field, Message
from cml_engine.formats.onnx.tensors import ExternalData, OnnxTensor, read_tensor, type_name
from cml_engine.io.load_limits import current_budget

#: an extent: a number, a symbol ("batch"), or None
Dim = int | str | None


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """A declaration of a tensor of a graph, such as an input: its name, element type and shape.

    ``kind`` is ``tensor`` or names another type: ``a sequence``.
    """

    name: str
    element: int = 0
    shape: tuple[Dim, ...] | None = None
    kind: str = "tensor"

    @property
    def type_name(self) -> str:
        return type_name(self.element)

    def __str__(self) -> str:
        dims = (
            "" if self.shape is None else ",".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.type_name}[{dims}]"


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a node in a function whose value is the attribute ``name`` of the call."""

    name: str


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node of an ONNX graph; inputs and outputs are names, "" for those left out.

    Attributes are numbers, texts, tensors, graphs or lists of them.
    """

    op: str
    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object]
    overload: str = ""

    @property
    def title(self) -> str:
        """The node's operator and name for messages: ``Conv '/conv1/Conv'``."""
        return f"{self.qualified} {self.shown}"

    @property
    def shown(self) -> str:
        """The node's name, or the name of its first output, in quotes."""
        return f"'{self.name or next((name for name in self.outputs if name), '')}'"

    @property
    def qualified(self) -> str:
        return f"{self.domain}:{self.op}" if self.domain else self.op


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """An ONNX graph, of the model or in an attribute of a control-flow operator.

    ``infos`` are the file's declarations of tensors that are neither inputs nor outputs.
    """

    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, OnnxTensor]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    infos: tuple[ValueInfo, ...] = ()

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.outputs)


@dataclass(frozen=True, slots=True)
class OnnxFunction:
    """A local function of a model: its nodes replace each node that has its domain and name.

    ``defaults`` are the values of attributes that a call may leave out, by name.
    """

    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, object]
    nodes: tuple[OnnxNode, ...]
    opsets: Mapping[str, int]
    overload: str = ""


@dataclass(frozen=True, slots=True)
class OnnxModelFile:
    """A parsed ONNX file; ``functions`` are keyed by domain, name and overload."""

    file: str
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    graph: OnnxGraph
    functions: Mapping[tuple[str, str, str], OnnxFunction] = field(default_factory=dict)


def read_model(data: memoryview, file: str, folder: ExternalData) -> OnnxModelFile:
    """Parses the bytes of an ONNX file and returns its contents as dataclasses.

    ``file`` is its name for messages, and ``folder`` gives access to its external data.
    """
    return _Reader(folder).model(Message(data, file))


def domain_name(domain: str) -> str:
    """Returns a domain's canonical name: "" for ``ai.onnx``, which is ONNX's own."""
    return "" if domain == "ai.onnx" else domain


_KINDS = {4: "a sequence", 5: "a map", 8: "a sparse tensor", 9: "an optional value"}


class _Reader:
    def __init__(self, folder: ExternalData) -> None:
        self._folder = folder

    def model(self, message: Message) -> OnnxModelFile:
        parts = message.parts()
        functions: dict[tuple[str, str, str], OnnxFunction] = {}
        for function in map(self._function, parts.nested(25)):
            key = (function.domain, function.name, function.overload)
            if key in functions:
                raise message.damaged(f"the function '{function.name}' is there twice")
            functions[key] = function
        graphs, opsets = parts.nested(7), _opsets(parts.nested(8))
        if not graphs:
            raise message.damaged("it has no graph")
        if not opsets:
            nodes = graphs[-1].parts().nested(1)
            if any(node.parts().text(4).startswith("pnnx.") for node in nodes):
                raise ModelError(
                    f"'{message.file}' shows pnnx's own operators and is no ONNX model: give the "
                    ".ncnn.param that pnnx wrote beside it"
                )
            raise message.damaged("it names no opset")
        graph = self.graph(graphs[-1])
        return OnnxModelFile(message.file, parts.whole(1), parts.text(2), opsets, graph, functions)

    def graph(self, message: Message) -> OnnxGraph:
        parts = message.parts()
        for f in parts.of(15):
            raise _sparse(f, message.file)
        tensors: dict[str, OnnxTensor] = {}
        for part in parts.nested(5):
            tensor = read_tensor(part, self._folder)
            if tensor.name in tensors:
                raise message.damaged(f"the initializer '{tensor.name}' is there twice")
            tensors[tensor.name] = tensor
        nodes = tuple(map(self._node, parts.nested(1)))
        inputs, outputs, infos = (tuple(map(_value_info, parts.nested(n))) for n in (11, 12, 13))
        return OnnxGraph(nodes, tensors, inputs, outputs, infos)

    def _function(self, message: Message) -> OnnxFunction:
        parts = message.parts()
        return OnnxFunction(
            name=parts.text(1),
            domain=domain_name(parts.text(10)),
            inputs=parts.texts(4),
            outputs=parts.texts(5),
            defaults=dict(map(self._attribute, parts.nested(11))),
            nodes=tuple(map(self._node, parts.nested(7))),
            opsets=_opsets(parts.nested(9)),
            overload=parts.text(13),
        )

    def _node(self, message: Message) -> OnnxNode:
        parts = message.parts()
        return OnnxNode(
            op=parts.text(4),
            name=parts.text(3),
            domain=domain_name(parts.text(7)),
            inputs=parts.texts(1),
            outputs=parts.texts(2),
            attributes=self._attributes(message, parts.nested(5)),
            overload=parts.text(8),
        )

    def _attributes(self, node: Message, messages: Sequence[Message]) -> dict[str, object]:
        attributes: dict[str, object] = {}
        for name, value in map(self._attribute, messages):
            if name in attributes:
                raise node.damaged(f"a node has the attribute '{name}' twice")
            attributes[name] = value
        return attributes

    def _attribute(self, message: Message) -> tuple[str, object]:
        """Returns an attribute's name and value.

        The type of the value is stated, or is the type of the first field that is present.
        """
        parts = message.parts()
        for f in (*parts.of(22), *parts.of(23)):
            raise _sparse(f, message.file)
        name, reference = parts.text(1), parts.text(21)
        if reference:
            return name, Reference(reference)
        first = next((number for number in parts.numbers if number in self._VALUES), 0)
        stated_type = parts.whole(20) + 1  # the fields are numbered as the types, from 2 on
        number = stated_type if stated_type in self._VALUES else first
        if not name or not number:
            raise message.damaged(f"the attribute '{name}' has no value that is known")
        values = [value for f in parts.of(number) for value in self._VALUES[number](self, f)]
        if number in _REPEATED:
            return name, values
        return name, values[-1] if values else _EMPTY.get(number)

    #: the readers of the fields with attribute values; each returns a list
    _VALUES: Mapping[int, Callable[[_Reader, Field], Sequence[object]]] = {
        2: lambda self, f: [f.real()],
        3: lambda self, f: [f.whole()],
        **dict.fromkeys((4, 9), lambda self, f: [_text_or_bytes(f)]),
        **dict.fromkeys((5, 10), lambda self, f: [read_tensor(f.nested(), self._folder)]),
        **dict.fromkeys((6, 11), lambda self, f: [self.graph(f.nested())]),
        7: lambda self, f: _reals(f),
        8: lambda self, f: f.listed(),
        14: lambda self, f: [_type_info(f.nested())],
    }


#: the repeated fields, and the values of missing fields, because files may leave out 0 and empty
#: values
_REPEATED = (7, 8, 9, 10, 11)
_EMPTY: Mapping[int, float | str] = {2: 0.0, 3: 0, 4: ""}


def _reals(f: Field) -> list[float]:
    values = f.numbers("<f4")
    current_budget().charge_steps(values.size, f"'{f.message.file}': a list of numbers")
    return list(values.tolist())


def _text_or_bytes(f: Field) -> str | bytes:
    try:
        return str(f.view(), "utf-8")
    except UnicodeDecodeError:
        return bytes(f.view())


def _opsets(imports: Sequence[Message]) -> dict[str, int]:
    """Returns the versions of domains by name; the highest one counts, as ONNX wants."""
    opsets: dict[str, int] = {}
    for parts in (one.parts() for one in imports):
        domain, version = domain_name(parts.text(1)), parts.whole(2)
        opsets[domain] = max(version, opsets.get(domain, version))
    return opsets


def _value_info(message: Message) -> ValueInfo:
    parts, info = message.parts(), ValueInfo("", kind="of no type")
    for type_message in parts.nested(2):
        info = _type_info(type_message)
    return replace(info, name=parts.text(1))


def _type_info(message: Message) -> ValueInfo:
    """Returns the declaration of a tensor without a name, whose type ``message`` states."""
    info = ValueInfo("", kind="of no type")
    for f in message.fields():
        if f.number == 1:
            info = _tensor_info(f.nested())
        elif f.number in _KINDS:
            info = ValueInfo("", kind=_KINDS[f.number])
    return info


def _tensor_info(message: Message) -> ValueInfo:
    parts, shape = message.parts(), None
    for dims in parts.nested(2):
        shape = tuple(map(_dim, dims.parts().nested(1)))
    return ValueInfo("", parts.whole(1), shape)


def _dim(message: Message) -> Dim:
    for f in message.fields():
        if f.number == 1:
            extent = f.whole()
            return extent if extent >= 0 else None  # exporters write -1 for an open extent
        if f.number == 2:
            text = f.text()
            return text if text.isidentifier() else None  # "?" is not a symbol
    return None


def _sparse(f: Field, file: str) -> ModelError:
    values = [part for part in f.nested().fields() if part.number == 1 and part.wire == BYTES]
    name = values[-1].nested().parts().text(8) if values else ""
    return UnsupportedOp(
        f"'{file}': the sparse tensor '{name}' is not supported: store it as a dense one"
    )
