"""Tests of values that a definition decides: halves, ties, NaN, overflow, borders."""

import math

import numpy as np
import pytest

from cml_engine.ir.graph import Attrs
from cml_engine.ops import load_families
from cml_engine.ops.declaration.registry import lookup
from cml_engine.tools.testing import full_attrs

load_families()

NAN, INF = math.nan, math.inf
BEFORE = {"size": [2], "padding": [(1, 0)]}
EMPTY = np.zeros((2, 0), np.float32)
SQUARE = np.arange(16.0).reshape(1, 1, 4, 4)
RAMP = [[[0.0, 4.0]]]
TWO_ONES = np.zeros((2, 3, 4))
TWO_ONES[1, 2, 3] = TWO_ONES[1, 0, 2] = 1

VALUES = [
    ("pow", [[-3.0, -2, 0, -2], [2.0, 3, 0, 0.5]], {}, [9, -8, 1, NAN]),
    ("min", [[NAN, 1.0], [2.0, NAN]], {}, [2, NAN]),
    ("max", [[NAN, 1.0], [2.0, NAN]], {}, [2, NAN]),
    *((op, [[1.0, 2], [1.0, 1]], {}, wanted) for op, wanted in (
        ("lt", [False, False]), ("le", [True, False]), ("gt", [False, True]),
        ("ge", [True, True]), ("eq", [True, False]), ("ne", [False, True]))),
    ("clamp", [[5.0, 0.5], [0.0, 2], [1.0, 1]], {}, [1, 2]),  # the lower bound wins
    ("round", [[0.5, -0.5, 2.5, -1.5, 0.49999997, 8388609.0]], {}, [1, 0, 3, -1, 0, 8388609]),
    ("floor", [-1.5], {}, -2.0),
    ("ceil", [-1.5], {}, -1.0),
    ("sign", [[0.0, -7.0]], {}, [0, -1]),
    ("gelu", [1.5], {}, 1.5 / (1 + math.exp(-1.702 * 1.5))),  # NNEF's approximation, not erf
    ("sigmoid", [[-200.0, 0, 200]], {}, [0, 0.5, 1]),
    ("softplus", [[200.0, 0.0]], {}, [200, math.log(2)]),  # log(exp(x) + 1) overflows
    ("tanh", [-200.0], {}, -1.0),
    ("selu", [-1.0], {"alpha": 1.5, "lambda": 2.0}, 2 * 1.5 * math.expm1(-1)),
    # order of operands: input, mean, variance, offset, scale
    ("batch_normalization", [5.0, 1.0, 3.0, 10.0, 7.0], {"epsilon": 1.0}, 10 + 7 * (5 - 1) / 2),
    ("select", [[True, False], np.int32([1, 2]), np.int32(9)], {}, np.int32([1, 9])),
    *(("copy", [np.ones((2, 0), t)], {}, np.ones((2, 0), t)) for t in (np.int32, np.bool_)),
    ("cast", [[1.9, -1.9, 0.5, -0.5]], {"dtype": "integer"}, np.int32([1, -1, 0, 0])),
    ("cast", [[3e9, -3e9, INF, -INF, NAN, 2147483520.0]], {"dtype": "integer"},
     np.int32([2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 2147483520])),
    ("cast", [np.int32([2, 0, -1])], {"dtype": "logical"}, [True, False, True]),
    ("max_pool", [[-1.0, -1]], BEFORE, [0, -1]),
    ("argmax_pool", [[-1.0, -1]], BEFORE, np.int32([0, 0])),
    ("max_pool", [[-1.0, -1]], {**BEFORE, "border": "ignore"}, [-1, -1]),
    ("argmax_pool", [[-1.0, -1]], {**BEFORE, "border": "ignore"}, np.int32([1, 0])),
    ("avg_pool", [[1.0, 1]], BEFORE, [0.5, 1]),
    ("avg_pool", [[1.0, 1]], {**BEFORE, "border": "ignore"}, [1, 1]),
    ("softmax", [[1e4, 1e4, -1e4]], {"axes": [0]}, [0.5, 0.5, 0]),
    ("moments", [[1e4 - 1, 1e4 + 1]], {"axes": [0]}, ([1e4], [1])),
    *(("argmax_reduce", [[[1.0, 3], [3.0, 3]]], {"axes": axes}, np.int32([[1]]))
      for axes in ([0, 1], [1, 0])),
    ("argmin_reduce", [np.zeros((1, 4))], {"axes": [1]}, np.int32([[0]])),
    # over axes 0 and 2 the position is (index on axis 0) * 4 + (index on axis 2)
    ("argmax_reduce", [TWO_ONES], {"axes": [0, 2]}, np.int32([[[6], [0], [7]]])),
    ("sum_reduce", [EMPTY], {"axes": [1]}, [[0], [0]]),
    ("max_reduce", [EMPTY], {"axes": [1]}, [[-INF], [-INF]]),
    ("min_reduce", [EMPTY], {"axes": [1]}, [[INF], [INF]]),
    ("mean_reduce", [EMPTY], {"axes": [1]}, [[NAN], [NAN]]),
    ("any_reduce", [EMPTY.astype(bool)], {"axes": [1]}, [[False], [False]]),
    ("all_reduce", [EMPTY.astype(bool)], {"axes": [1]}, [[True], [True]]),
    ("max_reduce", [[1.0, NAN, 2]], {"axes": [0]}, [NAN]),
    ("min_reduce", [[1.0, NAN, 2]], {"axes": [0]}, [NAN]),
    ("argmax_reduce", [[1.0, NAN, 2]], {"axes": [0]}, np.int32([1])),
    ("sum_reduce", [np.full(1 << 20, 0.1)], {"axes": [0]}, [float(np.float32(0.1)) * (1 << 20)]),
    ("matmul", [EMPTY, EMPTY.T], {}, [[0, 0], [0, 0]]),
    ("linear", [EMPTY, EMPTY, [[1.0, 2]]], {}, [[1, 2], [1, 2]]),
    *(("multilinear_upsample", [RAMP], {"factor": [2], "method": method, "border": border},
       [[wanted]]) for method, border, wanted in (
        ("symmetric", "replicate", [0, 1, 3, 4]), ("symmetric", "constant", [0, 1, 3, 3]),
        ("asymmetric", "replicate", [0, 2, 4, 4]), ("asymmetric", "constant", [0, 2, 4, 2]),
        ("aligned", "constant", [0, 4 / 3, 8 / 3, 4]))),
    *((op, [SQUARE + 1, [roi], np.int32(0)], {"output_size": [2, 2]}, np.zeros((1, 1, 2, 2)))
      for op in ("avg_roi_pool", "max_roi_pool")
      for roi in ([2.0, 2, 2, 2], [3.0, 3, 1, 1], [9.0, 9, 12, 12], [-9.0, -9, -5, -5])),
    ("max_roi_pool", [SQUARE, [[0.5, NAN, 1.5, 1]], np.int32(0)], {"output_size": [1, 1]},
     [[[[4]]]]),
    # a batch index outside takes the nearest item
    ("max_roi_pool", [np.arange(1.0, 4).reshape(3, 1, 1, 1), [[0.0, 0, 1, 1]] * 3,
                      np.int32([[-7], [1], [99]])], {"output_size": [1, 1]},
     np.arange(1.0, 4).reshape(3, 1, 1, 1)),
]  # fmt: skip


