"""Extensions that implement ONNX's operators, against ONNX's reference implementation."""

import numpy as np
import pytest

from cml_engine.ir.graph import Attrs
from cml_engine.ops import load_families, lookup

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

load_families()


def wanted(op, arrays, outputs=1, opset=22, **attrs):
    """Returns the results of ONNX's operator for the arrays; None omits an input."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = onnx.helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attrs)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node],
            "one",
            [onnx.helper.make_empty_tensor_value_info(n) for n in names if n],
            [onnx.helper.make_empty_tensor_value_info(n) for n in node.output],
        ),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    given = {n: a for n, a in zip(names, arrays, strict=True) if n}
    return ReferenceEvaluator(model).run(None, given)


def ours(op, *arrays, **attrs):
    spec = lookup(op)
    return spec.cpu(Attrs(attrs), *(np.asarray(a) for a in arrays))


def scalars(rng, *shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32)


BORDERS = {"constant": "zeros", "replicate": "border", "reflect": "reflection"}


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("method", ["nearest", "linear", "cubic"])
def test_grid_sample(method, border, align, rng):
    attrs = {"mode": method, "padding_mode": BORDERS[border], "align_corners": int(align)}
    x, grid = scalars(rng, 2, 2, 4, 5), scalars(rng, 2, 3, 6, 2, low=-1.6, high=1.6)
    (right,) = wanted("GridSample", (x, grid), **attrs)
    got = ours("grid_sample", x, grid, method=method, border=border, align_corners=align)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode, half_pixel, ratio, rng):
    x, index = scalars(rng, 2, 3, 9, 8), np.array([0, 1, 1, 0])
    rois = np.array([[0, 0, 5, 6], [-3, 2, 9.5, 11], [1, 1, 1.2, 1.1], [3, 3, 8, 8]], np.float32)
    (right,) = wanted(
        "RoiAlign", (x, rois, index), mode=mode, sampling_ratio=ratio, spatial_scale=0.75,
        output_height=3, output_width=2,
        coordinate_transformation_mode="half_pixel" if half_pixel else "output_half_pixel",
    )  # fmt: skip
    got = ours("roi_align", x, rois, index, mode=mode, sampling_ratio=ratio, scale=0.75,
               output_size=[3, 2], half_pixel=half_pixel)  # fmt: skip
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter(reduction, rng):
    x = scalars(rng, 3, 5)
    indices, updates = rng.integers(-5, 5, (2, 9)), scalars(rng, 2, 9)
    (right,) = wanted("ScatterElements", (x, indices, updates), axis=1, reduction=reduction)
    got = ours("scatter_elements", x, indices, updates, axis=1, reduction=reduction)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)
    rows, updates = rng.integers(-3, 3, (4, 2, 1)), scalars(rng, 4, 2, 5)
    (right,) = wanted("ScatterND", (x, rows, updates), reduction=reduction)
    np.testing.assert_allclose(
        ours("scatter_nd", x, rows, updates, reduction=reduction), right, rtol=1e-5, atol=1e-6
    )


def test_moves(rng):
    x, indices = scalars(rng, 3, 5), rng.integers(-5, 5, (3, 7))
    (right,) = wanted("GatherElements", (x, indices), axis=1)
    assert np.array_equal(ours("gather_elements", x, indices, axis=1), right)
    lengths = np.array([5, 1, 3])
    (right,) = wanted("ReverseSequence", (x, lengths), time_axis=1, batch_axis=0)
    assert np.array_equal(ours("reverse_sequence", x, lengths, time_axis=1, batch_axis=0), right)


@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers(sign):
    a = np.array([7, -7, 6, -6, 5], np.int32) * sign
    b = np.array([3, 3, -2, 4, -5], np.int32)
    assert np.array_equal(ours("int_mod", a, b), wanted("Mod", (a, b))[0])
    assert np.array_equal(ours("int_rem", a, b), wanted("Mod", (a, b), fmod=1)[0])
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32) * sign
    assert np.array_equal(ours("round_even", x), wanted("Round", (x,))[0])
    assert np.array_equal(ours("fmod", x, b.astype(np.float32)),
                          wanted("Mod", (x, b.astype(np.float32)), fmod=1)[0])  # fmt: skip


@pytest.mark.parametrize("centers", [0, 1])
def test_non_max_suppression(centers, rng):
    first, size = rng.uniform(0, 4, (2, 40, 2)), rng.uniform(0.5, 3, (2, 40, 2))
    boxes = np.concatenate([first, size if centers else first + size], -1).astype(np.float32)
    scores = scalars(rng, 2, 3, 40)
    limits = [np.array([n]) for n in (5, np.float32(0.4), np.float32(0.1))]
    (right,) = wanted("NonMaxSuppression", (boxes, scores, *limits), center_point_box=centers)
    got, (count,) = ours("non_max_suppression", boxes, scores, max_per_class=5, fill=-1,
                         iou_threshold=0.4, score_threshold=0.1,
                         center_point_box=bool(centers))  # fmt: skip
    assert np.array_equal(got[:count], right)
    assert (got[count:] == -1).all()


def test_nonzero(rng):
    x = rng.integers(0, 2, (3, 4, 5)).astype(np.float32)
    (right,) = wanted("NonZero", (x,))
    got, (count,) = ours("nonzero", x, capacity=60, fill=-1)
    assert np.array_equal(got[:, :count], right)


def test_col2im(rng):
    x = scalars(rng, 2, 3 * 4, 12)
    geometry = {"strides": [2, 1], "dilations": [1, 2]}
    (right,) = wanted("Col2Im", (x, np.array([5, 6]), np.array([2, 2])), pads=[1, 0, 0, 0],
                      **geometry)  # fmt: skip
    got = ours("col2im", x, output_size=[5, 6], size=[2, 2], padding=[(1, 0), (0, 0)],
               stride=[2, 1], dilation=[1, 2])  # fmt: skip
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_deform_columns(rng):
    """Compares with a filter, as ONNX's operator has one."""
    x, filter = scalars(rng, 1, 4, 5, 4), scalars(rng, 3, 4, 2, 2)
    offset, mask = scalars(rng, 1, 16, 4, 3, low=-2, high=2), scalars(rng, 1, 8, 4, 3)
    (right,) = wanted("DeformConv", (x, filter, offset, None, mask), offset_group=2,
                      kernel_shape=[2, 2], pads=[0, 0, 0, 0])  # fmt: skip
    columns = ours("deform_columns", x, offset, mask, size=[2, 2], padding=[(0, 0)] * 2, stride=[],
                   dilation=[], offset_groups=2)  # fmt: skip
    got = np.einsum("nkij,ok->noij", columns, filter.reshape(3, -1))
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-4)


def test_products_of_integers(rng):
    a, b = rng.integers(0, 256, (3, 300)).astype(np.uint8), rng.integers(0, 256, (300, 4))
    (right,) = wanted("MatMulInteger", (a, b.astype(np.uint8), np.uint8(7), np.uint8(130)))
    got = ours("int_matmul", a.astype(np.int32) - 7, b.astype(np.int32) - 130)
    assert np.array_equal(got, right)
    x, w = rng.integers(0, 256, (1, 2, 5, 5)), rng.integers(0, 256, (3, 2, 2, 3))
    given = (x.astype(np.uint8), w.astype(np.uint8), np.uint8(9))
    (right,) = wanted("ConvInteger", given, pads=[1, 0, 0, 2], strides=[2, 1])
    got = ours("int_conv", (x - 9).astype(np.int32), w.astype(np.int32), stride=[2, 1],
               padding=[(1, 0), (0, 2)], dilation=[], groups=1)  # fmt: skip
    assert np.array_equal(got, right)
