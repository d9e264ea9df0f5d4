"""Tests of random operators: their distributions, and that all backends draw the same bits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("onnx")

import cml_engine as cml
from cml_engine.errors import UnsupportedOp
from tests.fixtures.onnx_models import load, model, node, subgraph

NODES = [
    "y = RandomNormalLike(x)", "y = RandomNormalLike(x, mean=3.0, scale=0.7, seed=5.0)",
    "y = RandomNormal(shape=[2, 3, 501], mean=-1.0, scale=2.5)", "y = RandomUniformLike(x)",
    "y = RandomUniform(shape=[1000], low=-3.3, high=7.1, seed=0.25)",
    "y = RandomUniform(shape=[2, 3, 4, 5, 6])", "y = Bernoulli(x)",
    "y = Bernoulli(x, dtype=9, seed=1.0)", "y = Bernoulli(x, dtype=6)",
    "y = Multinomial(x, sample_size=300)", "y = Multinomial(x, dtype=7, seed=2.0)",
]  # fmt: skip
X = {"x": np.linspace(0, 1, 1500, dtype=np.float32).reshape(3, 500)}


def session(nodes, backend="cpu", **options):
    graph = load(model(nodes, "x: [3, 500]", "y"))
    return cml.Session(graph, backend, cml.CompileOptions(**options))


def draw(nodes, count=1, **options):
    """Returns the outputs of some runs of a new session, stacked."""
    runner = session(nodes, **options)
    return np.stack([runner.run(X)["y"] for _ in range(count)])


@pytest.mark.parametrize("nodes", NODES)
def test_gpu_draws_the_bits_of_numpy(nodes, gpu):
    for without in (frozenset(), cml.CompileOptions.preset("debug").without):
        both = [session(nodes, backend, seed=9, without=without) for backend in ("cpu", gpu)]
        for _ in range(3):
            wanted, found = (one.run(X)["y"] for one in both)
            assert wanted.tobytes() == found.tobytes()


@pytest.mark.parametrize("nodes", NODES)
def test_every_run_draws_anew_and_reset_starts_again(nodes):
    runner = session(nodes)
    first = [runner.run(X)["y"] for _ in range(4)]
    runner.reset()
    again = [runner.run(X)["y"] for _ in range(4)]
    assert_array_equal(first, again)
    assert len({array.tobytes() for array in first}) > 1


def test_seed_of_the_session_is_for_nodes_without_one():
    for nodes, is_same in (("y = RandomNormalLike(x)", False), (NODES[1], True)):
        plain, seeded = draw(nodes), draw(nodes, seed=77)
        assert np.array_equal(plain, seeded) == is_same
        assert_array_equal(seeded, draw(nodes, seed=77))
    with pytest.raises(cml.InputError, match="seed"):
        cml.CompileOptions(seed=-1)


def test_nodes_draw_independently_unless_they_state_one_seed():
    for attrs, is_same in (("", False), (", seed=4.0", True)):
        a = f"RandomUniformLike(x{attrs})"
        difference = draw(f"a = {a}; b = {a}; y = Sub(a, b)")
        assert (not difference.any()) == is_same


def test_iterations_of_a_loop_draw_different_numbers():
    body = subgraph(
        "more = Identity(go); b = RandomUniformLike(a, seed=3.0); s = Identity(b)",
        "i: int64[], go: bool[], a: [3, 500]",
        "more: bool[], b: [3, 500], s: [3, 500]",
    )
    network = model(
        [node("_e, y = Loop(n, true, x)", body=body)], "x: [3, 500]", "y",
        {"n": np.array(3), "true": np.array(True)},
    )  # fmt: skip
    parts = cml.Session(load(network), "cpu").run(X)["y"]
    assert len({part.tobytes() for part in parts}) == 3


def test_published_words_of_the_generator(gpu):
    """The words of Random123's known answers for a counter and key of zeros."""
    builder = cml.GraphBuilder("words")
    index = builder.input("x", [4], "integer")
    graph = builder.graph(y=builder.random_bits(index, 0, 0, 0, 0))
    for backend in ("cpu", gpu):
        bits = cml.Session(graph, backend).run({"x": np.arange(4, dtype=np.int32)})["y"]
        words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
        assert bits.view(np.uint32).tolist() == words


