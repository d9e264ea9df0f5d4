"""Tests of Unique and Det against ONNX Runtime and NumPy: shapes, ties and NaN, on both
backends."""

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import cml_engine as cml  # noqa: E402
from cml_engine.errors import UnsupportedOp  # noqa: E402
from tests.fixtures.onnx_models import model, node, value  # noqa: E402

BACKENDS = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
NAMES = ("y", "index", "inverse", "times")


def unique(shape, dtype, **attrs):
    outs = [value("y", None, dtype), *(value(name, None, "int64") for name in NAMES[1:])]
    made = model(
        [node(f"{', '.join(NAMES)} = Unique(x)", **attrs)], [value("x", shape, dtype)], outs
    )
    return made.SerializeToString()


def found(got, name, axis=0):
    """Returns the valid part of the output ``name``, by its count; asserts that the rest is -1.

    ``inverse`` is returned whole. Only ``y`` is cut along ``axis``.
    """
    if name == "inverse":
        return got[name]
    axis = axis if name == "y" else 0
    kept, rest = np.split(got[name], [got[f"{name}_count"].item()], axis)
    assert (rest == -1).all()
    return kept


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "dtype", "attrs"),
    [
        ((12,), "int64", {}),
        ((3, 5), "float32", {"sorted": 0}),
        ((7, 2), "int64", {"axis": 0}),
        ((2, 9, 2), "float32", {"axis": 1, "sorted": 0}),
    ],
)
def test_unique(rng, shape, dtype, attrs, backend):
    data = unique(shape, dtype, **attrs)
    x = rng.integers(-1, 2, shape).astype(dtype)
    got = cml.Session(cml.load(data), backend).run({"x": x})
    for name, want in zip(NAMES, ort.InferenceSession(data).run(NAMES, {"x": x}), strict=True):
        axis = attrs.get("axis", 0)
        np.testing.assert_array_equal(found(got, name, axis), want, err_msg=name)


def test_unique_of_a_constant_is_computed_at_load(rng):
    for attrs in ({}, {"sorted": 0}, {"axis": 1, "sorted": 0}):
        data = unique((3, 4), "int64", **attrs)
        x = rng.integers(-1, 2, (3, 4))
        got = cml.Session(cml.load(data, constants={"x": x}), "cpu").run({})
        for name, want in zip(NAMES, ort.InferenceSession(data).run(NAMES, {"x": x}), strict=True):
            np.testing.assert_array_equal(got[name], want, err_msg=name)


def test_nan_is_the_greatest_and_itself():
    x = np.float32([np.nan, 1, np.inf, np.nan, 1])
    got = cml.Session(cml.load(unique((5,), "float32")), "cpu").run({"x": x})
    values, times = (found(got, name) for name in ("y", "times"))
    np.testing.assert_array_equal(values, np.unique(x))
    assert times.tolist() == [2, 1, 2] and got["inverse"].tolist() == [2, 0, 1, 2, 0]


def test_too_many_to_be_compared_are_refused():
    with pytest.raises(UnsupportedOp, match="Unique 'y': Unique of 4,096 parts, 4,096 of int64"):
        cml.load(unique((4096,), "int64"))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_det(rng, size):
    made = model([node("y = Det(x)")], [value("x", [3, size, size])], [value("y", [3])])
    x = rng.standard_normal((3, size, size)).astype(np.float32)
    got = cml.Session(cml.load(made.SerializeToString()), "cpu").run({"x": x})["y"]
    np.testing.assert_allclose(got, np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_determinants_of_many_rows_are_refused():
    made = model([node("y = Det(x)")], [value("x", [5, 5])], [value("y", [])])
    with pytest.raises(UnsupportedOp, match="Det 'y': the determinant of 5 rows"):
        cml.load(made.SerializeToString())
