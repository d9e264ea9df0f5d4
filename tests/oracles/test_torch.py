"""Operators that PyTorch has with the same meaning, against PyTorch."""

import numpy as np
import pytest

from tests.fixtures.texts import declaration, engine, run_text

torch = pytest.importorskip("torch")
functional = torch.nn.functional
RNG = np.random.default_rng(30)


def uniform(*shape):
    return engine(RNG.uniform(-2, 2, shape))


def t(*arrays):
    found = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    return found[0] if len(found) == 1 else found


X, W, V = uniform(2, 4, 9, 8), uniform(6, 2, 3, 3), uniform(4, 3, 3, 2)
FLAT, H, C = uniform(3, 5), uniform(3, 4), uniform(3, 4)
CHANNELS = uniform(1, 4)


def cell(kind, gates):
    made = getattr(torch.nn, kind)(5, 4)
    return made, {n: engine(p.detach().numpy()) for n, p in made.named_parameters()}


def _lstm():
    made, p = cell("LSTMCell", 4)
    call = "y, n = lstm_step(x, h, c, w, r, b);"
    given = {"x": FLAT, "h": H, "c": C, "w": p["weight_ih"], "r": p["weight_hh"],
             "b": (p["bias_ih"] + p["bias_hh"])[None]}  # fmt: skip
    return "lstm_step", call, given, made(t(FLAT), (t(H), t(C)))


def _gru():
    made, p = cell("GRUCell", 3)
    call = "y = gru_step(x, h, w, r, b, q);"
    given = {"x": FLAT, "h": H, "w": p["weight_ih"], "r": p["weight_hh"],
             "b": p["bias_ih"][None], "q": p["bias_hh"][None]}  # fmt: skip
    return "gru_step", call, given, made(t(FLAT), t(H))


def spatial(padding):
    return [(0, 0), (0, 0), *padding]


