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
from cml_engine import ops
from cml_engine.ir.graph import fact_from
from cml_engine.ops.declaration.registry import is_registered, lookup
from cml_engine.testing import full_attrs
from tests.fixtures.texts import engine, operator_call
from tests.reference.calls import SIGNATURES, SampleCall, declared_calls

Array = np.ndarray[Any, Any]
T = TypeVar("T")
#: larger declared calls are for the kernels' ways through large tensors
_MOST_ELEMENTS = 2000
_ATTEMPTS = 12
_MAP = "f[2, 4, 6, 3]"
_WINDOW = "padding=[(1, 0), (0, 1)], stride=[2, 1], dilation=[1, 2]"
_POOL = "padding=[(0, 0), (0, 0), (1, 0), (0, 1)], stride=[1, 1, 2, 1], dilation=[1, 1, 1, 2]"
_ROIS = "np.array([[0, 0, 6, 3], [1.2, 0.7, 4.9, 2.1], [5, -1, 2, 9]])"
_NORM = f"{_MAP}, f[1, 4], f[1, 4]"

#: calls of each operator that is a composition of others
COMPOSED = (
    f"separable_conv({_MAP}, f[4, 1, 3, 2], f[5, 4, 1, 1], f[1, 5], {_WINDOW})",
    f"separable_deconv({_MAP}, f[5, 1, 3, 2], f[4, 5, 1, 1], f[1, 5], {_WINDOW})",
    *(
        f"rms_pool({_MAP}, size=[1, 1, 3, 2], border={border!r}, {_POOL})"
        for border in ("constant", "ignore", "reflect")
    ),
    *(
        f"{op}({_MAP}, {_ROIS}, int32([[0], [1], [3]]), output_size=[3, 2], "
        f"sampling_rate={rate}, resize_method={method!r})"
        for op in ("avg_roi_align", "max_roi_align")
        for rate, method in (([2, 3], "symmetric"), ([1, 2], "asymmetric"), ([2, 2], "aligned"))
    ),
    f"local_response_normalization({_MAP}, size=[1, 3, 1, 1], alpha=0.1, beta=0.75, bias=1.5)",
    f"local_mean_normalization({_MAP}, size=[1, 1, 3, 2])",
    f"local_variance_normalization({_MAP}, size=[1, 1, 3, 3], bias=0.5, epsilon=1.25)",
    f"local_contrast_normalization({_MAP}, size=[1, 1, 3, 3], bias=1.0, epsilon=0.5)",
    f"l1_normalization({_MAP}, axes=[1, 3], bias=0.5, epsilon=1.5)",
    f"l2_normalization({_MAP}, axes=[2], bias=0.0, epsilon=0.1)",
    f"linear_quantize({_MAP}, np.full((1, 4), -1.5), np.full((1, 4), 1.7), bits=4)",
    f"min_max_linear_quantize({_MAP}, -0.9, 0.8, bits=8, signed=True, symmetric=True)",
    f"zero_point_linear_quantize({_MAP}, int32([[3, -2, 0, 7]]), np.full((1, 4), 0.11), bits=8, "
    "signed=True, symmetric=False)",
    f"logarithmic_quantize({_MAP}, 1.7, bits=4)",
    f"copy_n({_MAP}, times=3)",
    f"add_n({_MAP}, {_MAP}, {_MAP})",
    f"hard_sigmoid({_MAP}, alpha=0.25, beta=0.5)",
    f"hard_swish({_MAP})",
    f"mish({_MAP})",
    f"mod({_MAP}, np.linspace(0.5, 4, 4)[None])",
    f"mean_variance_norm({_MAP}, axes=[2, 3], epsilon=0.1)",
    f"layer_norm({_NORM}, axes=[1, 2, 3], epsilon=0.1)",
    f"instance_norm({_NORM}, axes=[2, 3], epsilon=0.1)",
    f"group_norm({_NORM}, groups=2, axes=[2, 3], epsilon=0.1)",
    "depth_to_space(f[2, 12, 3, 2], block_size=2, blocks_first=True)",
    "space_to_depth(f[2, 3, 6, 4], block_size=2, blocks_first=False)",
    "deform_conv(f[1, 4, 5, 6], f[4, 2, 2, 3], f[1, 24, 4, 4], f[1, 12, 4, 4], f[1, 4], "
    "size=[2, 3], padding=[(0, 0), (0, 0)], groups=2, offset_groups=2)",
    f"quantize_linear({_MAP}, 0.02, 3.0, low=-128.0, high=127.0)",
    "dequantize_linear(int32([[-128, 3, 127]]), 0.1, -4.0)",
    f"dynamic_quantize_linear({_MAP}, axes=[0, 1, 2, 3])",
    "matmul_nbits(f[5, 12], int32([[0x12345678, -0x6543210F]] * 3), f[3, 2], f[3, 2], "
    "block_size=8, bits=4)",
    "lstm_step(f[2, 3], f[2, 4], f[2, 4], f[16, 3], f[16, 4], f[1, 16])",
    "gru_step(f[2, 3], f[2, 4], f[12, 3], f[12, 4], f[1, 12], f[1, 12])",
)
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
    texts = [text for text in COMPOSED if text.startswith(f"{op}(")]
    if op == "einsum":
        texts = [f"einsum({', '.join(f'f{list(map(int, term))}' for term in terms.split())}, "
                 f"equation={equation!r})" for equation, terms in _EQUATIONS.items()]  # fmt: skip
    calls = []
    for text in texts:
        _, operands, attrs = operator_call(text)
        values = [rng.uniform(-1, 1, x.shape) if isinstance(x, ops.Fact) else x for x in operands]
        calls.append(SampleCall(op, tuple(map(engine, values)), attrs))
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
