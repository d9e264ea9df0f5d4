"""Tests that calls on a lost device raise a ``DeviceError``, or succeed if they need no device."""

import re
from inspect import getmembers

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine import FrameScheduler, Job, ops
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.program import inspect
from cml_engine.gpu.shaders.hlsl import resolve
from cml_engine.gpu.timing.frame_timer import FrameTimer
from tests.fixtures.frames.host import SHAPE, Host, conv_net, open_device
from tests.fixtures.frames.turns import turns
from tests.fixtures.operators import load_expression
from tests.fixtures.texels import texture_of

pytestmark = pytest.mark.gpu

IMAGE = {"x": np.zeros(SHAPE, np.float32)}
USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
TEXT = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 4, 3, 5]);
    s = variable<scalar>(shape = [1, 4, 3, 5], label = 's');
    y = add(x, s);
    u = update(s, y);
}
"""


def calls_on_a_lost_device(timestamps):
    """Returns three dictionaries of calls by the name of the public method.

    The first reach the driver. The second need no device or only release something. The third
    reach the driver on some devices only, such as those with timestamps.
    """
    device = open_device(timestamps)
    gpu = cml.Gpu(device=device)
    session = cml.Session(conv_net(), gpu)
    retaining = cml.Session(conv_net("retaining"), gpu, retain=True)
    session.run(IMAGE), retaining.run(IMAGE)
    deferred = cml.Session(conv_net("deferred", layers=2), gpu, deferred=True)
    zeros = np.zeros((1, 4, 3, 5), np.float32)
    recurrent = cml.Session(cml.load(cml.nnef.MemoryModel(TEXT, {"s": zeros})), gpu)
    plain = cml.Session(load_expression("relu(x)", 1, 4, 3, 5), gpu)
    host = Host(gpu, budget_ms=50.0)
    scheduler = host.scheduler
    job, picture = scheduler.submit(session, IMAGE), scheduler.submit(recurrent, {"x": zeros})
    host.finish(job, picture)
    output, retained = job.tensor("y"), retaining.tensor("y")
    timer, time_run = gpu.frame_timer(("pass",)), session.timer()
    memory = gpu.memory.allocate(256, USAGE, owner="host", category="render")
    texture = texture_of(device, np.zeros((3, 5, 4), np.float32), "rgba32float")
    encoder = device.create_command_encoder()
    device.destroy()

    def frames(session, inputs):
        until_failed(scheduler.submit(session, inputs))

    def until_failed(job):
        """Runs a job like a host that has not noticed the loss, and raises the job's error."""
        for _ in turns():
            scheduler.encode(device.create_command_encoder())
            scheduler.end_frame()
            if job.state == "failed":
                raise cml.DeviceError(job.error)

    def replace():
        session.replace(conv_net(seed=9))
        session.take_replacement()

    reaching = {
        "Session": lambda: cml.Session(conv_net(size=20), gpu),
        "Session deferred": lambda: cml.Session(conv_net(size=28), gpu, deferred=True),
        "Session.run": lambda: session.run(IMAGE),
        "Session.run retaining": lambda: retaining.run({}),
        "Session.run deferred": lambda: deferred.run(IMAGE),
        "Session.run tensor": lambda: session.run({"x": output}),
        "Session.run texture": lambda: recurrent.run({"x": cml.TextureInput(texture)}),
        "Session.run watch": lambda: session.run(IMAGE, watch=lambda *_: None),
        "Session.rank": lambda: session.rank(runs=1),
        "Session.rank_without": lambda: session.rank_without("conv", runs=1),
        "Session.timer": lambda: time_run(),
        "Session.tensor": lambda: retained.read(),
        "Session.replace": replace,
        "Session.take_replacement": replace,
        "Session.reshaped": lambda: plain.reshaped({"x": (1, 4, 5, 5)}),
        "Session.reset": lambda: recurrent.reset(),
        "run_tiled": lambda: cml.run_tiled(
            session, {"x": np.zeros((1, 8, 64, 64), np.float32)}, tile=24, overlap=4
        ),
        "program.measure_at_load": lambda: session.program.measure_at_load(),
        "inspect.run_ranges": lambda: inspect.run_ranges(session.program, IMAGE, [(0, 0, 1)]),
        "inspect.fill_arena": lambda: inspect.fill_arena(session.program, 7),
        "Gpu.executor": lambda: gpu.executor().check(),
        "FrameScheduler": lambda: FrameScheduler(gpu).executor.check(),
        "FrameScheduler.submit": lambda: frames(session, IMAGE),
        "FrameScheduler.submit deferred": lambda: frames(deferred, IMAGE),
        "FrameScheduler.submit tensor": lambda: frames(session, {"x": output}),
        "FrameScheduler.submit texture": lambda: frames(
            recurrent, {"x": cml.TextureInput(texture)}
        ),
        "FrameScheduler.submit_tiled": lambda: until_failed(
            scheduler.submit_tiled(
                session, {"x": np.zeros((1, 8, 64, 64), np.float32)}, tile=24, overlap=4
            )
        ),
        "Job.tensor": lambda: output.read(),
        "Job.wait": lambda: scheduler.submit(session, IMAGE).wait(30),
        "Job.copy_to_texture": lambda: picture.copy_to_texture(encoder, "y", texture, 0.5),
        "Gpu.tensor": lambda: gpu.tensor(
            memory.buffer, memory.offset, ops.Fact("scalar", (4,))
        ).read(),
        "Gpu.build_texture_kernels": lambda: gpu.build_texture_kernels(),
        "Gpu.memory.allocate": lambda: gpu.memory.allocate(
            90 << 20, USAGE, owner="host", category="render"
        ),
        "Gpu.memory.create_texture": lambda: gpu.memory.create_texture(
            owner="host", size=(8, 8, 1), format="rgba8unorm", usage=wgpu.TextureUsage.COPY_DST
        ),
        "Allocation.write": lambda: memory.write(bytes(16)),
    }
    without = {
        "Gpu": lambda: cml.Gpu(device=gpu.device),
        "Gpu.wait": lambda: gpu.wait(),
        "Session.build_ahead": lambda: deferred.build_ahead(),
        "Session.current_program": lambda: session.current_program(),
        "FrameScheduler.describe": lambda: scheduler.describe(),
        "FrameScheduler.abandon_frame": lambda: (
            scheduler.encode(encoder),
            scheduler.abandon_frame(),
        ),
        "FrameTimer.writes": lambda: timer.writes("pass"),
        "FrameTimer.resolve": lambda: timer.resolve(encoder),
        "FrameTimer.end_frame": lambda: [timer.end_frame() for _ in range(5)],
        "FrameTimer.abandon_frame": lambda: timer.abandon_frame(),
        "Job.read": lambda: job.read("y"),
        "Job.release": lambda: job.release(),
        "Allocation.free": lambda: memory.free(),
        "Gpu.memory.stats": lambda: str(gpu.memory.stats()),
        "Session.close": lambda: retaining.close(),
    }
    either = {
        "Gpu.frame_timer": lambda: gpu.frame_timer(("pass",)),
        "Gpu.shader": lambda: gpu.shader(resolve("textures/load.hlsl"), "compute", "main"),
    }
    return reaching, without, either


