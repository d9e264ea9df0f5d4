"""Tests that kernels guard exp and log where the driver's own are wrong, and only there."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.gpu import driver_functions
from cml_engine.gpu.driver_functions import has_ieee_functions
from cml_engine.gpu.shaders.hlsl import guarded, step_keys
from tests.fixtures.graphs import Net
from tests.fixtures.operators import declare

pytestmark = pytest.mark.gpu

RIGHT = np.array([np.nan, -np.inf, np.nan], np.float32)
SWIFTSHADER = np.array([np.inf, -88.0297, 88.7228], np.float32)
NUMBERS = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, -1, -1e20, 1, 0.5, 3, 1e-20, 80], np.float32
)


def net_of(expression):
    net = Net(len(NUMBERS))
    return net.graph(net(expression))


def on_driver(gpu, are_right):
    """Returns a new :class:`Gpu` on the suite's device with a preset answer of the driver probe."""
    other = cml.Gpu(device=gpu.device)
    other.has_ieee_functions = are_right
    return other


@pytest.mark.parametrize(("results", "are_right"), [(RIGHT, True), (SWIFTSHADER, False)])
def test_a_right_driver_is_remembered_and_a_wrong_one_is_not(
    results, are_right, monkeypatch, tmp_path
):
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver_functions, "_probe", lambda adapter: results)
    assert has_ieee_functions(None, "driver") is are_right
    monkeypatch.setattr(driver_functions, "_probe", lambda adapter: SWIFTSHADER)
    assert has_ieee_functions(None, "driver") is are_right
    assert not has_ieee_functions(None, "another driver")


def test_a_failed_probe_changes_nothing(monkeypatch, tmp_path):
    def fail(adapter):
        raise RuntimeError("no device")

    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver_functions, "_probe", fail)
    assert has_ieee_functions(None, "driver")


def test_the_probe_runs_on_this_driver(gpu):
    exp_nan, log_zero, log_negative = driver_functions._probe(gpu.device.adapter)
    are_right = np.isnan(exp_nan) and log_zero == -np.inf and np.isnan(log_negative)
    assert gpu.has_ieee_functions == are_right


FUNCTIONS = ["exp(x)", "log(x)", "log2(x)", "sigmoid(x)", "softmax(x, axes=[0])"]


def run(gpu, graph, are_right):
    """Returns the result and the codes of a session on a driver that is right or wrong."""
    other = on_driver(gpu, are_right)
    session = cml.Session(graph, other)
    y = session.run({"x": NUMBERS}).popitem()[1]
    return y, [(key if are_right else guarded(key)).code() for key in step_keys(session.plan)]


@pytest.mark.parametrize("expression", FUNCTIONS)
def test_guards_change_no_bit_of_a_right_driver(expression, gpu):
    if not gpu.has_ieee_functions:
        pytest.skip("this driver's own exp or log are wrong")
    (plain, code), (guarded, other_code) = (run(gpu, net_of(expression), r) for r in (True, False))
    assert code != other_code
    # a NaN's sign is anything
    plain, guarded = (np.where(np.isnan(y), np.float32(np.nan), y) for y in (plain, guarded))
    assert plain.tobytes() == guarded.tobytes()


@pytest.mark.parametrize("expression", ["relu(sqrt(x))", "sum_reduce(x, axes=[0])", "cos(x)"])
def test_kernels_without_exp_and_log_have_the_same_code(expression, gpu):
    plain, guarded = (run(gpu, net_of(expression), r)[1] for r in (True, False))
    assert plain == guarded


GAME = "exp(float4(x[thread], 0, 1, 2)).x + log2(x[thread]) + log(float2(1, x[thread])).y"


def test_kernels_of_a_game_are_guarded(gpu):
    """Vectors too; where the driver is wrong this is the only way to the right numbers."""
    declare(f"void kernel(uint thread) {{ y[thread] = {GAME}; }}", "own")
    try:
        (got, code), (_, plain) = (run(gpu, net_of("own(x)"), r) for r in (False, True))
    finally:
        cml.ops.unregister("own")
    assert code != plain
    with np.errstate(all="ignore"):
        want = np.exp(NUMBERS) + np.log2(NUMBERS) + np.log(NUMBERS)
    np.testing.assert_allclose(got, want, rtol=1e-5)
