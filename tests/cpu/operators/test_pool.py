"""Windows in NumPy against loops written straight from the standard's formulas."""

import itertools
import math

import numpy as np
import pytest

import cml_engine.ops.pooling.pooling  # noqa: F401
from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.common.window import resolve_reverse, resolve_window
from cml_engine.ops.declaration.registry import lookup
from tests.reference.naive import border_index

NONE = (0, 0)


def attributes(size, **changes):
    given = {"border": "constant", "padding": [], "stride": [], "dilation": [], **changes}
    return Attrs(size=list(size), **given)


def run(op, attrs, *arrays, **more):
    return lookup(op).cpu(Attrs({**attrs, **more}), *arrays)


def windows(attrs, x):
    """Yields each window's index with its taps' values; None where border 'ignore' has no value."""
    rank = x.ndim
    stride, dilation = attrs["stride"] or [1] * rank, attrs["dilation"] or [1] * rank
    padding, out = attrs["padding"], []
    reach = [(f - 1) * d + 1 for f, d in zip(attrs["size"], dilation, strict=True)]
    if padding:
        for (p, q), n, f, s in zip(padding, x.shape, reach, stride, strict=True):
            out.append(math.floor((p + n + q - f) / s) + 1)
    else:
        padding = []
        for n, f, s in zip(x.shape, reach, stride, strict=True):
            out.append(math.ceil(n / s))
            t = max((out[-1] - 1) * s + f - n, 0)
            padding.append((t // 2, t - t // 2))
    for at in itertools.product(*map(range, out)):
        taps = []
        for tap in itertools.product(*map(range, attrs["size"])):
            index = [
                border_index(o * s - p + t * d, n, attrs["border"])
                for o, s, (p, _), t, d, n in zip(
                    at, stride, padding, tap, dilation, x.shape, strict=True
                )
            ]
            outside = 0.0 if attrs["border"] == "constant" else None
            taps.append(outside if None in index else float(x[tuple(index)]))
        yield tuple(out), at, taps


def naive(function, attrs, x, dtype=np.float32):
    result = None
    for shape, at, taps in windows(attrs, x):
        result = np.zeros(shape, dtype) if result is None else result
        result[at] = function(taps)
    return result


def valid(taps):
    return [t for t in taps if t is not None]


ORACLES = {
    "avg_pool": (lambda t: math.fsum(valid(t)) / max(len(valid(t)), 1), np.float32),
    "rms_pool": (
        lambda t: math.sqrt(math.fsum(v * v for v in valid(t)) / max(len(valid(t)), 1)),
        np.float32,
    ),
    "max_pool": (lambda t: max(valid(t), default=-math.inf), np.float32),
    "argmax_pool": (lambda t: t.index(max(valid(t))) if valid(t) else 0, np.int32),
}
WINDOWS = [
    ((1, 2, 5, 4), attributes((1, 1, 2, 3))),
    ((1, 2, 5, 4), attributes((1, 1, 2, 2), stride=[1, 1, 2, 3])),
    ((1, 2, 5, 4), attributes((1, 1, 2, 2), border="ignore", dilation=[1, 1, 3, 2])),
    ((2, 3, 2), attributes((2, 3, 1), border="ignore")),
    ((1, 2, 5), attributes((1, 1, 3), padding=[NONE, NONE, (-1, 2)], stride=[1, 1, 2])),
    ((1, 1, 4, 3), attributes((1, 1, 3, 2), padding=[NONE, NONE, (6, 5), (4, 3)],
                              border="replicate")),
    ((1, 1, 4, 3), attributes((1, 1, 3, 2), padding=[NONE, NONE, (6, 5), (4, 3)],
                              border="reflect")),
    ((1, 1, 4, 3), attributes((1, 1, 3, 2), padding=[NONE, NONE, (6, 5), (4, 3)],
                              border="reflect-even")),
    ((1, 1, 2), attributes((1, 1, 2), padding=[NONE, NONE, (3, 3)], border="ignore")),
    ((), attributes(())),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
@pytest.mark.parametrize("op", ORACLES)
def test_against_loops(op, shape, attrs, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    function, dtype = ORACLES[op]
    got = run(op, attrs, x)
    wanted = naive(function, attrs, x, dtype)
    assert (got.dtype, got.shape) == (dtype, wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
def test_box(shape, attrs, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    sums = naive(lambda taps: math.fsum(valid(taps)), attrs, x)
    np.testing.assert_allclose(run("box", attrs, x, normalize=False), sums, rtol=1e-6, atol=1e-6)
    means = run("avg_pool", attrs, x)
    np.testing.assert_array_equal(run("box", attrs, x, normalize=True), means)


@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
def test_sample_takes_what_argmax_pool_found(shape, attrs, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    best, index = run("max_pool_with_index", attrs, x)
    np.testing.assert_array_equal(best, run("max_pool", attrs, x))
    np.testing.assert_array_equal(index, run("argmax_pool", attrs, x))
    finite = np.isfinite(best)
    np.testing.assert_array_equal(run("sample", attrs, x, index)[finite], best[finite])


def test_zeros_of_the_border_take_part_in_a_maximum():
    x = np.full((1, 1, 2), -1, np.float32)
    padded = attributes((1, 1, 2), padding=[NONE, NONE, (1, 0)])
    assert run("max_pool", padded, x).tolist() == [[[0, -1]]]
    assert run("argmax_pool", padded, x).tolist() == [[[0, 0]]]
    ignored = attributes((1, 1, 2), padding=[NONE, NONE, (1, 0)], border="ignore")
    assert run("max_pool", ignored, x).tolist() == [[[-1, -1]]]
    assert run("argmax_pool", ignored, x).tolist() == [[[1, 0]]]


def test_an_average_divides_by_the_window_unless_the_border_is_ignored():
    x = np.ones((1, 1, 2), np.float32)
    padding = [NONE, NONE, (1, 0)]
    assert run("avg_pool", attributes((1, 1, 2), padding=padding), x).tolist() == [[[0.5, 1]]]
    ignored = attributes((1, 1, 2), padding=padding, border="ignore")
    assert run("avg_pool", ignored, x).tolist() == [[[1, 1]]]


REVERSE = [
    ((1, 2, 3, 2), attributes((1, 1, 2, 2), stride=[1, 1, 2, 2], output_shape=[])),
    ((1, 1, 4, 3), attributes((1, 1, 3, 3), output_shape=[])),
    ((1, 1, 3), attributes((1, 1, 3), stride=[1, 1, 2], dilation=[1, 1, 2],
                           padding=[NONE, NONE, (2, 1)], output_shape=[])),
    ((1, 1, 3), attributes((1, 1, 2), stride=[1, 1, 3], padding=[NONE, NONE, (-2, -1)],
                           output_shape=[])),
    ((1, 1, 3), attributes((1, 1, 2), stride=[1, 1, 2], output_shape=[1, 1, 5])),
    ((2, 2), attributes((2, 3), output_shape=[])),
    ((), attributes((), output_shape=[])),
]  # fmt: skip


def naive_reverse(attrs, x, index=None):
    """Adds every value to each tap of its window (or to one); returns sums and counts."""
    rank = x.ndim
    stride, dilation = attrs["stride"] or [1] * rank, attrs["dilation"] or [1] * rank
    axes = resolve_reverse(
        x.shape, attrs["size"], attrs["padding"], stride, dilation, attrs["output_shape"]
    )
    result = np.zeros([a.wide for a in axes])
    count = np.zeros_like(result)
    for at in np.ndindex(*x.shape):
        for number, tap in enumerate(itertools.product(*map(range, attrs["size"]))):
            to = tuple(
                o * s + t * d - a.before
                for o, s, t, d, a in zip(at, stride, tap, dilation, axes, strict=True)
            )
            inside = all(0 <= i < n for i, n in zip(to, result.shape, strict=True))
            if inside and (index is None or index[at] == number):
                result[to] += x[at]
                count[to] += 1
    return result, count


@pytest.mark.parametrize(("shape", "attrs"), REVERSE)
def test_debox(shape, attrs, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    total, count = naive_reverse(attrs, x)
    for changes, wanted in (
        ({"normalize": False}, total),
        ({"normalize": True}, total / math.prod(attrs["size"])),
        ({"normalize": True, "border": "ignore"}, total / np.maximum(count, 1)),
    ):
        got = run("debox", attrs, x, **changes)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("shape", "attrs"), REVERSE)
def test_desample_adds_collisions(shape, attrs, rng):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    index = rng.integers(0, math.prod(attrs["size"]), shape).astype(np.int32)
    wanted, _ = naive_reverse(attrs, x, index)
    np.testing.assert_allclose(run("desample", attrs, x, index), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("extent", "size", "stride", "padding", "extent_out"),
    [
        (7, 3, 2, (1, 1), 4),  # total padding (4-1)*2+3-7 = 2
        (6, 3, 2, (0, 1), 3),  # the odd one at the end
        (5, 2, 2, (0, 1), 3),
        (4, 1, 3, (0, 0), 2),
        (8, 2, 2, (0, 0), 4),
    ],
)
def test_automatic_padding(extent, size, stride, padding, extent_out):
    (axis,) = resolve_window([extent], [size], [], [stride], [])
    assert ((axis.before, axis.after), axis.narrow) == (padding, extent_out)
    (back,) = resolve_reverse([extent_out], [size], [], [stride], [], [extent])
    assert ((back.before, back.after), back.wide) == (padding, extent)


X = Fact("scalar", (1, 2, 4, 4))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        (attributes((2, 2)), "size=.* has 2 values, wanted 4.*batch and channels"),
        (attributes((1, 1, 0, 1)), "wanted 1 or more"),
        (attributes((1, 1, 2, 2), stride=[2, 2]), "stride=.* wanted 4"),
        (attributes((1, 1, 2, 2), stride=[1, 1, 0, 1]), "stride=.* wanted 1 or more"),
        (attributes((1, 1, 2, 2), padding=[(1, 1)]), "wanted 4 pairs"),
        (attributes((1, 1, 9, 2), padding=[NONE] * 4), "axis 2: a window of 9 .* does not fit"),
        (attributes((1, 1, 2, 2), border="mirror"), "border='mirror', wanted one of constant"),
    ],
)
def test_wrong_windows_are_refused(attrs, message):
    with pytest.raises(ShapeError, match=message):
        lookup("max_pool").infer(attrs, X)


def test_wrong_indices_are_refused():
    attrs = attributes((1, 1, 2, 2), stride=[1, 1, 2, 2], output_shape=[])
    with pytest.raises(ShapeError, match=r"index has shape \[1, 2, 4, 4\], wanted \[1, 2, 2, 2\]"):
        lookup("sample").infer(attrs, X, Fact("integer", X.shape))
    with pytest.raises(ShapeError, match="index is tensor<scalar>, wanted tensor<integer>"):
        lookup("desample").infer(attrs, X, X)


def test_wrong_transposes_are_refused():
    attrs = attributes((1, 1, 2, 2), stride=[1, 1, 2, 2], normalize=False)
    debox = lookup("debox").infer
    with pytest.raises(ShapeError, match="output_shape 11 goes back to 6 .* the input has 4"):
        debox(Attrs({**attrs, "output_shape": [1, 2, 11, 8]}), X)
    with pytest.raises(ShapeError, match="border='reflect' has no meaning here"):
        debox(Attrs({**attrs, "output_shape": [], "border": "reflect"}), X)
    with pytest.raises(ShapeError, match="crops all"):
        debox(Attrs({**attrs, "output_shape": [], "padding": [NONE, NONE, (9, 9), NONE]}), X)
