"""Range analysis: proves bounds of a model's integers, of which the network stores the low 32 bits.

An integer of ONNX has up to 64 bits. Sums, products, bitwise operators and moves need only the low
32 bits of their operands. Every other operator needs operands whose bounds make 32 bits enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cml_engine.formats.builder import ImportBuilder
from cml_engine.formats.onnx.tensors import bits_of
from cml_engine.ir.graph import Array, DType, Fact, Node
from cml_engine.ir.single_value import distinct

#: the most elements of a float constant whose bounds are computed; larger ones are weights
_MAX_SCALARS = 4096


class Interval(NamedTuple):
    """All numbers from ``low`` to ``high``, which may be infinite."""

    low: float
    high: float

    def within(self, other: Interval) -> bool:
        return other.low <= self.low and self.high <= other.high

    def outside(self, other: Interval) -> bool:
        """Returns True if the intervals have no number in common."""
        return self.high < other.low or self.low > other.high

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}"


INT32 = Interval(-(1 << 31), (1 << 31) - 1)
UINT32 = Interval(0, (1 << 32) - 1)
INT64 = Interval(-(1 << 63), (1 << 63) - 1)
#: the integers that float32 represents exactly
EXACT = Interval(-(1 << 24), 1 << 24)
_ANY = Interval(-math.inf, math.inf)
_UNIT = Interval(0, 1)
_NOTHING = Interval(0, 0)


def of_dtype(dtype: DType) -> Interval:
    """Returns the interval of all values of an ONNX type."""
    if dtype.kind not in "iu":
        return _UNIT if dtype.kind == "b" else _ANY
    bits = bits_of(dtype)
    if dtype.kind == "u":
        return Interval(0, (1 << bits) - 1)
    return Interval(-(1 << bits - 1), (1 << bits - 1) - 1)


#: the bits of the magnitudes of an integer input, tried in this order until the model's integers
#: provably fit: all, terms of a sum, counts and positions, factors of a product, of a sum of them
INPUT_BITS = (31, 30, 24, 15, 12)


def of_input(dtype: DType, bits: int) -> Interval:
    """Returns the interval of an input of an ONNX type with magnitudes of ``bits`` bits.

    A 64-bit input accepts 32-bit values only.
    """
    interval = of_dtype(dtype)
    if dtype.kind not in "iu" or (bits == INPUT_BITS[0] and dtype.itemsize < 8):
        return interval
    return Interval(max(interval.low, -(1 << bits)), min(interval.high, (1 << bits) - 1))


def of_array(array: Array) -> Interval:
    """Returns the smallest and largest of known values; 0 to 0 for an empty array.

    Large arrays of floats are not examined: their interval is all numbers.
    """
    if array.dtype.kind == "b":
        return _UNIT
    if array.dtype.kind not in "iu" and array.size > _MAX_SCALARS:
        return _ANY
    if not array.size:
        return _NOTHING
    array = distinct(array)
    low, high = array.min().item(), array.max().item()
    return _ANY if math.isnan(low) else Interval(low, high)


def _full_interval(fact: Fact) -> Interval:
    """Returns the interval of all values that a tensor of the network can have."""
    return {"scalar": _ANY, "integer": INT32, "logical": _UNIT}[fact.dtype]


def _limited(interval: Interval) -> Interval:
    """Returns an interval, or all numbers if it has ends far beyond 64 bits."""
    return interval if max(map(abs, interval)) < 1 << 80 else _ANY


class Intervals:
    """The proven bounds of the values of each tensor of a graph under construction, by name.

    The bounds of an integer are those of ONNX's value, of which the network stores the low 32
    bits.
    """

    def __init__(self, builder: ImportBuilder) -> None:
        self._builder = builder
        self._intervals: dict[str, Interval] = {}
        self._n_learned = 0

    def __setitem__(self, tensor: str, interval: Interval) -> None:
        """Sets the bounds of an input or constant, or tighter bounds than the computed ones."""
        self.learn()
        self._intervals[tensor] = interval

    def learn(self) -> None:
        """Computes the bounds of the results of all nodes added since the last call."""
        nodes = self._builder.nodes
        for node in nodes[self._n_learned :]:
            rule = _RULES.get(node.op) or _RULES.get(node.op.removeprefix("int_"))
            if rule is not None:
                bounds = [self[name] for name in node.inputs]
                facts = [self._builder.facts[name] for name in node.inputs]
                computed = rule(_Operands(node, bounds, facts))
                results = computed if isinstance(computed, list) else [computed] * len(node.outputs)
                self._intervals.update(zip(node.outputs, map(_limited, results), strict=True))
        self._n_learned = len(nodes)

    def forget(self, first: int) -> None:
        """Notes that the nodes from index ``first`` on are about to be removed."""
        self._n_learned = min(self._n_learned, first)

    def of(self, tensor: str) -> Interval:
        """Returns the bounds of a tensor, with all nodes so far."""
        self.learn()
        return self[tensor]

    def settle(self, tensor: str, all_of_type: Interval) -> None:
        """Replaces bounds that exceed the tensor's type by ``all_of_type``: it wraps around."""
        if not self[tensor].within(all_of_type):
            self._intervals[tensor] = all_of_type

    def __getitem__(self, tensor: str) -> Interval:
        interval = self._intervals.get(tensor)
        if interval is None:
            array = self._builder.constants.get(tensor)
            interval = (
                _full_interval(self._builder.facts[tensor]) if array is None else of_array(array)
            )
            self._intervals[tensor] = interval
        return interval

    def find_too_wide(self, node: Node) -> Interval | None:
        """Returns the bounds of an operand of which ``node`` needs more than the low 32 bits.

        Returns None if 32 bits are enough.
        """
        integers = [
            (position, self[name])
            for position, name in enumerate(node.inputs)
            if self._builder.facts[name].dtype == "integer"
        ]
        if node.op in _COMPARED_WITH_ZERO or (node.op == "cast" and node.attrs.dtype == "logical"):
            integers.append((-1, _NOTHING))
        elif node.op not in _EQUALITIES:
            limit = UINT32 if node.op in _UNSIGNED else INT32
            unchecked = _positions_of_low_bits(node)
            for position, interval in integers:
                fits = interval.within(limit) or interval.within(INT32)
                if position not in unchecked and not fits:
                    return interval
            return None
        hull = union_of(*(interval for _, interval in integers)) if integers else _NOTHING
        return None if hull.high - hull.low <= UINT32.high else hull


