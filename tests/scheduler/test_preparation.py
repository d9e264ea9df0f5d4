"""Tests of preparing networks during frames in a thread that is slow, fails, or holds a lock."""

import gc
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import wgpu
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.errors import ShaderCompileError
from cml_engine.gpu.device import Device, PipelineCache
from cml_engine.gpu.frames.executor import FrameExecutor
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.program.preparation import BUILDER, Builder
from cml_engine.gpu.shaders import hlsl as steps
from tests.fixtures.frames.host import Host, conv_net, run_net, within

pytestmark = pytest.mark.gpu


@pytest.fixture
def slow(monkeypatch):
    """A set of labels whose pipelines fail to build; each pipeline takes up to 4 ms.

    The test adds labels to the set.
    """
    refused, chance, usual = set(), random.Random(5), Gpu.pipeline

    def pipeline(self, key, make_uniforms):
        time.sleep(0.004 * chance.random())
        if refused & set(key.label.split()):
            raise ShaderCompileError("planted")
        return usual(self, key, make_uniforms)

    monkeypatch.setattr(Gpu, "pipeline", pipeline)
    return refused


def sessions(gpu, count, **options):
    return [cml.Session(conv_net(f"net{k}", seed=k), gpu, **options) for k in range(count)]


@within(60)
def test_slowly_prepared_networks_all_finish(gpu, image, slow):
    """Jobs of slowly prepared networks end with right results, although some are evicted."""
    expected = [run_net(session, image) for session in sessions(gpu, 6)]
    chance, host = random.Random(1), Host(gpu, budget_ms=1.0)
    for _ in range(3):
        nets = sessions(gpu, 6, deferred=True)
        jobs = [host.submit(net, {"x": image}) for net in nets]
        dropped = host.submit(sessions(gpu, 1, deferred=True)[0], {"x": image})
        for turn in range(40):
            host.frame()
            net = chance.choice(nets)
            if turn % 5 == 0 and net.program.evictable:
                net.program.evict()
            if turn == 20:
                dropped.cancel()
                dropped = None
                gc.collect()
            time.sleep(0.001)
        for result, want in zip(host.finish(*jobs), expected, strict=True):
            assert_array_equal(result, want)
    deadline = time.perf_counter() + 240
    while BUILDER.describe().partition("last error")[0] and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert not BUILDER.describe().partition("last error")[0], "the thread has nothing left to do"


@pytest.mark.parametrize("again", ["job", "run"])
@within(60)
def test_failed_pipeline_is_built_again_at_the_next_request(gpu, host, image, slow, again):
    """A failed pipeline fails all jobs that wait for it; the next job or run builds it again.

    Success clears the error message.
    """
    (net,) = sessions(gpu, 1, deferred=True)
    slow.update(net.program._preparation.keys[0].label.split()[:1])
    jobs = [host.submit(net, {"x": image}) for _ in range(3)]
    host.until(lambda: all(job.ended for job in jobs))
    assert {(job.state, job.error) for job in jobs} == {("failed", "planted")}
    assert "last error: 'net0'" in host.scheduler.describe()
    slow.clear()
    if again == "job":
        host.finish(host.submit(net, {"x": image}))
    else:
        net.run({"x": image})
    assert "last error: 'net0'" not in BUILDER.describe()


def test_an_evicted_model_reads_no_kernel_again(gpu, image, monkeypatch):
    (net,) = sessions(gpu, 1)
    expected = run_net(net, image)
    monkeypatch.setattr(steps, "kernel_content", lambda *a: pytest.fail("it read a file"))
    net.program.evict()
    assert_array_equal(run_net(net, image), expected)


def test_builder_describes_current_and_waiting_work():
    builder, descriptions = Builder(), []

    def work():
        builder.begin_item("kernel 'a'")
        descriptions.append(builder.describe())

    def fails():
        builder.begin_item("kernel 'b'")
        raise ValueError("no such thing")

    assert builder.describe() == ""
    futures = [builder.submit("one", work), builder.submit("two", fails)]
    assert futures[0].result(10) is None and isinstance(futures[1].exception(10), ValueError)
    assert descriptions[0].startswith("'one', kernel 'a' for 0.")
    assert builder.describe() == "last error: 'two', kernel 'b': ValueError: no such thing"
    builder.submit("one", work).result(10)
    assert "last error: 'two'" in builder.describe()
    builder.submit("two", work).result(10)
    assert builder.describe() == ""


