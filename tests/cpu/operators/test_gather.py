"""gather and cast in NumPy against loops and against C's conversions."""

from itertools import product

import numpy as np
import pytest

from cml_engine.errors import InputError, ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.indexing import gather as _gather  # noqa: F401


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_gather(axis, shape, rng):
    x = rng.random((3, 4, 5), np.float32)
    at = rng.integers(0, x.shape[axis], shape, dtype=np.int32)
    result = lookup("gather").cpu(Attrs(axis=axis), x, at)
    fact = lookup("gather").infer(Attrs(axis=axis), Fact("scalar", x.shape), Fact("integer", shape))
    assert result.shape == fact.shape == x.shape[:axis] + shape + x.shape[axis + 1 :]
    for where in product(*(range(e) for e in result.shape)):
        inner = where[axis : axis + len(shape)]
        source = (*where[:axis], at[inner], *where[axis + len(shape) :])
        assert result[where] == x[source]


@pytest.mark.parametrize("index", [-1, 3])
def test_gather_refuses_an_index_that_is_not_there(index):
    with pytest.raises(InputError, match=f"index {index} .*wanted 0 to 2.*1 of 2"):
        lookup("gather").cpu(Attrs(axis=0), np.zeros((3, 2)), np.array([0, index], np.int32))


def test_gather_refuses():
    def infer(x, indices, axis=0):
        return lookup("gather").infer(Attrs(axis=axis), x, indices)

    x = Fact("scalar", (3, 4))
    with pytest.raises(ShapeError, match="wanted integer"):
        infer(x, Fact("scalar", (2,)))
    with pytest.raises(ShapeError, match="axis 2"):
        infer(x, Fact("integer", (2,)), axis=2)
    with pytest.raises(ShapeError, match="is empty"):
        infer(Fact("scalar", (0, 4)), Fact("integer", (2,)))
    with pytest.raises(ShapeError, match="rank 9"):
        infer(Fact("scalar", (1,) * 8), Fact("integer", (2, 2)))


def cast(x, dtype):
    return lookup("cast").cpu(Attrs(dtype=dtype), np.asarray(x))


def test_cast():
    numbers = np.array([1.9, -1.9, 0.5, -0.5, 0.0], np.float32)
    assert cast(numbers, "integer").tolist() == [1, -1, 0, 0, 0]
    assert cast(numbers, "logical").tolist() == [True, True, True, True, False]
    assert cast(np.array([2, 0, -1], np.int32), "logical").tolist() == [True, False, True]
    assert cast(np.array([True, False]), "integer").tolist() == [1, 0]
    assert cast(np.array([True, False]), "scalar").tolist() == [1.0, 0.0]
    assert cast(np.array([True]), "scalar").dtype == np.float32


def test_cast_to_integer_keeps_within_the_integers():
    given = np.array([3e9, -3e9, np.inf, -np.inf, np.nan, 2147483520.0], np.float32)
    assert cast(given, "integer").tolist() == [
        2**31 - 1,
        -(2**31),
        2**31 - 1,
        -(2**31),
        0,
        2147483520,
    ]


def test_cast_refuses():
    with pytest.raises(ShapeError, match="cast to 'float'"):
        lookup("cast").infer(Attrs(dtype="float"), Fact("scalar", (1,)))
