"""Error-prone details of NNEF, as one-line models on both backends."""

import warnings

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.files.tensor_file import tensor_bytes
from tests.fixtures.texts import engine, run_text, write_text
from tests.reference import naive

RNG = np.random.default_rng(21)
KEEP = (0, 0)


def uniform(*shape):
    return engine(RNG.uniform(-2, 2, shape))


X = uniform(2, 4, 5, 6)
W = uniform(6, 4, 3, 2)
BORDERS = ("constant", "replicate", "reflect", "reflect-even", "ignore")
#: padding, stride, dilation of the two spatial axes
GEOMETRY = [
    ([], [], []),
    ([], [2, 3], []),
    ([], [2, 1], [1, 2]),
    ([(1, 2), (0, 3)], [1, 2], []),
    ([(-1, 1), (2, -2)], [], [1, 2]),
    ([(-1, -1), (0, -1)], [1, 1], []),
]


def arguments(**given):
    shown = ", ".join(f"{k} = {v!r}" for k, v in given.items() if v not in ([], None))
    return f", {shown}".replace("True", "true").replace("False", "false") if shown else ""


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request):
    return request.getfixturevalue("gpu") if request.param == "gpu" else "cpu"


@pytest.fixture
def check(tmp_path, backend):
    """Runs statements with every input given and with the further ones as weights."""

    def run(body, inputs, *wanted, tolerance=2e-5):
        arrays = {name: engine(a) for name, a in inputs.items()}
        for fixed in {frozenset(), frozenset(list(arrays)[1:])}:
            got = run_text(tmp_path, body, arrays, backend, fixed=fixed)
            for result, right in zip(got, wanted, strict=True):
                assert result.shape == np.shape(right), body
                assert np.allclose(result, right, rtol=tolerance, atol=tolerance), body

    return run


def full(spatial, rank=4, fill=KEEP):
    return [fill, fill, *spatial] if spatial else []


#: all of them on the CPU; on the GPU, which is compared with it elsewhere, every border and every
#: geometry, and all of them in the long proof
WINDOWS = [
    pytest.param(
        border, geometry, backend, id=f"{border}-{geometry}-{backend}",
        marks=() if backend == "cpu" else
              [pytest.mark.gpu, *([pytest.mark.long] if (i + j) % 3 else [])],
    )
    for i, border in enumerate(BORDERS)
    for j, geometry in enumerate(GEOMETRY)
    for backend in ("cpu", "gpu")
]  # fmt: skip


@pytest.mark.parametrize("border, geometry, backend", WINDOWS, indirect=["backend"])
def test_windows_with_every_border(border, geometry, check):
    padding, stride, dilation = full(geometry[0]), full(geometry[1], 4, 1), full(geometry[2], 4, 1)
    window = {"padding": padding, "stride": stride, "dilation": dilation}
    text = arguments(size=[1, 1, 3, 2], border=border, **window)
    size = [1, 1, 3, 2]

    def pool(reduce):
        return naive.pool(X, reduce, size, border, **window)

    check(f"y = box(x{text});", {"x": X}, pool(naive.total))
    check(f"y = box(x{text}, normalize = true);", {"x": X}, pool(naive.mean))
    check(f"y, i = max_pool_with_index(x{text});", {"x": X}, pool(naive.greatest),
          pool(naive.first_greatest))  # fmt: skip
    if border != "ignore":
        indices = pool(naive.first_greatest).astype(np.int32)
        check(f"y = sample(x, i{text});", {"x": X, "i": indices}, pool(naive.greatest))
        padding, stride, dilation = geometry
        more = {"border": border, "padding": padding, "stride": stride, "dilation": dilation}
        check(f"y = conv(x, w, 0.5{arguments(**more)});", {"x": X, "w": W},
              naive.conv(X, W, 0.5, **more))  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2, 4, 0])
def test_groups(groups, check):
    each = X.shape[1] // (groups or X.shape[1])
    w, b = uniform(8, each, 3, 3), uniform(1, 8)
    check(f"y = conv(x, w, b, groups = {groups});", {"x": X, "w": w, "b": b},
          naive.conv(X, w, b, groups=groups))  # fmt: skip
    out = 8 // groups if groups else 1
    v = uniform(4, out, 3, 2)
    bias = uniform(1, 8 if groups else 4)
    check(f"y = deconv(x, w, b, stride = [2, 1], groups = {groups});", {"x": X, "w": v, "b": bias},
          naive.deconv(X, v, bias, stride=[2, 1], groups=groups))  # fmt: skip


