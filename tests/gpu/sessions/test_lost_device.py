"""Tests that calls on a lost device raise a ``DeviceError``, or succeed if they need no device."""

import contextlib
from inspect import getmembers

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine import FrameScheduler, Job
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.program import inspect
from cml_engine.gpu.shaders.hlsl import resolve
from cml_engine.gpu.timing.frame_timer import FrameTimer
from tests.fixtures.frames.host import SHAPE, Host, conv_net, open_device
from tests.fixtures.frames.turns import turns
from tests.fixtures.texels import texture_of

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


PLAIN = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 4, 3, 5]);
    y = relu(x);
}
"""


class Lost:
    """A host's sessions, scheduler, jobs and other objects, whose device was lost."""

    def __init__(self, timestamps):
        device = open_device(timestamps)
        self.gpu = gpu = cml.Gpu(device=device)
        self.session = cml.Session(conv_net(), gpu)
        self.session.run(IMAGE)
        self.retaining = cml.Session(conv_net("retaining"), gpu, retain=True)
        self.retaining.run(IMAGE)
        self.deferred = cml.Session(conv_net("deferred", layers=2), gpu, deferred=True)
        zeros = {"s": np.zeros((1, 4, 3, 5), np.float32)}
        self.recurrent = cml.Session(cml.load(cml.MemoryModel(TEXT, zeros)), gpu)
        self.loaded = cml.Session(cml.load(cml.MemoryModel(PLAIN)), gpu)
        host = Host(gpu, budget_ms=50.0)
        self.scheduler = host.scheduler
        self.job = self.scheduler.submit(self.session, IMAGE)
        texels = {"x": np.zeros((1, 4, 3, 5), np.float32)}
        self.picture = self.scheduler.submit(self.recurrent, texels)
        host.finish(self.job, self.picture)
        self.made = self.job.tensor("y")
        self.kept = self.retaining.tensor("y")
        self.timer = gpu.frame_timer(("pass",))
        self.timing = self.session.timer()
        self.memory = gpu.memory.allocate(256, USAGE, owner="host", category="render")
        self.texture = texture_of(device, np.zeros((3, 5, 4), np.float32), "rgba32float")
        self.encoder = device.create_command_encoder()
        device.destroy()

    def frames(self, session, inputs):
        """Runs a job like a host that has not noticed the loss, and raises the job's error."""
        job = self.scheduler.submit(session, inputs)
        for _ in turns():
            self.scheduler.encode(self.gpu.device.create_command_encoder())
            self.scheduler.end_frame()
            if job.state == "failed":
                raise cml.DeviceError(job.error)

    def texture_job(self):
        self.frames(self.recurrent, {"x": cml.TextureInput(self.texture)})


def replace(lost):
    lost.session.replace(conv_net(seed=9))
    lost.session.take_replacement()


