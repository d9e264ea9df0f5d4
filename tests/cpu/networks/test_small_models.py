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
    """A function that runs statements and asserts their results.

    It runs them with all inputs given, and with all but the first as weights.
    """

    def run(body, inputs, *wanted, tolerance=2e-5):
        arrays = {name: engine(a) for name, a in inputs.items()}
        for fixed in {frozenset(), frozenset(list(arrays)[1:])}:
            got = run_text(tmp_path, body, arrays, backend, fixed=fixed)
            for result, right in zip(got, wanted, strict=True):
                assert result.shape == np.shape(right), body
                assert np.allclose(result, right, rtol=tolerance, atol=tolerance), body

    return run


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
        wanted = np.full((shape[0], 2, *shape[2:]), 0.5)
        check("y = conv(x, w, 0.5);", {"x": x, "w": w}, wanted)


def test_axes_in_any_order(check):
    x = uniform(2, 3, 4, 2)
    check("y = max_reduce(x, axes = [3, 0]);", {"x": x}, x.max((0, 3), keepdims=True))
    check("y = squeeze(sum_reduce(x, axes = [2, 0]), axes = [2, 0]);", {"x": x}, x.sum((0, 2)))
    check("y = slice(x, axes = [2, 0], begin = [1, 1], end = [3, 0]);", {"x": x}, x[1:, :, 1:3])
    check("i = argmax_reduce(x, axes = [2]); y = gather(i, j, axis = 1);",
          {"x": x, "j": np.array([2, 0])}, x.argmax(2)[:, :, None][:, [2, 0]])  # fmt: skip
    check("y = unsqueeze(x, axes = [0, 3]);", {"x": x}, x[None, :, :, None])


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