def test_depthwise_with_a_multiplier(check):
    w = uniform(12, 1, 2, 2)
    check("y = conv(x, w, groups = 0);", {"x": X, "w": w}, naive.conv(X, w, groups=0))
    v = uniform(4, 3, 2, 2)
    shape = [2, 12, 9, 12]
    check(f"y = deconv(x, v, stride = [2, 2], output_shape = {shape}, groups = 4);",
          {"x": X, "v": v}, naive.deconv(X, v, stride=[2, 2], output_shape=shape, groups=4),
          )  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"stride": [2, 2]},
        {"stride": [2, 2], "output_shape": [2, 3, 9, 11]},
        {"stride": [3, 2], "padding": [(1, 0), (0, 1)]},
        {"stride": [2, 2], "padding": [(1, 1), (1, 1)], "output_shape": [2, 3, 10, 12]},
        {"padding": [(-1, 0), (-2, -1)], "dilation": [2, 1]},
        {"stride": [1, 4], "dilation": [1, 2]},
    ],
    ids=str,
)
def test_deconv(given, check):
    w = uniform(4, 3, 3, 3)
    check(f"y = deconv(x, w, 1.5{arguments(**given)});", {"x": X, "w": w},
          naive.deconv(X, w, 1.5, **given))  # fmt: skip


def test_conv_of_one_and_of_three_spatial_axes(check):
    x1, w1 = uniform(2, 3, 7), uniform(4, 3, 3)
    check("y = conv(x, w);", {"x": x1, "w": w1}, naive.conv(x1, w1))
    x3, w3 = uniform(1, 2, 3, 4, 3), uniform(2, 2, 2, 3, 1)
    check("y = conv(x, w, border = 'reflect');", {"x": x3, "w": w3},
          naive.conv(x3, w3, border="reflect"))  # fmt: skip


def test_windows_over_batch_and_channels(check):
    size = [2, 3, 1, 2]
    for border in BORDERS:
        wanted = naive.pool(X, naive.mean, size, border, stride=[2, 1, 1, 2])
        text = arguments(size=size, border=border, stride=[2, 1, 1, 2])
        check(f"y = avg_pool(x{text});", {"x": X}, wanted)


def test_automatic_padding_puts_the_odd_one_at_the_end(check):
    x = np.arange(1.0, 6).reshape(1, 1, 5)
    check("y = box(x, size = [1, 1, 2]);", {"x": x}, [[[3, 5, 7, 9, 5]]])
    check("y = box(x, size = [1, 1, 4], stride = [1, 1, 2]);", {"x": x}, [[[6, 14, 9]]])


def test_zeros_of_the_border_take_part_in_a_maximum(check):
    x = -np.ones((1, 1, 3))
    check("y = max_pool(x, size = [1, 1, 3]);", {"x": x}, [[[0, -1, 0]]])
    check("y = max_pool(x, size = [1, 1, 3], border = 'ignore');", {"x": x}, [[[-1, -1, -1]]])


def test_debox_and_desample(check):
    x = np.arange(1.0, 5).reshape(1, 1, 4)
    check("y = debox(x, size = [1, 1, 3], stride = [1, 1, 2], padding = [(0,0),(0,0),(0,0)]);",
          {"x": x}, [[[1, 1, 3, 2, 5, 3, 7, 4, 4]]])  # fmt: skip
    check("y = desample(x, i, size = [1, 1, 2], stride = [1, 1, 1],"
          " padding = [(0,0),(0,0),(0,0)]);",
          {"x": x, "i": np.array([[[1, 0, 1, 0]]])}, [[[0, 3, 0, 7, 0]]])  # fmt: skip


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect-even"])
def test_pad(border, check):
    x = uniform(2, 3, 4)
    padding = [(1, 0), (-1, 2), (3, -2)]
    value = {"value": 7.5} if border == "constant" else {}
    mode = {"replicate": "edge", "reflect": "reflect", "reflect-even": "symmetric"}
    grown = [(max(a, 0), max(b, 0)) for a, b in padding]
    if border == "constant":
        wanted = np.pad(x, grown, constant_values=7.5)
    else:
        wanted = np.pad(x, grown, mode[border])
    wanted = wanted[:, 1:, :-2]
    check(f"y = pad(x{arguments(padding=padding, border=border, **value)});", {"x": x}, wanted)


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect-even"])
@pytest.mark.parametrize("method", ["symmetric", "asymmetric"])
def test_multilinear_upsampling_with_every_border(method, border, check):
    x = uniform(1, 1, 4)
    factor, wanted = 3, []
    for i in range(12):
        t = (i - 1) / factor if method == "symmetric" else i / factor
        low = int(np.floor(t))
        a, b = (naive.border_value(x[0, 0], [k], border) for k in (low, low + 1))
        wanted.append(a + (b - a) * (t - low))
    text = f"y = multilinear_upsample(x, factor = [3], method = '{method}', border = '{border}');"
    check(text, {"x": x}, np.reshape(wanted, (1, 1, 12)))