CASES = [
    ("", "y = conv(x, w, groups = 2, stride = [2, 1], dilation = [1, 2],"
     f" padding = {[(1, 1)] * 2});",
     {"x": X, "w": W}, functional.conv2d(t(X), t(W), None, (2, 1), (1, 1), (1, 2), 2)),
    ("", f"y = deconv(x, w, stride = [2, 3], padding = {[(1, 1), (0, 0)]});", {"x": X, "w": V},
     functional.conv_transpose2d(t(X), t(V), None, (2, 3), (1, 0))),
    ("", f"y = deconv(x, w, stride = [2, 2], padding = {[(1, 0), (0, 0)]});", {"x": X, "w": V},
     functional.conv_transpose2d(t(X), t(V), None, 2)[:, :, 1:]),
    ("", "y = max_pool(x, size = [1, 1, 3, 2], stride = [1, 1, 2, 2], border = 'ignore',"
     f" padding = {spatial([(1, 1), (1, 1)])});", {"x": X},
     functional.max_pool2d(t(X), (3, 2), 2, 1)),
    ("", "y = avg_pool(x, size = [1, 1, 3, 2], stride = [1, 1, 2, 2], border = 'ignore',"
     f" padding = {spatial([(1, 1), (1, 1)])});", {"x": X},
     functional.avg_pool2d(t(X), (3, 2), 2, 1, count_include_pad=False)),
    ("", "y = avg_pool(x, size = [1, 1, 3, 2], stride = [1, 1, 2, 2],"
     f" padding = {spatial([(1, 1), (1, 1)])});", {"x": X},
     functional.avg_pool2d(t(X), (3, 2), 2, 1)),
    ("", "y = multilinear_upsample(x, factor = [2, 3]);", {"x": X},
     functional.interpolate(t(X), scale_factor=(2, 3), mode="bilinear")),
    ("", "y = multilinear_upsample(x, factor = [2, 3], method = 'aligned');", {"x": X},
     functional.interpolate(t(X), scale_factor=(2, 3), mode="bilinear", align_corners=True)),
    ("", "y = local_response_normalization(x, size = [1, 3, 1, 1], alpha = 0.2, beta = 0.75);",
     {"x": X}, functional.local_response_norm(t(X), 3, 0.2, 0.75, 1.0)),
    ("", "y = softmax(x, axes = [2]);", {"x": X}, functional.softmax(t(X), 2)),
    ("", "y = elu(x, alpha = 0.7);", {"x": X}, functional.elu(t(X), 0.7)),
    ("", "y = selu(x);", {"x": X}, functional.selu(t(X))),
    ("", "y = silu(x);", {"x": X}, functional.silu(t(X))),
    ("", "y = softplus(x);", {"x": 60 * X}, functional.softplus(t(60 * X))),
    ("", "y = prelu(x, c);", {"x": X, "c": CHANNELS}, functional.prelu(t(X), t(CHANNELS[0]))),
    ("", f"y = pad(x, padding = {spatial([(2, 3), (1, 4)])}, border = 'reflect');", {"x": X},
     functional.pad(t(X), (1, 4, 2, 3), "reflect")),
    ("", "y = l2_normalization(x, axes = [1]);", {"x": X}, functional.normalize(t(X))),
    ("gelu_erf", "y = gelu_erf(x);", {"x": X}, functional.gelu(t(X))),
    ("hard_swish", "y = hard_swish(x);", {"x": 4 * X}, functional.hardswish(t(4 * X))),
    ("hard_sigmoid", f"y = hard_sigmoid(x, alpha = {1 / 6});", {"x": 4 * X},
     functional.hardsigmoid(t(4 * X))),
    ("mish", "y = mish(x);", {"x": X}, functional.mish(t(X))),
    ("mod", "y = mod(x, 0.7);", {"x": X}, torch.remainder(t(X), 0.7)),
    ("layer_norm", "y = layer_norm(x, s, 0.25, axes = [1, 2, 3]);",
     {"x": X, "s": uniform(1, 4, 9, 8)}, None),
    ("group_norm", "y = group_norm(x, c, c, groups = 2);", {"x": X, "c": CHANNELS},
     functional.group_norm(t(X), 2, t(CHANNELS[0]), t(CHANNELS[0]))),
    ("instance_norm", "y = instance_norm(x, c, c);", {"x": X, "c": CHANNELS},
     functional.instance_norm(t(X), weight=t(CHANNELS[0]), bias=t(CHANNELS[0]))),
    ("depth_to_space", "y = depth_to_space(x, block_size = 2, blocks_first = false);", {"x": X},
     functional.pixel_shuffle(t(X), 2)),
    ("space_to_depth", "y = space_to_depth(x, block_size = 3, blocks_first = false);",
     {"x": X[..., :6]}, functional.pixel_unshuffle(t(X[..., :6]), 3)),
    *(("resize", f"y = resize(x, output_size = [{h}, {w}], method = '{m}', coordinates = '{c}');",
       {"x": X}, functional.interpolate(t(X), (h, w), mode=f"bi{m}", align_corners=c == "aligned"))
      for m in ("linear", "cubic") for c in ("symmetric", "aligned")
      for h, w in ((17, 5), (4, 20), (9, 8))),
    *(("resize", f"y = resize(x, output_size = [{h}, {w}], method = 'nearest', rounding = 'floor',"
       " coordinates = 'asymmetric');", {"x": X}, functional.interpolate(t(X), (h, w)))
      for h, w in ((17, 5), (4, 20))),
    *(("resize", f"y = resize(x, output_size = [{h}, {w}], method = 'nearest', rounding ="
       " 'half_up');", {"x": X}, functional.interpolate(t(X), (h, w), mode="nearest-exact"))
      for h, w in ((17, 5), (4, 20))),
    ("top_k", "y, i = top_k(x, k = 3, axis = 2);", {"x": X}, torch.topk(t(X), 3, 2)),
    ("top_k", "y, i = top_k(x, k = 2, axis = 1, largest = false);", {"x": X},
     torch.topk(t(X), 2, 1, largest=False)),
    ("cumsum", "y = cumsum(x, axis = 3);", {"x": X}, torch.cumsum(t(X), 3)),
    ("einsum", "y = einsum([x, z], equation = 'bchw,bdhw->bdc');",
     {"x": X, "z": uniform(2, 3, 9, 8)}, None),
    _lstm(),
    _gru(),
]  # fmt: skip


def wanted_of(op, inputs):
    if op == "layer_norm":
        x, s = inputs.values()
        return functional.layer_norm(t(x), x.shape[1:], t(s[0])) + 0.25
    return torch.einsum("bchw,bdhw->bdc", *t(*inputs.values()))


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("op", "body", "inputs", "wanted"), [pytest.param(*case, id=case[1][:60]) for case in CASES]
)
def test_same_as_torch(op, body, inputs, wanted, backend, tmp_path, request):
    device = request.getfixturevalue("gpu") if backend == "gpu" else "cpu"
    wanted = wanted_of(op, inputs) if wanted is None else wanted
    right = list(wanted) if isinstance(wanted, tuple) else [wanted]
    got = run_text(tmp_path, body, inputs, device, head=declaration(op) if op else "")
    for a, b in zip(got, right, strict=True):
        b = b.detach().numpy()
        assert a.shape == b.shape
        assert np.allclose(a, b, rtol=3e-5, atol=3e-5), np.abs(a - b).max()
