"""reshape, transpose, concat and their kin in NumPy against loops over indices."""

from itertools import product

import numpy as np
import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops import lookup
from cml_engine.ops.movement import movement as _movement  # noqa: F401
from cml_engine.ops.movement import slicing as _slicing  # noqa: F401


def run(op, attrs, *arrays):
    return lookup(op).cpu(Attrs(attrs), *arrays)


def infer(op, attrs, *shapes):
    facts = [s if isinstance(s, Fact) else Fact("scalar", s) for s in shapes]
    return lookup(op).infer(Attrs(attrs), *facts)


def numbered(*shape):
    return np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)


def indices(shape):
    return product(*(range(e) for e in shape))


RESHAPE = {"axis_start": 0, "axis_count": -1}


@pytest.mark.parametrize(
    ("shape", "attrs", "wanted"),
    [
        ((2, 3, 4), {"shape": [0, -1]}, (2, 12)),
        ((2, 3, 4), {"shape": [4, 6]}, (4, 6)),
        ((2, 3, 4), {"shape": [-1], "axis_start": 1}, (2, 12)),
        ((2, 3, 4), {"shape": [3, 1], "axis_start": 1, "axis_count": 1}, (2, 3, 1, 4)),
        ((2, 3, 4), {"shape": [0, 2, -1], "axis_start": 1, "axis_count": 2}, (2, 3, 2, 2)),
        ((2, 3), {"shape": [], "axis_start": 1, "axis_count": 0}, (2, 3)),
        ((1, 1), {"shape": []}, ()),
        ((), {"shape": [1, 1]}, (1, 1)),
        ((0, 3), {"shape": [0, 3]}, (0, 3)),
        ((0, 3), {"shape": [-1, 3]}, (0, 3)),
    ],
)
def test_reshape(shape, attrs, wanted):
    x = numbered(*shape)
    result = run("reshape", {**RESHAPE, **attrs}, x)
    assert result.shape == infer("reshape", {**RESHAPE, **attrs}, shape).shape == wanted
    assert result.reshape(-1).tolist() == x.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("shape", "attrs", "said"),
    [
        ((2, 3), {"shape": [5]}, "5 elements, wanted 6"),
        ((2, 3), {"shape": [-1, 4]}, "the other extents make 4"),
        ((2, 3), {"shape": [-1, -1]}, "one -1"),
        ((2, 3), {"shape": [2, 3, 0]}, "position 2"),
        ((0, 3), {"shape": [0, -1]}, "make 0"),
        ((2, 3), {"shape": [6], "axis_start": 3}, "reach past"),
        ((2, 3), {"shape": [6], "axis_start": 1, "axis_count": 2}, "reach past"),
        ((2, 3), {"shape": [1] * 8 + [6]}, "rank 9"),
    ],
)
def test_reshape_refuses(shape, attrs, said):
    with pytest.raises(ShapeError, match=said):
        infer("reshape", {**RESHAPE, **attrs}, shape)


def test_squeeze_and_unsqueeze():
    x = numbered(1, 3, 1, 5)
    assert run("squeeze", {"axes": [2, 0]}, x).shape == (3, 5)
    assert run("unsqueeze", {"axes": [0, 3]}, numbered(3, 5)).shape == (1, 3, 5, 1)
    # each axis counts those inserted before it
    assert run("unsqueeze", {"axes": [3, 0]}, numbered(3, 5)).shape == (1, 3, 5, 1)
    assert run("unsqueeze", {"axes": [1, 0]}, numbered(3, 5)).shape == (1, 1, 3, 5)
    with pytest.raises(ShapeError, match="axis 1 with extent 3"):
        infer("squeeze", {"axes": [1]}, (1, 3))
    with pytest.raises(ShapeError, match="axis 4"):
        infer("unsqueeze", {"axes": [4]}, (2, 3))
    with pytest.raises(ShapeError, match="rank 9"):
        infer("unsqueeze", {"axes": [0]}, (1,) * 8)


@pytest.mark.parametrize("axes", [[0, 2, 1, 3], [3, 1, 2, 0], [1, 0], [0], []])
def test_transpose(axes):
    x = numbered(2, 3, 4, 5)
    order = axes + list(range(len(axes), 4))
    result = run("transpose", {"axes": axes}, x)
    assert result.shape == infer("transpose", {"axes": axes}, x.shape).shape
    for at in indices(result.shape):
        source = [0] * 4
        for i, axis in enumerate(order):
            source[axis] = at[i]
        assert result[at] == x[tuple(source)]


@pytest.mark.parametrize("axes", [[0, 0], [1, 2], [0, 1, 2]])
def test_transpose_refuses(axes):
    with pytest.raises(ShapeError, match="wanted each of 0 to"):
        infer("transpose", {"axes": axes}, (2, 3))


