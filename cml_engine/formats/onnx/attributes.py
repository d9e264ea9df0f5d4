"""The declarations of ONNX attributes and the checks of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from cml_engine.formats.onnx.model import OnnxGraph
from cml_engine.formats.onnx.tensors import ELEMENT_TYPES, OnnxTensor, element_dtype

_NOUNS: dict[type, str] = {
    int: "integer", float: "number", str: "text", OnnxTensor: "tensor", OnnxGraph: "graph",
}  # fmt: skip
_LARGEST = (1 << 31) - 1


class WrongAttribute(Exception):
    """The error that an attribute has an invalid value.

    It says what was given and what is allowed.
    """


@dataclass(frozen=True, slots=True)
class Attr:
    """The declaration of one attribute of an ONNX operator: its type, default and allowed values.

    Parameters
    ----------
    kind : the type of the value, or of each entry where there are ``many``.
    default : the value of an attribute that is left out, of each entry if there is a ``count``.
    low, high : the bounds of integers.
    among : all allowed values; empty if they are not listed.
    count : returns the length of a list from the node.
    """

    kind: type
    default: Any = None
    required: bool = False
    many: bool = False
    low: float = -math.inf
    high: float = math.inf
    among: Collection[Any] = ()
    count: Callable[[Any], int] | None = None

    def value(self, given: Any, count: int | None) -> Any:
        """Checks the value ``given`` by a node and returns it.

        Numbers of float attributes become floats.

        Raises
        ------
        WrongAttribute
            The value has another type, length or range.
        """
        found = given if self.many else [given]
        if not isinstance(found, list) or not all(map(self._fits, found)):
            raise WrongAttribute(f"is {_shown(given)}, wanted {self._wanted(count)}")
        if count is not None and len(found) != count:
            raise WrongAttribute(f"is {_shown(given)}, wanted {self._wanted(count)}")
        found = [float(v) for v in found] if self.kind is float else found
        return found if self.many else found[0]

    def left_out(self, count: int | None) -> Any:
        """Returns the default, the value of an attribute that a node leaves out.

        With ``count`` it is a list of that length.
        """
        return self.default if count is None or self.default is None else [self.default] * count

    def _fits(self, value: object) -> bool:
        kinds = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, kinds):
            return False
        return not isinstance(value, int) or self.low <= value <= self.high

    def _wanted(self, count: int | None) -> str:
        noun = _NOUNS[self.kind]
        article = "an" if noun[0] in "aeiou" else "a"
        words = f"{noun}s" if self.many else f"{article} {noun}"
        words = words if count is None else f"{count} {words}"
        if self.low > -math.inf:
            words += f" from {self.low} to {self.high}"
        return words


def _shown(value: Any) -> str:
    for kind in (OnnxTensor, OnnxGraph):
        if isinstance(value, kind):
            return f"a {_NOUNS[kind]}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


INT, INTS = Attr(int), Attr(int, many=True)
FLOAT, FLOATS = Attr(float), Attr(float, many=True)
TEXT, TEXTS, TENSOR = Attr(str), Attr(str, many=True), Attr(OnnxTensor)
#: an element type that the network supports
ELEMENT = Attr(int, among=[n for n in ELEMENT_TYPES if element_dtype(n) is not None])


def required(attr: Attr) -> Attr:
    """Returns a copy of an attribute's declaration that requires nodes to give the attribute."""
    return replace(attr, required=True)


def at_least(low: int, default: int | None = None) -> Attr:
    """Returns the declaration of a 32-bit integer attribute of at least ``low``."""
    return Attr(int, default, low=low, high=_LARGEST)


def per_axis(low: int, default: int | None = None, times: int = 1) -> Attr:
    """Returns the declaration of a list attribute with ``times`` integers per spatial axis.

    The axes are those of the node's first input.
    """
    many = replace(at_least(low, default), many=True)
    return replace(many, count=lambda node: times * max(node[0].rank - 2, 0))


def one_of(default: str, *others: str) -> Attr:
    """Returns the declaration of a text attribute that must be one of the arguments.

    The first argument is the default.
    """
    return Attr(str, default, among=(default, *others))


def declared(value: Any) -> Attr:
    """Returns the declaration of an attribute from its shorthand.

    A type stands for a required attribute, any other value for an attribute with that default.
    """
    if isinstance(value, Attr):
        return value
    if isinstance(value, type):
        return Attr(value, required=True)
    if isinstance(value, list):
        return Attr(type(value[0]), value, many=True)
    return Attr(type(value), value)
