"""Reductions in NumPy against loops over every element."""

import itertools
import math

import numpy as np
import pytest

import cml_engine.ops.reduction.reduction  # noqa: F401
from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.declaration.registry import lookup

SHAPES = [((2, 3, 4), [1]), ((2, 3, 4), [2, 0]), ((3, 2, 2, 2), [1, 3]), ((4,), []), ((), [])]


def run(op, x, axes, **attrs):
    return lookup(op).cpu(Attrs(axes=axes, **attrs), x)


def groups(x, axes):
    """Yields each result's index with its values, row-major over the reduced axes."""
    kept = [range(1 if a in axes else n) for a, n in enumerate(x.shape)]
    reduced = [range(n if a in axes else 1) for a, n in enumerate(x.shape)]
    for at in itertools.product(*kept):
        yield at, [x[tuple(map(sum, zip(at, r, strict=True)))] for r in itertools.product(*reduced)]


def naive(function, x, axes, dtype=np.float32):
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    result = np.zeros(shape, dtype)
    for at, values in groups(x, axes):
        result[at] = function([float(v) for v in values])
    return result


ORACLES = {
    "mean_reduce": (lambda v: math.fsum(v) / len(v), np.float32),
    "min_reduce": (min, np.float32),
    "max_reduce": (max, np.float32),
    "argmin_reduce": (lambda v: v.index(min(v)), np.int32),
    "argmax_reduce": (lambda v: v.index(max(v)), np.int32),
}


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("op", ORACLES)
def test_against_loops(op, shape, axes, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    function, dtype = ORACLES[op]
    got = run(op, x, axes)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, naive(function, x, axes, dtype), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_sum(shape, axes, normalize, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    wanted = naive(lambda v: math.fsum(v) / (len(v) if normalize else 1), x, axes)
    got = run("sum_reduce", x, axes, normalize=normalize)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_any_and_all(shape, axes, rng):
    x = rng.uniform(size=shape) > 0.4
    np.testing.assert_array_equal(run("any_reduce", x, axes), naive(any, x, axes, np.bool_))
    np.testing.assert_array_equal(run("all_reduce", x, axes), naive(all, x, axes, np.bool_))


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_softmax_is_joint_over_its_axes(shape, axes, rng):
    x = rng.uniform(-3, 3, shape).astype(np.float32)
    total = naive(lambda v: math.fsum(map(math.exp, v)), x, axes)
    np.testing.assert_allclose(run("softmax", x, axes), np.exp(x) / total, rtol=1e-5)


def test_softmax_far_from_zero():
    got = run("softmax", np.array([[1e4, 1e4, -1e4]], np.float32), [1])
    assert got.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_moments_have_the_biased_variance(shape, axes, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    mean, variance = run("moments", x, axes)

    def about_mean(values):
        middle = math.fsum(values) / len(values)
        return math.fsum((v - middle) ** 2 for v in values) / len(values)

    np.testing.assert_allclose(mean, naive(lambda v: math.fsum(v) / len(v), x, axes), atol=1e-7)
    np.testing.assert_allclose(variance, naive(about_mean, x, axes), rtol=1e-5, atol=1e-7)


def test_moments_do_not_cancel_far_from_zero():
    x = np.array([[1e4 - 1, 1e4 + 1]], np.float32)
    mean, variance = run("moments", x, [1])
    assert (mean.item(), variance.item()) == (1e4, 1.0)


def test_the_first_of_equals_wins_row_major_over_several_axes():
    x = np.array([[1, 3], [3, 3]], np.float32)
    for axes in ([0, 1], [1, 0]):
        assert run("argmax_reduce", x, axes).tolist() == [[1]]
    assert run("argmin_reduce", np.zeros((1, 4), np.float32), [1]).tolist() == [[0]]


def test_positions_over_axes_apart():
    x = np.zeros((2, 3, 4), np.float32)
    x[1, 2, 3] = x[1, 0, 2] = 1
    # over axes 0 and 2 the position is (index on axis 0) * 4 + (index on axis 2)
    assert run("argmax_reduce", x, [0, 2]).ravel().tolist() == [6, 0, 7]


def test_reductions_of_nothing():
    x = np.zeros((2, 0), np.float32)
    assert run("sum_reduce", x, [1], normalize=False).tolist() == [[0], [0]]
    assert run("max_reduce", x, [1]).tolist() == [[-np.inf], [-np.inf]]
    assert run("min_reduce", x, [1]).tolist() == [[np.inf], [np.inf]]
    assert np.isnan(run("mean_reduce", x, [1])).all()
    nothing = np.zeros((2, 0), np.bool_)
    assert not run("any_reduce", nothing, [1]).any()
    assert run("all_reduce", nothing, [1]).all()
    with pytest.raises(ShapeError, match="no position in nothing"):
        lookup("argmax_reduce").infer(Attrs(axes=[1]), Fact("scalar", (2, 0)))


def test_a_nan_beats_everything():
    x = np.array([[1, np.nan, 2]], np.float32)
    assert np.isnan(run("max_reduce", x, [1])).all() and np.isnan(run("min_reduce", x, [1])).all()
    assert run("argmax_reduce", x, [1]).tolist() == [[1]]


def test_many_values_are_summed_exactly_enough():
    x = np.full((1, 1 << 20), 0.1, np.float32)
    got = run("sum_reduce", x, [1], normalize=False).item()
    assert got == pytest.approx(float(np.float32(0.1)) * (1 << 20), rel=1e-7)


@pytest.mark.parametrize(
    ("op", "fact", "axes", "message"),
    [
        ("sum_reduce", Fact("scalar", (2, 3)), [2], "axis 2 .* wanted 0 to 1"),
        ("sum_reduce", Fact("scalar", (2, 3)), [-1], "axis -1 .* from 0"),
        ("max_reduce", Fact("scalar", (2, 3)), [1, 1], "twice"),
        ("any_reduce", Fact("scalar", (2,)), [0], "wanted tensor<logical>"),
        ("softmax", Fact("integer", (2,)), [0], "wanted tensor<scalar>"),
    ],
)
def test_wrong_attributes_are_refused(op, fact, axes, message):
    with pytest.raises(ShapeError, match=message):
        lookup(op).infer(Attrs(axes=axes, normalize=False), fact)


def test_result_facts():
    x = Fact("scalar", (2, 3, 4))
    assert lookup("argmax_reduce").infer(Attrs(axes=[2, 0]), x) == Fact("integer", (1, 3, 1))
    assert lookup("softmax").infer(Attrs(axes=[1]), x) == x
    assert lookup("moments").infer(Attrs(axes=[1]), x) == [Fact("scalar", (2, 1, 4))] * 2
