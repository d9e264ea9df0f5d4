"""Every compound operator of NNEF as a one-line model, on both backends, against its formula."""

import math

import numpy as np
import pytest

from cml_engine.nnef.expansion.signatures import standard_fragments
from tests.fixtures.texts import engine, run_text
from tests.reference import naive

RNG = np.random.default_rng(20)


def uniform(*shape, low=-2.0, high=2.0):
    return engine(RNG.uniform(low, high, shape))


X = uniform(2, 4, 6, 5)
POSITIVE = uniform(2, 4, 6, 5, low=0.1, high=9.0)
CHANNELS = uniform(1, 4)
KEEP = (0, 0)


def wide(x):
    return x.astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-wide(x)))


def softmax(x, axes):
    e = np.exp(wide(x) - wide(x).max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def lrn(x, size, alpha=1.0, beta=0.5, bias=1.0):
    return wide(x) / (bias + alpha * naive.pool(wide(x) ** 2, naive.mean, size)) ** beta


def variance_norm(x, size, bias=0.0, epsilon=0.0):
    deviation = np.sqrt(naive.pool(wide(x) ** 2, naive.mean, size))
    return wide(x) / np.maximum(deviation + bias, epsilon)


def centred(x, size):
    return wide(x) - naive.pool(wide(x), naive.mean, size)


def batch_norm(x, mean, variance, offset, scale, epsilon):
    x, mean, variance, offset, scale = naive.left(x, mean, variance, offset, scale)
    return offset + scale * (x - mean) / np.sqrt(variance + epsilon)


def pick(values):
    return [float(v) for v in values]


def indices(x, size, **window):
    return naive.pool(x, naive.first_greatest, size, **window).astype(np.int32)


W33, W11 = uniform(4, 1, 3, 3), uniform(6, 4, 1, 1)
UP11, UP33 = uniform(4, 6, 1, 1), uniform(6, 1, 3, 3)
ROIS, ITEMS = np.array([[0, 0, 6, 5], [1.2, 0.4, 4.9, 4.1]]), np.array([1, 0], np.int32)
POOL = "size = [1, 1, 2, 3]"
POOL_IGNORE = f"{POOL}, border = 'ignore', stride = [1, 1, 2, 2]"
IGNORE = {"border": "ignore", "stride": [1, 1, 2, 2]}
SIZE = [1, 1, 2, 3]


def blocks(x, f, g):
    n, c, h, w = x.shape
    return wide(x).reshape(n, c, h // f, f, w // g, g)


def resampled(x, rois, items, size, method):
    """Returns the result of roi_resample by its formula."""
    y = np.zeros((len(rois), x.shape[1], *size))
    for n, roi in enumerate(rois):
        lines = wide(x[items[n]])
        for axis in range(2):
            low, high, count = roi[axis], roi[axis + 2], size[axis]
            end = lines.shape[axis + 1] - 1
            parts = []
            for i in range(count):
                at = low + (i + 0.5) * (high - low) / count - 0.5
                if method == "aligned":
                    at = low + i * (high - low - 1) / (count - 1)
                k = [min(max(j, 0), end) for j in (math.floor(at), math.floor(at) + 1)]
                a, b = lines.take(k[0], axis + 1), lines.take(k[1], axis + 1)
                parts.append(a + (b - a) * (at - math.floor(at)))
            lines = np.stack(parts, axis + 1)
        y[n] = lines
    return y


#: operator's name: (text of the call, inputs, expected results)
CASES = [
    ("sqr", "sqr(x)", {"x": X}, wide(X) ** 2),
    ("sqrt", "sqrt(x)", {"x": POSITIVE}, np.sqrt(wide(POSITIVE))),
    ("rsqr", "rsqr(x)", {"x": POSITIVE}, wide(POSITIVE) ** -2),
    ("rsqrt", "rsqrt(x)", {"x": POSITIVE}, wide(POSITIVE) ** -0.5),
    ("log2", "log2(x)", {"x": POSITIVE}, np.log2(wide(POSITIVE))),
    ("min", "min(x, c)", {"x": X, "c": CHANNELS}, np.minimum(*naive.left(X, CHANNELS))),
    ("max", "max(0.25, x)", {"x": X}, np.maximum(X, 0.25)),
    ("clamp", "clamp(x, c, 1.0)", {"x": X, "c": CHANNELS},
     np.maximum(np.minimum(X, 1), naive.left(X, CHANNELS)[1])),
    ("nearest_downsample", "nearest_downsample(x, factor = [3, 5])", {"x": X}, X[:, :, ::3, ::5]),
    ("area_downsample", "area_downsample(x, factor = [2, 5])", {"x": X},
     blocks(X, 2, 5).mean((3, 5))),
    ("nearest_upsample", "nearest_upsample(x, factor = [2, 3])", {"x": X},
     X.repeat(2, 2).repeat(3, 3)),
    ("mean_reduce", "mean_reduce(x, axes = [3, 0])", {"x": X}, wide(X).mean((0, 3), keepdims=True)),
    ("moments", "moments(x, axes = [2, 3])", {"x": X},
     [wide(X).mean((2, 3), keepdims=True), wide(X).var((2, 3), keepdims=True)]),
    ("relu", "relu(x)", {"x": X}, np.maximum(X, 0)),
    ("sigmoid", "sigmoid(x)", {"x": X}, sigmoid(X)),
    ("softabs", "softabs(x, epsilon = 0.5)", {"x": X}, np.sqrt(wide(X) ** 2 + 0.5)),
    ("softmax", "softmax(x)", {"x": X}, softmax(X, 1)),
    ("softmax", "softmax(x, axes = [3, 1])", {"x": X}, softmax(X, (1, 3))),
    ("softplus", "softplus(x)", {"x": 50 * X}, np.logaddexp(0, wide(50 * X))),
    ("elu", "elu(x)", {"x": X}, np.where(X < 0, np.expm1(wide(X)), X)),
    ("elu", "elu(x, alpha = 0.3)", {"x": X}, np.where(X < 0, 0.3 * np.expm1(wide(X)), X)),
    ("selu", "selu(x)", {"x": X},
     1.05070102 * np.where(X < 0, 1.67326319 * np.expm1(wide(X)), X)),
    ("selu", "selu(x, alpha = 2.0, lambda = 0.5)", {"x": X},
     0.5 * np.where(X < 0, 2 * np.expm1(wide(X)), X)),
    ("gelu", "gelu(x)", {"x": X}, X * sigmoid(1.702 * wide(X))),
    ("silu", "silu(x)", {"x": X}, X * sigmoid(X)),
    ("prelu", "prelu(x, c)", {"x": X, "c": CHANNELS},
     np.where(X < 0, naive.left(X, CHANNELS)[1] * X, X)),
    ("prelu", "prelu(x, 0.5)", {"x": X}, np.where(X < 0, 0.5 * X, X)),
    ("leaky_relu", "leaky_relu(x, alpha = 0.1)", {"x": X}, np.where(X < 0, 0.1 * wide(X), X)),
    ("max_pool_with_index", f"max_pool_with_index(x, {POOL})", {"x": X},
     [naive.pool(X, naive.greatest, SIZE), indices(X, SIZE)]),
    ("max_pool_with_index", f"max_pool_with_index(x, {POOL_IGNORE})", {"x": X},
     [naive.pool(X, naive.greatest, SIZE, **IGNORE), indices(X, SIZE, **IGNORE)]),
    ("max_pool", f"max_pool(x, {POOL})", {"x": X}, naive.pool(X, naive.greatest, SIZE)),
    ("avg_pool", f"avg_pool(x, {POOL})", {"x": X}, naive.pool(X, naive.mean, SIZE)),
    ("avg_pool", f"avg_pool(x, {POOL_IGNORE})", {"x": X},
     naive.pool(X, naive.mean, SIZE, **IGNORE)),
    ("rms_pool", f"rms_pool(x, {POOL})", {"x": X},
     np.sqrt(naive.pool(wide(X) ** 2, naive.mean, SIZE))),
    ("linear", "linear(x, w)", {"x": X[0, 0], "w": X[1, 1]}, wide(X[0, 0]) @ wide(X[1, 1]).T),
    ("linear", "linear(x, w, b)", {"x": X[0, 0], "w": X[1, 1], "b": uniform(1, 6)}, None),
    ("separable_conv", "separable_conv(x, p, q)", {"x": X, "p": W33, "q": W11},
     naive.conv(naive.conv(X, W33, groups=0), W11)),
    ("separable_conv",
     "separable_conv(x, p, q, 0.5, border = 'replicate', padding = [(1, 0), (2, 1)],"
     " stride = [2, 1], dilation = [1, 2])", {"x": X, "p": W33, "q": W11},
     naive.conv(naive.conv(X, W33, border="replicate", padding=[(1, 0), (2, 1)], stride=[2, 1],
                           dilation=[1, 2], groups=0), W11, 0.5)),
    ("separable_deconv", "separable_deconv(x, p, q)", {"x": X, "p": UP33, "q": UP11},
     naive.deconv(naive.deconv(X, UP11), UP33, groups=0)),
    ("separable_deconv",
     "separable_deconv(x, p, q, 0.25, stride = [2, 2], output_shape = [2, 6, 11, 10])",
     {"x": X, "p": UP33, "q": UP11},
     naive.deconv(naive.deconv(X, UP11), UP33, 0.25, stride=[2, 2], output_shape=[2, 6, 11, 10],
                  groups=0)),
    ("local_response_normalization", "local_response_normalization(x, size = [1, 3, 1, 1])",
     {"x": X}, lrn(X, [1, 3, 1, 1])),
    ("local_response_normalization",
     "local_response_normalization(x, size = [1, 2, 3, 1], alpha = 0.1, beta = 0.75, bias = 2.0)",
     {"x": X}, lrn(X, [1, 2, 3, 1], 0.1, 0.75, 2.0)),
    ("local_mean_normalization", "local_mean_normalization(x, size = [1, 1, 3, 2])", {"x": X},
     centred(X, [1, 1, 3, 2])),
    ("local_variance_normalization", "local_variance_normalization(x, size = [1, 2, 3, 1])",
     {"x": X}, variance_norm(X, [1, 2, 3, 1])),
    ("local_variance_normalization",
     "local_variance_normalization(x, size = [1, 1, 3, 3], bias = 0.5, epsilon = 1.5)",
     {"x": X}, variance_norm(X, [1, 1, 3, 3], 0.5, 1.5)),
    ("local_contrast_normalization",
     "local_contrast_normalization(x, size = [1, 1, 3, 3], bias = 0.1, epsilon = 0.2)",
     {"x": X}, variance_norm(centred(X, [1, 1, 3, 3]), [1, 1, 3, 3], 0.1, 0.2)),
    ("local_contrast_normalization", "local_contrast_normalization(x, size = [1, 1, 3, 3])",
     {"x": X}, variance_norm(centred(X, [1, 1, 3, 3]), [1, 1, 3, 3])),
    ("l1_normalization", "l1_normalization(x, axes = [1])", {"x": X},
     wide(X) / np.abs(wide(X)).sum(1, keepdims=True)),
    ("l1_normalization", "l1_normalization(x, axes = [3, 2], bias = -40.0, epsilon = 1.0)",
     {"x": X}, wide(X) / np.maximum(np.abs(wide(X)).sum((2, 3), keepdims=True) - 40, 1)),
    ("l2_normalization", "l2_normalization(x, axes = [1])", {"x": X},
     wide(X) / np.sqrt((wide(X) ** 2).sum(1, keepdims=True))),
    ("l2_normalization", "l2_normalization(x, axes = [0, 1, 2, 3], bias = 1.0, epsilon = 0.1)",
     {"x": X}, wide(X) / (np.sqrt((wide(X) ** 2).sum()) + 1)),
    ("batch_normalization", "batch_normalization(x, m, v, o, s, epsilon = 0.001)",
     (_bn := {"x": X, "m": uniform(1, 4), "v": uniform(1, 4, low=0.1), "o": uniform(1, 4),
              "s": uniform(1, 4)}), batch_norm(**dict(zip(
                  ("x", "mean", "variance", "offset", "scale"), _bn.values(), strict=True)),
                  epsilon=0.001)),
    ("batch_normalization", "batch_normalization(x, 0.5, 2.0, c, 3.0, epsilon = 0.0)",
     {"x": X, "c": CHANNELS}, batch_norm(X, 0.5, 2.0, CHANNELS, 3.0, 0.0)),
    ("avg_roi_align", "avg_roi_align(x, r, i, output_size = [2, 3], sampling_rate = [2, 2])",
     {"x": X, "r": ROIS, "i": ITEMS},
     blocks(resampled(X, ROIS, ITEMS, (4, 6), "symmetric"), 2, 2).mean((3, 5))),
    ("max_roi_align", "max_roi_align(x, r, i, output_size = [2, 3], sampling_rate = [2, 1],"
     " resize_method = 'aligned')", {"x": X, "r": ROIS, "i": ITEMS[:, None]},
     blocks(resampled(X, ROIS, ITEMS, (4, 3), "aligned"), 2, 1).max((3, 5))),
    ("min_max_linear_quantize", "min_max_linear_quantize(x, -1.5, 1.0, bits = 4, signed = false,"
     " symmetric = false)", {"x": X}, naive.min_max_quantize(X, -1.5, 1, 4, False, False)),
    ("min_max_linear_quantize", "min_max_linear_quantize(x, lo, hi, bits = 8, signed = true,"
     " symmetric = true)", {"x": X, "lo": -1 - CHANNELS**2, "hi": 1 + CHANNELS**2},
     naive.min_max_quantize(X, -1 - CHANNELS**2, 1 + CHANNELS**2, 8, True, True)),
    ("min_max_linear_quantize", "min_max_linear_quantize(x, -2.0, 2.0, bits = 5, signed = true,"
     " symmetric = false)", {"x": X}, naive.min_max_quantize(X, -2, 2, 5, True, False)),
    *(("zero_point_linear_quantize", "zero_point_linear_quantize(x, z, s, bits = 6, signed ="
       f" {signed}, symmetric = {symmetric})".lower(),
       {"x": X, "z": np.array([[3, 0, -2, 5]]), "s": 0.07},
       naive.zero_point_quantize(X, np.array([[3, 0, -2, 5]]), np.float32(0.07), 6, signed,
                                 symmetric))
      for signed, symmetric in ((False, False), (True, False), (True, True))),
    ("zero_point_linear_quantize", "zero_point_linear_quantize(x, 3, 0.05, bits = 8,"
     " signed = true, symmetric = false)", {"x": X},
     naive.zero_point_quantize(X, 3, np.float32(0.05), 8, True, False)),
    ("linear_quantize", "linear_quantize(x, -1.0, 1.0, bits = 3)", {"x": X},
     naive.min_max_quantize(X, -1, 1, 3, False, False)),
    ("logarithmic_quantize", "logarithmic_quantize(x, 1.5, bits = 3)", {"x": X},
     naive.logarithmic_quantize(X, 1.5, 3)),
    ("copy_n", "copy_n(x, times = 3)", {"x": X}, [X, X, X]),
    ("copy_n", "copy_n(x, times = 1)", {"x": np.array([True, False])}, [np.array([True, False])]),
    ("add_n", "add_n([x, c, 1.0, x, x])", {"x": X, "c": CHANNELS},
     3 * wide(X) + naive.left(X, CHANNELS)[1] + 1),
    ("add_n", "add_n([x])", {"x": X}, X),
]  # fmt: skip
ARRAYS = {"copy_n"}


def statement(op, call, wanted):
    if not isinstance(wanted, list):
        return f"y = {call};"
    names = ", ".join(f"y{i}" for i in range(len(wanted)))
    return f"[{names}] = {call};" if op in ARRAYS else f"{names} = {call};"


def wanted_of(inputs, wanted):
    if wanted is not None:
        return wanted if isinstance(wanted, list) else [wanted]
    x, w, b = (wide(a) for a in inputs.values())
    return [x @ w.T + b]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("op", "call", "inputs", "wanted"), [pytest.param(*case, id=case[1]) for case in CASES]
)
def test_compound(op, call, inputs, wanted, backend, tmp_path, request):
    device = request.getfixturevalue("gpu") if backend == "gpu" else "cpu"
    everything = wanted_of(inputs, wanted)
    constants = frozenset(inputs) - {"x"}
    for fixed in {frozenset(), constants}:
        results = run_text(tmp_path, statement(op, call, wanted), inputs, device, fixed=fixed)
        for got, right in zip(results, everything, strict=True):
            assert got.dtype.kind == np.asarray(right).dtype.kind
            assert got.shape == np.shape(right)
            close = np.isclose(got, right, rtol=2e-5, atol=2e-5)
            assert close.all(), np.abs(got - right).max()


def test_every_compound_has_a_case():
    compounds = {name for name, f in standard_fragments().items() if f.body is not None}
    assert len(compounds) == 46
    assert {case[0] for case in CASES} == compounds


def test_a_wrong_answer_fails(tmp_path):
    call = "local_response_normalization(x, size = [1, 3, 1, 1], alpha = 1.01)"
    (got,) = run_text(tmp_path, f"y = {call};", {"x": X}, "cpu")
    assert not np.isclose(got, lrn(X, [1, 3, 1, 1]), rtol=2e-5, atol=2e-5).all()
