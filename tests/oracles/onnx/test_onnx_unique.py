"""Tests of Unique and Det beyond ONNX's own node cases: constants, NaN, and their limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.errors import UnsupportedOp  # noqa: E402
from tests.fixtures.onnx_models import model, node, value  # noqa: E402

NAMES = ("y", "index", "inverse", "times")


def unique(shape, dtype, **attrs):
    outs = [value("y", None, dtype), *(value(name, None, "int64") for name in NAMES[1:])]
    made = model(
        [node(f"{', '.join(NAMES)} = Unique(x)", **attrs)], [value("x", shape, dtype)], outs
    )
    return made.SerializeToString()


def test_unique_of_a_constant_is_computed_at_load(rng):
    for attrs in ({}, {"sorted": 0}, {"axis": 1, "sorted": 0}):
        data = unique((3, 4), "int64", **attrs)
        x = rng.integers(-1, 2, (3, 4))
        got = cml.Session(cml.load(data, constants={"x": x}), "cpu").run({})
        for name, want in zip(NAMES, ort.InferenceSession(data).run(NAMES, {"x": x}), strict=True):
            assert_array_equal(got[name], want, err_msg=name)


def test_nan_is_the_greatest_and_itself():
    x = np.float32([np.nan, 1, np.inf, np.nan, 1])
    got = cml.Session(cml.load(unique((5,), "float32")), "cpu").run({"x": x})
    assert_array_equal(got["y"], [*np.unique(x), -1, -1])
    assert got["times"].tolist() == [2, 1, 2, -1, -1]
    assert got["inverse"].tolist() == [2, 0, 1, 2, 0]


def test_too_many_to_be_compared_are_refused():
    with pytest.raises(UnsupportedOp, match="Unique 'y': Unique of 4,096 parts, 4,096 of int64"):
        cml.load(unique((4096,), "int64"))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_determinants(rng, size):
    made = model([node("y = Det(x)")], [value("x", [3, size, size])], [value("y", [3])])
    x = rng.standard_normal((3, size, size), np.float32)
    got = cml.Session(cml.load(made.SerializeToString()), "cpu").run({"x": x})["y"]
    assert_allclose(got, np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_determinants_of_many_rows_are_refused():
    made = model([node("y = Det(x)")], [value("x", [5, 5])], [value("y", [])])
    with pytest.raises(UnsupportedOp, match="Det 'y': the determinant of 5 rows"):
        cml.load(made.SerializeToString())
