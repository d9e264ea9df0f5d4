"""Reads ``graph.quant``, the quantisation of tensors (NNEF 1.0.5, 6.2); dequantizes integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cml_engine.errors import TensorFileError, located
from cml_engine.ir.graph import Array, Attrs, AttrValue, Quantization, place_of
from cml_engine.nnef.files.tensor_file import StoredTensor
from cml_engine.nnef.text.lexer import SourceText, unquote
from cml_engine.nnef.text.parser import ExpressionParser
from cml_engine.nnef.text.syntax_tree import ArrayExpr, Call, Expr, Literal, TupleExpr

#: the content of a file without entries, which replaces the file of an overwritten model
NOTHING = "# no tensor is quantised"


class QuantParser(ExpressionParser):
    """A parser of the text of ``graph.quant``: lines ``"tensor": op(name = value, ...);``."""

    # document ::= {entry} end
    def document(self) -> dict[str, Attrs]:
        entries: dict[str, Attrs] = {}
        while self.kind != "end":
            pos = self.pos
            name, attrs = self.entry()
            if name in entries:
                raise self.source.error(f"tensor '{name}' is quantised twice", pos)
            entries[name] = attrs
        # a file that was cut off must not read as one without quantisation
        if not entries and self.source.text.strip() != NOTHING:
            raise self.source.error("the file has no entry: restore it, or delete it", self.pos)
        return entries

    # entry ::= quoted ":" call ";"
    def entry(self) -> tuple[str, Attrs]:
        token = self.expect_token("quoted", "a tensor's name in quotes")
        self.expect(":")
        call = self.name_or_call()
        if not isinstance(call, Call):
            raise self.source.error('wanted a call: "tensor": operator(...);', token.pos)
        self.expect(";")
        return unquote(token.text), Quantization(self._values(call), self.source.at(token.pos))

    def _values(self, call: Call) -> dict[str, AttrValue]:
        values: dict[str, AttrValue] = {"op": call.op}
        for argument in call.arguments:
            if argument.name is None or argument.name in values:
                raise self.source.error(
                    f"{call.op} wants each argument named, and once", argument.value.pos
                )
            values[argument.name] = self._value(argument.value)
        return values

    def _value(self, expr: Expr) -> AttrValue:
        if isinstance(expr, Literal):
            return expr.value
        if isinstance(expr, (ArrayExpr, TupleExpr)):
            return [self._value(item) for item in expr.items]
        raise self.source.error("wanted a number, or an array of numbers", expr.pos)


def parse_quant(text: str) -> dict[str, Attrs]:
    """Parses the text of ``graph.quant`` and returns the quantisation of each tensor, by name.

    It is the operator (``attrs["op"]``) and its arguments.
    """
    return QuantParser(SourceText(text, "graph.quant")).document()


def dequantize(stored: StoredTensor, attrs: Attrs | None, file: str) -> Array:
    """Returns the float32 values that a file's stored integers represent.

    ``attrs`` is the tensor's line of ``graph.quant``; None takes the range of the file's header.
    """
    if attrs is None:
        attrs = _from_header(stored, file)
    formula = _FORMULAS.get(attrs["op"])
    if formula is None:
        formula_names = ", ".join(_FORMULAS)
        raise TensorFileError(
            f"'{file}': quantisation by {attrs['op']} is unknown: wanted {formula_names}",
            place_of(attrs),
        )
    values = stored.values.astype(np.float64)
    arguments = _Arguments(attrs, stored, file)
    with located(place_of(attrs)), np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(formula(values, arguments), np.float32)


class _Arguments:
    """A quantisation's arguments as arrays that broadcast from the left with the values."""

    def __init__(self, attrs: Mapping[str, AttrValue], stored: StoredTensor, file: str) -> None:
        self._attrs = attrs
        self._rank = stored.values.ndim
        self._stored = stored
        self._file = file

    def array(self, name: str) -> Array:
        if name not in self._attrs:
            raise self._error(f"{self._attrs['op']} wants '{name}'")
        try:
            value = np.asarray(self._attrs[name], np.float64)
        except (ValueError, TypeError):
            raise self._error(f"'{name}' wants numbers in equal rows") from None
        if value.ndim > self._rank:
            raise self._error(f"'{name}' has rank {value.ndim}, the tensor {self._rank}")
        value = value.reshape(value.shape + (1,) * (self._rank - value.ndim))
        shape = list(self._stored.header.shape)
        if any(value.shape[i] not in (1, extent) for i, extent in enumerate(shape)):
            raise self._error(f"'{name}' {list(value.shape)} does not broadcast to {shape}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._attrs.get(name, default)
        if not isinstance(value, bool):
            raise self._error(f"'{name}' wants true or false")
        return value

    @property
    def bits(self) -> int:
        value = self._attrs.get("bits", self._stored.header.bits)
        if not isinstance(value, int) or not 1 <= value <= 64:
            raise self._error("'bits' wants 1 to 64")
        return value

    @property
    def signed(self) -> bool:
        return self.flag("signed", self._stored.header.item.is_signed)

    def _error(self, message: str) -> TensorFileError:
        return TensorFileError(f"'{self._file}': quantisation of it in graph.quant: {message}")


def _zero_point(q: Array, arguments: _Arguments) -> Array:
    return np.asarray((q - arguments.array("zero_point")) * arguments.array("scale"))


def _min_max(q: Array, arguments: _Arguments) -> Array:
    symmetric = arguments.flag("symmetric", False)
    if arguments.signed:
        q = q + (2.0 ** (arguments.bits - 1) - symmetric)
    steps = 2.0**arguments.bits - 1 - (arguments.signed and symmetric)
    return _scaled(q, steps, arguments)


def _linear(q: Array, arguments: _Arguments) -> Array:
    return _scaled(q, 2.0**arguments.bits - 1, arguments)


def _scaled(q: Array, steps: float, arguments: _Arguments) -> Array:
    low, high = arguments.array("min"), arguments.array("max")
    return np.asarray(q / steps * (high - low) + low)


def _logarithmic(q: Array, arguments: _Arguments) -> Array:
    """Returns the values of logarithmic codes ``q``: powers of two.

    The last code is the highest power, ``2 ** ceil(log2(max))``.
    """
    with np.errstate(divide="ignore"):
        top = np.ceil(np.log2(arguments.array("max")))
    return np.asarray(2.0 ** (q - (2.0**arguments.bits - 1) + top))


_FORMULAS = {
    "zero_point_linear_quantize": _zero_point,
    "min_max_linear_quantize": _min_max,
    "linear_quantize": _linear,
    "logarithmic_quantize": _logarithmic,
}


def _from_header(stored: StoredTensor, file: str) -> Attrs:
    """Returns a linear quantisation with the min and max of a file's header, which are deprecated.

    Raises :class:`TensorFileError` if the header has none.
    """
    if stored.header.range is None:
        raise TensorFileError(
            f"'{file}' holds quantised integers, but graph.quant says nothing of its tensor: "
            "add a line for it"
        )
    low, high = stored.header.range
    return Attrs(op="linear_quantize", min=low, max=high, bits=stored.header.bits)