#: comparisons that need the difference of their operands to fit into 32 bits
_EQUALITIES = ("int_eq", "int_ne")
_COMPARED_WITH_ZERO = ("nonzero",)
#: operators that read 32 bits as an unsigned integer
_UNSIGNED = ("uint_div", "uint_mod", "shift_left", "shift_right")


def _positions_of_low_bits(node: Node) -> Collection[int]:
    """Returns the positions of operands of which the low 32 bits determine those of the results.

    An index counts as one: an index that does not fit into 32 bits is outside any tensor.
    """
    if node.op.startswith("scatter"):
        is_sum = node.attrs.get("reduction", "none") in ("none", "add", "mul")
        return range(3) if is_sum else (1,)
    if node.op in ("shift_left", "keep_first"):
        return (0,)
    if node.op == "cast":
        return (0,) if node.attrs.dtype == "integer" else ()
    return range(len(node.inputs)) if node.op in _OF_LOW_BITS else ()


# -- arithmetic ----------------------------------------------------------------------------------


def _hull(*ends: float) -> Interval:
    """Returns the interval from the smallest to the largest end; all numbers if an end is NaN."""
    return _ANY if any(end != end for end in ends) else Interval(min(ends), max(ends))


def union_of(*parts: Interval) -> Interval:
    return Interval(min(p.low for p in parts), max(p.high for p in parts))


def _add(a: Interval, b: Interval) -> Interval:
    return _hull(a.low + b.low, a.high + b.high)


def _neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _mul(a: Interval, b: Interval) -> Interval:
    return _hull(*(x * y for x in a for y in b))


def _absolute(a: Interval) -> Interval:
    low = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return Interval(low, max(abs(a.low), abs(a.high)))


def _quotient(a: Interval, b: Interval) -> Interval:
    """Returns the bounds of the quotients of integers from two intervals, truncated towards zero.

    A division by 0 gives 0.
    """
    if b.low < 1:
        limit = _absolute(a).high
        return Interval(0 if min(a.low, b.low) >= 0 else -limit, limit)
    return _hull(*(math.trunc(x / y) for x in a for y in b))


