"""Tests of ``cml.load(path, fake_quantize=True)``: graph.quant as rounding operators."""

import numpy as np
import pytest

import cml_engine as cml
from tests.fixtures.texts import write_text
from tests.reference.formulas import FORMULAS, min_max_quantize, zero_point_quantize

RNG = np.random.default_rng(3)
X = RNG.uniform(-2, 2, (2, 3, 5)).astype(np.float32)
W = RNG.uniform(-1, 1, (2, 3, 5)).astype(np.float32)
MIN_MAX = (
    "min_max_linear_quantize(min = -1.0, max = 1.0, bits = 4, signed = true, symmetric = true)"
)


@pytest.fixture
def run(backend, tmp_path):
    def run(body, quant, fake=True, **inputs):
        inputs = inputs or {"x": X, "w": W}
        folder = write_text(tmp_path, body, inputs, fixed=frozenset({"w", "s"} & set(inputs)))
        (folder / "graph.quant").write_text(quant)
        graph = cml.load(folder, fake_quantize=fake)
        session = cml.Session(graph, backend)
        given = {n: inputs[n] for n in graph.inputs}
        return [session.run(given) for _ in range(2)][-1]

    return run


def rounded(x):
    return min_max_quantize(x, -1, 1, 4, True, True)


def close(a, b):
    """Returns True if shapes and values agree.

    No value of these inputs lies at a rounding boundary.
    """
    return a.shape == b.shape and np.allclose(a, b, atol=1e-5)


def test_activation_quantization_is_ignored_without_fake_quantize(run):
    assert np.allclose(run("y = x + w;", f'"x": {MIN_MAX};', fake=False)["y"], X + W)


def test_an_input_a_weight_and_a_result(run):
    assert close(run("y = x + w;", f'"x": {MIN_MAX};')["y"], rounded(X) + W)
    assert close(run("y = x + w;", f'"w": {MIN_MAX};')["y"], X + rounded(W))
    assert close(run("y = x + w;", f'"y": {MIN_MAX};')["y"], rounded(X + W))


def test_fake_quantized_tensor_with_two_readers(run):
    got = run("a = x + w; b = a * 2.0; y = a + b;", f'"a": {MIN_MAX}; "nobody": {MIN_MAX};')["y"]
    assert close(got, 3 * rounded(X + W))


def test_ranges_per_channel(run):
    line = (
        "zero_point_linear_quantize(zero_point = [[0, 3, -2]], scale = [[0.1, 0.2, 0.05]], "
        "bits = 8, signed = true, symmetric = false)"
    )
    got = run("y = x + w;", f'"x": {line};')["y"]
    scale = np.float32([[0.1, 0.2, 0.05]])
    expected = zero_point_quantize(X, np.array([[0, 3, -2]]), scale, 8, True, False)
    assert close(got, expected + W)


def test_a_variable_with_state(run):
    got = run(
        "u = update(s, s + x); y = s * 1.0 + u * 0.0;", f'"s": {MIN_MAX};', x=X, s=np.zeros_like(X)
    )["y"]
    assert close(got, rounded(X)), "the second run reads the rounded state"


def test_a_pool_with_two_results(run):
    got = run("y, i = max_pool_with_index(x, size = [1, 1, 5]);", f'"y": {MIN_MAX};', x=X)
    expected = FORMULAS["max_pool"](X, [1, 1, 5])[0]
    assert close(got["y"], rounded(expected))


@pytest.mark.parametrize(
    ("quant", "message"),
    [
        ('"x": relu();', "unknown"),
        ('"x": linear_quantize(min = 0.0, max = 1.0);', "bits"),
        ('"x": linear_quantize(min = [1.0, [2.0]], max = 1.0, bits = 8);', "even rows"),
        ('"x": linear_quantize(min = [[[[0.0, 1.0]]]], max = 9.0, bits = 8);', "gives"),
        ('"x": linear_quantize(min = "a", max = 9.0, bits = 8);', "min"),
    ],
)
def test_refused(quant, message, tmp_path):
    folder = write_text(tmp_path, "y = x + 1.0;", {"x": X})
    (folder / "graph.quant").write_text(quant)
    with pytest.raises(cml.ModelError, match=message):
        cml.load(folder, fake_quantize=True)