def test_literals_stand_for_tensors(check):
    x = uniform(2, 3)
    check("y = sub(1.5, x);", {"x": x}, 1.5 - x)
    check("y = pow(x, 2.0);", {"x": x}, x**2)
    check("y = select(x > 0.0, 1.0, x);", {"x": x}, np.where(x > 0, 1, x))
    check("y = select(true, x, 0.0);", {"x": x}, x)
    check("y = clamp(0.5, x, 1.0);", {"x": x}, np.maximum(0.5, x))
    check("y = x * 2 + 1;", {"x": x}, x * 2 + 1)
    check("y = copy(3.5) + x;", {"x": x}, x + 3.5)
    check("y = concat([x, x], axis = 0) - add(0.5, 0.25);", {"x": x}, np.vstack([x, x]) - 0.75)


def test_broadcasting_is_from_the_left(check):
    a, b = uniform(1, 3, 1, 1), uniform(1, 3, 4)
    check("y = sub(a, b);", {"a": a, "b": b}, a - b[..., None])
    condition, c, d = RNG.random((2, 1)) > 0.5, uniform(2, 3, 1), uniform(1, 3, 4, 2)
    wanted = np.where(condition[:, :, None, None], c[..., None], d)
    check("y = select(q, c, d);", {"q": condition, "c": c, "d": d}, wanted)
    check("y = select(q, c, 2.5);", {"q": condition, "c": c},
          np.where(condition[..., None], c, 2.5))  # fmt: skip


@pytest.mark.parametrize("rank", range(9))
def test_ranks(rank, check):
    shape = [2, 3, 1, 2, 1, 2, 1, 2][:rank]
    x = uniform(*shape)
    axes = list(range(rank))
    check("y = relu(x) + 0.5;", {"x": x}, np.maximum(x, 0) + 0.5)
    check(f"y = sum_reduce(x, axes = {axes[::-1]});", {"x": x},
          x.sum(tuple(axes), keepdims=True, dtype=float))  # fmt: skip
    check(f"y = transpose(x, axes = {axes[::-1]});", {"x": x}, x.transpose())
    check("y = reshape(x, shape = [-1]);", {"x": x}, x.reshape(-1))
    check(
        f"y = pad(x, padding = {[(1, 0)] * rank});",
        {"x": x},
        np.pad(x, [(1, 0)] * rank) if rank else x,
    )
    check(f"y = tile(x, repeats = {[2] * rank});", {"x": x}, np.tile(x, [2] * rank))
    check(f"y = max_pool(x, size = {[1] * rank});", {"x": x}, x)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)])
def test_zero_extents(shape, check):
    x = uniform(*shape)
    check("y = relu(x) * 2.0;", {"x": x}, x)
    check("y = sum_reduce(x, axes = [2, 3]);", {"x": x}, x.sum((2, 3), keepdims=True))
    check("y = transpose(x, axes = [3, 2, 1, 0]);", {"x": x}, x.transpose())
    check("y = concat([x, x], axis = 3);", {"x": x}, np.concatenate([x, x], 3))
    check("y = slice(x, axes = [3], begin = [2], end = [2]);", {"x": x}, x[..., :0])
    check("y = nearest_upsample(x, factor = [2, 2]);", {"x": x}, x.repeat(2, 2).repeat(2, 3))
    if shape[2]:
        w = uniform(2, shape[1], 3, 3)
        check("y = conv(x, w, 0.5);", {"x": x, "w": w}, naive.conv(x, w, 0.5))


def test_axes_in_any_order(check):
    x = uniform(2, 3, 4, 2)
    check("y = max_reduce(x, axes = [3, 0]);", {"x": x}, x.max((0, 3), keepdims=True))
    check("y = squeeze(sum_reduce(x, axes = [2, 0]), axes = [2, 0]);", {"x": x}, x.sum((0, 2)))
    check("y = slice(x, axes = [2, 0], begin = [1, 1], end = [3, 0]);", {"x": x}, x[1:, :, 1:3])
    check("i = argmax_reduce(x, axes = [2]); y = gather(i, j, axis = 1);",
          {"x": x, "j": np.array([2, 0])}, x.argmax(2)[:, :, None][:, [2, 0]])  # fmt: skip
    check("y = unsqueeze(x, axes = [0, 3]);", {"x": x}, x[None, :, :, None])


