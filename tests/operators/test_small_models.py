"""Tests of error-prone details of NNEF and of operators beyond it, as one-line models."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.expansion.signatures import EXTENSIONS
from tests.fixtures.texts import HEADER, declaration, engine, run_text, write_text

RNG = np.random.default_rng(21)


def uniform(*shape):
    return engine(RNG.uniform(-2, 2, shape))


@pytest.fixture
def check(tmp_path, backend):
    """A function that runs statements on the same inputs and asserts the result of each.

    It runs them with all inputs given, and with all but the first as weights.
    """

    def run(cases, **inputs):
        arrays = {name: engine(a) for name, a in inputs.items()}
        for body, expected in cases.items():
            for fixed in {frozenset(), frozenset(list(arrays)[1:])}:
                (got,) = run_text(tmp_path, body, arrays, backend, fixed=fixed)
                assert got.shape == np.shape(expected), body
                assert np.allclose(got, expected, rtol=2e-5, atol=2e-5), body

    return run


def test_literals_stand_for_tensors(check):
    x = uniform(2, 3)
    cases = {
        "y = sub(1.5, x);": 1.5 - x,
        "y = pow(x, 2.0);": x**2,
        "y = select(x > 0.0, 1.0, x);": np.where(x > 0, 1, x),
        "y = select(true, x, 0.0);": x,
        "y = clamp(0.5, x, 1.0);": np.maximum(0.5, x),
        "y = x * 2 + 1;": x * 2 + 1,
        "y = copy(3.5) + x;": x + 3.5,
        "y = concat([x, x], axis = 0) - add(0.5, 0.25);": np.vstack([x, x]) - 0.75,
    }
    check(cases, x=x)


@pytest.mark.parametrize("rank", range(9))
def test_ranks(rank, check):
    x = uniform(*[2, 3, 1, 2, 1, 2, 1, 2][:rank])
    axes = tuple(range(rank))
    reverse, one = list(axes[::-1]), [(1, 0)] * rank
    cases = {
        "y = relu(x) + 0.5;": np.maximum(x, 0) + 0.5,
        f"y = sum_reduce(x, axes = {reverse});": x.sum(axes, keepdims=True, dtype=float),
        f"y = transpose(x, axes = {reverse});": x.transpose(),
        "y = reshape(x, shape = [-1]);": x.reshape(-1),
        f"y = pad(x, padding = {one});": np.pad(x, one) if rank else x,
        f"y = tile(x, repeats = {[2] * rank});": np.tile(x, [2] * rank),
        f"y = max_pool(x, size = {[1] * rank});": x,
    }
    check(cases, x=x)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)])
def test_zero_extents(shape, check):
    x = uniform(*shape)
    cases = {
        "y = relu(x) * 2.0;": x,
        "y = sum_reduce(x, axes = [2, 3]);": x.sum((2, 3), keepdims=True),
        "y = transpose(x, axes = [3, 2, 1, 0]);": x.transpose(),
        "y = concat([x, x], axis = 3);": np.concatenate([x, x], 3),
        "y = slice(x, axes = [3], begin = [2], end = [2]);": x[..., :0],
        "y = nearest_upsample(x, factor = [2, 2]);": x.repeat(2, 2).repeat(2, 3),
    }
    check(cases, x=x)
    if shape[2]:
        expected = np.full((shape[0], 2, *shape[2:]), 0.5)
        check({"y = conv(x, w, 0.5);": expected}, x=x, w=uniform(2, shape[1], 3, 3))


def test_axes_in_any_order(check):
    x = uniform(2, 3, 4, 2)
    cases = {
        "y = max_reduce(x, axes = [3, 0]);": x.max((0, 3), keepdims=True),
        "y = squeeze(sum_reduce(x, axes = [2, 0]), axes = [2, 0]);": x.sum((0, 2)),
        "y = slice(x, axes = [2, 0], begin = [1, 1], end = [3, 0]);": x[1:, :, 1:3],
        "y = unsqueeze(x, axes = [0, 3]);": x[None, :, :, None],
    }
    check(cases, x=x)
    gathered = x.argmax(2)[:, :, None][:, [2, 0]]
    check({"i = argmax_reduce(x, axes = [2]); y = gather(i, j, axis = 1);": gathered},
          x=x, j=np.array([2, 0]))  # fmt: skip


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


X = uniform(2, 4, 6, 3)


def test_a_models_own_defaults_count(tmp_path):
    head = declaration("hard_sigmoid").replace("0.2", "0.25")
    (got,) = run_text(tmp_path, "y = hard_sigmoid(x);", {"x": X}, "cpu", head=head)
    assert np.allclose(got, np.clip(0.25 * X + 0.5, 0, 1))


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
def test_invalid_einsum_equations_are_refused(equation, message, tmp_path):
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


def test_extension_library_text_loads_in_a_model(tmp_path):
    """A model that begins with the library's text, with all bodies, loads."""
    text = HEADER + EXTENSIONS.source.text
    text += "graph g(x) -> (y) { x = external(shape = [1]); y = mish(x); }"
    (tmp_path / "graph.nnef").write_text(text)
    assert cml.load(tmp_path).outputs == ("y",)
