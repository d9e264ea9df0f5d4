"""Tests of kernels on very long inputs.

A software driver silently ends the loops of a thread after 65,535 iterations in total, nested ones
included. No kernel may need more.
"""

import numpy as np
import pytest

from cml_engine.ops.declaration.spec import Case
from cml_engine.testing import blocked_layouts, case_graph
from tests.fixtures.operators import check_graph

pytestmark = pytest.mark.gpu

#: beyond the driver's bound
LONG = 70_000


def check(op, inputs, attrs, gpu, **more):
    graph, values = case_graph(op, Case(tuple(inputs), attrs), **more)
    check_graph(graph, values, gpu, partitions=1)


def ramp(*shape):
    """Returns an array of that shape with many different values between 0.5 and 1.5.

    Its last value is the largest.
    """
    size = int(np.prod(shape))
    values = (0.5 + np.arange(size) % 4099 / 4099).astype(np.float32)
    values[-1] = 9
    return values.reshape(shape)


@pytest.mark.parametrize("how", [(False, False), (True, True)], ids=["plain", "reversed"])
def test_cumsum(how, gpu):
    exclusive, reverse = how
    check("cumsum", [ramp(LONG)], {"axis": 0, "exclusive": exclusive, "reverse": reverse}, gpu)


@pytest.mark.parametrize("k", [3, LONG])
def test_top_k(k, gpu, rng):
    x = rng.integers(0, 40_000, LONG).astype(np.float32)  # many equal values
    check("top_k", [x], {"k": k, "axis": 0, "largest": True}, gpu)


def test_products(gpu):
    # the lanes of a workgroup share a sum
    long = ramp(2, 8 * LONG + 1) - 1
    check("matmul", [long, long[:1]], {"transposeA": False, "transposeB": True}, gpu)


@pytest.mark.parametrize("shape", [(1, 4, LONG), (1, 4, 256, 256), (1, 1, 530, 264)])
def test_area_downsample(shape, gpu):
    graph, values = case_graph(
        "area_downsample", Case((ramp(*shape),), {"factor": list(shape[2:])})
    )
    for layouts in ({}, *blocked_layouts(graph)):
        check_graph(graph, values, gpu, partitions=1, layouts=layouts)


def window(size, **more):
    """Returns the attributes of a pool with a window of ``size`` and no padding.

    The window must be smaller than the input, or a reduction replaces the pool.
    """
    attrs = {"border": "ignore", "padding": [(0, 0)] * len(size), "stride": [], "dilation": []}
    return {"size": list(size), **attrs, **more}


POOLS = ("avg_pool", "box", "argmax_pool", "max_pool_with_index")


@pytest.mark.parametrize(
    ("op", "size", "more"),
    [(op, (1, LONG), {"normalize": False} if op == "box" else {}) for op in POOLS]
    + [(op, (1, 1, 257, 257), {"border": "constant"}) for op in ("avg_pool", "max_pool")],
)
def test_pools_of_a_long_window(op, size, more, gpu):
    check(op, [ramp(*size[:-1], size[-1] + 1)], window(size, **more), gpu)


def test_sample_and_desample_of_a_long_window(gpu):
    size = (1, LONG)
    check("sample", [ramp(1, LONG + 1), np.array([[LONG - 1, 0]], np.int32)], window(size), gpu)
    # two results in the middle of two windows, whose other elements are outside
    attrs = window(size, padding=[(0, 0), (LONG - 3, 2)], output_shape=[1, 2])
    check("desample", [ramp(1, 2), np.array([[LONG - 2, LONG - 3]], np.int32)], attrs, gpu)
    check("debox", [ramp(1, 2)], {**attrs, "normalize": False}, gpu)


CONV = {"stride": [], "dilation": [], "groups": 1, "border": "constant", "padding": []}


def whole(shape, **more):
    """Returns the attributes of a conv on an input of that shape, without padding."""
    return {**CONV, "padding": [(0, 0)] * (len(shape) - 2), **more}


@pytest.mark.parametrize(("inside", "taps"), [(1, LONG), (4 * LONG, 1)])
def test_conv_of_a_long_filter_and_of_many_channels(inside, taps, gpu, rng):
    # sums of whole numbers are exact, so a missing term shows
    filter, x = (
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in ((3, inside, taps), (1, inside, taps + 1))
    )
    bias = np.array([[1, 2, 3]], np.float32)
    check("conv", [x, filter, bias], whole(x.shape), gpu, constants=True)


def test_convs_of_many_taps_and_channels(gpu, rng):
    """Convs by large filters are correct: grouped, blocked, depthwise and transposed.

    The transposed one takes its filter as an input.
    """
    x = rng.uniform(-1, 1, (1, 8, 67, 70)).astype(np.float32)
    filter = rng.uniform(-1, 1, (8, 4, 66, 67)).astype(np.float32)
    case = Case((x, filter, np.float32(0.5)), whole(x.shape, groups=2))
    graph, values = case_graph("conv", case, constants=True)
    for layouts in ({}, next(iter(blocked_layouts(graph)))):
        check_graph(graph, values, gpu, partitions=1, layouts=layouts)
    apart = whole(x.shape, groups=0)
    check("conv", [x, filter[:, :1], np.float32(0.5)], apart, gpu, constants=True)
    attrs = whole(x.shape, output_shape=[], stride=[2, 2])
    check("deconv", [x[:, :, :3, :2], filter, np.float32(0)], attrs, gpu)