def test_slices(check):
    x = np.arange(10.0)
    for begin, end, stride, wanted in (
        (2, 0, None, x[2:]),  # to the end
        (-3, 0, None, x[-3:]),
        (0, -2, None, x[:-2]),
        (1, 100, [3], x[1::3]),
        (8, 1, [-2], x[8:1:-2]),
        (-1, -100, [-1], x[::-1]),  # past the front
        (9, -100, [-4], x[9::-4]),
        (0, 10, [4], x[::4]),  # rounded up
    ):
        text = arguments(axes=[0], begin=[begin], end=[end], stride=stride)
        check(f"y = slice(x{text});", {"x": x}, wanted)


def test_rounding(check):
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997], np.float32)
    check("y = round(x);", {"x": x}, [-2, -1, 0, 1, 2, 3, 0])
    check("y = cast<integer>(x);", {"x": x}, [-2, -1, 0, 0, 1, 2, 0])
    check("y = cast<logical>(x);", {"x": x}, np.ones(7))


def test_split_by_ratios(check):
    x = uniform(2, 12)
    check("[a, b, c] = split(x, axis = 1, ratios = [1, 3, 2]);", {"x": x}, x[:, :2], x[:, 2:8],
          x[:, 8:])  # fmt: skip


def test_reshape_of_a_part(check):
    x = uniform(2, 3, 4, 5)
    check("y = reshape(x, shape = [0, -1], axis_start = 1, axis_count = 3);", {"x": x},
          x.reshape(2, 3, 20))  # fmt: skip
    check("y = reshape(x, shape = [2, 2], axis_start = 2, axis_count = 1);", {"x": x},
          x.reshape(2, 3, 2, 2, 5))  # fmt: skip


def test_matmul_broadcasts_over_batches(check):
    a, b = uniform(2, 1, 3, 4), uniform(1, 5, 6, 4)
    check("y = matmul(a, b, transposeB = true);", {"a": a, "b": b}, a @ b.swapaxes(2, 3))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_half_and_double_precision(dtype, tmp_path, backend):
    weights = RNG.uniform(-2, 2, (3, 4)).astype(dtype)
    folder = write_text(tmp_path, "y = x * w;", {"x": np.ones((3, 4)), "w": weights},
                        fixed=frozenset("w"))  # fmt: skip
    (folder / "w.dat").write_bytes(tensor_bytes(weights))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        graph = cml.load(folder)
    bits = np.dtype(dtype).itemsize * 8
    assert [f"{bits}-bit floats" in str(w.message) for w in said] == [True], "both are said"
    got = cml.Session(graph, backend).run({"x": np.ones((3, 4))})["y"]
    assert np.array_equal(got, weights.astype(np.float32))


def test_stored_integers_are_dequantised(tmp_path, backend):
    stored = RNG.integers(0, 256, (3, 4)).astype(np.uint8)
    folder = write_text(tmp_path, "y = x + w;", {"x": np.zeros((3, 4)), "w": stored.astype(float)},
                        fixed=frozenset("w"))  # fmt: skip
    (folder / "w.dat").write_bytes(tensor_bytes(stored))
    line = '"w": zero_point_linear_quantize(zero_point = 100, scale = 0.5, bits = 8);'
    (folder / "graph.quant").write_text(line)
    got = cml.Session(cml.load(folder), backend).run({"x": np.zeros((3, 4))})["y"]
    assert np.allclose(got, (stored.astype(float) - 100) * 0.5)


def test_update_reads_the_old_value(tmp_path, backend):
    body = "a = s + x; b = s * 10.0; u = update(s, a); y = b + u * 0.0;"
    folder = write_text(tmp_path, body, {"x": np.ones(2), "s": np.full(2, 5.0)},
                        fixed=frozenset("s"))  # fmt: skip
    graph = cml.load(folder)
    first, second = cml.Session(graph, backend), cml.Session(graph, backend)
    runs = [first.run({"x": np.ones(2)})["y"][0] for _ in range(3)]
    assert runs == [50, 60, 70]
    assert second.run({"x": np.ones(2)})["y"][0] == 50, "state is a session's own"
    first.reset()
    assert first.run({"x": np.ones(2)})["y"][0] == 50