def _remainder(a: Interval, b: Interval, of_divisor: bool) -> Interval:
    """Returns the bounds of the remainders of integers from two intervals.

    A remainder has the sign of the divisor with ``of_divisor``, else of the dividend.
    """
    limit = max(_absolute(b).high - 1, 0)
    limit = limit if of_divisor else min(limit, _absolute(a).high)
    sign = b if of_divisor else a
    return Interval(0 if sign.low >= 0 else -limit, 0 if sign.high <= 0 else limit)


def _bitwise(a: Interval, b: Interval) -> Interval:
    """Returns the bounds of any bitwise operator of integers from two intervals."""
    if not (a.within(INT64) and b.within(INT64)):
        return _hull(*a, *b, *INT64)
    bits = max(int(end if end >= 0 else -1 - end).bit_length() for end in (*a, *b))
    return Interval(0 if min(a.low, b.low) >= 0 else -(1 << bits), (1 << bits) - 1)


def _bit_and(a: Interval, b: Interval) -> Interval:
    """Returns the bounds of the bitwise and of integers from two intervals.

    If an operand cannot be negative, they are 0 and the smallest upper bound of such an operand.
    """
    limits = [i.high for i in (a, b) if i.low >= 0]
    return Interval(0, min(limits)) if limits else _bitwise(a, b)


def _shift_left(a: Interval, by: Interval) -> Interval:
    return _mul(a, Interval(1, 1 << max(0, min(int(by.high), 64))))


def _shift_right(a: Interval, by: Interval) -> Interval:
    """Returns the bounds of a shift of 32 bits without a sign."""
    high = a.high if a.low >= 0 else UINT32.high
    return Interval(0, int(min(high, UINT32.high)) >> max(0, min(int(by.low), 31)))


def sum_of(x: Interval, count: int) -> Interval:
    return _hull(x.low * count, x.high * count) if count else _NOTHING


def _minimum(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.low, b.low), min(a.high, b.high))


def _maximum(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.low, b.low), max(a.high, b.high))


# -- the bounds of an operator's results ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operands:
    """A node of the network with the bounds and the facts of its inputs: the argument of a rule."""

    node: Node
    intervals: Sequence[Interval]
    facts: Sequence[Fact]

    def __getitem__(self, position: int) -> Interval:
        return self.intervals[position]

    @property
    def reduced(self) -> int:
        """The number of elements that a reduction combines into one."""
        axes: Sequence[int] = self.node.attrs["axes"]
        return math.prod(self.facts[0].shape[axis] for axis in axes)

    @property
    def extent(self) -> int:
        """The first input's extent along the operator's axis."""
        axis: int = self.node.attrs["axis"]
        return self.facts[0].shape[axis]


_Rule = Callable[[_Operands], "Interval | list[Interval]"]


def _cast(o: _Operands) -> Interval:
    """Returns the bounds of a cast; floats are truncated and saturate, and NaN becomes 0."""
    dtype = o.node.attrs["dtype"]
    if dtype == "integer" and o.facts[0].dtype == "scalar":
        truncated = _round(o[0], math.trunc)
        return union_of(
            _NOTHING, _hull(*(int(min(max(v, INT32.low), INT32.high)) for v in truncated))
        )
    return _UNIT if dtype == "logical" else o[0]


def _product(o: _Operands) -> Interval:
    """Returns the bounds of an integer matrix product: a sum over the inner extent."""
    inner = o.facts[0].shape[-1] if o.facts[0].rank else 1
    return sum_of(_mul(o[0], o[1]), inner) if len(o.intervals) == 2 else INT32


def _times(o: _Operands) -> Interval:
    """Returns the bounds of products; a square is not negative."""
    is_square = o.node.inputs[0] == o.node.inputs[1]
    return _mul(*map(_absolute, o.intervals)) if is_square else _mul(*o.intervals)


def _scattered(o: _Operands) -> Interval:
    is_moved = o.node.attrs.get("reduction", "none") in ("none", "max", "min")
    return union_of(o[0], o[2]) if is_moved else _full_interval(o.facts[0])


def _padded(o: _Operands) -> Interval:
    value = o.node.attrs.get("value", 0.0)
    return union_of(o[0], Interval(value, value))