def test_concat_and_split_are_inverse():
    x = numbered(2, 12, 3)
    parts = run("split", {"axis": 1, "ratios": [1, 2, 3]}, x)
    assert [p.shape for p in parts] == [(2, 2, 3), (2, 4, 3), (2, 6, 3)]
    for at in indices(parts[1].shape):
        assert parts[1][at] == x[at[0], at[1] + 2, at[2]]
    assert np.array_equal(run("concat", {"axis": 1}, *parts), x)


def test_stack_and_unstack_are_inverse():
    x = numbered(2, 3, 4)
    for axis in range(3):
        parts = run("unstack", {"axis": axis}, x)
        for i, part in enumerate(parts):
            for at in indices(part.shape):
                assert part[at] == x[(*at[:axis], i, *at[axis:])]
        assert np.array_equal(run("stack", {"axis": axis}, *parts), x)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "said"),
    [
        ("concat", {"axis": 1}, [(2, 3), (3, 3)], r"agree in every axis but 1"),
        ("concat", {"axis": 2}, [(2, 3)], "axis 2"),
        ("concat", {"axis": -1}, [(2, 3)], "axis -1"),
        ("concat", {"axis": 0}, [], "at least one"),
        ("concat", {"axis": 0}, [(2,), Fact("integer", (2,))], "cast"),
        ("stack", {"axis": 0}, [(2, 3), (2, 4)], "in every axis"),
        ("stack", {"axis": 0}, [(1,) * 8], "rank 9"),
        ("split", {"axis": 0, "ratios": [1, 2]}, [(4,)], "ratios, not sizes"),
        ("split", {"axis": 0, "ratios": []}, [(4,)], "wanted ratios"),
        ("unstack", {"axis": 0}, [()], "rank 0"),
        ("tile", {"repeats": [2]}, [(2, 3)], "wanted 2"),
        ("tile", {"repeats": [0, 1]}, [(2, 3)], "1 or more"),
    ],
)
def test_refuses(op, attrs, shapes, said):
    with pytest.raises(ShapeError, match=said):
        infer(op, attrs, *shapes)


def test_tile():
    x = numbered(2, 3)
    result = run("tile", {"repeats": [3, 2]}, x)
    for at in indices((6, 6)):
        assert result[at] == x[at[0] % 2, at[1] % 3]


def naive_slice(x, axis, begin, end, stride, to_end):
    """Slices by NNEF's rule: steps from begin to end and takes only indices that the axis has."""
    extent = x.shape[axis]
    begin = begin + extent if begin < 0 else begin
    end = extent if to_end and end == 0 else end + extent if end < 0 else end
    if stride > 0:
        begin, end = max(begin, 0), min(end, extent)
    else:
        begin, end = min(begin, extent - 1), max(end, -1)
    taken = []
    while (begin < end) if stride > 0 else (begin > end):
        taken.append(x.take(begin, axis))
        begin += stride
    return np.stack(taken, axis) if taken else x.take([], axis)


@pytest.mark.parametrize("stride", [1, 2, 3, -1, -2])
@pytest.mark.parametrize("extent", [1, 5])
def test_slice_of_one_axis(extent, stride):
    x = numbered(2, extent, 3)
    for begin, end in product(range(-7, 8), repeat=2):
        attrs = {"axes": [1], "begin": [begin], "end": [end], "stride": [stride]}
        wanted = naive_slice(x, 1, begin, end, stride, stride == 1)
        result = run("slice", attrs, x)
        assert np.array_equal(result, wanted), (begin, end)
        assert infer("slice", attrs, x.shape).shape == wanted.shape


def test_slice_ends_with_zero():
    def shape(end, stride):
        attrs = {"axes": [0, 1], "begin": [1, 1], "end": end, "stride": stride}
        return infer("slice", attrs, (6, 6)).shape

    assert shape([0, 0], []) == (5, 5)
    assert shape([0, 0], [1, 1]) == (5, 5)
    # a stride anywhere, and 0 is index 0 everywhere
    assert shape([0, 6], [1, 2]) == (0, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axes": [2]}, "axis 2"),
        ({"axes": [0, 0], "begin": [0, 0], "end": [1, 1]}, "twice"),
        ({"begin": [0, 0]}, "'begin' has 2 values"),
        ({"stride": [0]}, "stride is 0"),
        ({"stride": [1, 1]}, "'stride' has 2 values"),
    ],
)
def test_slice_refuses(change, said):
    attrs = {"axes": [0], "begin": [0], "end": [1], "stride": [], **change}
    with pytest.raises(ShapeError, match=said):
        infer("slice", attrs, (3, 4))