#: public methods that are covered under other names or do not use the device
OTHERS = {
    "Gpu.pipeline", "Session.check_inputs", "FrameScheduler.encode", "FrameScheduler.end_frame",
    "FrameScheduler.record", "FrameScheduler.resume", "FrameScheduler.submit_periodic",
    "FrameScheduler.forget_periodic", "FrameScheduler.render_took", "FrameScheduler.frame_took",
    "Job.laxity_ms", "Job.require_result", "Job.undo_end", "Job.find_steps",
    "Job.network_step", "Job.cancel", "Job.pause", "Job.resume", "Job.output",
    "Job.add_done_callback", "Job.raise_unless_done", "Job.check_output",
}  # fmt: skip


def message_of(call):
    """Returns the message of the ``DeviceError`` that a call raises; "" if it raises none."""
    try:
        call()
    except cml.DeviceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("timestamps", [True, False], ids=["timestamps", "wall clock"])
def test_every_call_on_a_lost_device_raises_device_error(timestamps):
    reaching, without, either = calls_on_a_lost_device(timestamps)
    tried = {name.split()[0] for name in (*reaching, *without, *either)} | OTHERS
    for kind in (cml.Session, Gpu, FrameScheduler, FrameTimer, Job):
        for name, member in getmembers(kind, callable):
            assert name.startswith("_") or f"{kind.__name__}.{name}" in tried, (kind, member)
    messages = {name: message_of(call) for name, call in (reaching | either).items()}
    told = re.compile("device was lost.*make a new device", re.DOTALL)
    assert [name for name in reaching if not told.search(messages[name])] == []
    assert [name for name, call in without.items() if message_of(call)] == []


def test_jobs_fail_where_the_host_drops_the_frames_of_a_lost_device():
    """A host whose ``finish`` raises calls ``abandon_frame``, and no driver call of a scheduler."""
    device = open_device()
    gpu = cml.Gpu(device=device)
    session = cml.Session(conv_net(), gpu)
    scheduler = FrameScheduler(gpu, budget_ms=50.0)
    job = scheduler.submit(session, IMAGE)
    device.destroy()
    encoder = device.create_command_encoder()
    scheduler.encode(encoder)
    with pytest.raises(wgpu.GPUError):
        encoder.finish()
    scheduler.abandon_frame()
    assert job.state == "failed" and "make a new device" in job.error
    with pytest.raises(cml.DeviceError, match="make a new device"):
        session.run(IMAGE)
