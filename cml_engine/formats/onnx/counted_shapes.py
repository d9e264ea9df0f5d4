"""Extents that a model computes at run time, and moves along counted axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from cml_engine.formats.onnx.counted_axes import (
    LARGEST,
    Extent,
    ends,
    extent,
    greatest,
    is_same,
    least,
    plus,
    positions,
    product,
    quotient,
    quotient_up,
    reshaped_counts,
    room,
    take,
    with_count,
)
from cml_engine.formats.onnx.ranges import Interval
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Value,
    add_plain,
    allocate,
    constant,
    counted_error,
    current_import,
    interval_of,
    ints,
    zeros,
)
from cml_engine.ir.graph import Node

#: the bounds of an extent that is computed at run time
_BOUNDED = Interval(-LARGEST, LARGEST)
#: an index that lies behind the end of any axis
_FAR = 1 << 30


# -- extents that a model computes ---------------------------------------------------------------


def elements(value: Value, subject: str) -> list[Extent]:
    """Returns the integers of a flat value; those that are computed at run time as values.

    It follows the value to the numbers that it was made of. Raises an error, which calls the value
    ``subject``, if a computed number has no bound: the model then has to state the value.
    """
    if value.array is not None:
        return list(ints(value, subject))
    if value.kind != "integer" or value.rank > 1:
        constant(value, subject)
    found = _Elements().of(current_import().tensor(value))
    if not all(isinstance(n, int) or interval_of(n).within(_BOUNDED) for n in found):
        constant(value, subject)
    return found


class _Elements:
    """Finds the numbers that a flat tensor of the graph under construction is made of."""

    def __init__(self) -> None:
        self._producers = current_import().producers()
        self._builder = current_import().builder

    def of(self, name: str) -> list[Extent]:
        array = self._builder.constants.get(name)
        if array is not None:
            return [int(n) for n in array.reshape(-1)]
        node, fact = self._producers.get(name), self._builder.facts[name]
        if node is not None and not current_import().counts.get(node.inputs[0]):
            rule = self._RULES.get(node.op)
            found = None if rule is None else rule(self, node)
            if found is not None:
                return found
        value = Value(np.dtype(np.int64), fact.shape, None, name).reshape([fact.size])
        return [value.slice(0, i, i + 1) for i in range(fact.size)]

    def _first(self, node: Node) -> list[Extent] | None:
        return self.of(node.inputs[0])

    def _cast(self, node: Node) -> list[Extent] | None:
        is_integer = self._builder.facts[node.inputs[0]].dtype == node.attrs.dtype == "integer"
        return self.of(node.inputs[0]) if is_integer else None

    def _concat(self, node: Node) -> list[Extent] | None:
        return [n for name in node.inputs for n in self.of(name)]

    def _slice(self, node: Node) -> list[Extent] | None:
        (begin,), (end,) = node.attrs.begin, node.attrs.end
        (stride,) = node.attrs.stride or [1]
        return self.of(node.inputs[0])[begin:end:stride] if min(begin, end, stride) >= 0 else None

    def _gather(self, node: Node) -> list[Extent] | None:
        indices = self._builder.constants.get(node.inputs[1])
        if indices is None:
            return None
        found = self.of(node.inputs[0])
        return [found[i] for i in indices.reshape(-1)]

    def _equal(self, node: Node) -> list[Extent] | None:
        a, b = self._operands(node)
        found = [_is_equal(*pair) for pair in zip(a, b, strict=True)]
        return None if None in found else [int(bool(n)) for n in found]

    def _select(self, node: Node) -> list[Extent] | None:
        conditions, a, b = self._operands(node)
        if not all(isinstance(n, int) for n in conditions):
            return None
        return [x if c else y for c, x, y in zip(conditions, a, b, strict=True)]

    def _operands(self, node: Node) -> list[list[Extent]]:
        size = self._builder.facts[node.outputs[0]].size
        found = [self.of(name) for name in node.inputs]
        return [n * size if len(n) == 1 else n for n in found]

    _RULES: ClassVar[Mapping[str, Callable[[_Elements, Node], list[Extent] | None]]] = {
        **dict.fromkeys(("copy", "reshape", "squeeze", "unsqueeze"), _first),
        "cast": _cast, "concat": _concat, "slice": _slice, "gather": _gather,
        "int_eq": _equal, "select": _select,
    }  # fmt: skip


def _is_equal(a: Extent, b: Extent) -> bool | None:
    """Returns True or False if it is known at import whether two numbers are equal, or None."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    (low, high), (other_low, other_high) = ends(a), ends(b)
    return False if high < other_low or other_high < low else None


