"""Counted axes: axes of an ONNX model's tensors whose number of elements is known at run time only.

A tensor has the largest possible extent along such an axis, and the elements behind its count are
undefined (docs/design/counted_axes.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from cml_engine.formats.onnx.values import (
    MAX_FOLDED,
    Value,
    add_plain,
    as_value,
    counted_error,
    current_import,
    interval_of,
)

Counts: TypeAlias = Mapping[int, Value]
#: a number of elements: known, or an integer [1] that is computed at run time
Extent: TypeAlias = "int | Value"
#: the most elements that a tensor may have whose number is known at run time only
LARGEST = MAX_FOLDED
#: the deepest comparison of two computations
_DEPTH = 64


# -- numbers of elements -------------------------------------------------------------------------


def extent(x: Value, axis: int) -> Extent:
    return x.counts.get(axis, x.shape[axis])


def ends(n: Extent) -> tuple[float, float]:
    return (n, n) if isinstance(n, int) else interval_of(n)


def least(a: Extent, b: Extent) -> Extent:
    """Returns the smaller number; it adds no operator if the bounds say which one it is."""
    if ends(a)[1] <= ends(b)[0]:
        return a
    if ends(b)[1] <= ends(a)[0]:
        return b
    return a.min(b) if isinstance(a, Value) else as_value(b).min(a)


def greatest(a: Extent, b: Extent) -> Extent:
    """Returns the larger number; it adds no operator if the bounds say which one it is."""
    if ends(a)[0] >= ends(b)[1]:
        return a
    if ends(b)[0] >= ends(a)[1]:
        return b
    return a.max(b) if isinstance(a, Value) else as_value(b).max(a)


def plus(n: Extent, increment: int) -> Extent:
    """Returns the sum of two numbers; it adds no operator for an increment of 0."""
    return n + increment if increment else n


def quotient(a: Extent, b: int) -> Extent:
    """Returns the quotient of a number that is not negative, rounded down."""
    return a if b == 1 else a // b if isinstance(a, int) else a / b


def quotient_up(n: Extent, divisor: int) -> Extent:
    """Returns the quotient of a number that is not negative, rounded up."""
    return quotient(plus(n, divisor - 1), divisor)


def product(extents: Sequence[Extent]) -> Extent:
    total: Extent = prod(n for n in extents if isinstance(n, int))
    for n in extents:
        if isinstance(n, Value):
            total = n if total == 1 else n * total
    return total


def room(n: Extent, most: int) -> int:
    """Returns the largest possible value of a number of elements, ``most`` at most."""
    return int(min(most, max(ends(n)[1], 0)))


def scalar(n: Extent) -> Extent:
    """Returns the number itself if it is known, otherwise the computed one as an integer [1]."""
    return n if isinstance(n, int) else n.reshape([1]).cast("integer").typed(np.int64)


def with_count(x: Value, axis: int, count: Extent) -> Value:
    """Returns a value whose ``axis`` has ``count`` elements."""
    return x.counted(replaced(x, axis, count))


def replaced(x: Value, axis: int, count: Extent) -> Counts:
    """Returns the counts of ``x`` with another one for ``axis``, and none if it is known."""
    rest = {a: n for a, n in x.counts.items() if a != axis}
    return {**rest, axis: count} if isinstance(count, Value) else rest


def positions(n: int) -> Value:
    return Value.known(np.arange(n))


# -- equal numbers -------------------------------------------------------------------------------


#: operators that keep an integer's value
_RENAMES = ("copy", "reshape", "squeeze", "unsqueeze")
#: operators that add their second operand, and its sign
_SUMS = {"int_add": 1, "int_sub": -1}


def is_same(a: Value, b: Value) -> bool:
    """Returns True if two counts are equal because they are computed in the same way."""
    emit = current_import()
    first, second = emit.tensor(a), emit.tensor(b)
    if first == second:
        return True
    producers, facts, constants = emit.producers(), emit.builder.facts, emit.builder.constants
    known: dict[tuple[str, str], bool] = {}

    def root(name: str) -> tuple[str, int]:
        """Returns the tensor to which renames and constants lead, and the sum of the constants."""
        offset = 0
        node = producers.get(name)
        while node is not None and facts[name].size == 1:
            added = constants.get(node.inputs[-1]) if node.op in _SUMS else None
            if added is not None and added.size == 1:
                offset += _SUMS[node.op] * int(added.reshape(-1)[0])
            elif node.op not in _RENAMES:
                break
            name = node.inputs[0]
            node = producers.get(name)
        return name, offset

    def same(x: str, y: str, depth: int) -> bool:
        (x, offset), (y, other_offset) = root(x), root(y)
        if offset != other_offset:
            return False
        if x == y:
            return True
        if (x, y) not in known:
            known[x, y] = depth < _DEPTH and compared(x, y, depth)
        return known[x, y]

    def compared(x: str, y: str, depth: int) -> bool:
        if x in constants or y in constants:
            return (
                x in constants and y in constants and facts[x] == facts[y]
                and np.array_equal(constants[x], constants[y])
            )  # fmt: skip
        node, other = producers.get(x), producers.get(y)
        return (
            node is not None and other is not None and node.op == other.op
            and node.op not in emit.declarations
            and node.attrs == other.attrs and facts[x] == facts[y]
            and node.outputs.index(x) == other.outputs.index(y)
            and len(node.inputs) == len(other.inputs)
            and all(same(*p, depth + 1) for p in zip(node.inputs, other.inputs, strict=True))
        )  # fmt: skip

    return same(first, second, 0)


def fit(values: Sequence[Value], axes: Sequence[int]) -> list[Value]:
    """Returns values whose counted axes are equally long, cut to the shortest."""
    shortest = min(v.shape[axis] for v, axis in zip(values, axes, strict=True))
    return [_cut(v, axis, shortest) for v, axis in zip(values, axes, strict=True)]


def _cut(x: Value, axis: int, end: int) -> Value:
    if x.shape[axis] <= end:
        return x
    return add_plain("slice", x, axes=[axis], begin=[0], end=[end]).declare(x.counts)


def shared(values: Sequence[Value], axes: Sequence[int]) -> tuple[list[Value], Value | None]:
    """Returns the operands with equal extents along ``axes``, an axis each, and the common count.

    Extents of 1 broadcast. Raises an error if the counts are not provably equal. The operands
    are cut to the same extent.
    """
    pairs = list(zip(values, axes, strict=True))
    counted = [(v, axis) for v, axis in pairs if axis in v.counts]
    if not counted:
        return list(values), None
    first, first_axis = counted[0]
    count = first.counts[first_axis]
    for v, axis in pairs:
        if axis not in v.counts and v.shape[axis] != 1:
            reason = f"another input has {v.shape[axis]} elements there"
            raise counted_error(first, first_axis, reason)
        if axis in v.counts and not is_same(v.counts[axis], count):
            origin = current_import().origin_of(v.counts[axis])
            reason = f"another input has a number of its own there ({origin})"
            raise counted_error(first, first_axis, reason)
    shortest = min(v.shape[axis] for v, axis in counted)
    return [_cut(v, axis, shortest) for v, axis in pairs], count


def number_of(x: Value, axes: Sequence[int]) -> Extent:
    """Returns the number of elements that a reduction over ``axes`` combines."""
    return product([extent(x, axis) for axis in axes])


# -- masks ---------------------------------------------------------------------------------------


def masked(x: Value, axes: Sequence[int], value: float) -> Value:
    """Returns a tensor that has ``value`` behind the elements of some counted axes.

    These axes are no longer counted; others stay. A tensor without such an axis is unchanged.
    """
    counts = x.counts
    if counts.keys().isdisjoint(axes):
        return x
    for axis in sorted(counts.keys() & set(axes)):
        x = add_plain("keep_first", x, counts[axis], axis=axis, value=value)
    return x.declare({a: n for a, n in counts.items() if a not in axes})


def all_masked(x: Value, value: float) -> Value:
    return masked(x, list(x.counts), value)


# -- moves ---------------------------------------------------------------------------------------


def take(x: Value, axis: int, index: Value, count: Extent) -> Value:
    """Returns the elements at computed indices along an axis, of which ``count`` are elements.

    Indices outside of the axis, behind the count, are clamped.
    """
    index = index.max(0).min(x.shape[axis] - 1)
    return add_plain("gather", x, index, axis=axis).declare(replaced(x, axis, count))


def reshaped_counts(x: Value, shape: Sequence[int], preferred: Sequence[int] = ()) -> Counts | None:
    """Returns the counts of ``x`` after a reshape to ``shape``; None if that scatters its elements.

    A counted axis may be split, or take in axes behind it that are not counted. Its elements then
    begin an axis with the same number of elements before it. Where axes of 1 leave a choice, the
    ``preferred`` axes are taken.
    """
    counts: dict[int, Value] = {}
    for axis, count in x.counts.items():
        before, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
        starts = [b for b in range(len(shape)) if prod(shape[:b]) == before and b not in counts]
        same = [b for b in starts if shape[b] == x.shape[axis] and prod(shape[b + 1 :]) == inner]
        if any(a > axis for a in x.counts):
            starts = same
        long = [b for b in starts if shape[b] != 1]
        choices = [b for b in starts if b in preferred] or same or long or starts
        if not choices:
            return None
        target = axis if axis in choices else choices[0]
        behind = prod(shape[target + 1 :])
        unit = int(np.gcd(inner, behind))
        n = quotient(product([inner // unit, count]), behind // unit)
        counts[target] = as_value(n)
    return counts
