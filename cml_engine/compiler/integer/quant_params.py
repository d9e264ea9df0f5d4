"""The quantization lines in ``graph.quant`` of an integer network (docs/integer.md, "The file")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

from cml_engine.compiler.integer.sum_bounds import Range
from cml_engine.errors import ModelError, Source, located
from cml_engine.ir.graph import Attrs, AttrValue, Graph, place_of
from cml_engine.ir.integer_rule import (
    LARGE_TABLE,
    LEAST_SCALE,
    MOST_SCALE,
    SMALL_TABLE,
    fraction_of,
)

#: the NNEF operator of all lines
OPERATOR = "zero_point_linear_quantize"
_BITS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class QuantParams:
    """The quantization of one tensor, as its line in ``graph.quant`` states it.

    ``scales`` are in row-major order of an array of shape ``extents``, which is empty for one
    scale. A word has ``bits`` bits. ``table`` has the words of a function, and is empty for
    other tensors.
    """

    name: str
    scales: tuple[Fraction, ...]
    extents: tuple[int, ...]
    bits: int
    signed: bool
    table: tuple[int, ...] = ()
    source: Source | None = None

    def error(self, what: str) -> ModelError:
        """Returns a :class:`ModelError` with the text ``what`` about this line of
        ``graph.quant``."""
        error = _params_error(self.name, what)
        error.source = self.source
        return error

    @property
    def scale(self) -> Fraction:
        """The only scale of the tensor; raises :class:`ModelError` if it has several."""
        if len(self.scales) != 1:
            raise self.error(f"{len(self.scales)} scales: wanted one, as all but weights")
        return self.scales[0]

    @property
    def range(self) -> Range:
        return word_range(self.bits, self.signed)

    def scales_along(self, shape: Sequence[int], axis: int) -> tuple[Fraction, ...]:
        """Returns one scale for each index of ``axis`` of a tensor of shape ``shape``; a single
        scale is repeated.

        Raises :class:`ModelError` if the scales belong to another axis or are of another number.
        """
        count = shape[axis] if shape else 1
        if len(self.scales) == 1:
            return self.scales * count
        wide = (*self.extents, *(1,) * (len(shape) - len(self.extents)))
        if prod(wide) != wide[axis] or wide[axis] != count:
            raise self.error(
                f"scales of shape {list(self.extents)}; wanted one, or one for each of the "
                f"{count} indices of axis {axis} of {list(shape)}"
            )
        return self.scales


def word_range(bits: int, signed: bool) -> Range:
    """Returns the range of words of ``bits`` bits; a signed range is symmetric (-127 to 127 for
    8 bits)."""
    most = (1 << (bits - 1)) - 1
    return Range(-most, most) if signed else Range(0, (1 << bits) - 1)


def quant_attrs(scale: object, bits: int, signed: bool = True, **more: AttrValue) -> Attrs:
    """Returns the attributes of a line of ``graph.quant`` with this scale and word type.

    ``scale`` is a number or nested lists of :func:`nest_scales`.
    """
    return Attrs(
        {
            "op": OPERATOR,
            "zero_point": 0,
            "scale": scale,
            "bits": bits,
            "signed": signed,
            "symmetric": signed,
            **more,
        }
    )


def nest_scales(scales: Sequence[float], axis: int, rank: int) -> Any:
    """Returns the ``scale`` attribute of a line in ``graph.quant`` for one scale per index of
    ``axis``.

    It is nested in one list per axis before ``axis``, so that it broadcasts from the left.
    Returns a single number if all scales are equal.
    """
    if len(set(scales)) == 1:
        return scales[0]
    found: Any = list(scales)
    for _ in range(axis % rank):
        found = [found]
    return found


def read_quant_params(graph: Graph) -> Mapping[str, QuantParams]:
    """Returns the parsed lines of ``graph.quant`` by tensor name; lines of unknown tensors are left
    out.

    Raises :class:`ModelError` for an invalid line.
    """
    found = {}
    for name, attrs in graph.quantization.items():
        if name in graph.facts:
            source = place_of(attrs)
            with located(source):
                found[name] = replace(_parse_params(name, attrs), source=source)
    return found


def _parse_params(name: str, attrs: Attrs) -> QuantParams:
    if attrs["op"] != OPERATOR:
        raise _params_error(name, f"quantised by {attrs['op']}: integer networks want {OPERATOR}")
    known = {"op", "zero_point", "scale", "bits", "signed", "symmetric", "table"}
    if unknown := set(attrs) - known:
        raise _params_error(name, f"{OPERATOR} has no parameter '{min(unknown)}'")
    if attrs.get("zero_point", 0) != 0:
        raise _params_error(name, f"zero_point {attrs['zero_point']}: wanted 0")
    bits, signed = attrs.get("bits"), attrs.get("signed", True)
    if bits not in _BITS or not isinstance(signed, bool):
        raise _params_error(
            name, f"bits {bits}, signed {signed}: wanted 8, 16 or 32, and true or false"
        )
    if "scale" not in attrs:
        raise _params_error(name, "has no scale: wanted scale = …")
    values, extents = _flatten_scales(name, attrs["scale"])
    return QuantParams(
        name, tuple(values), extents, bits, signed, _parse_table(name, attrs.get("table", []))
    )


def _flatten_scales(name: str, scale: object) -> tuple[list[Fraction], tuple[int, ...]]:
    """Returns all scales of a number or a nested list in row-major order, and the shape of the
    list.

    Raises :class:`ModelError` if the list is empty or its rows differ in shape.
    """
    if not isinstance(scale, list):
        return [_parse_scale(name, scale)], ()
    parts = [_flatten_scales(name, item) for item in scale]
    if not parts or any(extents != parts[0][1] for _, extents in parts):
        raise _params_error(name, "'scale' wants numbers in equal rows")
    return [value for values, _ in parts for value in values], (len(parts), *parts[0][1])


def _parse_scale(name: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _params_error(name, f"scale {value!r}: wanted a number")
    try:
        found = fraction_of(value)
    except ValueError:
        raise _params_error(name, f"scale {value!r}: wanted a finite number") from None
    if found <= 0:
        raise _params_error(name, f"scale {value!r}: wanted one above 0")
    return found


def _parse_table(name: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise _params_error(name, f"table {given!r}: wanted whole numbers in brackets")
    if wrong := [v for v in given if isinstance(v, bool) or not isinstance(v, int)]:
        raise _params_error(name, f"its table has {wrong[0]!r}: wanted whole numbers")
    if given and len(given) not in (SMALL_TABLE, LARGE_TABLE):
        raise _params_error(
            name,
            f"a table of {len(given)} entries: wanted {SMALL_TABLE} for words of 8 bits, "
            f"{LARGE_TABLE} points for words of 16",
        )
    return tuple(given)


def check_scale(name: str, scale: Fraction) -> None:
    """Raises :class:`ModelError` if a scale is not from 2^-40 to 2^40, outside of which float32
    loses digits."""
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise _params_error(name, f"scale {float(scale):.3g}: wanted 2^-40 to 2^40")


def _params_error(name: str, what: str) -> ModelError:
    return ModelError(f"the line of '{name}' in graph.quant: {what}")