def narrow(value):
    """Returns the value as an array; 64-bit floats and integers become float32."""
    found = np.asarray(value)
    return found.astype(np.float32) if found.dtype in (np.float64, np.int64) else found


@pytest.mark.parametrize(("op", "operands", "attrs", "wanted"), VALUES)
def test_a_corner_value_is_the_definitions(op, operands, attrs, wanted):
    results = lookup(op).cpu(full_attrs(op, attrs), *map(narrow, operands))
    pairs = zip(results, wanted, strict=True) if isinstance(wanted, tuple) else [(results, wanted)]
    for got, right in pairs:
        right = narrow(right)
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(got, right, rtol=1e-6, atol=1e-7)


def test_slice_end_zero_requires_unit_stride():
    def shape(end, stride):
        attrs = full_attrs("slice", {"axes": [0, 1], "begin": [1, 1], "end": end, "stride": stride})
        return lookup("slice").cpu(attrs, np.zeros((6, 6), np.float32)).shape

    assert shape([0, 0], []) == shape([0, 0], [1, 1]) == (5, 5)
    # a stride anywhere, and 0 is index 0 everywhere
    assert shape([0, 6], [1, 2]) == (0, 3)


def test_a_result_never_shares_memory_with_an_operand():
    x = np.ones((3,), np.float32)
    assert not np.shares_memory(lookup("copy").cpu(Attrs({}), x), x)
