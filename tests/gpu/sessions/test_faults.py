"""Tests of hosts and devices that misbehave.

Each fault leads to a clear error or a pause, never to a hang or a wrong result.
"""

from __future__ import annotations

import gc
import threading
import time
import warnings

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from scheduler.executor import Slice
from tests.fixtures.frames.host import SHAPE, Host, conv_net, open_device, under_way, within
from tests.fixtures.memory import held_bytes


@pytest.fixture
def image(rng):
    return rng.standard_normal(SHAPE).astype(np.float32)


# --- the device


@pytest.mark.parametrize("timestamps", [True, False])
@within(60)
def test_a_device_destroyed_in_the_middle_fails_its_jobs(image, timestamps):
    device = open_device(timestamps)
    gpu = cml.Gpu(device=device)
    session, other = (cml.Session(conv_net(n, seed=k), gpu) for k, n in enumerate("ab"))
    host = Host(gpu, budget_ms=0.05)
    running = host.scheduler.submit(session, {"x": image})
    under_way(host, running)
    queued = host.scheduler.submit(session, {"x": image})
    beside = host.scheduler.submit(other, {"x": image})
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


@within(60)
def test_a_host_that_stops_at_its_own_error_still_learns_of_the_loss(image):
    """The loss is reported although ``finish`` raises first and ``end_frame`` is never reached."""
    device = open_device()
    gpu = cml.Gpu(device=device)
    host = Host(gpu, budget_ms=0.05)
    job = host.scheduler.submit(cml.Session(conv_net(), gpu), {"x": image})
    under_way(host, job)
    encoder, _ = host.encode()
    device.destroy()
    with pytest.raises(wgpu.GPUError):
        host.submit(encoder)
    _, report = host.encode()
    assert report.reason == "device error"
    assert job.state == "failed" and "device was lost" in job.error


@within(60)
def test_a_device_destroyed_before_a_readback_arrived(image):
    device = open_device()
    gpu = cml.Gpu(device=device)
    host = Host(gpu, budget_ms=50.0)
    job = host.scheduler.submit(cml.Session(conv_net(), gpu), {"x": image})
    job.read("y")
    host.until(lambda: job.ended)
    device.destroy()
    with pytest.raises(cml.CmlError, match="device was lost"):
        for _ in range(20):
            host.encode()
            host.scheduler.end_frame()
            assert job.read("y") is None


@within(60)
def test_another_device_goes_on(gpu, image):
    lost = open_device()
    gone = Host(cml.Gpu(device=lost))
    gone.scheduler.submit(cml.Session(conv_net(), gone.gpu), {"x": image})
    gone.frame()
    lost.destroy()
    session = cml.Session(conv_net(), gpu)
    host = Host(gpu)
    (result,) = host.finish(host.scheduler.submit(session, {"x": image}))
    np.testing.assert_array_equal(result, session.run({"x": image})["y"])


@within(60)
def test_an_exhausted_device_fails_the_job_that_wants_more(image):
    """A job that finds no memory fails and names the memory's owners; running jobs go on."""
    gpu = cml.Gpu(device=open_device())
    session = cml.Session(conv_net(), gpu)
    wanted = session.run({"x": image})["y"]
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST
    tiles = gpu.memory.allocate(1 << 20, usage, owner="tiles", category="render")
    host = Host(gpu, budget_ms=0.05)
    job = host.scheduler.submit(session, {"x": image})
    under_way(host, job)
    gpu.memory.budget_bytes = gpu.memory.reserved_bytes + (256 << 10)
    # it waits for the memory that the running job may release, which is not enough
    big = cml.Session(conv_net("big", size=256, seed=3), gpu, deferred=True)
    refused = host.scheduler.submit(big, {"x": np.zeros((1, 8, 256, 256), np.float32)})
    (result,) = host.finish(job)
    np.testing.assert_array_equal(result, wanted)
    host.until(lambda: refused.ended)
    assert refused.state == "failed" and tiles.owner in refused.error and "'big'" in refused.error


# --- the frame loop


