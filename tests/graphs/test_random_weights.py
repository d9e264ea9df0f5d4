"""Tests of random weights: reproducible, finite at any depth, only for missing weights."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import CmlError, InputError

DEPTH = 60
LAYERS = {
    "conv": ("[4, 4, 3, 3]", "conv(t{0}, w, 0.0)"),
    "grouped conv": ("[4, 1, 3, 3]", "conv(t{0}, w, 0.0, groups = 0)"),
    "deconv": ("[4, 4, 3, 3]", "deconv(t{0}, w, 0.0)"),
    "matmul": ("[1, 1, 8, 8]", "matmul(t{0}, w)"),
    "matmul from the left": ("[1, 1, 8, 8]", "matmul(w, t{0}, transposeA = true)"),
    "mul": ("[1, 4, 1, 1]", "mul(t{0}, w)"),
    "add": ("[1, 4, 1, 1]", "add(t{0}, w)"),
    "div": ("[1, 4, 1, 1]", "div(t{0}, w)"),
    "batch norm": ("[1, 4, 1, 1]", "batch_normalization(t{0}, 0.0, w, 0.0, 1.0, epsilon = 0.0)"),
    "prelu": ("[1, 4]", "prelu(t{0}, w)"),
}


def deep(shape, call):
    """Returns a model of the layer repeated ``DEPTH`` times, without values for its weights."""
    lines = ["t0 = external(shape = [1, 4, 8, 8]);"]
    for i in range(DEPTH):
        lines.append(f"w{i} = variable<scalar>(shape = {shape}, label = 'layer{i}/w');")
        lines.append(f"t{i + 1} = {call.format(i).replace('w', f'w{i}', 1)};")
    body = "\n".join(lines)
    return cml.nnef.MemoryModel(f"version 1.0;\ngraph deep(t0) -> (t{DEPTH})\n{{\n{body}\n}}\n")


@pytest.mark.parametrize("layer", LAYERS)
def test_random_weights_preserve_magnitude(layer, rng):
    shape, call = LAYERS[layer]
    text = call.replace("(w,", "(W,").replace(", w", ", W")
    model = deep(shape, text.replace("W", "w"))
    graph = cml.load(model, random_weights=3)
    x = rng.standard_normal((1, 4, 8, 8), np.float32)
    (y,) = cml.Session(graph, "cpu").run({"t0": x}).values()
    assert np.isfinite(y).all()
    assert 1e-6 < y.std() < 1e6


def weights(model, **more):
    return cml.load(model, **more).constants


def test_a_seed_is_a_network():
    model = deep(*LAYERS["conv"])
    one, same, other = (weights(model, random_weights=seed) for seed in (1, 1, 2**64 - 1))
    np.testing.assert_array_equal(one["w0"], same["w0"])
    assert not np.array_equal(one["w0"], other["w0"]) and not np.array_equal(one["w0"], one["w1"])
    for seed in (-1, 2**64, 0.5):
        with pytest.raises(InputError, match="random_weights"):
            cml.load(model, random_weights=seed)


TEXT = """version 1.0;
graph g(x) -> (y)
{
    x = external<scalar>(shape = [2, 3]);
    w = variable<scalar>(shape = [2, 3], label = 'w');
    i = variable<integer>(shape = [2], label = 'i');
    m = variable<logical>(shape = [2, 3], label = 'm');
    s = add(x, w);
    t = select(m, x, s);
    y = gather(t, i, axis = 1);
}
"""


def test_only_missing_weights_are_random():
    given = np.ones((2, 3), np.float32)
    graph = cml.load(cml.nnef.MemoryModel(TEXT, {"w": given}), random_weights=0)
    np.testing.assert_array_equal(graph.constants["w"], given)
    assert graph.constants["i"].tolist() == [0, 0] and graph.constants["m"].dtype == np.bool_
    assert graph.notes[-1].startswith("weights    RANDOM (seed 0): 2 tensors, 8 values")
    tensors = {"w": given, "i": np.zeros(2, np.int32), "m": given > 0}
    graph = cml.load(cml.nnef.MemoryModel(TEXT, tensors), random_weights=0)
    assert graph.notes[-1].startswith("weights    all are there")
    assert cml.load(cml.nnef.MemoryModel(TEXT, tensors)).notes == ()


def test_oversized_random_weights_are_refused():
    text = TEXT.replace("[2, 3]", "[65536, 8192]").replace("    s =", "    v = variable(shape ="
        " [65536, 65535], label = 'v');\n    z = copy(v);\n    s =")  # fmt: skip
    with pytest.raises(CmlError, match="random weights of .* needs|elements"):
        cml.load(cml.nnef.MemoryModel(text), random_weights=0)
