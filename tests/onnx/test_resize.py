"""Tests of Resize and Upsample by scales against ONNX's reference evaluator and ONNX Runtime.

Extents are products in 32 bits, as in ONNX Runtime. The evaluator multiplies in 64 bits (10 times
1.3 is 12 there, 13 in ONNX Runtime), so its function for one axis is given the extent. ONNX Runtime
is the reference where the evaluator has no implementation, in opsets before 11 and for
``tf_half_pixel_for_nn``, and for the nearest element, which depends on the rounding of 32 bits.
"""

from itertools import product

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx.reference.ops import op_resize

import cml_engine as cml
from tests.fixtures.onnx_models import load, model, node, run
from tests.proofs.onnx_nodes import run_onnx

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
)  # fmt: skip
METHODS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "linear", "cubic")
SCALES = tuple(round(0.1 * i, 1) for i in range(3, 38))
EXTENTS = tuple(range(1, 41))
ALL = list(product((11, 18), COORDINATES, METHODS, SCALES))
BEFORE_11 = [
    (opset, op, mode, scale)
    for opset, op in ((8, "Upsample"), (9, "Upsample"), (10, "Resize"))
    for mode, scale in product(("nearest", "linear"), SCALES)
    if scale >= 1 or op == "Resize"
]


def every(cases, step):
    """Returns all cases as test parameters; only every ``step``-th is run outside the long
    suite."""
    marks = {False: pytest.mark.long, True: ()}
    return [pytest.param(*case, marks=marks[i % step == 0]) for i, case in enumerate(cases)]


def network(opset, op, attrs, scale, extents):
    """Returns a model that resizes an input ``x<n>`` to ``y<n>`` for each extent n of its last
    axis."""
    scales = np.array([1, 1, scale], np.float32)
    inputs = {8: "x{}", 9: "x{}, s", 10: "x{}, s"}.get(opset, "x{}, r, s")
    if opset < 9:
        attrs = {**attrs, "scales": scales.tolist()}
    nodes = [node(f"y{n} = {op}({inputs.format(n)})", **attrs) for n in extents]
    weights = {"s": scales, "r": np.zeros(0, np.float32)}
    weights = {name: array for name, array in weights.items() if name in inputs.split(", ")}
    given = ", ".join(f"x{n}: [1, 1, {n}]" for n in extents)
    made = model(nodes, given, ", ".join(f"y{n}" for n in extents), weights, opset)
    for output in made.graph.output:
        output.type.Clear()
    return made


def compare(got, want, what):
    assert got.shape == want.shape, what
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=what)


@pytest.mark.parametrize(("opset", "coordinates", "method", "scale"), every(ALL, 37))
def test_scales(rng, opset, coordinates, method, scale):
    attrs = {"coordinate_transformation_mode": coordinates, "mode": method}
    coefficients = {"linear": op_resize._linear_coeffs, "cubic": op_resize._cubic_coeffs}
    if method not in coefficients:
        attrs |= {"mode": "nearest", "nearest_mode": method}
        if coordinates not in ("align_corners", "half_pixel_symmetric"):
            compare_with_runtime(rng, opset, "Resize", attrs, scale)
            return
        coefficients[method] = lambda ratio, _: op_resize._nearest_coeffs(ratio, mode=method)
    inputs = {f"x{n}": rng.standard_normal((1, 1, n), np.float32) for n in EXTENTS}
    factor = np.float32(scale)
    extents = [n for n in EXTENTS if np.float32(n) * factor >= 1]
    inputs = {f"x{n}": inputs[f"x{n}"] for n in extents}
    outputs = run(network(opset, "Resize", attrs, scale, extents), **inputs)
    for n in extents:
        size = int(np.floor(np.float32(n) * factor))
        if coordinates == "pytorch_half_pixel" and size == 1:
            want = _first(inputs[f"x{n}"])
        else:
            want = op_resize._interpolate_1d_along_axis(
                inputs[f"x{n}"].astype(np.float64),
                2,
                float(factor),
                size,
                coefficients[method],
                coordinate_transformation_mode=coordinates,
            )
        places = op_resize._compute_x_ori(
            coordinates, np.arange(size), float(factor), n, float(factor) * n, size, None
        )[0]
        sure = _is_sure(places)
        compare(outputs[f"y{n}"][..., sure], want[..., sure], f"{n} times {scale}")


def _is_sure(places):
    """Returns an array that is False where a rounding error decides the result.

    The evaluator then takes the neighbours of another position: 15 times 1.7,
    ``half_pixel_symmetric``, ``round_prefer_ceil``.
    """
    off = np.abs(2 * places - np.rint(2 * places))
    return (off == 0) | (off > 4e-6)


def _first(x):
    """Returns the first value of the last axis, the right result if the resized extent is 1.

    ONNX's rule is ``length_resized > 1 ? … : 0``. The evaluator takes the position -0.5 and an
    unrounded extent for ``length_resized``; ONNX Runtime follows the rule.
    """
    return x[:, :, :1]


@pytest.mark.parametrize(("opset", "op", "mode", "scale"), every(BEFORE_11, 5))
def test_scales_before_11(rng, opset, op, mode, scale):
    compare_with_runtime(rng, opset, op, {"mode": mode}, scale)


