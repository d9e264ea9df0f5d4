"""Tests of a model's parameters that a host changes while the model runs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import cml_engine as cml
from cml_engine.errors import InputError
from tests.fixtures.frames.host import Host
from tests.fixtures.models import SCALED, write_model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "net.nnef", SCALED)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_slider_has_a_value_or_its_default(gpu, model, rng, backend):
    strength = cml.Slider("scaled.y", 0.0, 4.0, "how much")
    graph = cml.load(model, sliders={"strength": strength, "lift": "y.y"})
    session = cml.Session(graph, gpu if backend == "gpu" else "cpu")
    found = session.sliders["strength"]
    assert (found.low, found.high, found.description) == (0.0, 4.0, "how much")
    assert (found.default, session.sliders["lift"].default) == (2.0, 0.25)
    x = rng.standard_normal((1, 2, 3, 5)).astype(np.float32)
    assert_allclose(session.run({"x": x})["y"], 2 * x + 0.25, rtol=1e-6)
    for value in (3.0, np.array(3.0, np.float32)):
        moved = session.run({"x": x, "strength": value})["y"]
        assert_allclose(moved, 3 * x + 0.25, rtol=1e-6)
    other = session.reshaped({"x": (1, 2, 4, 4)})
    assert other.sliders["strength"].default == 2.0
    assert (other.run({"x": np.ones((1, 2, 4, 4)), "lift": 1})["y"] == 3).all()


def test_jobs_take_sliders(gpu, model, rng):
    session = cml.Session(cml.load(model, sliders={"strength": "scaled.y"}), gpu)
    x = rng.standard_normal((1, 2, 3, 5)).astype(np.float32)
    host = Host(gpu, budget_ms=5.0)
    jobs = [host.scheduler.submit(session, {"x": x, **more}) for more in ({}, {"strength": -1.0})]
    host.until(lambda: all(job.ended and job.read("y") is not None for job in jobs))
    for job, scale in zip(jobs, (2, -1), strict=True):
        assert_allclose(job.read("y"), scale * x + 0.25, rtol=1e-6)


@pytest.mark.parametrize(
    "sliders, says",
    [
        ({"s": "nope.y"}, "no operator of a result 'nope'"),
        ({"s": "scaled.z"}, "has no operand 'z'; it has x, y"),
        ({"s": "scaled.x"}, "no number that stands in the model"),
        ({"x": "scaled.y"}, "has a tensor of that name"),
    ],
)
def test_invalid_sliders_are_refused(model, sliders, says):
    with pytest.raises(InputError, match=says):
        cml.load(model, sliders=sliders)
