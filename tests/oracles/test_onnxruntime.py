"""Operators that ONNX has with the same meaning, against ONNX Runtime."""

import numpy as np
import pytest

from tests.fixtures.texts import declaration, engine, run_text

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(31)


def uniform(*shape):
    return engine(RNG.uniform(-2, 2, shape))


X, W, V = uniform(2, 4, 9, 8), uniform(6, 4, 3, 2), uniform(4, 3, 3, 3)
ROIS = np.float32([[0, 0, 8, 7], [1.25, 2.5, 6.75, 6.1], [3, 1, 4, 7.5]])
INDEX = np.int32([0, 1, 1])
#: ONNX has x before y
TURNED = ROIS[:, [1, 0, 3, 2]]
NONE = np.float32([])


def onnx_run(op, inputs, opset=19, **attrs):
    """Returns the first result of one node."""
    names = [f"i{k}" if a is not NONE else "" for k, a in enumerate(inputs)]
    given = {n: a for n, a in zip(names, inputs, strict=True) if n}
    kind = onnx.helper.np_dtype_to_tensor_dtype
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, ["y"], **attrs)],
        "one",
        [onnx.helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in given.items()],
        [onnx.helper.make_empty_tensor_value_info("y")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = 9
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, given)[0]


MODES = {"symmetric": "half_pixel", "asymmetric": "asymmetric", "aligned": "align_corners"}
ROUNDINGS = {"half_down": "round_prefer_floor", "half_up": "round_prefer_ceil", "floor": "floor",
             "ceil": "ceil"}  # fmt: skip


def resized(h, w, mode, coordinates="symmetric", rounding="half_down", a=-0.75):
    body = (
        f"y = resize(x, output_size = [{h}, {w}], method = '{mode}', coordinates = "
        f"'{coordinates}', rounding = '{rounding}', cubic_coefficient = {a});"
    )
    sizes = np.array([2, 4, h, w], np.int64)
    right = onnx_run(
        "Resize", [X, NONE, NONE, sizes], mode=mode, cubic_coeff_a=a,
        coordinate_transformation_mode=MODES[coordinates], nearest_mode=ROUNDINGS[rounding],
    )  # fmt: skip
    return "resize", body, {"x": X}, right


def aligned(op, mode, rate):
    # ONNX's largest is of products with weights, not of samples: only one sample is the same
    body = f"y = {op}(x, r, i, output_size = [3, 2], sampling_rate = [{rate}, {rate}]);"
    right = onnx_run(
        "RoiAlign", [X, TURNED, INDEX.astype(np.int64)], mode=mode, output_height=3,
        output_width=2, sampling_ratio=rate, coordinate_transformation_mode="half_pixel",
    )  # fmt: skip
    return "", body, {"x": X, "r": ROIS, "i": INDEX}, right


CASES = [
    *(resized(h, w, mode, c) for mode in ("linear", "cubic") for c in MODES
      for h, w in ((18, 5), (4, 21))),
    *(resized(h, w, "nearest", c, r) for c in MODES for r in ROUNDINGS
      for h, w in ((18, 5), (4, 12))),
    resized(13, 11, "cubic", a=-0.5),
    *(aligned("avg_roi_align", "avg", rate) for rate in (1, 2, 3)),
    ("depth_to_space", "y = depth_to_space(x, block_size = 2);", {"x": X},
     onnx_run("DepthToSpace", [X], blocksize=2, mode="DCR")),
    ("depth_to_space", "y = depth_to_space(x, block_size = 2, blocks_first = false);", {"x": X},
     onnx_run("DepthToSpace", [X], blocksize=2, mode="CRD")),
    ("space_to_depth", "y = space_to_depth(x, block_size = 2);", {"x": X[:, :, :8]},
     onnx_run("SpaceToDepth", [X[:, :, :8]], blocksize=2)),
    ("", "y = conv(x, w, stride = [2, 3]);", {"x": X, "w": W},
     onnx_run("Conv", [X, W], auto_pad="SAME_UPPER", strides=[2, 3])),
    ("", "y = max_pool(x, size = [1, 1, 3, 2], stride = [1, 1, 2, 2], border = 'ignore');",
     {"x": X}, onnx_run("MaxPool", [X], auto_pad="SAME_UPPER", kernel_shape=[3, 2],
                        strides=[2, 2])),
    ("", "y = avg_pool(x, size = [1, 1, 3, 2], stride = [1, 1, 2, 2], border = 'ignore');",
     {"x": X}, onnx_run("AveragePool", [X], auto_pad="SAME_UPPER", kernel_shape=[3, 2],
                        strides=[2, 2])),
    ("", "y = deconv(x, v, stride = [2, 2], dilation = [1, 2], padding = [(1, 0), (0, 2)]);",
     {"x": X, "v": V}, onnx_run("ConvTranspose", [X, V], strides=[2, 2], dilations=[1, 2],
                                pads=[1, 0, 0, 2])),
    ("", "y = local_response_normalization(x, size = [1, 3, 1, 1], alpha = 0.3, bias = 2.0);",
     {"x": X}, onnx_run("LRN", [X], size=3, alpha=0.3, beta=0.5, bias=2.0)),
    ("gelu_erf", "y = gelu_erf(x);", {"x": X}, onnx_run("Gelu", [X], 20)),
    ("erf", "y = erf(x);", {"x": X}, onnx_run("Erf", [X])),
    ("gather_nd", "y = gather_nd(x, i);", {"x": X, "i": np.int32([[0, 1, 2], [1, 3, 8]])},
     onnx_run("GatherND", [X, np.array([[0, 1, 2], [1, 3, 8]])])),
    ("cumsum", "y = cumsum(x, axis = 2, exclusive = true, reverse = true);", {"x": X},
     onnx_run("CumSum", [X, np.array(2, np.int32)], exclusive=1, reverse=1)),
    ("mean_variance_norm", "y = mean_variance_norm(x, axes = [0, 2, 3], epsilon = 0.0);", {"x": X},
     onnx_run("MeanVarianceNormalization", [X])),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("op", "body", "inputs", "right"), [pytest.param(*case, id=case[1][:110]) for case in CASES]
)
def test_same_as_onnxruntime(op, body, inputs, right, backend, tmp_path, request):
    device = request.getfixturevalue("gpu") if backend == "gpu" else "cpu"
    (got,) = run_text(tmp_path, body, inputs, device, head=declaration(op) if op else "")
    assert got.shape == right.shape
    assert np.allclose(got, right, rtol=3e-5, atol=3e-5), np.abs(got - right).max()
