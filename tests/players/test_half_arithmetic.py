"""Tests of cooked files that multiply in 16 bits, in the C and the JavaScript player."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from cml_engine.runtime.session import random_inputs
from tests.fixtures.cooked import HALVES, wide_model
from tests.players.building import build
from tests.players.deno import is_right, play_golden
from tests.players.playing import play, play_in_slices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with"),
]


@pytest.fixture
def device(gpu):
    """The suite's device; skips the test if it has no shader-f16."""
    if not gpu.limits.half_arithmetic:
        pytest.skip("the device has no shader-f16")
    return gpu


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Products of Winograd's tiles and of windows in 16 bits."""
    path = tmp_path_factory.mktemp("cooked") / "wide.cml"
    path.write_bytes(cook(wide_model(), ["discrete"], HALVES))
    plans = cml.load_cooked(path).cooked_form.plans
    assert [plan.profile for plan in plans] == ["discrete-f16", "discrete"]
    labels = [kernel.kernel.label for kernel in plans[0].used]
    assert any("halves 1" in label and "winograd" in label for label in labels)
    assert any("halves 1" in label and "window" in label for label in labels)
    return path


@pytest.fixture(scope="module")
def inputs():
    graph = wide_model()
    return random_inputs({name: graph.facts[name] for name in graph.inputs}, seed=3)


def test_c_gives_the_bits_of_a_session(file, inputs, device):
    session = cml.Session(cml.load_cooked(file, trusted=True), device)
    found = play_in_slices(build("play.c", device=True), file, inputs, session.run(inputs))
    assert found.same_slices and found.same_bits


def test_device_of_a_host_without_the_feature_gets_the_other_plan(file, inputs, device, set_limits):
    """``--small`` creates a device without features."""
    program, loaded = build("play.c", device=True), cml.load_cooked(file, trusted=True)
    in_halves = cml.Session(loaded, device).run(inputs)
    set_limits(half_arithmetic=False)
    in_floats = cml.Session(loaded, device).run(inputs)
    (name,) = in_floats
    found = play(program, file, inputs, {name: np.float32}, "--small").outputs[name]
    assert found.tobytes() == in_floats[name].tobytes() != in_halves[name].tobytes()


def test_browser_multiplies_in_16_bits(file, device):
    (found,) = play_golden([file])
    assert is_right(found) and found["error"] > 0
