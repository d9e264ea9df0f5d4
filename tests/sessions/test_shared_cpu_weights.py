"""Tests of CPU sessions that are reshaped to other input shapes."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.ops.conv.cpu_channels_last import Windows
from cml_engine.ops.conv.cpu_winograd import Winograd

TEXT = """version 1.0;
graph net(x) -> (y)
{
    x = external(shape = [1, 8, 16, 16]);
    w = variable(shape = [16, 8, 3, 3], label = 'w');
    v = variable(shape = [16, 16, 1, 1], label = 'v');
    c = conv(x, w, padding = [(1, 1), (1, 1)]);
    e = conv(c, v);
    d = relu(e);
    m = box(d, size = [1, 1, 2, 2], stride = [1, 1, 2, 2], normalize = true);
    y = nearest_upsample(m, factor = [2, 2]);
}
"""


@pytest.fixture
def model(rng):
    filters = {"w": rng.standard_normal((16, 8, 3, 3)), "v": rng.standard_normal((16, 16, 1, 1))}
    return cml.nnef.MemoryModel(TEXT, {k: v.astype(np.float32) for k, v in filters.items()})


def ways(session):
    """Returns the packed weights of the session's convolutions by implementing class."""
    found = session.program._functions
    return {
        type(f): getattr(f, "_filter", None) if isinstance(f, Winograd) else f._weights
        for f in found
        if isinstance(f, Winograd | Windows)
    }


def test_reshaped_session_equals_a_fresh_one(model, rng):
    session = cml.Session(cml.load(model), "cpu")
    shape = (2, 8, 32, 20)
    large = session.reshaped({"x": shape})
    fresh = cml.Session(cml.load(model, shapes={"x": shape}), "cpu")
    x = rng.standard_normal(shape, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(large.run({"x": x})["y"], fresh.run({"x": x})["y"])
        small = rng.standard_normal((1, 8, 16, 16), np.float32)
        alone = cml.Session(cml.load(model), "cpu").run({"x": small})["y"]
        np.testing.assert_array_equal(session.run({"x": small})["y"], alone)
    assert ways(large).keys() == ways(session).keys() != set()
    for way, weights in ways(session).items():
        assert ways(large)[way] is weights is not ways(fresh)[way]
    assert all(large.graph.constants[n] is session.graph.constants[n] for n in ("w", "v"))
    assert (
        session.reshaped({"x": shape}) is large and large.reshaped({"x": (1, 8, 16, 16)}) is session
    )
