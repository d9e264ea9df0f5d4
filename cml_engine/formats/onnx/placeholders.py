"""Fragment declarations for operators that the engine does not know.

The saved model contains the declarations, so that it can be read, and run by a game that
registers an operator of that declaration (``--ops``). The shapes of such an operator's results
come from the file's ``value_info``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cml_engine.errors import ModelError, UnsupportedOp
from cml_engine.formats.onnx.model import OnnxNode, ValueInfo
from cml_engine.formats.onnx.tensors import element_dtype
from cml_engine.formats.onnx.values import Value, kind_of
from cml_engine.ir.graph import AttrValue, Fact, unused_name
from cml_engine.nnef.expansion.compose import to_identifier
from cml_engine.nnef.expansion.signatures import EXTENSIONS, STDLIB

_TYPES = {bool: "logical", int: "integer", float: "scalar", str: "string"}


class Placeholders:
    """The fragment declarations made so far, by operator name.

    ``comments`` has a line per declaration that names the node of the file it was made for.
    """

    def __init__(self, infos: Sequence[ValueInfo], symbols: Mapping[str, int]) -> None:
        self._infos = {info.name: info for info in infos if info.shape is not None}
        self._symbols = symbols
        self._names: dict[tuple[str, str], str] = {}
        self.declarations: dict[str, str] = {}
        self.comments: list[str] = []

    def declare(
        self, node: OnnxNode, inputs: Sequence[Value | None]
    ) -> tuple[str, dict[str, AttrValue], list[Fact]]:
        """Declares a fragment for a node that the engine does not know.

        Returns the operator's name in NNEF, its attributes, and the types and shapes of its
        results.
        """
        attrs = {_parameter(name): _attribute(node, name, v) for name, v in node.attributes.items()}
        facts = [self._fact(node, name) for name in node.outputs]
        tensor_params = [
            f"x{i + 1}: tensor<{value.kind}>" for i, value in enumerate(inputs) if value is not None
        ]
        attr_params = [f"{name}: {_type(value)}" for name, value in attrs.items()]
        results = [f"y{i + 1}: tensor<{fact.dtype}>" for i, fact in enumerate(facts)]
        signature = f"({', '.join(tensor_params + attr_params)}) -> ({', '.join(results)})"
        name = self._name(node, signature)
        self.declarations[name] = f"fragment {name}{signature};"
        self.comments.append(f"{name}: the node {node.title}")
        return name, attrs, facts

    def _name(self, node: OnnxNode, signature: str) -> str:
        """Returns the NNEF name for an operator with a signature.

        It is not NNEF's or the engine's.
        """
        key = (node.qualified, signature)
        if key not in self._names:
            reserved = (STDLIB.signatures, EXTENSIONS.signatures, self.declarations)
            self._names[key] = unused_name(to_identifier(node.op, "op_"), *reserved)
        return self._names[key]

    def _fact(self, node: OnnxNode, output: str) -> Fact:
        info = self._infos.get(output)
        shape = info.shape if info is not None else None
        extents = [self._symbols.get(d, d) if isinstance(d, str) else d for d in shape or ()]
        dtype = element_dtype(info.element) if info is not None else None
        if shape is None or dtype is None or not all(isinstance(n, int) for n in extents):
            raise ModelError(
                f"the file does not say the shape of '{output or 'an output'}', which an unknown "
                "operator gives: write it by onnx.shape_inference or by hand into value_info, or "
                "bring the operator (--ops FILE.py)"
            )
        return Fact(kind_of(dtype), tuple(n for n in extents if isinstance(n, int)))


def _parameter(name: str) -> str:
    """Returns an attribute's name as a valid NNEF identifier.

    It differs from the names of tensors, such as ``x1`` and ``y1``.
    """
    name = to_identifier(name, "a_")
    return f"a_{name}" if re.fullmatch("[xy][0-9]+", name) else name


def _attribute(node: OnnxNode, name: str, value: object) -> AttrValue:
    listed = value if isinstance(value, list) else [value]
    items = [item for item in listed if isinstance(item, (bool, int, float, str))]
    if not items or len(items) < len(listed) or len(set(map(type, items))) > 1:
        raise UnsupportedOp(
            f"attribute '{name}' of {node.title} is no number or text, or a list of them: a "
            "placeholder cannot have it"
        )
    return items if isinstance(value, list) else items[0]


def _type(value: object) -> str:
    if isinstance(value, list):
        return f"{_TYPES[type(value[0])]}[]"
    return _TYPES[type(value)]
