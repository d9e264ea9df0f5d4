"""Tests that a host's passes are timed without waits and without new objects in a frame."""

import gc

import pytest
import wgpu

import cml_engine as cml
from cml_engine.gpu.timing.timestamp_ring import SLOTS
from tests.fixtures.frames.host import creations
from tests.fixtures.texels import begin_clear, render_target, submitted

pytestmark = pytest.mark.gpu

SHADER = """
@group(0) @binding(0) var<storage, read_write> sums: array<f32>;
override rounds: u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
    var sum = sums[id.x];
    for (var i = 0u; i < rounds; i++) { sum = sum * 0.999 + 0.5; }
    sums[id.x] = sum;
}
"""


#: frames without passes, in which the times of earlier frames arrive
EMPTY = [()] * (SLOTS + 4)


@pytest.fixture
def gpu():
    """A device that has drawn nothing.

    After a draw, llvmpipe writes the timestamp at the beginning of a compute pass too late.
    """
    return cml.Gpu()


@pytest.fixture
def timer(timed_gpu):
    return timed_gpu.frame_timer(("render", "overlay"))


class Passes:
    """A host with a render pass into a texture and a compute pass of ``rounds`` rounds."""

    def __init__(self, gpu):
        self.gpu = gpu
        device = gpu.device
        _, self.view = render_target(device, 64, 64)
        self.sums = device.create_buffer(size=1 << 16, usage=wgpu.BufferUsage.STORAGE)
        self.module = device.create_shader_module(code=SHADER)

    def kernel(self, rounds):
        stage = {"module": self.module, "entry_point": "main", "constants": {"rounds": rounds}}
        pipeline = self.gpu.device.create_compute_pipeline(layout="auto", compute=stage)
        entry = {"binding": 0, "resource": {"buffer": self.sums}}
        group = self.gpu.device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=[entry]
        )
        return pipeline, group

    def compute(self, encoder, writes, kernel):
        work = encoder.begin_compute_pass(timestamp_writes=writes)
        work.set_pipeline(kernel[0])
        work.set_bind_group(0, kernel[1])
        work.dispatch_workgroups(256)
        work.end()

    def frame(self, timer, *passes):
        """Runs a frame of passes; returns the (frame, times) pairs that arrive.

        Each pass is a name of the timer and a kernel, or None for a render pass.
        """
        with submitted(self.gpu) as encoder:
            for name, kernel in passes:
                if kernel is None:
                    begin_clear(encoder, self.view, timestamp_writes=timer.writes(name)).end()
                else:
                    self.compute(encoder, timer.writes(name), kernel)
            timer.resolve(encoder)
        self.gpu.wait()  # a busy machine would leave frames untimed
        return timer.end_frame()

    def run(self, timer, frames):
        """Runs frames of these passes, then empty ones; returns all (frame, times) pairs."""
        return [pair for passes in (*frames, *EMPTY) for pair in self.frame(timer, *passes)]


def test_pass_times_arrive_once_and_in_order(gpu, timer):
    host = Passes(gpu)
    small, large = host.kernel(200), host.kernel(4000)
    arrived = host.run(timer, [(("render", large), ("overlay", small))] * 30)
    assert [frame for frame, _ in arrived] == list(range(30)) and timer.untimed_frames == 0
    ratios = sorted(times["render"] / times["overlay"] for _, times in arrived)
    assert ratios[15] > 2  # twenty times the work; low, since the machine may be busy


def test_one_frame_in_every_n_is_timed(gpu, timer):
    timer = gpu.frame_timer(("render", "overlay"), every=4)
    arrived = Passes(gpu).run(timer, [(("render", None), ("overlay", None))] * 10)
    assert [frame for frame, _ in arrived] == [0, 4, 8] and timer.untimed_frames == 0
    assert all(times.keys() == {"render", "overlay"} for _, times in arrived)
    with pytest.raises(cml.InputError, match="every: wanted a whole number of 1"):
        gpu.frame_timer(("render",), every=0)


def test_passes_that_do_not_run_have_no_time(gpu, timer):
    periods = {"render": 2, "overlay": 3}
    names = [{n for n, period in periods.items() if frame % period == 0} for frame in range(40)]
    arrived = Passes(gpu).run(timer, [[(name, None) for name in some] for some in names])
    assert {frame: set(times) for frame, times in arrived} == {
        frame: some for frame, some in enumerate(names) if some
    }


def test_discarded_frames_report_no_times(gpu, timer):
    """A frame that is abandoned, not resolved, or dropped without notice reports no times."""
    host = Passes(gpu)
    kernel = host.kernel(1000)

    def frame(resolve=True, submitted=True):
        encoder = gpu.device.create_command_encoder()
        host.compute(encoder, timer.writes("render"), kernel)
        if resolve:
            timer.resolve(encoder)
        if submitted:
            gpu.queue.submit([encoder.finish()])
            gpu.wait()

    arrived = []
    for turn in range(40):
        if turn % 4 == 0:
            frame(submitted=False)
            timer.abandon_frame()
            continue
        frame(resolve=turn % 4 != 1, submitted=turn % 4 != 2)
        arrived += timer.end_frame()
    arrived += host.run(timer, [])
    assert [frame for frame, _ in arrived] == [turn for turn in range(40) if turn % 4 == 3]


def test_only_the_frame_with_too_many_passes_is_untimed(gpu, timer):
    arrived = Passes(gpu).run(timer, [[("render", None)] * count for count in (16, 17, 16)])
    assert [frame for frame, _ in arrived] == [0, 2] and timer.untimed_frames == 1


def test_nothing_is_created_in_a_frame(gpu, timer, monkeypatch):
    host = Passes(gpu)
    kernel = host.kernel(10)
    arrived = 0

    def frames(count):
        nonlocal arrived
        for _ in range(count):
            arrived += len(host.frame(timer, ("render", None), ("overlay", kernel)))

    frames(50)
    created = creations(gpu, monkeypatch)
    gc.collect()
    gc.collect()  # frees objects of other tests before the measurement
    before = wgpu.diagnostics.object_counts.get_dict()
    frames(1000)
    gc.collect()
    after = wgpu.diagnostics.object_counts.get_dict()
    assert created == [] and arrived > 1000
    kinds = ("Buffer", "QuerySet", "BindGroup", "ComputePipeline", "Texture")
    assert all(after[k]["count"] <= before[k]["count"] for k in kinds)
