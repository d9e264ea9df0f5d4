"""Operators beyond NNEF, called by models that declare them without a body, on both backends."""

import math

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.expansion.extensions import extension_fragments, extension_source
from tests.fixtures.texts import HEADER, declaration, engine, run_text, write_text

RNG = np.random.default_rng(22)


def uniform(*shape, low=-2.0, high=2.0):
    return engine(RNG.uniform(low, high, shape))


X = uniform(2, 4, 6, 3)
FLAT = uniform(3, 8)
C = uniform(1, 4)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(x, axes, epsilon=1e-5):
    x = x.astype(float)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def group_norm(x, groups):
    n, c, *rest = x.shape
    parts = x.reshape(n, groups, c // groups, *rest)
    return normal(parts, tuple(range(2, parts.ndim))).reshape(x.shape)


def to_space(x, b, blocks_first):
    n, c, h, w = x.shape
    y = np.zeros((n, c // b // b, h * b, w * b), x.dtype)
    for k in range(c):
        block, channel = divmod(k, c // b // b) if blocks_first else divmod(k, b * b)[::-1]
        i, j = divmod(block, b)
        y[:, channel, i::b, j::b] = x[:, k]
    return y


def lstm(x, h, c, w, r, b=0.0):
    i, f, g, o = np.split(x @ w.T + b + h @ r.T, 4, 1)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(cell), cell]


def gru(x, h, w, r, b=0.0, q=0.0):
    xr, xz, xn = np.split(x @ w.T + b, 3, 1)
    hr, hz, hn = np.split(h @ r.T + q, 3, 1)
    z = sigmoid(xz + hz)
    return (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h


def keys(s, a=-0.75):
    s = abs(s)
    if s <= 1:
        return (a + 2) * s**3 - (a + 3) * s**2 + 1
    return a * s**3 - 5 * a * s**2 + 8 * a * s - 4 * a if s < 2 else 0.0


def resized(x, size, method, place):
    """Resizes the last axis; ``place(i)`` is the position of result ``i``."""
    end, out = x.shape[-1] - 1, []
    for i in range(size):
        t = place(i)
        low = math.floor(t)
        kernel = {"linear": lambda s: max(1 - abs(s), 0), "cubic": keys}[method]
        taps = range(low - 1, low + 3)
        out.append(sum(kernel(t - k) * x[..., min(max(k, 0), end)].astype(float) for k in taps))
    return np.stack(out, -1)


def places(coordinates, extent, size):
    return {
        "symmetric": lambda i: (i + 0.5) * extent / size - 0.5,
        "asymmetric": lambda i: i * extent / size,
        "aligned": lambda i: i * (extent - 1) / (size - 1),
    }[coordinates]


STATE = {"h": uniform(3, 2), "c": uniform(3, 2)}
LSTM = {"x": FLAT, **STATE, "w": uniform(8, 8), "r": uniform(8, 2), "b": uniform(1, 8)}
GRU = {"x": FLAT, "h": STATE["h"], "w": uniform(6, 8), "r": uniform(6, 2), "b": uniform(1, 6),
       "q": uniform(1, 6)}  # fmt: skip
PICK = np.array([[0, 1, 5], [1, 3, 0]], np.int32)
PAIRS = {"i": np.array([-7, 7, -8, 5]), "j": np.array([3, -3, 2, 0])}
OF_PAIRS = {
    "int_add": [-4, 4, -6, 5], "int_sub": [-10, 10, -10, 5], "int_mul": [-21, -21, -16, 0],
    "int_div": [-2, -2, -4, 0], "int_rem": [-1, 1, 0, 0], "int_mod": [2, -2, 0, 0],
    "int_min": [-7, -3, -8, 0], "int_max": [3, 7, 2, 5], "bit_and": [1, 5, 0, 0],
    "bit_or": [-5, -1, -6, 5], "bit_xor": [-6, -6, -6, 5], "shift_left": [-56, 0, -32, 5],
    "shift_right": [2**29 - 1, 0, 2**30 - 2, 5],
    "int_lt": [True, False, True, False], "int_gt": [False, True, False, True],
    "int_le": [True, False, True, False], "int_ge": [False, True, False, True],
    "int_eq": [False] * 4, "int_ne": [True] * 4,
}  # fmt: skip
OF_ONE = {"int_neg": [7, -7, 8, -5], "int_abs": [7, 7, 8, 5], "int_sign": [-1, 1, -1, 1],
          "bit_not": [6, -8, 7, -6]}  # fmt: skip
ODD = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, -2.5])
SQUARE = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
TURNED = np.array([[0, -1], [1, 0]])
PARTS = np.array([[10.0, 20.0], [30.0, 40.0]])

CASES = [
    *((op, f"y = {op}(i, j);", PAIRS, wanted) for op, wanted in OF_PAIRS.items()),
    *((op, f"y = {op}(i);", {"i": PAIRS["i"]}, wanted) for op, wanted in OF_ONE.items()),
    ("is_nan", "y = is_nan(x);", {"x": ODD}, [True] + [False] * 5),
    ("is_inf", "y = is_inf(x);", {"x": ODD}, [False, True, True, False, False, False]),
    ("to_bits", "y = to_bits(x);", {"x": np.array([1.0, -0.0])}, [0x3F800000, -(2**31)]),
    ("from_bits", "y = from_bits(i);", {"i": np.array([0x40490FDB, 0])}, [np.float32(np.pi), 0]),
    ("round_even", "y = round_even(x);", {"x": ODD[3:]}, [0, 2, -2]),
    ("fmod", "y = fmod(x, z);", {"x": np.array([7.5, -7.5, 1e9]), "z": np.array([2, -2, 0.7])},
     np.fmod(np.float32([7.5, -7.5, 1e9]), np.float32([2, -2, 0.7]))),
    ("gather_elements", "y = gather_elements(x, i, axis = 1);", {"x": SQUARE, "i": TURNED},
     [[1, 3], [5, 4]]),
    ("scatter_elements", "y = scatter_elements(x, i, u, axis = 1);",
     {"x": SQUARE, "i": TURNED, "u": PARTS}, [[10, 2, 20], [40, 30, 6]]),
    *(("scatter_elements", f"y = scatter_elements(x, i, u, axis = 0, reduction = '{how}');",
       {"x": SQUARE, "i": np.array([[1, 1, 0], [1, 0, 0]]), "u": -SQUARE}, wanted)
      for how, wanted in (("add", [[1, -3, -6], [-1, 3, 6]]), ("max", [[1, 2, 3], [4, 5, 6]]),
                          ("mul", [[1, -10, 54], [16, -10, 6]]),
                          ("min", [[1, -5, -6], [-4, -2, 6]]))),
    ("scatter_nd", "y = scatter_nd(x, i, u);",
     {"x": SQUARE, "i": np.array([[-1], [0]]), "u": np.ones((2, 3))}, np.ones((2, 3))),
    ("scatter_nd", "y = scatter_nd(x, i, u, reduction = 'add');",
     {"x": SQUARE, "i": np.array([[1, 2], [1, -1], [5, 0]]), "u": np.ones(3)},
     [[1, 2, 3], [4, 5, 8]]),
    ("cumprod", "y = cumprod(x, axis = 1);", {"x": SQUARE}, [[1, 2, 6], [4, 20, 120]]),
    ("cumprod", "y = cumprod(x, axis = 1, exclusive = true, reverse = true);", {"x": SQUARE},
     [[6, 3, 1], [30, 6, 1]]),
    ("reverse_sequence", "y = reverse_sequence(x, n, time_axis = 1, batch_axis = 0);",
     {"x": SQUARE, "n": np.array([2, 3])}, [[2, 1, 3], [6, 5, 4]]),
    ("prod_reduce", "y = prod_reduce(x, axes = [0]);", {"x": SQUARE}, [[4, 10, 18]]),
    # halfway between two, a corner, and half outside
    ("grid_sample", "y = grid_sample(x, g);",
     {"x": SQUARE[None, None], "g": np.array([[[[0.0, -0.5], [-1.0, 0.5]]]])}, [[[[2, 2]]]]),
    ("grid_sample", "y = grid_sample(x, g, border = 'replicate', align_corners = true);",
     {"x": SQUARE[None, None], "g": np.array([[[[0.5, -1.0], [9.0, 0.0]]]])}, [[[[2.5, 4.5]]]]),
    ("roi_align", "y = roi_align(x, r, i, output_size = [1, 1], half_pixel = false);",
     {"x": SQUARE[None, None], "r": np.array([[0.0, 0.0, 1.0, 1.0]]), "i": np.array([0])},
     [[[[3.0]]]]),
    ("nonzero", "y, n = nonzero(x, capacity = 3);", {"x": np.array([[0.0, 2.0], [-1.0, 0.0]])},
     [np.array([[0, 1, -1], [1, 0, -1]]), np.array([2])]),
    # the second overlaps the first by half, the third lies alone
    *(("non_max_suppression",
       f"y, n = non_max_suppression(b, s, max_per_class = 3, iou_threshold = {limit}, fill = 7);",
       {"b": np.array([[[0.0, 0, 2, 2], [0, 1, 2, 3], [5, 5, 6, 6]]]),
        "s": np.array([[[0.5, 0.9, 0.1]]])}, [np.array(rows), np.array([count])])
      for limit, rows, count in ((0.3, [[0, 0, 1], [0, 0, 2], [7, 7, 7]], 2),
                                 (0.4, [[0, 0, 1], [0, 0, 0], [0, 0, 2]], 3))),
    ("col2im", "y = col2im(x, output_size = [3], size = [2], padding = [(0, 0)]);",
     {"x": PARTS[None]}, [[[10, 50, 40]]]),
    ("deform_columns", "y = deform_columns(x, o, size = [1, 1]);",
     {"x": PARTS[None, None], "o": np.array([[[[0.5, 0], [0, 0]], [[0.5, 0], [0, 9]]]])},
     [[[[25, 20], [30, 0]]]]),
    ("deform_conv", "y = deform_conv(x, f, o, m, 1.0, size = [1, 1]);",
     {"x": PARTS[None, None], "f": np.full((1, 1, 1, 1), 2.0), "o": np.zeros((1, 2, 2, 2)),
      "m": np.full((1, 1, 2, 2), 0.5)}, PARTS[None, None] + 1),
    ("int_matmul", "y = int_matmul(a, b);",
     {"a": np.array([[1, -2], [65536, 0]]), "b": np.array([[65536, 3], [1, 4]])},
     [[65534, -5], [0, 196608]]),
    ("int_conv", "y = int_conv(x, f, padding = [(1, 0)]);",
     {"x": np.array([[[1, 2, 3]]]), "f": np.array([[[10, 1]]])}, [[[1, 12, 23]]]),
    ("matmul_nbits", "y = matmul_nbits(x, w, s, 8.0, block_size = 8);",
     {"x": np.ones((1, 8)), "w": np.array([[0x76543210], [0x0000000F]]),
      "s": np.array([[0.5], [1.0]])}, [[-18.0, -49.0]]),
    ("quantize_linear", "y = quantize_linear(x, 2.0, 3.0);",
     {"x": np.array([1.0, 3.0, -20.0, 1e9])}, [3, 5, 0, 255]),
    ("dequantize_linear", "y = dequantize_linear(i, s, 3.0);",
     {"i": PAIRS["i"], "s": np.array([0.5, 1, 2, 3])}, [-5, 4, -22, 6]),
    ("dynamic_quantize_linear", "y, s, z = dynamic_quantize_linear(x, axes = [0]);",
     {"x": np.array([-1.0, 0.0, 4.1])},
     [np.array([0, 50, 255]), np.array(0.02), np.array(50)]),
    ("erf", "y = erf(x);", {"x": X}, np.vectorize(math.erf)(X)),
    ("gelu_erf", "y = gelu_erf(x);", {"x": X},
     X * 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2)))),
    ("hard_sigmoid", "y = hard_sigmoid(x);", {"x": X}, np.clip(0.2 * X + 0.5, 0, 1)),
    ("hard_sigmoid", "y = hard_sigmoid(x, alpha = 0.5, beta = 0.1);", {"x": X},
     np.clip(0.5 * X + 0.1, 0, 1)),
    ("hard_swish", "y = hard_swish(x);", {"x": 3 * X}, 3 * X * np.clip(X / 2 + 0.5, 0, 1)),
    ("mish", "y = mish(x);", {"x": X}, X * np.tanh(np.logaddexp(0, X))),
    ("mod", "y = mod(x, c);", {"x": X, "c": C}, np.mod(X, C[:, :, None, None])),
    ("mod", "y = mod(x, 0.75);", {"x": X}, np.mod(X, 0.75)),
    ("mean_variance_norm", "y = mean_variance_norm(x);", {"x": X}, normal(X, (2, 3))),
    ("layer_norm", "y = layer_norm(x, s, o, axes = [1]);",
     {"x": FLAT, "s": uniform(1, 8), "o": uniform(1, 8)}, None),
    ("instance_norm", "y = instance_norm(x, c, 0.5, epsilon = 0.1);", {"x": X, "c": C},
     normal(X, (2, 3), 0.1) * C[:, :, None, None] + 0.5),
    ("group_norm", "y = group_norm(x, c, 0.5, groups = 2);", {"x": X, "c": C},
     group_norm(X, 2) * C[:, :, None, None] + 0.5),
    ("group_norm", "y = group_norm(x, 1.0, 0.0, groups = 4, axes = [2]);", {"x": X[..., 0]},
     group_norm(X[..., 0], 4)),
    *(("depth_to_space", f"y = depth_to_space(x, block_size = 2, blocks_first = {str(f).lower()});",
       {"x": uniform(2, 12, 3, 2)}, None) for f in (True, False)),
    *(("space_to_depth", f"y = space_to_depth(x, block_size = 3, blocks_first = {str(f).lower()});",
       {"x": X}, None) for f in (True, False)),
    *(("resize",
       f"y = resize(x, output_size = [4, 7], method = '{m}', coordinates = '{c}');", {"x": X},
       resized(resized(X, 7, m, places(c, 3, 7)).swapaxes(2, 3), 4, m,
               places(c, 6, 4)).swapaxes(2, 3))
      for m in ("linear", "cubic") for c in ("symmetric", "asymmetric", "aligned")),
    ("resize", "y = resize(x, output_size = [3, 9], method = 'nearest', coordinates = 'asymmetric',"
     " rounding = 'floor');", {"x": X}, X[:, :, ::2].repeat(3, 3)),
    ("resize", "y = resize(x, output_size = [9, 5], method = 'nearest');", {"x": X},
     X[:, :, [0, 0, 1, 2, 2, 3, 4, 4, 5]][..., [0, 0, 1, 2, 2]]),
    ("gather_nd", "y = gather_nd(x, i);", {"x": X, "i": PICK}, X[tuple(PICK.T)]),
    ("top_k", "y, i = top_k(x, k = 3, axis = 2);", {"x": X},
     [-np.sort(-X, 2)[:, :, :3], np.argsort(-X, 2, kind="stable")[:, :, :3]]),
    ("top_k", "y, i = top_k(x, k = 2, axis = 1, largest = false);", {"x": X},
     [np.sort(X, 1)[:, :2], np.argsort(X, 1, kind="stable")[:, :2]]),
    ("cumsum", "y = cumsum(x, axis = 2);", {"x": X}, np.cumsum(X, 2)),
    ("cumsum", "y = cumsum(x, axis = 1, exclusive = true, reverse = true);", {"x": X},
     np.flip(np.cumsum(np.flip(X, 1), 1), 1) - X),
    *(("einsum", f"y = einsum([{', '.join(given)}], equation = '{equation}');", given,
       np.einsum(equation, *given.values()))
      for equation, given in (
          ("bct,bcs->bts", {"x": uniform(2, 3, 4), "z": uniform(2, 3, 5)}),
          ("bts,bcs->bct", {"x": uniform(2, 4, 5), "z": uniform(2, 3, 5)}),
          ("bhid,bhjd->bhij", {"x": uniform(2, 3, 4, 5), "z": uniform(2, 3, 6, 5)}),
          ("ij,jk", {"x": uniform(2, 3), "z": uniform(3, 4)}),
          ("ij,jk,kl->il", {"x": uniform(2, 3), "z": uniform(3, 4), "w": uniform(4, 2)}),
          ("nchw,oc->nohw", {"x": X, "z": uniform(5, 4)}),
          ("i,j->ij", {"x": uniform(3), "z": uniform(4)}),
          ("ij,ij->", {"x": uniform(3, 4), "z": uniform(3, 4)}),
          ("abc,bd->dca", {"x": uniform(2, 3, 4), "z": uniform(3, 5)}),
          ("ijk->kj", {"x": uniform(2, 3, 4)}),
          ("ab,ab->ab", {"x": uniform(2, 3), "z": uniform(2, 3)}),
          ("abk,cb->a", {"x": uniform(2, 3, 4), "z": uniform(5, 3)}))),
    ("lstm_step", "y, n = lstm_step(x, h, c, w, r, b);", LSTM, lstm(*LSTM.values())),
    ("gru_step", "y = gru_step(x, h, w, r, b, q);", GRU, gru(*GRU.values())),
]  # fmt: skip


