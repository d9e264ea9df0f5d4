"""Regions of interest against manual loops, and the meaning of unusual regions."""

from math import ceil, floor

import numpy as np
import pytest

from cml_engine import ModelError
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.ir.graph import Attrs, Fact, Node
from cml_engine.ops import load_families, lookup

load_families()


def run(op, x, rois, index, **attrs):
    arrays = [np.asarray(x, np.float32), np.asarray(rois, np.float32), np.asarray(index, np.int32)]
    return lookup(op).cpu(Attrs(attrs), *arrays)


def naive_pool(x, rois, index, size, reduce):
    y = np.zeros((len(rois), x.shape[1], *size), np.float32)
    for n, roi in enumerate(rois):
        y0, x0, y1, x1 = (floor(v + 0.5) for v in roi)
        for c in range(x.shape[1]):
            for i in range(size[0]):
                for j in range(size[1]):
                    top, left = y0 + i * ((y1 - y0) // size[0]), x0 + j * ((x1 - x0) // size[1])
                    high, wide = ceil((y1 - y0) / size[0]), ceil((x1 - x0) / size[1])
                    cell = [
                        x[index[n], c, a, b]
                        for a in range(top, top + high)
                        for b in range(left, left + wide)
                        if 0 <= a < x.shape[2] and 0 <= b < x.shape[3]
                    ]
                    y[n, c, i, j] = reduce(cell) if cell else 0
    return y


@pytest.mark.parametrize(("op", "reduce"), [("avg_roi_pool", np.mean), ("max_roi_pool", max)])
def test_pools(op, reduce, rng):
    x = rng.standard_normal((2, 3, 9, 7)).astype(np.float32)
    rois = rng.uniform(-2, 10, (40, 4))
    index = rng.integers(0, 2, 40)
    for size in ((1, 1), (2, 3), (4, 8)):
        got = run(op, x, rois, index, output_size=size)
        assert got == pytest.approx(naive_pool(x, rois, index, size, reduce), abs=1e-6)


def at(plane, y, x):
    """Returns a value interpolated between four; edge values are repeated outside."""
    high, wide = plane.shape
    total = 0.0
    for a, part_a in ((floor(y), 1 - (y - floor(y))), (floor(y) + 1, y - floor(y))):
        for b, part_b in ((floor(x), 1 - (x - floor(x))), (floor(x) + 1, x - floor(x))):
            value = plane[min(max(a, 0), high - 1), min(max(b, 0), wide - 1)]
            total += part_a * part_b * value
    return total


POSITION = {
    "symmetric": lambda low, high, i, n: low + (i + 0.5) * (high - low) / n - 0.5,
    "asymmetric": lambda low, high, i, n: low + i * (high - low) / n,
    "aligned": lambda low, high, i, n: low + i * (high - low - 1) / (n - 1) if n > 1 else low,
}


@pytest.mark.parametrize("method", POSITION)
def test_resample_and_align(method, rng):
    x = rng.standard_normal((2, 2, 6, 7))
    rois, index = rng.uniform(-2, 9, (12, 4)), rng.integers(0, 2, 12)
    place = POSITION[method]
    fine = np.array([
        [[[at(x[index[n], c], place(y0, y1, i, 4), place(x0, x1, j, 6)) for j in range(6)]
          for i in range(4)] for c in range(2)]
        for n, (y0, x0, y1, x1) in enumerate(rois)
    ])  # fmt: skip
    got = run("roi_resample", x, rois, index, output_size=[4, 6], method=method)
    assert got == pytest.approx(fine, abs=1e-5)
    blocks = fine.reshape(12, 2, 2, 2, 2, 3)
    how = {"output_size": [2, 2], "sampling_rate": [2, 3], "resize_method": method}
    assert run("avg_roi_align", x, rois, index, **how) == pytest.approx(
        blocks.mean((3, 5)), abs=1e-5
    )
    assert run("max_roi_align", x, rois, index, **how) == pytest.approx(
        blocks.max((3, 5)), abs=1e-5
    )


def test_a_roi_of_the_whole_map_is_multilinear_upsampling(rng):
    x = rng.standard_normal((1, 3, 4, 5)).astype(np.float32)
    for method in POSITION:
        up = lookup("multilinear_upsample").cpu(
            Attrs(factor=[3, 2], method=method, border="replicate"), x
        )
        got = run("roi_resample", x, [[0, 0, 4, 5]], [0], output_size=[12, 10], method=method)
        assert got == pytest.approx(up, abs=1e-6)


def test_rois_without_a_value_give_zero():
    x = np.ones((1, 1, 4, 4))
    rois = [[2, 2, 2, 2], [3, 3, 1, 1], [9, 9, 12, 12], [-9, -9, -5, -5]]
    for op in ("avg_roi_pool", "max_roi_pool"):
        assert not run(op, x, rois, 0, output_size=[2, 2]).any()


def test_halves_are_rounded_up_and_nan_is_zero():
    x = np.arange(16.0).reshape(1, 1, 4, 4)
    assert run("max_roi_pool", x, [[0.5, np.nan, 1.5, 1]], 0, output_size=[1, 1]) == 4


def test_a_batch_index_that_is_none_takes_the_nearest_item():
    x = np.array([1.0, 2, 3]).reshape(3, 1, 1, 1)
    got = run("max_roi_pool", x, [[0, 0, 1, 1]] * 3, [[-7], [1], [99]], output_size=[1, 1])
    assert got.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("shapes", "attrs", "message"),
    [
        (((1, 1, 4), (2, 4), (2,)), {"output_size": [1]}, r"wanted \[number of rois, 2\]"),
        (((1, 1, 4, 4), (2, 4), (3,)), {"output_size": [1, 1]}, r"wanted \[2,1\]"),
        (((1, 1, 4, 4), (2, 4), (2,)), {"output_size": [1]}, "has 1 values"),
        (((1, 1, 4, 4), (2, 4), (2,)), {"output_size": [1, 0]}, "wanted 1 or more"),
        (((1, 1), (2, 4), (2,)), {"output_size": []}, "1 to 3 spatial axes"),
        (((0, 1, 4, 4), (2, 4), (2,)), {"output_size": [1, 1]}, "no batch item"),
    ],
)
def test_refused(shapes, attrs, message):
    facts = dict(zip("abc", map(Fact, ("scalar", "scalar", "integer"), shapes), strict=True))
    with pytest.raises(ModelError, match=message):
        infer_node(Node("avg_roi_pool", ("a", "b", "c"), ("y",), Attrs(attrs)), facts)


def test_refused_resampling():
    facts = {"a": Fact("scalar", (1, 1, 4, 4)), "b": Fact("scalar", (1, 4)),
             "c": Fact("integer", ())}  # fmt: skip
    for attrs in ({"method": "cubic"}, {"resize_method": "aligned", "sampling_rate": [2]}):
        op = "roi_resample" if "method" in attrs else "max_roi_align"
        node = Node(op, ("a", "b", "c"), ("y",), Attrs(output_size=[1, 1], **attrs))
        with pytest.raises(ModelError):
            infer_node(node, facts)