@within(60)
def test_a_host_that_skips_frames_and_changes_its_rate(gpu, image):
    session = cml.Session(conv_net(), gpu)
    wanted = session.run({"x": image})["y"]
    host = Host(gpu, budget_ms="spare")
    job = host.scheduler.submit(session, {"x": image}, deadline_ms=50)
    for turn in range(2000):
        host.scheduler.render_took((2.0, 40.0, 15.0)[turn // 7 % 3])
        host.frame()
        if turn % 50 == 0:
            time.sleep(0.05)
        if job.ended and job.read("y") is not None:
            break
    np.testing.assert_array_equal(job.read("y"), wanted)


@within(60)
def test_a_host_that_never_ends_its_frames_pauses_and_is_told(gpu, image):
    session = cml.Session(conv_net(), gpu)
    wanted = session.run({"x": image})["y"]
    host = Host(gpu, budget_ms=0.05)
    job = host.scheduler.submit(session, {"x": image})
    under_way(host, job)
    with pytest.warns(RuntimeWarning, match="without end_frame") as told:
        for _ in range(200):
            encoder, report = host.encode()
            host.submit(encoder)
    assert len(told) == 1 and report.reason == "frame not ended" and job.state == "running"
    host.scheduler.end_frame()
    np.testing.assert_array_equal(host.finish(job)[0], wanted)


@within(60)
def test_two_encodes_before_a_submit_are_one(gpu, image):
    """A second encode starts no job, since its upload would overtake the first one's commands."""
    session = cml.Session(conv_net(layers=1), gpu)
    images = [image, -image, 2 * image]
    wanted = [session.run({"x": x})["y"] for x in images]
    host = Host(gpu, budget_ms=50.0)
    jobs = [host.scheduler.submit(session, {"x": x}) for x in images]
    for _ in range(40):
        first, _ = host.encode()
        second, report = host.encode()
        assert report.reason == "frame not ended" and not report.slices
        host.submit(first, second)
        host.scheduler.end_frame()
    for job, want in zip(jobs, wanted, strict=True):
        host.until(lambda job=job: job.read("y") is not None)
        np.testing.assert_array_equal(job.read("y"), want)


@pytest.mark.parametrize("every", [2, 3, 5])
@within(60)
def test_abandoned_frames_are_encoded_again(gpu, image, every):
    first = cml.Session(conv_net("first"), gpu)
    second = cml.Session(conv_net("second", seed=1), gpu)
    wanted = second.run({"x": first.run({"x": image})["y"]})["y"]
    host = Host(gpu, budget_ms=0.3)
    maker = host.scheduler.submit(first, {"x": image})
    taker = host.scheduler.submit(second, {"x": maker.output("y")})
    for turn in range(2000):
        if turn % every:
            host.frame()
        else:
            host.encode()
            host.scheduler.abandon_frame()
        if taker.ended and taker.read("y") is not None:
            break
    assert taker.state == "done" and taker.progress == 1
    np.testing.assert_array_equal(taker.read("y"), wanted)


@within(60)
def test_abandoned_frames_lose_no_memory_and_no_slot(gpu, image):
    session = cml.Session(conv_net(layers=1), gpu)
    host = Host(gpu, budget_ms=50.0)
    held = held_bytes(gpu)
    for _ in range(40):
        job = host.scheduler.submit(session, {"x": image})
        job.read("y")
        for _ in range(4):
            host.encode()
            host.scheduler.abandon_frame()
        host.finish(job)
        job.release()
    assert gpu.memory.held_bytes == held
    assert host.scheduler.executor.untimed_frames == 0


@pytest.mark.parametrize("timestamps", [True, False])
@within(60)
def test_an_encoder_that_was_dropped_is_noticed(image, timestamps):
    """A dropped encoder is noticed by its missing receipt, and its jobs fail."""
    gpu = cml.Gpu(device=open_device(timestamps))
    one, two = (cml.Session(conv_net(n, seed=k), gpu) for k, n in enumerate(("one", "two")))
    wanted = two.run({"x": image})["y"]
    host = Host(gpu, budget_ms=0.05)
    job = host.scheduler.submit(one, {"x": image})
    under_way(host, job)
    taker = host.scheduler.submit(two, {"x": job.output("y")})
    _, report = host.encode()
    assert report.slices
    host.scheduler.end_frame()
    host.until(lambda: job.ended and taker.ended)
    for _ in range(8):
        host.frame()
    assert job.state == "failed" and "never submitted" in job.error
    assert taker.state == "failed"
    with pytest.raises(cml.InputError, match="abandon_frame"):
        job.tensor("y")
    again = host.scheduler.submit(two, {"x": image})
    np.testing.assert_array_equal(host.finish(again)[0], wanted)


@within(60)
def test_a_dropped_frame_is_noticed_after_its_job_was_done(gpu, image):
    session = cml.Session(conv_net(layers=1), gpu)
    host = Host(gpu, budget_ms=50.0)
    job = host.scheduler.submit(session, {"x": image})
    for _ in range(20):
        encoder, report = host.encode()
        if not report.slices:
            host.submit(encoder)
        host.scheduler.end_frame()
    assert job.state == "failed" and "never submitted" in job.error


@pytest.mark.parametrize("last", [16, 15])
def test_frames_that_never_ran_are_told_where_only_some_are_timed(gpu, last, monkeypatch):
    """Lost frames are reported even if only some frames are timed.

    Receipts come with those of the next timed frame, or two frames after the last one.
    """
    program, executor = cml.Session(conv_net(layers=1), gpu).program, gpu.executor()
    part = Slice(program, 0, 0, 1)
    dropped, abandoned, told, timed = {2, 5, 8, 15}, {4, 6, 11}, [], []
    monkeypatch.setattr(executor, "_lose", told.extend)
    for frame in range(last + 8):
        encoder = gpu.device.create_command_encoder()
        executor.encode(encoder, frame, [[part]] * (frame <= last), timed=frame % 4 == 0)
        if frame in abandoned:
            executor.abandon_frame(frame)
            continue
        if frame not in dropped:
            gpu.queue.submit([encoder.finish()])
        gpu.wait()
        timed += [timing.frame for timing in executor.end_frame(frame)]
    assert told == sorted(dropped) and executor.untimed_frames == 0
    assert timed == ([0, 12, 16][: 2 + (last == 16)] if gpu.has_timestamps else [])


# --- one job among others


@pytest.mark.parametrize("stage", ["prepare", "begin_run", "encode_range", "encode_updates"])
@pytest.mark.parametrize("error", [wgpu.GPUError, KeyError])
@within(60)
def test_what_goes_wrong_in_one_job_is_its_own_error(gpu, image, monkeypatch, stage, error):
    bad, good = (cml.Session(conv_net(n, seed=k), gpu) for k, n in enumerate(("bad", "good")))
    wanted = good.run({"x": image})["y"]
    if stage == "prepare":
        bad.program.evict()

    def fails(*args):
        raise error("planted")

    monkeypatch.setattr(bad.program, stage, fails)
    host = Host(gpu, budget_ms=5.0)
    held = gpu.memory.held_bytes
    jobs = [host.scheduler.submit(session, {"x": image}) for session in (bad, good, bad, good)]
    host.until(lambda: all(job.ended for job in jobs))
    assert [job.state for job in jobs] == ["failed", "done", "failed", "done"]
    assert "planted" in jobs[0].error and "planted" in jobs[2].waiting_for
    for result in host.finish(jobs[1], jobs[3]):
        np.testing.assert_array_equal(result, wanted)
    monkeypatch.undo()
    again = host.scheduler.submit(bad, {"x": image})
    host.finish(again)
    for job in (*jobs, again):
        job.release()
    gc.collect()
    host.frame()
    assert gpu.memory.held_bytes <= held + bad.program.resident_bytes


# --- threads


@within(120)
def test_jobs_come_and_go_from_other_threads(gpu, image):
    sessions = [cml.Session(conv_net(name, seed=k), gpu) for k, name in enumerate("abc")]
    wanted = [session.run({"x": image})["y"] for session in sessions]
    host = Host(gpu, budget_ms=0.5)
    kept, failures, stop = [[] for _ in sessions], [], threading.Event()

    def work(index):
        try:
            for turn in range(25):
                job = host.scheduler.submit(sessions[index], {"x": image}, slot=f"{index}")
                _ = job.eta_ms, job.progress, job.state
                time.sleep(0.002)
                if turn % 3 == 0:
                    job.cancel()
                elif turn % 3 == 1:
                    job.pause()
                    job.resume()
                kept[index].append(job)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(sessions))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        host.frame()
    stop.set()
    assert not failures
    jobs = [job for some in kept for job in some]
    host.until(lambda: all(job.ended for job in jobs))
    assert {job.state for job in jobs} <= {"done", "cancelled"}
    for index, some in enumerate(kept):
        for job in (job for job in some if job.state == "done"):
            host.until(lambda job=job: job.read("y") is not None)
            np.testing.assert_array_equal(job.read("y"), wanted[index])
    assert sum(job.state == "done" for job in jobs) >= len(sessions)


def test_a_hanging_test_would_fail():
    @within(0.05)
    def hangs():
        time.sleep(0.5)

    with pytest.raises(AssertionError, match="hangs"), warnings.catch_warnings():
        hangs()