@pytest.mark.parametrize("op", ["avg_roi_pool", "max_roi_pool"])
@pytest.mark.parametrize(
    "shape", [(400, 400), (1, LONG), (LONG, 1), (11_900, 1, 1), (1, 11_900, 1), (110, 110, 1)]
)
def test_roi_pools(op, shape, gpu):
    rois = np.array([[*([0] * len(shape)), *shape]], np.float32)
    attrs = {"output_size": [1] * len(shape)}
    check(op, [ramp(1, 1, *shape), rois, np.int32(0)], attrs, gpu)


def counts(rng, *shape, low=-128, high=128):
    return rng.integers(low, high, shape).astype(np.int32)


@pytest.mark.parametrize("constants", [False, True], ids=["computed", "constant"])
@pytest.mark.parametrize("places", [1, 2**18], ids=["one place", "many places"])
def test_updates(places, constants, gpu, rng):
    x, values = counts(rng, max(places, 3)), counts(rng, LONG)
    indices = counts(rng, LONG, low=0, high=places)
    for reduction in ("none", "add"):
        attrs = {"axis": 0, "reduction": reduction}
        check("scatter_elements", [x, indices, values], attrs, gpu, constants=constants)
        rows = [x, indices[:, None], values]
        check("scatter_nd", rows, {"reduction": reduction}, gpu, constants=constants)


def test_nonzero_over_many_elements(gpu, rng):
    x = (rng.random((3, 70_001)) < 0.01).astype(np.bool_)
    check("nonzero", [x], {"capacity": 1000, "fill": -1}, gpu)


def test_boxes(gpu, rng):
    first = rng.uniform(0, 100, (1, 4000, 2))
    boxes = np.concatenate([first, first + 1.5], -1).astype(np.float32)
    attrs = {"max_per_class": 600, "iou_threshold": 0.2, "score_threshold": 0.0,
             "center_point_box": False, "fill": -1}  # fmt: skip
    check("non_max_suppression", [boxes, rng.random((1, 1, 4000), np.float32)], attrs, gpu)


def test_products_of_integers(gpu, rng):
    check("int_matmul", [counts(rng, 2, LONG), counts(rng, LONG, 1)], {}, gpu)
    attrs = {"padding": [], "stride": [], "dilation": [], "groups": 1}
    check("int_conv", [counts(rng, 1, 9000, 2, 2), counts(rng, 1, 9000, 3, 3)], attrs, gpu)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_samples_of_a_region(mode, gpu, rng):
    x = rng.uniform(-1, 1, (1, 1, 260, 270)).astype(np.float32)
    attrs = {"output_size": [1, 1], "sampling_ratio": 0, "scale": 1.0, "half_pixel": True,
             "mode": mode}  # fmt: skip
    rois = np.array([[0, 0, 270, 260], [-100, 5, 400, 250], [3, 3, 9, 250]], np.float32)
    check("roi_align", [x, rois, np.zeros(3, np.int32)], attrs, gpu)


#: the longest filters of one dispatch; two of each operator run in the suite
LONGEST = {
    "conv": ((1, 1, 2990), (1, 2990, 1), (2990, 1, 1), (54, 55, 1), (14, 14, 15)),
    "deconv": ((1, 1, 2990), (2990, 1, 1), (54, 55, 1)),
}
TAPS = [
    pytest.param(op, taps, marks=() if taps in ((1, 1, 2990), (54, 55, 1)) else pytest.mark.long)
    for op, longest in LONGEST.items()
    for taps in longest
]


@pytest.mark.parametrize(("op", "taps"), TAPS)
def test_convs_with_the_longest_filters_of_one_dispatch(op, taps, gpu):
    """Convs with the longest filters that a single dispatch computes are right."""
    x = np.ones((1, 1, *(n + 1 if op == "conv" else 1 for n in taps)), np.float32)
    filter = np.ones((1, 1, *taps), np.float32)
    attrs = whole(x.shape) | ({"output_shape": []} if op == "deconv" else {})
    check(op, [x, filter, np.float32(0)], attrs, gpu, constants=True)


@pytest.mark.parametrize(
    "size", [(9900,), (1, 9900), (9900, 1), (99, 99), (20, 20, 21), (9, 9, 9, 10), (8500, 1, 1)]
)
def test_windows_with_the_longest_sizes_of_one_dispatch(size, gpu):
    shape = [n + 1 for n in size]
    check("box", [np.ones(shape, np.float32)], window(size, normalize=False), gpu)


@pytest.mark.parametrize("factor", [(1024, 1, 1), (1, 1024, 1), (1, 1, 1024), (10, 10, 10)])
def test_area_downsample_with_the_largest_factors_of_one_dispatch(factor, gpu):
    x = np.ones((1, 1, *factor[:2], 4 * factor[2]), np.float32)
    check("area_downsample", [x], {"factor": list(factor)}, gpu)


@pytest.mark.parametrize("shape", [(3, 5, 2, 5, 2, 5, 2, 4), (2, 8, 2, 8, 2, 8, 2, 1)])
def test_softmax_over_non_adjacent_axes(shape, gpu):
    """A softmax over axes that are not adjacent, which needs a loop for each index, is right."""
    check("softmax", [np.ones(shape, np.float32)], {"axes": [1, 3, 5, 7]}, gpu)
    check("softmax", [np.ones(shape, np.float32)], {"axes": [0, 2, 4, 6]}, gpu)