def counted_by(x: Value, extents: Sequence[Extent]) -> Value:
    """Returns a value whose axes have these numbers of elements."""
    return x.counted({axis: n for axis, n in enumerate(extents) if isinstance(n, Value)})


# -- operators of ONNX that move along counted axes ----------------------------------------------


def sliced(x: Value, axis: int, start: Extent, end: Extent, step: int = 1) -> Value:
    """Returns a slice of one axis as ONNX defines it: negative numbers count from the end."""
    n, most = extent(x, axis), x.shape[axis]
    start, end = (max(-_FAR, min(i, _FAR)) if isinstance(i, int) else i for i in (start, end))
    if isinstance(start, int) and start >= 0 and step > 0:
        count = quotient_up(greatest(plus(_clamped_end(n, end), -start), 0), step)
        stop = min(most, end) if isinstance(end, int) and end >= 0 else most
        y = x.take({axis: range(min(start, stop), stop, step)})
        length = min(y.shape[axis], room(count, most))
        return with_count(y.take({axis: range(length)}), axis, count)
    first = least(greatest(_from_end(n, start), 0), n if step > 0 else _difference(n, 1))
    if step > 0:
        span = _difference(_clamped_end(n, end), first)
    else:
        span = _difference(first, greatest(_from_end(n, end), -1))
    count = quotient_up(greatest(span, 0), abs(step))
    length = room(count, -(-most // abs(step)))
    if isinstance(start, int) and start < 0 < step:
        length = min(length, -(start // step))
    index = positions(length) * step + first
    return take(x, axis, index, count)


def _difference(a: Extent, b: Extent) -> Extent:
    return a - b if isinstance(a, int) or isinstance(b, int) or not is_same(a, b) else 0


def _from_end(n: Extent, index: Extent) -> Extent:
    """Returns an index counted from the start; a negative one counts from the end."""
    if isinstance(index, int):
        return index if index >= 0 else n - -index
    if interval_of(index).low >= 0:
        return index
    return index.lt(0).select(index + n, index).typed(np.int64)


def _clamped_end(n: Extent, end: Extent) -> Extent:
    """Returns the end of a slice, one past its last element."""
    is_inside = isinstance(end, int) and end < 0
    return _from_end(n, end) if is_inside else least(_from_end(n, end), n)


def reshaped(x: Value, shape: Sequence[Extent], copies_zero: bool = True) -> Value:
    """Returns a value in another shape, whose extents may be computed at run time.

    In the shape, one -1 stands for the rest, and 0 for the extent of ``x``.
    """
    if copies_zero:
        if any(n == 0 and i >= x.rank for i, n in enumerate(shape) if isinstance(n, int)):
            raise InvalidNode(f"the shape {_shown(shape)} copies an extent that {x} lacks")
        shape = [extent(x, i) if isinstance(n, int) and n == 0 else n for i, n in enumerate(shape)]
    stated = [n for n in shape if isinstance(n, int)]
    if stated.count(-1) > 1 or min(stated, default=0) < -1:
        raise InvalidNode(f"the shape {_shown(shape)}")
    rooms, extents = _resolved(x, shape)
    if not any(isinstance(n, Value) for n in (*extents, *x.counts.values())):
        return x.reshape(rooms)
    allocate(rooms)
    if x.size == 0:
        return counted_by(zeros(rooms, x.dtype), extents)
    counted = [i for i, n in enumerate(extents) if isinstance(n, Value)]
    counts = reshaped_counts(x, rooms, counted) if prod(rooms) == x.size else None
    if counts is None or sorted(counts) != counted:
        return _gathered(x, rooms, extents)
    return counted_by(add_plain("reshape", x, shape=rooms), extents)


def _resolved(x: Value, shape: Sequence[Extent]) -> tuple[list[int], list[Extent]]:
    """Returns the largest and the true extents of a shape, with the rest in place of a -1.

    Computed extents are counts of ``x``. One that is not, in a shape without a -1, is the rest:
    no other number would fit.
    """
    unused = list(x.counts.items())
    rooms, open_axes = [1] * len(shape), []
    for i, n in enumerate(shape):
        if isinstance(n, int) and n != -1:
            rooms[i] = n
            continue
        match = next((c for c in unused if isinstance(n, Value) and is_same(c[1], n)), None)
        if match is None:
            open_axes.append(i)
        else:
            unused.remove(match)
            rooms[i] = x.shape[match[0]]
    static = prod(n for axis, n in enumerate(x.shape) if axis not in x.counts)
    known_size = prod(n for n in shape if isinstance(n, int) and n != -1)
    extents = list(shape)
    if len(open_axes) == 1 and known_size > 0:
        (target,) = open_axes
        unit = int(np.gcd(static, known_size))
        rooms[target] = x.size // max(prod(rooms), 1)
        rest = product([static // unit, *(count for _, count in unused)])
        extents[target] = quotient(rest, known_size // unit)
        is_fitting = bool(unused) or static % known_size == 0
    else:
        is_fitting = not open_axes and not unused and static == known_size
    if is_fitting:
        return rooms, extents
    if unused:
        raise counted_error(x, unused[0][0], f"it does not fit the shape {_shown(shape)}")
    raise InvalidNode(f"{x} does not fit the shape {_shown(shape)}")


def _shown(shape: Sequence[Extent]) -> str:
    return f"[{', '.join('?' if isinstance(n, Value) else str(n) for n in shape)}]"


def _gathered(x: Value, rooms: Sequence[int], extents: Sequence[Extent]) -> Value:
    """Returns a reshaped value whose elements lie apart from each other, gathered one by one."""
    place: Value = Value.known(np.zeros(prod(rooms), np.int64))
    for indices, n in zip(np.indices(rooms).reshape(len(rooms), -1), extents, strict=True):
        place = place * n + Value.known(indices)
    source: Value = Value.known(np.zeros(prod(rooms), np.int64))
    stride = 1
    for axis in reversed(range(x.rank)):
        n = extent(x, axis)
        source = source + place.int_mod(n) * stride
        place = place / n
        stride *= x.shape[axis]
    flat = add_plain("reshape", x, shape=[x.size])
    return counted_by(take(flat, 0, source, prod(rooms)).reshape(rooms), extents)


def expanded(x: Value, shape: Sequence[Extent]) -> Value:
    """Returns a value broadcast to a shape whose extents may be computed at run time."""
    rank = max(x.rank, len(shape))
    lifted = x.lift(rank)
    wanted = [*[1] * (rank - len(shape)), *shape]
    rooms, extents = list(lifted.shape), [extent(lifted, axis) for axis in range(rank)]
    for axis, n in enumerate(wanted):
        old = extents[axis]
        if isinstance(old, Value):
            if not (isinstance(n, Value) and is_same(n, old)) and n != 1:
                raise counted_error(lifted, axis, f"it does not fit the shape {_shown(shape)}")
        elif old == 1:
            rooms[axis], extents[axis] = room(n, LARGEST), n
        elif isinstance(n, int) and n not in (1, old):
            raise InvalidNode(f"{x} does not fit the shape {_shown(shape)}")
    allocate(rooms)
    return counted_by(lifted.expand(rooms), extents)


def padded(x: Value, axis: int, before: int, after: int, border: str) -> Value:
    """Returns a tensor padded along a counted axis by its own elements.

    ``border`` is NNEF's word, or ``"wrap"``.
    """
    n = x.counts[axis]
    index = positions(max(x.shape[axis] + before + after, 0)) - before
    last = n - 1
    if border == "replicate":
        index = index.min(last)
    elif border == "reflect":
        index = last - (last - index.abs()).abs()
    else:
        index = index.int_mod(n)
    return take(x, axis, index, greatest(plus(n, before + after), 0))