def _round(x: Interval, function: Callable[[float], float]) -> Interval:
    return Interval(*(v if math.isinf(v) else function(v) for v in x))


def _filled(o: _Operands) -> Interval:
    return Interval(o.node.attrs["fill"], o.node.attrs["fill"])


#: operators that only move values of their operands
MOVES = frozenset(
    "reshape transpose squeeze unsqueeze slice split tile copy gather gather_nd gather_elements "
    "unstack reverse_sequence max_reduce min_reduce concat stack select".split(" ")
)

#: operators whose results' low 32 bits depend on those of the operands alone
_OF_LOW_BITS = MOVES | frozenset(
    "int_add int_sub int_mul int_neg bit_and bit_or bit_xor bit_not int_matmul int_conv pad "
    "from_bits random_bits".split()
)

#: the bounds of results as a function of those of the operands
_OF_INTERVALS: Mapping[str, Callable[..., Interval]] = {
    "add": _add, "int_div": _quotient, "min": _minimum, "max": _maximum,
    "neg": _neg, "abs": _absolute, "bit_and": _bit_and, "bit_or": _bitwise, "bit_xor": _bitwise,
    "shift_left": _shift_left, "shift_right": _shift_right, "uint_div": _quotient,
}  # fmt: skip


def _of_intervals(function: Callable[..., Interval]) -> _Rule:
    return lambda o: function(*o.intervals)


#: by operator; one of numbers also stands for its integer form
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys((*MOVES, "mean_reduce"), lambda o: o[0]),
    **dict.fromkeys(("max_pool", "avg_pool", "sample"), lambda o: union_of(o[0], _NOTHING)),
    **dict.fromkeys(("concat", "stack"), lambda o: union_of(*o.intervals)),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    **dict.fromkeys(("sigmoid", "softmax"), lambda o: _UNIT),
    **dict.fromkeys(("sign", "tanh"), lambda o: Interval(-1, 1)),
    **dict.fromkeys(("uint_mod", "int_rem"), lambda o: _remainder(o[0], o[1], of_divisor=False)),
    **dict.fromkeys(
        ("argmax_reduce", "argmin_reduce"), lambda o: Interval(0, max(o.reduced - 1, 0))
    ),
    **{name: _of_intervals(function) for name, function in _OF_INTERVALS.items()},
    "select": lambda o: union_of(o[1], o[2]),
    "pad": _padded,
    "cast": _cast,
    "clamp": lambda o: _minimum(_maximum(o[0], o[1]), Interval(o[2].high, o[2].high)),
    "mul": _times,
    "exp": lambda o: Interval(0, math.inf),
    "log": lambda o: Interval(-104, 89),  # of a positive float; others have no integer
    "sub": lambda o: _add(o[0], _neg(o[1])),
    "bit_not": lambda o: Interval(-1 - o[0].high, -1 - o[0].low),
    "sqrt": lambda o: Interval(0, math.sqrt(o[0].high)) if o[0].low >= 0 else _ANY,
    "int_mod": lambda o: _remainder(o[0], o[1], of_divisor=True),
    "sqr": lambda o: _mul(_absolute(o[0]), _absolute(o[0])),
    "relu": lambda o: _maximum(o[0], _NOTHING),
    "floor": lambda o: _round(o[0], math.floor),
    "ceil": lambda o: _round(o[0], math.ceil),
    "round": lambda o: _round(o[0], lambda v: math.floor(v + 0.5)),
    "round_even": lambda o: _round(o[0], round),
    "sum_reduce": lambda o: o[0] if o.node.attrs.get("normalize") else sum_of(o[0], o.reduced),
    "cumsum": lambda o: union_of(_NOTHING, o[0], sum_of(o[0], o.extent)),
    "int_matmul": _product,
    "top_k": lambda o: [o[0], Interval(0, max(o.extent - 1, 0))],
    "nonzero": lambda o: [
        union_of(_filled(o), Interval(0, max(o.facts[0].shape, default=1))),
        Interval(0, o.facts[0].size),
    ],
    "non_max_suppression": lambda o: [
        union_of(_filled(o), Interval(0, max(o.facts[1].shape))), Interval(0, o.facts[1].size)
    ],
    "keep_first": _padded,
}  # fmt: skip
