"""The rules that compute the bounds of an operator's results from those of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cml_engine.formats.onnx.ranges.interval import (
    INT32,
    NOTHING,
    UNIT,
    Interval,
    absolute,
    add,
    bit_and,
    cumulative_sum,
    maximum,
    minimum,
    mul,
    neg,
    quotient,
    remainder,
    shift_left,
    shift_right,
    sum_of,
    union,
    whole,
)
from cml_engine.ir.graph import Fact, Node


@dataclass(frozen=True, slots=True)
class Operands:
    """A node of the network with the bounds and the facts of its inputs: the argument of a rule."""

    node: Node
    given: Sequence[Interval]
    facts: Sequence[Fact]

    def __getitem__(self, place: int) -> Interval:
        return self.given[place]

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


Rule = Callable[[Operands], "Interval | list[Interval]"]


def _reduced(o: Operands) -> Interval:
    return o[0] if o.node.attrs.get("normalize") else sum_of(o[0], o.reduced)


def _cast(o: Operands) -> Interval:
    """Returns the bounds of a cast; floats are truncated, and NaN becomes 0."""
    x = o[0]
    if o.node.attrs["dtype"] == "logical":
        return UNIT
    if o.node.attrs["dtype"] == "integer" and o.facts[0].dtype == "scalar":
        return union(NOTHING, Interval(*(v if math.isinf(v) else math.trunc(v) for v in x)))
    return x


def _clamp(o: Operands) -> Interval:
    x, low, high = o.given[:3]
    return Interval(min(max(x.low, low.low), high.high), min(max(x.high, low.high), high.high))


def _product(o: Operands) -> Interval:
    """Returns the bounds of an integer matrix product: a sum over the inner extent."""
    inner = o.facts[0].shape[-1] if o.facts[0].rank else 1
    return sum_of(mul(o[0], o[1]), inner) if len(o.given) == 2 else INT32


def _scattered(o: Operands) -> Interval:
    reduction = o.node.attrs.get("reduction", "none")
    return union(o[0], o[2]) if reduction in ("none", "max", "min") else whole(o.facts[0])


def _padded(o: Operands) -> Interval:
    value = o.node.attrs.get("value", 0.0)
    return union(o[0], Interval(value, value))


def _most_of_axis(o: Operands) -> Interval:
    """Returns the bounds of an argmax or argmin: an index into the reduced elements."""
    return Interval(0, max(o.reduced - 1, 0))


def _first(o: Operands) -> Interval:
    return o[0]


def _all(o: Operands) -> Interval:
    return union(*o.given)


def _bounded(low: float, high: float) -> Rule:
    return lambda o: Interval(low, high)


def _rounded(function: Callable[[float], float]) -> Rule:
    return lambda o: Interval(*(v if math.isinf(v) else function(v) for v in o[0]))


#: operators that only move values of their operands
PASSED = frozenset(
    "reshape transpose squeeze unsqueeze slice split tile copy gather gather_nd gather_elements "
    "unstack reverse_sequence max_reduce min_reduce concat stack select".split(" ")
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*PASSED, "mean_reduce"), _first),
    **dict.fromkeys(("max_pool", "avg_pool", "sample"), lambda o: union(o[0], NOTHING)),
    **dict.fromkeys(("concat", "stack"), _all),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    "select": lambda o: union(o[1], o[2]),
    "pad": _padded,
    "cast": _cast,
    "clamp": _clamp,
    "int_add": lambda o: add(o[0], o[1]),
    "add": lambda o: add(o[0], o[1]),
    "int_sub": lambda o: add(o[0], neg(o[1])),
    "sub": lambda o: add(o[0], neg(o[1])),
    "int_mul": lambda o: mul(o[0], o[1]),
    "mul": lambda o: mul(o[0], o[1]),
    "int_div": lambda o: quotient(o[0], o[1]),
    "int_rem": lambda o: remainder(o[0], o[1], of_divisor=False),
    "int_mod": lambda o: remainder(o[0], o[1], of_divisor=True),
    "int_min": lambda o: minimum(o[0], o[1]),
    "min": lambda o: minimum(o[0], o[1]),
    "int_max": lambda o: maximum(o[0], o[1]),
    "max": lambda o: maximum(o[0], o[1]),
    "int_neg": lambda o: neg(o[0]),
    "neg": lambda o: neg(o[0]),
    "int_abs": lambda o: absolute(o[0]),
    "abs": lambda o: absolute(o[0]),
    "sqr": lambda o: mul(absolute(o[0]), absolute(o[0])),
    "int_sign": _bounded(-1, 1),
    "sign": _bounded(-1, 1),
    "relu": lambda o: maximum(o[0], NOTHING),
    "sigmoid": _bounded(0, 1),
    "softmax": _bounded(0, 1),
    "tanh": _bounded(-1, 1),
    "floor": _rounded(math.floor),
    "ceil": _rounded(math.ceil),
    "round": _rounded(lambda v: math.floor(v + 0.5)),
    "round_even": _rounded(round),
    "bit_and": lambda o: bit_and(o[0], o[1]),
    "shift_left": lambda o: shift_left(o[0], o[1]),
    "shift_right": lambda o: shift_right(o[0], o[1]),
    "sum_reduce": _reduced,
    "cumsum": lambda o: cumulative_sum(o[0], o.extent),
    "int_matmul": _product,
    "argmax_reduce": _most_of_axis,
    "argmin_reduce": _most_of_axis,
    "top_k": lambda o: [o[0], Interval(0, max(o.extent - 1, 0))],
    "nonzero": lambda o: [Interval(-1, max(o.facts[0].shape, default=1)),
                          Interval(0, o.facts[0].size)],
    "non_max_suppression": _bounded(-1, 1 << 30),
}  # fmt: skip