def wanted_of(op, body, inputs):
    """Returns the expected result of a call that the table gives without one."""
    arrays = list(inputs.values())
    if op == "layer_norm":
        return normal(arrays[0], (1,)) * arrays[1] + arrays[2]
    first = "blocks_first = true" in body
    if op == "depth_to_space":
        return to_space(arrays[0], 2, first)
    x = arrays[0]
    n, c, h, w = x.shape
    y = np.zeros((n, c * 9, h // 3, w // 3), x.dtype)
    for k in range(9):
        channels = slice(k * c, (k + 1) * c) if first else slice(k, None, 9)
        y[:, channels] = x[:, :, k // 3 :: 3, k % 3 :: 3]
    return y


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("op", "body", "inputs", "wanted"), [pytest.param(*case, id=case[1]) for case in CASES]
)
def test_extension(op, body, inputs, wanted, backend, tmp_path, request):
    device = request.getfixturevalue("gpu") if backend == "gpu" else "cpu"
    wanted = wanted_of(op, body, inputs) if wanted is None else wanted
    several = isinstance(wanted, list) and isinstance(wanted[0], np.ndarray)
    everything = wanted if several else [np.array(wanted)]
    for fixed in {frozenset(), frozenset(list(inputs)[1:])}:
        got = run_text(tmp_path, body, inputs, device, head=declaration(op), fixed=fixed)
        for result, right in zip(got, everything, strict=True):
            assert result.shape == np.shape(right)
            assert np.allclose(result, right, rtol=2e-5, atol=2e-5), np.abs(result - right).max()


def test_every_extension_has_a_case():
    assert {case[0] for case in CASES} == set(extension_fragments())


def test_one_undoes_the_other(tmp_path):
    for first in ("true", "false"):
        body = (
            f"a = space_to_depth(x, block_size = 3, blocks_first = {first});"
            f"y = depth_to_space(a, block_size = 3, blocks_first = {first});"
        )
        head = declaration("space_to_depth") + declaration("depth_to_space")
        assert np.array_equal(run_text(tmp_path, body, {"x": X}, "cpu", head=head)[0], X)


def test_a_models_own_body_counts_where_it_declares_other_parameters(tmp_path):
    head = "fragment mish(a: tensor<scalar>) -> (y: tensor<scalar>) { y = a + 1.0; }\n"
    (got,) = run_text(tmp_path, "y = mish(x);", {"x": X}, "cpu", head=head)
    assert np.allclose(got, X + 1)


def test_a_models_own_defaults_count(tmp_path):
    head = declaration("hard_sigmoid").replace("0.2", "0.25")
    (got,) = run_text(tmp_path, "y = hard_sigmoid(x);", {"x": X}, "cpu", head=head)
    assert np.allclose(got, np.clip(0.25 * X + 0.5, 0, 1))


def test_a_declaration_that_does_not_fit_is_refused(tmp_path):
    head = "fragment resize(x: tensor<scalar>, size: integer[]) -> (y: tensor<scalar>);\n"
    folder = write_text(tmp_path, "y = resize(x, size = [1, 1]);", {"x": X}, head=head)
    with pytest.raises(cml.ModelError, match="is registered as .* but this model declares it"):
        cml.load(folder)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->im", "no operand has index 'm'"),
        ("ii,jk->ik", "twice"),
        ("i...,jk->ik", "wanted letters"),
        ("ij->ij", "1 operands"),
        ("ijk,jk->i", "wants rank 3"),
        ("ij,ik->jk", "index 'i' is"),
    ],
)
def test_equations_that_cannot_be(equation, message, tmp_path):
    inputs = {"x": uniform(2, 3), "z": uniform(4, 5)}
    body = f"y = einsum([x, z], equation = '{equation}');"
    folder = write_text(tmp_path, body, inputs, head=declaration("einsum"))
    with pytest.raises(cml.ModelError, match=message):
        cml.load(folder)


def test_saved_graphs_carry_the_declarations(tmp_path):
    body = "a = resize(x, output_size = [4, 4]); y = gelu_erf(a);"
    head = declaration("resize") + declaration("gelu_erf")
    graph = cml.load(write_text(tmp_path / "a", body, {"x": X}, head=head))
    cml.save(graph, tmp_path / "b")
    assert "fragment resize(" in (tmp_path / "b" / "graph.nnef").read_text()
    again = cml.load(tmp_path / "b")
    assert [n.op for n in again.nodes] == [n.op for n in graph.nodes] == ["resize", "gelu_erf"]


def test_the_library_stands_alone(tmp_path):
    """The library's text with all bodies at the head of a model can be read by other tools."""
    text = HEADER + extension_source().text
    text += "graph g(x) -> (y) { x = external(shape = [1]); y = mish(x); }"
    (tmp_path / "graph.nnef").write_text(text)
    assert cml.load(tmp_path).outputs == ("y",)
