"""Random calls of every operator: declared calls with other extents, attributes and values.

Every call is legal: the operator's shape rule accepts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

import cml_engine as cml
from cml_engine.ops import is_registered, lookup
from cml_engine.ops.common.shapes import fact_from
from cml_engine.tools.testing import full_attrs
from tests.reference.calls import SIGNATURES, SampleCall, declared_calls

Array = np.ndarray[Any, Any]
T = TypeVar("T")
#: larger declared calls are for the kernels' ways through large tensors
_MOST_ELEMENTS = 2000
_ATTEMPTS = 12
_MAP, _CHANNELS = (2, 4, 6, 3), (1, 4)
_WINDOW = {"padding": [(1, 0), (0, 1)], "stride": [2, 1], "dilation": [1, 2]}

#: a call of each operator that is a composition of others: its operands' shapes, or values
COMPOSED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "separable_conv": ([_MAP, (4, 1, 3, 2), (5, 4, 1, 1), (1, 5)], _WINDOW),
    "separable_deconv": ([_MAP, (5, 1, 3, 2), (4, 5, 1, 1), (1, 5)], _WINDOW),
    "local_response_normalization":
        ([_MAP], {"size": [1, 3, 1, 1], "alpha": 0.1, "beta": 0.75, "bias": 1.5}),
    "local_mean_normalization": ([_MAP], {"size": [1, 1, 3, 2]}),
    "local_variance_normalization": ([_MAP], {"size": [1, 1, 3, 3], "bias": 0.5, "epsilon": 1.25}),
    "local_contrast_normalization": ([_MAP], {"size": [1, 1, 3, 3], "bias": 1.0, "epsilon": 0.5}),
    "l1_normalization": ([_MAP], {"axes": [1, 3], "bias": 0.5, "epsilon": 1.5}),
    "l2_normalization": ([_MAP], {"axes": [2], "bias": 0.0, "epsilon": 0.1}),
    "linear_quantize": ([_MAP, np.full((1, 4), -1.5), np.full((1, 4), 1.7)], {"bits": 4}),
    "min_max_linear_quantize": ([_MAP, np.array(-0.9), np.array(0.8)],
                                {"bits": 8, "signed": True, "symmetric": True}),
    "zero_point_linear_quantize": ([_MAP, np.int32([[3, -2, 0, 7]]), np.full((1, 4), 0.11)],
                                   {"bits": 8, "signed": True, "symmetric": False}),
    "logarithmic_quantize": ([_MAP, np.array(1.7)], {"bits": 4}),
    "copy_n": ([_MAP], {"times": 3}),
    "add_n": ([_MAP, _MAP, _MAP], {}),
    "hard_sigmoid": ([_MAP], {"alpha": 0.25, "beta": 0.5}),
    "hard_swish": ([_MAP], {}),
    "mish": ([_MAP], {}),
    "mod": ([_MAP, np.linspace(0.5, 4, 4)[None]], {}),
    "mean_variance_norm": ([_MAP], {"axes": [2, 3], "epsilon": 0.1}),
    "layer_norm": ([_MAP, _CHANNELS, _CHANNELS], {"axes": [1, 2, 3], "epsilon": 0.1}),
    "instance_norm": ([_MAP, _CHANNELS, _CHANNELS], {"axes": [2, 3], "epsilon": 0.1}),
    "group_norm": ([_MAP, _CHANNELS, _CHANNELS], {"groups": 2, "axes": [2, 3], "epsilon": 0.1}),
    "depth_to_space": ([(2, 12, 3, 2)], {"block_size": 2, "blocks_first": True}),
    "space_to_depth": ([(2, 3, 6, 4)], {"block_size": 2, "blocks_first": False}),
    "deform_conv": ([(1, 4, 5, 6), (4, 2, 2, 3), (1, 24, 4, 4), (1, 12, 4, 4), (1, 4)],
                    {"size": [2, 3], "padding": [(0, 0), (0, 0)], "groups": 2, "offset_groups": 2}),
    "quantize_linear": ([_MAP, np.array(0.02), np.array(3.0)], {"low": -128.0, "high": 127.0}),
    "dequantize_linear": ([np.int32([[-128, 3, 127]]), np.array(0.1), np.array(-4.0)], {}),
    "dynamic_quantize_linear": ([_MAP], {"axes": [0, 1, 2, 3]}),
    "matmul_nbits": ([(5, 12), np.int32([[0x12345678, -0x6543210F]] * 3), (3, 2), (3, 2)],
                     {"block_size": 8, "bits": 4}),
    "lstm_step": ([(2, 3), (2, 4), (2, 4), (16, 3), (16, 4), (1, 16)], {}),
    "gru_step": ([(2, 3), (2, 4), (12, 3), (12, 4), (1, 12), (1, 12)], {}),
}  # fmt: skip
_EQUATIONS = {
    "bct,bcs->bts": "234 235", "bts,bcs->bct": "245 235", "ij,jk->ik": "23 34", "ij,jk": "23 34",
    "abcd,ebd->aec": "2345 635", "i,i->": "3 3", "ij->ji": "23", "ab,bc,cd->da": "23 34 42",
    "abk,cb->a": "234 53", "abc,c->ba": "234 4", "a,b->ab": "3 4", "nchw,oc->nohw": "2345 63",
    "ab,ab->b": "23 23",
}  # fmt: skip


class Draw:
    """A seeded generator of integers, choices, arrays and attributes for random calls."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def choice(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def like(self, array: Array, shape: Sequence[int]) -> Array:
        """Returns a random array of that shape with the type of ``array`` and values between its
        extremes."""
        if array.dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        known = array[np.isfinite(array)]
        low, high = (known.min(), known.max()) if known.size else (0, 1)
        if array.dtype.kind == "f":
            return self.rng.uniform(low, high, shape).astype(np.float32)
        return self.rng.integers(low, int(high) + 1, shape).astype(np.int32)

    def attribute(self, given: Any, others: Sequence[Any]) -> Any:
        """Returns a random value of the type of ``given``, for an attribute.

        An integer changes by at most 1; other types take one of ``others``, the values in all
        samples.
        """
        if isinstance(given, bool):
            return bool(self.integer(0, 1))
        if isinstance(given, int):
            return given + self.integer(-1, 1)
        if isinstance(given, list | tuple) and given and self.integer(0, 1):
            return type(given)(self.attribute(part, [part]) for part in given)
        return self.choice([other for other in others if type(other) is type(given)])