def compare_with_runtime(rng, opset, op, attrs, scale):
    """Asserts that results equal ONNX Runtime's for all extents that the scale changes.

    ONNX Runtime copies a tensor whose extent stays the same.
    """
    sizes = {n: int(np.float32(n) * np.float32(scale)) for n in EXTENTS}
    extents = [n for n, size in sizes.items() if size not in (0, n) or scale == 1]
    inputs = {f"x{n}": rng.standard_normal((1, 1, n), np.float32) for n in extents}
    onnx_model = network(opset, op, attrs, scale, extents)
    outputs = run(onnx_model, **inputs)
    for name, want in run_onnx(onnx_model.SerializeToString(), inputs).items():
        compare(outputs[name], want, f"{name} times {scale}")


@pytest.mark.parametrize("rounding", ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
@pytest.mark.parametrize("coordinates", ("asymmetric", "half_pixel", "pytorch_half_pixel"))
@pytest.mark.parametrize("parts", (3, 5, 6, 7, 9, 11))
def test_nearest_by_a_scale_that_no_float_is(rng, parts, coordinates, rounding):
    """PyTorch writes 1 / 3 as float32; 6 elements to 2 are then 0 and 3, not 0 and 2.9999998."""
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates}
    for scale in (1 / parts, 2 / parts, 4 / parts, 8 / parts):
        compare_with_runtime(rng, 13, "Resize", {**attrs, "nearest_mode": rounding}, scale)


@pytest.mark.parametrize("rank", (2, 4))
@pytest.mark.parametrize(("before", "after"), [(14, 18), (14, 2), (20, 12), (3, 41), (7, 29)])
def test_nearest_by_sizes_is_exact(rank, before, after):
    """Positions are fractions of whole numbers, as in PyTorch: 9 * 14 / 18 is 7, not 6.9999."""
    sizes = np.array([1] * (rank - 1) + [after])
    attrs = "mode='nearest', coordinate_transformation_mode='asymmetric', nearest_mode='floor'"
    shape = [1] * (rank - 1) + [before]
    made = model(f"y = Resize(x, _, _, sizes, {attrs})", f"x: {shape}", "y", {"sizes": sizes}, 13)
    y = run(made, x=np.arange(before, dtype=np.float32).reshape(shape))["y"]
    assert y.ravel().tolist() == [i * before // after for i in range(after)]


@pytest.mark.parametrize("scale", (0.4, 1.3, 2.5))
def test_half_pixels_for_nn(rng, scale):
    attrs = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    compare_with_runtime(rng, 11, "Resize", attrs, scale)


def test_a_cropped_extent():
    """The extent of a cropped axis is ``floor(input_dimension * (roi_end - roi_start) * scale)``.

    ONNX defines it so; ONNX Runtime ignores the region.
    """
    region = np.array([0, 0, 0.1, 1, 1, 0.6], np.float32)
    network = model(
        "y = Resize(x, r, s, coordinate_transformation_mode='tf_crop_and_resize')",
        "x: [1, 1, 10]",
        "y",
        {"r": region, "s": np.array([1, 1, 1.3], np.float32)},
        11,
    )
    assert load(network).facts["y"].shape == (1, 1, 6)


@pytest.mark.parametrize("mode", ("nearest", "linear", "cubic"))
def test_no_batch(mode):
    """Resize of a batch of 0 loads and has an output with a batch of 0."""
    onnx_model = network(13, "Resize", {"mode": mode}, 2.0, (4,))
    graph = load(onnx_model, shapes={"x4": (0, 1, 4)})
    assert graph.facts["y4"].shape == (0, 1, 8)


#: the Resizes that no operator of the engine computes
BY_WEIGHTS = {
    "antialias": {"antialias": 1},
    "antialias, cubic": {"antialias": 1, "mode": "cubic"},
    "exclude_outside": {"exclude_outside": 1, "mode": "cubic"},
    "half_pixel_symmetric": {"coordinate_transformation_mode": "half_pixel_symmetric"},
    "crop": {"coordinate_transformation_mode": "tf_crop_and_resize"},
    "a scale that is no ratio": {},
}


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("scale", [0.37, 2.3])
@pytest.mark.parametrize("rule", BY_WEIGHTS)
def test_a_value_that_is_not_finite_stays_in_its_windows(rule, scale, value, gpu):
    """A non-finite value reaches only the results in which ONNX Runtime gives it a weight."""
    attrs = {"mode": "linear", **BY_WEIGHTS[rule]}
    weights = {"r": np.float32([0, 0, 0.13, 0.21, 1, 1, 0.87, 0.83])}
    if rule == "crop":
        weights["s"] = np.int64([1, 1, 9 * scale, 11 * scale])
    else:
        weights["s"] = np.float32([1, 1, scale, scale])
    text = "y = Resize(x, r, _, s)" if rule == "crop" else "y = Resize(x, r, s)"
    made = model([node(text, **attrs)], "x: [1, 1, 9, 11]", "y", weights, 18)
    made.graph.output[0].type.Clear()
    for at in ((0, 0), (4, 5), (8, 10), (2, 9)):
        x = np.zeros((1, 1, 9, 11), np.float32)
        x[0, 0, *at] = 1
        weight = run_onnx(made.SerializeToString(), {"x": x})["y"]
        x[0, 0, *at] = value
        for backend in ("cpu", gpu):
            got = cml.Session(load(made), backend).run({"x": x})["y"]
            np.testing.assert_array_equal(np.isfinite(got), np.abs(weight) < 1e-6)