@within(60)
def test_pipelines_are_built_ahead_where_a_host_asks_for_it(gpu, image, monkeypatch):
    monkeypatch.setattr(gpu, "_pipelines", PipelineCache())
    (session,) = sessions(gpu, 1, deferred=True)
    assert gpu.pipelines_built == 0
    session.build_ahead()
    cml.Session(conv_net("net", seed=1), "cpu").build_ahead()
    program = session.program
    while gpu.pipelines_built < len(set(program._preparation.keys)):
        time.sleep(0.001)
    built = gpu.pipelines_built
    assert not program.ready and built > 0
    session.run({"x": image})
    assert gpu.pipelines_built == built


#: prints the number of files in the driver's cache after a session's preparation and after a run
_FILES_OF_DRIVER = """
import sys, time
from pathlib import Path
import numpy as np
import cml_engine as cml
from tests.fixtures.frames.host import conv_net
gpu = cml.Gpu()
session = cml.Session(conv_net(), gpu)
session.program.load()
files = []
for step in range(2):
    time.sleep(0.5)  # the driver writes in a thread
    files.append(len(list(Path(sys.argv[1]).glob("*/*"))))
    session.run({"x": np.ones((1, 8, 24, 24), np.float32)})
print(*files)
"""


def test_software_driver_compiles_kernels_before_their_first_dispatch(gpu, tmp_path):
    """A run adds no machine code to what the driver has compiled when the session is ready."""
    if "llvmpipe" not in gpu.name:
        pytest.skip("other drivers compile with the pipeline")
    caches = {name: str(tmp_path) for name in ("CML_CACHE_DIR", "MESA_SHADER_CACHE_DIR")}
    caches["MESA_DISK_CACHE_MULTI_FILE"] = "1"  # a file for each kernel
    done = subprocess.run(
        [sys.executable, "-c", _FILES_OF_DRIVER, str(tmp_path / "mesa_shader_cache")],
        env={**os.environ, **caches}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    prepared, run = map(int, done.stdout.split())
    assert 0 < prepared == run


def test_hardware_packs_the_parameters_of_each_step_once(gpu, monkeypatch, set_limits):
    monkeypatch.setattr(gpu, "_pipelines", PipelineCache())
    set_limits(software=False)
    packed, pack = [], steps.ParamBlock.pack
    monkeypatch.setattr(
        steps.ParamBlock, "pack", lambda *block: packed.append(block) or pack(*block)
    )
    (session,) = sessions(gpu, 1)
    session.program.load()
    assert len(packed) == len(session.plan.steps)


@pytest.mark.parametrize("broken", [False, True])
def test_driver_compiles_a_kernel_once_per_machine(image, tmp_path, monkeypatch, broken):
    """A kernel that the driver failed to compile ahead is retried by the next device, and runs."""
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path))
    dispatched, usual = [], Device._dispatch_nothing

    def dispatch(self, *arguments):
        dispatched.append(self)
        if broken:
            raise wgpu.GPUError("planted")
        usual(self, *arguments)

    monkeypatch.setattr(Device, "_dispatch_nothing", dispatch)
    devices = [cml.Gpu() for _ in range(2)]
    for gpu in devices:
        gpu.limits = replace(gpu.limits, software=True)
        (session,) = sessions(gpu, 1)
        expected = run_net(cml.Session(session.graph, "cpu"), image)
        assert_allclose(run_net(session, image), expected, atol=1e-4)
    first, second = (gpu.pipelines_built for gpu in devices)
    assert len(dispatched) == (first + second if broken else first)
    assert not {gpu.device for gpu in devices} & {other.device for other in dispatched}


@within(60)
@pytest.mark.parametrize("evicted", [False, True])
def test_frame_does_not_wait_for_a_run_that_begins_meanwhile(gpu, image, monkeypatch, evicted):
    """A frame does not wait for a run that begins between the readiness check and the job's start.

    It does not load an evicted network at that point either.
    """
    (session,) = sessions(gpu, 1)
    expected = run_net(session, image)
    host, program = Host(gpu), session.program
    began, go_on, reserve = threading.Event(), threading.Event(), FrameExecutor.reserve

    def run():
        with program.residency.lock:
            began.set()
            go_on.wait(30)

    runner = threading.Thread(target=run, daemon=True)

    def late(executor, network, inputs):
        if evicted:
            network.evict()
        else:
            runner.start()
            assert began.wait(10)
        monkeypatch.undo()
        return reserve(executor, network, inputs)

    monkeypatch.setattr(FrameExecutor, "reserve", late)
    job = host.submit(session, {"x": image})
    host.frame()
    assert job.state == "queued" and (program.residency.arena is None) == evicted
    if not evicted:
        assert "another thread" in job.blocked_by
        host.frame()
        go_on.set()
        runner.join(10)
    (result,) = host.finish(job)
    assert_array_equal(result, expected)