@cache
def samples(op: str) -> tuple[SampleCall, ...]:
    """Returns an operator's declared calls of moderate size, from which random calls are made.

    A composed operator and ``einsum`` have further calls, which come first.
    """
    rng = np.random.default_rng(0)
    found: list[tuple[list[Any], dict[str, Any]]] = []
    if op in COMPOSED:
        found = [COMPOSED[op]]
    elif op == "einsum":
        found = [([tuple(map(int, term)) for term in terms.split()], {"equation": equation})
                 for equation, terms in _EQUATIONS.items()]  # fmt: skip
    calls = [
        SampleCall(op, tuple(
            (rng.uniform(-1, 1, x) if isinstance(x, tuple) else x).astype(
                np.int32 if getattr(x, "dtype", None) == np.int32 else np.float32)
            for x in operands), attrs)
        for operands, attrs in found
    ]  # fmt: skip
    small = [c for c in declared_calls(op) if sum(a.size for a in c.arrays) < _MOST_ELEMENTS]
    return (*calls, *small)


def random_call(op: str, seed: int) -> SampleCall:
    """Returns a random legal call of an operator, determined by the seed.

    It is a declared call without changes if no changed one is legal after ``_ATTEMPTS``.
    """
    draw = Draw(seed)
    sample = draw.choice(samples(op))
    for _ in range(_ATTEMPTS):
        call = _changed(sample, draw)
        if is_legal(call):
            return call
    return sample


def _changed(sample: SampleCall, draw: Draw) -> SampleCall:
    extents = sorted({extent for array in sample.arrays for extent in array.shape if extent})
    others = {e: draw.integer(1, 6) if draw.integer(0, 2) == 0 else e for e in extents}
    arrays = [draw.like(a, [others.get(e, e) for e in a.shape]) for a in sample.arrays]
    attrs = dict(sample.attrs)
    for name, value in attrs.items():
        if draw.integer(0, 2) == 0:
            attrs[name] = draw.attribute(value, [s.attrs[name] for s in samples(sample.op)])
    order = [p.name for p in SIGNATURES[sample.op].params if p.name in attrs]
    named = dict.fromkeys([*order, *attrs])
    return SampleCall(sample.op, tuple(arrays), {name: attrs[name] for name in named})


def is_legal(call: SampleCall) -> bool:
    """Returns True if the engine accepts the call's types, shapes and indices and it has a result.

    The call is run on the CPU to find out.
    """
    try:
        if not is_registered(call.op):
            return _is_composed_call(call)
        spec, attrs = lookup(call.op), full_attrs(call.op, call.attrs)
        if not spec.infer(attrs, *map(fact_from, call.arrays)):
            return False  # no results
        spec.cpu(attrs, *call.arrays)
    except cml.CmlError:
        return False
    return True


def _is_composed_call(call: SampleCall) -> bool:
    try:
        with TemporaryDirectory() as folder:
            cml.load(call.write(Path(folder)))
    except (ArithmeticError, ValueError, IndexError):  # the formula's
        return False
    return True
