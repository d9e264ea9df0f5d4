"""Resampling in NumPy against the standard's formulas, one result at a time."""

from itertools import product
from math import floor

import numpy as np
import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.resampling import resampling as _resample  # noqa: F401

SHAPES = [((1, 2, 5), [3]), ((2, 1, 3, 4), [2, 3]), ((1, 1, 2, 3, 2), [2, 1, 4])]


def run(op, x, factor, **attrs):
    result = lookup(op).cpu(Attrs(factor=factor, **attrs), x)
    fact = lookup(op).infer(Attrs(factor=factor, **attrs), Fact("scalar", x.shape))
    assert (result.shape, result.dtype) == (fact.shape, np.float32)
    return result


def indices(shape):
    return product(*(range(e) for e in shape))


@pytest.mark.parametrize(("shape", "factor"), SHAPES)
def test_nearest(shape, factor, rng):
    x = rng.random(shape, np.float32)
    big = run("nearest_upsample", x, factor)
    full = [1, 1, *factor]
    for at in indices(big.shape):
        assert big[at] == x[tuple(i // f for i, f in zip(at, full, strict=True))]
    assert np.array_equal(run("nearest_downsample", big, factor), x)


@pytest.mark.parametrize(("shape", "factor"), SHAPES)
def test_nearest_downsample_takes_the_first_of_a_block(shape, factor, rng):
    full = [1, 1, *factor]
    x = rng.random([e * f for e, f in zip(shape, full, strict=True)], np.float32)
    small = run("nearest_downsample", x, factor)
    for at in indices(small.shape):
        assert small[at] == x[tuple(i * f for i, f in zip(at, full, strict=True))]


@pytest.mark.parametrize(("shape", "factor"), SHAPES)
def test_area(shape, factor, rng):
    full = [1, 1, *factor]
    x = rng.random([e * f for e, f in zip(shape, full, strict=True)], np.float32)
    small = run("area_downsample", x, factor)
    for at in indices(small.shape):
        block = [
            x[tuple(i * f + t for i, f, t in zip(at, full, taps, strict=True))]
            for taps in indices(full)
        ]
        assert small[at] == pytest.approx(sum(map(float, block)) / len(block), rel=1e-6)


def position(method, i, extent, factor):
    if method == "symmetric":
        return (i + 0.5) / factor - 0.5
    if method == "asymmetric":
        return i / factor
    return i * (extent - 1) / (extent * factor - 1) if extent * factor > 1 else 0.0


def sampled(x, lead, where, border):
    """Interpolates x[lead] linearly at ``where``, corner by corner."""
    total = 0.0
    for corner in product((0, 1), repeat=len(where)):
        at, weight = [], 1.0
        for t, side, extent in zip(where, corner, x.shape[2:], strict=True):
            i = floor(t) + side
            weight *= t - floor(t) if side else 1 - (t - floor(t))
            if not 0 <= i < extent and border == "constant":
                weight = 0.0
            at.append(min(max(i, 0), extent - 1))
        total += weight * float(x[(*lead, *at)])
    return total


@pytest.mark.parametrize("border", ["replicate", "constant"])
@pytest.mark.parametrize("method", ["symmetric", "asymmetric", "aligned"])
@pytest.mark.parametrize(("shape", "factor"), [*SHAPES, ((1, 1, 1, 3), [2, 1])])
def test_multilinear(shape, factor, method, border, rng):
    x = rng.random(shape, np.float32)
    big = run("multilinear_upsample", x, factor, method=method, border=border)
    for at in indices(big.shape):
        where = [
            position(method, i, e, f) for i, e, f in zip(at[2:], shape[2:], factor, strict=True)
        ]
        # the last position of 'aligned' may round past the last index
        wanted = sampled(x, at[:2], where, "replicate" if method == "aligned" else border)
        assert big[at] == pytest.approx(wanted, abs=1e-6)


def test_multilinear_by_hand():
    x = np.array([[[0.0, 4.0]]], np.float32)

    def up(method, border):
        return run("multilinear_upsample", x, [2], method=method, border=border)[0, 0].tolist()

    assert up("symmetric", "replicate") == [0.0, 1.0, 3.0, 4.0]
    assert up("symmetric", "constant") == [0.0, 1.0, 3.0, 3.0]
    assert up("asymmetric", "replicate") == [0.0, 2.0, 4.0, 4.0]
    assert up("asymmetric", "constant") == [0.0, 2.0, 4.0, 2.0]
    assert up("aligned", "constant") == pytest.approx([0.0, 4 / 3, 8 / 3, 4.0])


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "said"),
    [
        ("nearest_upsample", (1, 2), {"factor": []}, "1 to 3 spatial axes"),
        ("nearest_upsample", (1, 2, 3), {"factor": [1, 2]}, "'factor' has 2 values"),
        ("nearest_upsample", (1, 2, 3), {"factor": [0]}, "1 or more"),
        ("area_downsample", (1, 2, 5), {"factor": [2]}, "5 / 2 leaves 1"),
        ("nearest_downsample", (1, 2, 4, 5), {"factor": [2, 3]}, "axis 3"),
        ("multilinear_upsample", (1, 2, 3), {"factor": [2], "method": "cubic"}, "method 'cubic'"),
        ("multilinear_upsample", (1, 2, 3), {"factor": [2], "border": "wrap"}, "border 'wrap'"),
    ],
)
def test_refuses(op, shape, attrs, said):
    full = {"method": "symmetric", "border": "replicate", **attrs}
    with pytest.raises(ShapeError, match=said):
        lookup(op).infer(Attrs(full), Fact("scalar", shape))
