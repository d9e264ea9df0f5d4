"""Tests of hosts and devices that misbehave.

Each fault leads to a clear error or a pause, never to a hang or a wrong result.
"""

import gc

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_array_equal

import cml_engine as cml
from tests.fixtures.frames.host import Host, conv_net, open_device, run_net, under_way, within

pytestmark = pytest.mark.gpu

# --- the device


@pytest.mark.parametrize("timestamps", [True, False])
@within(60)
def test_a_device_destroyed_in_the_middle_fails_its_jobs(image, timestamps):
    device = open_device(timestamps)
    gpu = cml.Gpu(device=device)
    session, other = (cml.Session(conv_net(n, seed=k), gpu) for k, n in enumerate("ab"))
    host = Host(gpu, budget_ms=0.05)
    running = host.submit(session, {"x": image})
    under_way(host, running)
    queued = host.submit(session, {"x": image})
    beside = host.submit(other, {"x": image})
    device.destroy()
    for _ in range(20):
        _, report = host.encode()
        host.scheduler.end_frame()
    for job in (running, queued, beside):
        assert job.state == "failed" and "device was lost" in job.error
        with pytest.raises(cml.InputError, match="device was lost"):
            job.read("y")
    assert report.reason in ("nothing to do", "device error")
    with pytest.raises(cml.DeviceError, match="was lost.*make a new device"):
        session.run({"x": image})
    with pytest.raises(cml.DeviceError, match="was lost"):
        cml.Session(conv_net("new", seed=9), gpu)


@pytest.fixture
def lone_job(image):
    """A host on a device of its own, and a job of one session."""
    gpu = cml.Gpu(device=open_device())
    host = Host(gpu, budget_ms=0.05)
    return host, host.submit(cml.Session(conv_net(), gpu), {"x": image})


@within(60)
def test_job_fails_on_a_lost_device_although_submit_raised(lone_job):
    """A job fails because the device is lost, although the host's submit raised and ended no
    frame."""
    host, job = lone_job
    under_way(host, job)
    encoder, _ = host.encode()
    host.gpu.device.destroy()
    with pytest.raises(wgpu.GPUError):
        host.gpu.queue.submit([encoder.finish()])
    _, report = host.encode()
    assert report.reason == "device error"
    assert job.state == "failed" and "device was lost" in job.error


@within(60)
def test_a_device_destroyed_before_a_readback_arrived(lone_job):
    host, job = lone_job
    job.read("y")
    host.until(lambda: job.ended)
    host.gpu.device.destroy()
    with pytest.raises(cml.CmlError, match="device was lost"):
        for _ in range(20):
            host.encode()
            host.scheduler.end_frame()
            assert job.read("y") is None


@within(60)
def test_exhausted_memory_fails_only_the_requesting_job(image):
    """A job that finds no memory fails with a list of the memory's owners; the running job ends
    right."""
    gpu = cml.Gpu(device=open_device())
    session = cml.Session(conv_net(), gpu)
    expected = run_net(session, image)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST
    tiles = gpu.memory.allocate(1 << 20, usage, owner="tiles", category="render")
    host = Host(gpu, budget_ms=0.05)
    job = host.submit(session, {"x": image})
    under_way(host, job)
    gpu.memory.budget_bytes = gpu.memory.reserved_bytes + (256 << 10)
    # it waits for the memory that the running job may release, which is not enough
    big = cml.Session(conv_net("big", size=256, seed=3), gpu, deferred=True)
    refused = host.submit(big, {"x": np.zeros((1, 8, 256, 256), np.float32)})
    (result,) = host.finish(job)
    assert_array_equal(result, expected)
    host.until(lambda: refused.ended)
    assert refused.state == "failed" and tiles.owner in refused.error and "'big'" in refused.error


# --- one job among others


@pytest.mark.parametrize("stage", ["prepare", "begin", "dispatches", "encode_updates"])
@pytest.mark.parametrize("error", [wgpu.GPUError, KeyError])
@within(60)
def test_error_in_one_job_does_not_affect_others(gpu, host, image, monkeypatch, stage, error):
    bad, good = (cml.Session(conv_net(n, seed=k), gpu) for k, n in enumerate(("bad", "good")))
    expected = run_net(good, image)
    if stage == "prepare":
        bad.program.evict()

    def fails(*args):
        raise error("planted")

    monkeypatch.setattr(bad.program, stage, fails)
    held = gpu.memory.held_bytes
    jobs = [host.submit(session, {"x": image}) for session in (bad, good, bad, good)]
    host.until(lambda: all(job.ended for job in jobs))
    assert [job.state for job in jobs] == ["failed", "done", "failed", "done"]
    assert "planted" in jobs[0].error and "planted" in jobs[2].waiting_for
    for result in host.finish(jobs[1], jobs[3]):
        assert_array_equal(result, expected)
    monkeypatch.undo()
    again = host.submit(bad, {"x": image})
    host.finish(again)
    for job in (*jobs, again):
        job.release()
    gc.collect()
    host.frame()
    resident = sum(part.nbytes for part in bad.program.resident)
    assert gpu.memory.held_bytes <= held + resident