#: calls that reach the driver, by the name of the public method
RAISE = {
    "Session": lambda lost: cml.Session(conv_net(size=20), lost.gpu),
    "Session deferred": lambda lost: cml.Session(conv_net(size=28), lost.gpu, deferred=True),
    "Session.run": lambda lost: lost.session.run(IMAGE),
    "Session.run retaining": lambda lost: lost.retaining.run({}),
    "Session.run deferred": lambda lost: lost.deferred.run(IMAGE),
    "Session.run tensor": lambda lost: lost.session.run({"x": lost.made}),
    "Session.run texture": lambda lost: lost.recurrent.run({"x": cml.TextureInput(lost.texture)}),
    "Session.run watch": lambda lost: lost.session.run(IMAGE, watch=lambda *_: None),
    "Session.rank": lambda lost: lost.session.rank(runs=1),
    "Session.rank_without": lambda lost: lost.session.rank_without("conv", runs=1),
    "Session.timer": lambda lost: lost.timing(),
    "Session.tensor": lambda lost: lost.kept.read(),
    "Session.replace": replace,
    "Session.take_replacement": replace,
    "Session.reshaped": lambda lost: lost.loaded.reshaped({"x": (1, 4, 5, 5)}),
    "Session.reset": lambda lost: lost.recurrent.reset(),
    "run_tiled": lambda lost: cml.run_tiled(
        lost.session, {"x": np.zeros((1, 8, 64, 64), np.float32)}, tile=24, overlap=4
    ),
    "program.measure_at_load": lambda lost: lost.session.program.measure_at_load(),
    "inspect.run_ranges": lambda lost: inspect.run_ranges(lost.session.program, IMAGE, [(0, 0, 1)]),
    "inspect.fill_arena": lambda lost: inspect.fill_arena(lost.session.program, 7),
    "Gpu.executor": lambda lost: lost.gpu.executor().check(),
    "FrameScheduler": lambda lost: FrameScheduler(lost.gpu).executor.check(),
    "FrameScheduler.submit": lambda lost: lost.frames(lost.session, IMAGE),
    "FrameScheduler.submit deferred": lambda lost: lost.frames(lost.deferred, IMAGE),
    "FrameScheduler.submit tensor": lambda lost: lost.frames(lost.session, {"x": lost.made}),
    "FrameScheduler.submit texture": Lost.texture_job,
    "Job.tensor": lambda lost: lost.made.read(),
    "Job.wait": lambda lost: lost.scheduler.submit(lost.session, IMAGE).wait(30),
    "Job.copy_to_texture": lambda lost: lost.picture.copy_to_texture(
        lost.encoder, "y", lost.texture, 0.5
    ),
    "Gpu.tensor": lambda lost: lost.gpu.tensor(
        lost.memory.buffer, lost.memory.offset, cml.Fact("scalar", (4,))
    ).read(),
    "Gpu.build_texture_kernels": lambda lost: lost.gpu.build_texture_kernels(),
    "Gpu.memory.allocate": lambda lost: lost.gpu.memory.allocate(
        90 << 20, USAGE, owner="host", category="render"
    ),
    "Gpu.memory.create_texture": lambda lost: lost.gpu.memory.create_texture(
        owner="host", size=(8, 8, 1), format="rgba8unorm", usage=wgpu.TextureUsage.COPY_DST
    ),
    "Allocation.write": lambda lost: lost.memory.write(bytes(16)),
}
#: calls that need no device or only release something, and so succeed
PASS = {
    "Gpu": lambda lost: cml.Gpu(device=lost.gpu.device),
    "Gpu.wait": lambda lost: lost.gpu.wait(),
    "Session.build_ahead": lambda lost: lost.deferred.build_ahead(),
    "FrameScheduler.describe": lambda lost: lost.scheduler.describe(),
    "FrameScheduler.abandon_frame": lambda lost: (
        lost.scheduler.encode(lost.encoder),
        lost.scheduler.abandon_frame(),
    ),
    "FrameTimer.writes": lambda lost: lost.timer.writes("pass"),
    "FrameTimer.resolve": lambda lost: lost.timer.resolve(lost.encoder),
    "FrameTimer.end_frame": lambda lost: [lost.timer.end_frame() for _ in range(5)],
    "FrameTimer.abandon_frame": lambda lost: lost.timer.abandon_frame(),
    "Job.read": lambda lost: lost.job.read("y"),
    "Job.release": lambda lost: lost.job.release(),
    "Allocation.free": lambda lost: lost.memory.free(),
    "Gpu.memory.stats": lambda lost: str(lost.gpu.memory.stats()),
    "Session.close": lambda lost: lost.retaining.close(),
}
#: calls that reach the driver on some devices only, such as those with timestamps
EITHER = {
    "Gpu.frame_timer": lambda lost: lost.gpu.frame_timer(("pass",)),
    "Gpu.shader": lambda lost: lost.gpu.shader(resolve("textures/load.hlsl"), "compute", "main"),
}
#: public methods that are covered under other names or do not use the device
OTHERS = {
    "Gpu.pipeline", "Session.check_inputs", "FrameScheduler.encode", "FrameScheduler.end_frame",
    "FrameScheduler.record", "FrameScheduler.resume", "FrameScheduler.submit_periodic",
    "FrameScheduler.forget_periodic", "FrameScheduler.render_took", "FrameScheduler.frame_took",
    "Job.laxity_ms", "Job.release_inputs", "Job.check_done", "Job.undo_end", "Job.find_steps",
    "Job.network_step", "Job.cancel", "Job.pause", "Job.resume", "Job.output",
    "Job.add_done_callback", "Job.raise_unless_done",
}  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["timestamps", "wall clock"])
def lost(request):
    return Lost(request.param)


@pytest.mark.parametrize("name", [*RAISE, *EITHER, *PASS])
def test_every_call_on_a_lost_device_raises_device_error(lost, name):
    if name in PASS:
        PASS[name](lost)
    elif name in RAISE:
        with pytest.raises(cml.DeviceError, match="device was lost.*make a new device"):
            RAISE[name](lost)
    else:
        with contextlib.suppress(cml.DeviceError):
            EITHER[name](lost)


def test_every_public_method_is_tried():
    tried = {name.split()[0] for name in (*RAISE, *EITHER, *PASS)} | OTHERS
    for kind in (cml.Session, Gpu, FrameScheduler, FrameTimer, Job):
        for name, member in getmembers(kind, callable):
            if not name.startswith("_"):
                assert f"{kind.__name__}.{name}" in tried, (kind, member)
