"""Tests of Unique and Det beyond ONNX's own node cases: constants, NaN, and their limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import cml_engine as cml
from cml_engine.errors import UnsupportedOp
from tests.fixtures.onnx_models import load, model, node, run
from tests.onnx_nodes import run_onnx


def unique(shape, dtype, **attrs):
    outputs = f"y: {dtype}, index: int64, inverse: int64, times: int64"
    call = node("y, index, inverse, times = Unique(x)", **attrs)
    return model([call], f"x: {dtype}{list(shape)}", outputs)


def test_unique_of_a_constant_is_computed_at_load(rng):
    for attrs in ({}, {"sorted": 0}, {"axis": 1, "sorted": 0}):
        network = unique((3, 4), "int64", **attrs)
        x = rng.integers(-1, 2, (3, 4))
        outputs = cml.Session(load(network, constants={"x": x}), "cpu").run({})
        for name, want in run_onnx(network.SerializeToString(), {"x": x}).items():
            assert_array_equal(outputs[name], want, err_msg=name)


def test_nan_is_the_greatest_and_itself():
    x = np.float32([np.nan, 1, np.inf, np.nan, 1])
    outputs = run(unique((5,), "float32"), x=x)
    assert_array_equal(outputs["y"], [*np.unique(x), -1, -1])
    assert outputs["times"].tolist() == [2, 1, 2, -1, -1]
    assert outputs["inverse"].tolist() == [2, 0, 1, 2, 0]


def test_too_many_to_be_compared_are_refused():
    with pytest.raises(UnsupportedOp, match="Unique 'y': Unique of 4,096 parts, 4,096 of int64"):
        load(unique((4096,), "int64"))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_determinants(rng, size):
    x = rng.standard_normal((3, size, size), np.float32)
    result = run(model("y = Det(x)", f"x: {list(x.shape)}", "y: [3]"), x=x)["y"]
    assert_allclose(result, np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_determinants_of_many_rows_are_refused():
    with pytest.raises(UnsupportedOp, match="Det 'y': the determinant of 5 rows"):
        load(model("y = Det(x)", "x: [5, 5]", "y: []"))
