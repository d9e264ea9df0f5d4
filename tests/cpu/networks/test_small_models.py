"""Tests of error-prone details of NNEF, as one-line models on both backends."""

import numpy as np
import pytest

import cml_engine as cml
from tests.fixtures.texts import engine, run_text, write_text

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
        for body, wanted in cases.items():
            for fixed in {frozenset(), frozenset(list(arrays)[1:])}:
                (got,) = run_text(tmp_path, body, arrays, backend, fixed=fixed)
                assert got.shape == np.shape(wanted), body
                assert np.allclose(got, wanted, rtol=2e-5, atol=2e-5), body

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
        wanted = np.full((shape[0], 2, *shape[2:]), 0.5)
        check({"y = conv(x, w, 0.5);": wanted}, x=x, w=uniform(2, shape[1], 3, 3))


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
