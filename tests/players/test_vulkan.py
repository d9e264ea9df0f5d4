"""Tests of the C player on Vulkan: bits, behaviour, and silence of the validation layers."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from cml_engine.runtime.session import random_inputs
from tests.fixtures.cooked import (
    DEVICES,
    HALVES,
    chain,
    counter,
    small_inputs,
    small_model,
    wide_model,
    with_code,
)
from tests.fixtures.graphs import Net, mobilenet_block
from tests.players.building import SANITIZED, build
from tests.players.playing import as_on_device
from tests.players.test_values import integers

LAYER = Path("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json")
MODELS = Path(__file__).resolve().parents[2] / "demo_game" / "models"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with"),
    pytest.mark.skipif(
        ctypes.util.find_library("vulkan") is None or not Path("/usr/include/vulkan").is_dir(),
        reason="libvulkan-dev is not installed",
    ),
]
#: a host with fences and without an allocator, and the other way of each (vulkan_gpu.h)
both_ways = pytest.mark.parametrize("other", [False, True], ids=["plain", "other way"])


@pytest.fixture(scope="module")
def host():
    return build("host.c", "-O1", *SANITIZED, vulkan=True)


def run(program, *words, cwd, other=False, check=True, valid=True):
    """Runs a program of Vulkan, with the validation layers if they are installed."""
    env = {**os.environ, "NODEVICE_SELECT": "1", "ASAN_OPTIONS": "detect_leaks=0"}
    env |= {"CML_VALIDATE": "1"} if LAYER.exists() else {}
    env |= {"CML_OTHER_WAY": "1"} if other else {}
    words = [str(word) for word in (program, *words)]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert not valid or "validation:" not in done.stderr, done.stderr[-4000:]
    return done


def play(host, folder, inputs, expected, budget, other=False):
    """Plays ``net.cml`` of the folder; returns the outputs as flat arrays by name."""
    for name, array in inputs.items():
        as_on_device(array).tofile(folder / f"{name}.in")
    words = (f"{name}={name}.in" for name in inputs)
    run(host, "net.cml", *words, budget, cwd=folder, other=other)
    kinds = {name: as_on_device(array).dtype for name, array in expected.items()}
    return {name: np.fromfile(folder / f"{name}.bin", kind) for name, kind in kinds.items()}


GRAPHS = {
    "small": small_model,
    "chain": chain,
    "depthwise": lambda: mobilenet_block().graph(),
    "upres": lambda: cml.load(MODELS / "upres.nnef"),
    "integers": integers,
}


@both_ways
@pytest.mark.parametrize("name", GRAPHS)
def test_vulkan_gives_the_bits_of_a_session(host, gpu, name, other, tmp_path):
    """The same kernels on the same driver give the bits of a session on wgpu, in any slices."""
    graph = GRAPHS[name]()
    inputs = random_inputs({n: graph.facts[n] for n in graph.inputs}, seed=3)
    inputs = small_inputs() if name == "small" else inputs
    devices = DEVICES if gpu.limits.software or name == "integers" else ["portable"]
    (tmp_path / "net.cml").write_bytes(cook(graph, devices, golden=False))
    loaded = cml.load_cooked(tmp_path / "net.cml", trusted=True)
    expected = cml.Session(loaded, gpu).run(inputs)
    for budget in ("0.3", "1e9"):
        found = play(host, tmp_path, inputs, expected, budget, other)
        for output, array in expected.items():
            assert found[output].tobytes() == as_on_device(array).tobytes(), (output, budget)


def test_vulkan_gives_the_bits_of_a_session_that_multiplies_in_16_bits(host, gpu, tmp_path):
    if not gpu.limits.half_arithmetic:
        pytest.skip("the device has no shader-f16")
    graph = wide_model(24)
    inputs = random_inputs({n: graph.facts[n] for n in graph.inputs}, seed=3)
    (tmp_path / "net.cml").write_bytes(cook(graph, ["discrete"], HALVES, golden=False))
    session = cml.Session(cml.load_cooked(tmp_path / "net.cml", trusted=True), gpu)
    assert any("halves 1" in step.cooked.kernel.label for step in session.plan.steps)
    ((name, expected),) = session.run(inputs).items()
    found = play(host, tmp_path, inputs, {name: expected}, "1e9")[name]
    assert found.tobytes() == expected.tobytes()


@both_ways
def test_images_hold_the_bits_of_inputs_and_outputs(other, tmp_path):
    """Inputs and outputs in the host's images are bit-identical to those in its memory."""
    file, net = tmp_path / "net.cml", Net(1, 3, 20, 28)
    graph = net.graph(net.conv("x", 2, 3))
    file.write_bytes(cook(graph, DEVICES, golden=False))
    program = build("vulkan_image.c", "-O1", *SANITIZED, vulkan=True)
    assert run(program, file, cwd=tmp_path, other=other).stdout == "the same bits\n"


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    file = tmp_path_factory.mktemp("cooked") / "counter.cml"
    file.write_bytes(cook(counter(), DEVICES, player=True, golden=False))
    return file


CASES = "runs chain slots abandoned dropped harmed many nonsense unloads taken numbers".split()


@pytest.mark.parametrize("case", CASES)
def test_host_behaviour_cases_end_as_on_webgpu(case, counting, tmp_path):
    program = build("behaviour.c", "-O1", *SANITIZED, vulkan=True)
    assert run(program, case, counting, cwd=tmp_path).stdout == f"{case}: as wanted\n"


@pytest.mark.parametrize("case", ["ours", "host", "unload"])
def test_pipelines_are_built_on_other_threads_than_the_frames(case, counting, tmp_path):
    """A job of a network that was never built before its first frame runs without a stall."""
    program = build("vulkan_threads.c", "-O1", *SANITIZED, "-pthread", vulkan=True)
    assert run(program, counting, case, cwd=tmp_path).stdout == "built elsewhere\n"


def test_steady_state_creates_nothing(counting, tmp_path):
    program = build("play.c", vulkan=True)
    done = run(program, counting, "--trusted", "--frames", 200, "--budget", 0.05, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["frames"] >= 200 and not any(told["made"].values())


@pytest.mark.skipif(not LAYER.exists(), reason="vulkan-validationlayers is not installed")
def test_layers_notice_missing_barriers(counting, tmp_path):
    program = build("behaviour.c", "-O1", *SANITIZED, vulkan=True)
    done = run(program, "unordered", counting, cwd=tmp_path, check=False, valid=False)
    assert done.returncode == 1 and re.search("SYNC-HAZARD|_WRITE hazard", done.stderr)


@both_ways
@pytest.mark.parametrize("calls", [4000, pytest.param(100_000, marks=pytest.mark.long)])
def test_random_call_sequences_are_valid(calls, other, counting, tmp_path):
    """Random calls, also with stale handles or without memory, cause no message of the layers."""
    program = build("random_calls.c", "-O1", *SANITIZED, vulkan=True)
    done = run(program, calls, 1, counting, cwd=tmp_path, other=other)
    assert done.stdout.startswith(f"{calls} calls, ")


def test_a_file_without_spirv_is_refused(host, tmp_path):
    data = cook(counter(), ["portable"], player=True, golden=False)
    (tmp_path / "net.cml").write_bytes(with_code(data, b"", b"no SPIR-V"))
    done = run(host, "net.cml", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "needs kernels in SPIR-V" in done.stderr