# -- distributions: within five standard deviations of what is expected ----------------------------


def test_uniform_numbers():
    y = draw("y = RandomUniform(shape=[40000], low=-1.0, high=3.0)", 5).astype(np.float64)
    assert y.min() >= -1 and y.max() < 3 and len(np.unique(y)) > 0.98 * y.size
    assert abs(y.mean() - 1) < 5 * (4 / 12**0.5) / y.size**0.5
    counts = np.histogram(y, 64, (-1, 3))[0]
    assert (np.abs(counts - y.size / 64) < 5 * (y.size / 64) ** 0.5).all()
    correlation = np.corrcoef(y[0, :-1], y[0, 1:])[0, 1], np.corrcoef(y[0], y[1])[0, 1]
    assert np.abs(correlation).max() < 5 / 40000**0.5


def test_normal_numbers():
    from statistics import NormalDist

    y = draw("y = RandomNormal(shape=[100000])", 5).astype(np.float64).ravel()
    n = y.size
    assert abs(y.mean()) < 5 / n**0.5 and abs(y.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs((y**3).mean()) < 5 * (15 / n) ** 0.5 and abs((y**4).mean() - 3) < 5 * (96 / n) ** 0.5
    edges = [-np.inf, *np.linspace(-4, 4, 33), np.inf]
    shares = np.diff([0.0, *map(NormalDist().cdf, edges[1:-1]), 1.0])
    counts = np.histogram(y, edges)[0]
    assert (np.abs(counts - shares * n) < 5 * (shares * n) ** 0.5 + 1).all()


def test_quantiles_of_the_normal_distribution():
    """Interpolated quantiles are within 2e-5 of the exact ones, up to the outermost."""
    from statistics import NormalDist

    from cml_engine.formats.onnx.operators.random import _quantiles

    quantiles, steps = (table / (1 << 24) for table in _quantiles())
    floats = [(1 + place / 64) * 2.0**power for power in range(31) for place in range(64)]
    for share in (0.0, 0.3, 0.5, 0.9):
        inner = [(1 + (place + share) / 64) * 2.0**power for power in range(31)
                 for place in range(64)]  # fmt: skip
        exact = [-NormalDist().inv_cdf(m / 2**32) for m in inner]
        found = quantiles[:-1] - steps[:-1] * share
        assert len(found) == len(floats) and np.abs(found - exact).max() < 2e-5
    assert 6.2 < quantiles.max() < 6.4 and quantiles[-1] == 0


def test_bernoulli_and_multinomial_have_their_probabilities():
    y = draw("y = Bernoulli(x)", 400).mean(0)
    assert np.abs(y - X["x"]).max() < 0.16 and abs((y - X["x"]).mean()) < 0.005
    weights = {"logits": np.log(np.array([[1, 2, 5], [3, 0.5, 0.5]], np.float32))}
    network = model("y = Multinomial(logits, sample_size=20000); _u = Neg(x)", "x: [1]",
                    "y: int32", weights)  # fmt: skip
    y = cml.Session(load(network), "cpu").run({"x": np.zeros(1, np.float32)})["y"]
    shares = [np.bincount(row, minlength=3) / 20000 for row in y]
    assert_allclose(shares, [[0.125, 0.25, 0.625], [0.75, 0.125, 0.125]], atol=0.02)


@pytest.mark.parametrize("shape", [[], [1], [0, 3], [7, 1, 1, 1], [1, 1, 1, 9, 1]])
@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_shapes(op, shape, backend):
    network = model(f"a = {op}(x); y = Identity(a)", f"x: {shape}", "y")
    x = {"x": np.full(shape, 0.5, np.float32)}
    assert cml.Session(load(network), backend).run(x)["y"].shape == tuple(shape)


def test_unsupported_types_are_refused():
    with pytest.raises(UnsupportedOp, match="random numbers of int32"):
        load(model("y = RandomNormalLike(x)", "x: int32[3]", "y: int32"))
    with pytest.raises(UnsupportedOp, match="classes of float32"):
        load(model("y = Multinomial(x, dtype=1)", "x: [1, 3]", "y"))
    with pytest.raises(cml.ModelError, match=r"wants \[batch, classes\]"):
        load(model("y = Multinomial(x)", "x: [3]", "y: int32"))
