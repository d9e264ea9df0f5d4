"""Tests of values that a definition decides: halves, ties, NaN, overflow, borders."""

import numpy as np
import pytest

from cml_engine.ir.graph import Attrs
from cml_engine.ops.declaration.registry import load_families, lookup
from cml_engine.testing import full_attrs
from tests.fixtures.texts import operator_call

load_families()

BEFORE = "size=[2], padding=[(1, 0)]"
IGNORED = f"{BEFORE}, border='ignore'"
#: calls and their results
VALUES = [
    "pow([-3, -2, 0, -2], [2, 3, 0, 0.5]) -> [9, -8, 1, nan]",
    "min([nan, 1], [2, nan]) -> [2, nan]",
    "max([nan, 1], [2, nan]) -> [2, nan]",
    "lt([1, 2], [1, 1]) -> [False, False]",
    "le([1, 2], [1, 1]) -> [True, False]",
    "gt([1, 2], [1, 1]) -> [False, True]",
    "ge([1, 2], [1, 1]) -> [True, True]",
    "eq([1, 2], [1, 1]) -> [True, False]",
    "ne([1, 2], [1, 1]) -> [False, True]",
    "clamp([5, 0.5], [0, 2], [1, 1]) -> [1, 2]",  # the lower bound wins
    "round([0.5, -0.5, 2.5, -1.5, 0.49999997, 8388609]) -> [1, 0, 3, -1, 0, 8388609]",
    "floor(-1.5) -> -2",
    "ceil(-1.5) -> -1",
    "sign([0, -7]) -> [0, -1]",
    "gelu(1.5) -> 1.5 / (1 + np.exp(-1.702 * 1.5))",  # NNEF's approximation, not erf
    "sigmoid([-200, 0, 200]) -> [0, 0.5, 1]",
    "softplus([200, 0]) -> [200, np.log(2)]",  # log(exp(x) + 1) overflows
    "tanh(-200) -> -1",
    "selu(-1, alpha=1.5, **{'lambda': 2.0}) -> 2 * 1.5 * np.expm1(-1)",
    # order of operands: input, mean, variance, offset, scale
    "batch_normalization(5, 1, 3, 10, 7, epsilon=1.0) -> 10 + 7 * (5 - 1) / 2",
    "select([True, False], int32([1, 2]), int32(9)) -> int32([1, 9])",
    "copy(np.ones((2, 0), int32)) -> np.ones((2, 0), int32)",
    "copy(np.ones((2, 0), bool)) -> np.ones((2, 0), bool)",
    "cast([1.9, -1.9, 0.5, -0.5], dtype='integer') -> int32([1, -1, 0, 0])",
    "cast([3e9, -3e9, inf, -inf, nan, 2147483520], dtype='integer')"
    " -> int32([2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 2147483520])",
    "cast(int32([2, 0, -1]), dtype='logical') -> [True, False, True]",
    # an end of 0 is the end only if all strides are 1
    "slice(np.zeros((6, 6)), axes=[0, 1], begin=[1, 1], end=[0, 0], stride=[]) -> np.zeros((5, 5))",
    "slice(np.zeros((6, 6)), axes=[0, 1], begin=[1, 1], end=[0, 0], stride=[1, 1])"
    " -> np.zeros((5, 5))",
    "slice(np.zeros((6, 6)), axes=[0, 1], begin=[1, 1], end=[0, 6], stride=[1, 2])"
    " -> np.zeros((0, 3))",
    f"max_pool([-1, -1], {BEFORE}) -> [0, -1]",
    f"argmax_pool([-1, -1], {BEFORE}) -> int32([0, 0])",
    f"max_pool([-1, -1], {IGNORED}) -> [-1, -1]",
    f"argmax_pool([-1, -1], {IGNORED}) -> int32([1, 0])",
    f"avg_pool([1, 1], {BEFORE}) -> [0.5, 1]",
    f"avg_pool([1, 1], {IGNORED}) -> [1, 1]",
    "softmax([1e4, 1e4, -1e4], axes=[0]) -> [0.5, 0.5, 0]",
    "moments([1e4 - 1, 1e4 + 1], axes=[0]) -> [1e4], [1]",
    "argmax_reduce([[1, 3], [3, 3]], axes=[0, 1]) -> int32([[1]])",
    "argmax_reduce([[1, 3], [3, 3]], axes=[1, 0]) -> int32([[1]])",
    "argmin_reduce(np.zeros((1, 4)), axes=[1]) -> int32([[0]])",
    # over axes 0 and 2 the position is (index on axis 0) * 2 + (index on axis 2)
    "argmax_reduce([[[0, 0], [0, 0]], [[1, 0], [0, 1]]], axes=[0, 2]) -> int32([[[2], [3]]])",
    "sum_reduce(np.zeros((2, 0)), axes=[1]) -> [[0], [0]]",
    "max_reduce(np.zeros((2, 0)), axes=[1]) -> [[-inf], [-inf]]",
    "min_reduce(np.zeros((2, 0)), axes=[1]) -> [[inf], [inf]]",
    "mean_reduce(np.zeros((2, 0)), axes=[1]) -> [[nan], [nan]]",
    "any_reduce(np.zeros((2, 0), bool), axes=[1]) -> [[False], [False]]",
    "all_reduce(np.zeros((2, 0), bool), axes=[1]) -> [[True], [True]]",
    "max_reduce([1, nan, 2], axes=[0]) -> [nan]",
    "min_reduce([1, nan, 2], axes=[0]) -> [nan]",
    "argmax_reduce([1, nan, 2], axes=[0]) -> int32([1])",
    "sum_reduce(np.full(2**20, 0.1), axes=[0]) -> [np.float64(np.float32(0.1)) * 2**20]",
    "matmul(np.zeros((2, 0)), np.zeros((0, 2))) -> [[0, 0], [0, 0]]",
    "linear(np.zeros((2, 0)), np.zeros((2, 0)), [[1, 2]]) -> [[1, 2], [1, 2]]",
    *(f"multilinear_upsample([[[0, 4]]], factor=[2], method={method!r}, border={border!r})"
      f" -> [[{found}]]" for method, border, found in (
        ("symmetric", "replicate", "[0, 1, 3, 4]"), ("symmetric", "constant", "[0, 1, 3, 3]"),
        ("asymmetric", "replicate", "[0, 2, 4, 4]"), ("asymmetric", "constant", "[0, 2, 4, 2]"),
        ("aligned", "constant", "[0, 4 / 3, 8 / 3, 4]"))),
    *(f"{op}(np.ones((1, 1, 4, 4)), [{roi}], int32(0), output_size=[2, 2])"
      " -> np.zeros((1, 1, 2, 2))"
      for op in ("avg_roi_pool", "max_roi_pool")
      for roi in ([2, 2, 2, 2], [3, 3, 1, 1], [9, 9, 12, 12], [-9, -9, -5, -5])),
    "max_roi_pool(np.arange(16).reshape(1, 1, 4, 4), [[0.5, nan, 1.5, 1]], int32(0), "
    "output_size=[1, 1]) -> [[[[4]]]]",
    # a batch index outside takes the nearest item
    "max_roi_pool([[[[1]]], [[[2]]], [[[3]]]], [[0, 0, 1, 1]] * 3, int32([[-7], [1], [99]]), "
    "output_size=[1, 1]) -> [[[[1]]], [[[2]]], [[[3]]]]",
]  # fmt: skip


def narrow(value):
    """Returns the value as an array; 64-bit floats and integers become float32."""
    found = np.asarray(value)
    return found.astype(np.float32) if found.dtype in (np.float64, np.int64) else found


@pytest.mark.parametrize("text", VALUES)
def test_a_corner_value_is_the_definitions(text):
    called, _, results = text.partition(" -> ")
    op, operands, attrs = operator_call(called)
    _, expected, _ = operator_call(f"results({results})")
    found = lookup(op).cpu(full_attrs(op, attrs), *map(narrow, operands))
    found = found if isinstance(found, tuple | list) else [found]
    for got, right in zip(found, map(narrow, expected), strict=True):
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(got, right, rtol=1e-6, atol=1e-7)


def test_a_result_never_shares_memory_with_an_operand():
    x = np.ones((3,), np.float32)
    assert not np.shares_memory(lookup("copy").cpu(Attrs({}), x), x)
