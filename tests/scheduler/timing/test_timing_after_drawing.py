"""Tests that measured compute times are right on a device that draws, before and around them.

A device's shipped first guess predicts them better than the default guess.
"""

import math
import time
from itertools import count
from statistics import fmean, median

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine.compiler.plan import Slice
from cml_engine.gpu.timing.frame_timer import PassTimer
from cml_engine.scheduler import CostModel
from cml_engine.scheduler.planning.cost_model import FirstGuess
from cml_engine.scheduler.planning.plan import operators_per_frame
from tests.fixtures.frames.host import Host
from tests.fixtures.graphs import Net
from tests.fixtures.texels import begin_clear, render_target, submitted

pytestmark = pytest.mark.gpu


@pytest.fixture
def drawn_on(timed_gpu):
    """The suite's device after a render pass."""
    _, view = render_target(timed_gpu.device, 64, 64)
    with submitted(timed_gpu) as encoder:
        begin_clear(encoder, view).end()
    return timed_gpu


def session(gpu):
    """Returns a session whose run takes some milliseconds."""
    net = Net(1, 32, 64, 64)
    return cml.Session(net.graph(net.conv(net.conv("x", 64, 5), 4, 1)), gpu)


def wall_ms(ran, x):
    """Returns the wall-clock milliseconds of one run of a session."""
    start = time.perf_counter()
    ran.run({"x": x})
    return 1e3 * (time.perf_counter() - start)


def test_step_times_sum_to_the_run_time(drawn_on):
    """The best of a dozen alternating runs is compared: other load only makes a run slower."""
    ran = session(drawn_on)
    x = np.ones((1, 32, 64, 64), np.float32)
    steps, timer = range(len(ran.plan.steps)), PassTimer(drawn_on)
    alone, timed = [], []
    for _ in range(12):
        alone.append(wall_ms(ran, x))
        timed.append(sum(timer.time(steps, ran.program.encode_all)))
    assert 0.3 < min(timed) / min(alone) < 3


def test_frame_time_is_the_sum_of_its_slices(drawn_on):
    ran = session(drawn_on)
    x = np.ones((1, 32, 64, 64), np.float32)
    ran.run({"x": x})
    host = Host(drawn_on, budget_ms=1000.0)
    host.scheduler.planner, host.scheduler.times_all = operators_per_frame(100), True
    steps, timer, timed = range(len(ran.plan.steps)), PassTimer(drawn_on), []
    for _ in range(12):
        timed.append(sum(timer.time(steps, ran.program.encode_all)))
        host.run(ran, {"x": x}).release()
    measured = [r.measured_ms for r in host.measured if r.measured_ms]
    assert len(measured) > 5
    assert 0.3 < median(measured) / median(timed) < 3


def long_and_short(ran):
    """Returns two groups of slices of a session's longest step: all of it twice, and a part."""
    costs = ran.program.step_costs()
    step = max(range(len(costs)), key=lambda i: costs[i].flops * costs[i].groups)
    return [Slice(ran.program, step, 0, costs[step].groups)] * 2, [Slice(ran.program, step, 0, 1)]


def test_groups_of_slices_are_timed_apart(drawn_on):
    """A long group of dispatches is timed as long, and a short group after it as short.

    Another order has the same times: none is charged to a neighbour.
    """
    if not drawn_on.has_timestamps:
        pytest.skip("the device has no timestamps")
    ran = session(drawn_on)
    ran.run({"x": np.ones((1, 32, 64, 64), np.float32)})
    long, short = long_and_short(ran)
    executor, ratios, frames = drawn_on.executor(), [], count()
    for groups in ([long, short, long, short], [short, short, long, long]):
        times = [[] for _ in groups]
        for _ in range(11):
            frame = next(frames)
            with submitted(drawn_on) as encoder:
                executor.encode(encoder, frame, groups)
            drawn_on.wait()
            for timing in executor.end_frame(frame):
                times[timing.group].append(timing.ms)
        by_length = {True: [], False: []}
        for group, ms in zip(groups, times, strict=True):
            by_length[group is long].append(median(ms))
        ratios.append((max(by_length[False]), min(by_length[True])))
    assert all(short_ms < 0.5 * long_ms for short_ms, long_ms in ratios)


SCENE = """
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {
    return vec4f(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.5, 1.0);
}
@fragment fn shade(@builtin(position) at: vec4f) -> @location(0) vec4f {
    var sum = at.x * 0.01;
    for (var i = 0; i < 12; i++) { sum = sin(sum) * 1.1 + at.y * 0.001; }
    return vec4f(sum, fract(3.0 * sum), 0.5, 1.0);
}
"""


class Scene:
    """Render passes of 640 x 360 pixels that take llvmpipe several milliseconds each."""

    def __init__(self, gpu, samples=1):
        device = gpu.device
        module = device.create_shader_module(code=SCENE)
        self.pipeline = device.create_render_pipeline(
            layout="auto",
            vertex={"module": module, "entry_point": "corner"},
            fragment={
                "module": module,
                "entry_point": "shade",
                "targets": [{"format": "rgba8unorm"}],
            },
            primitive={"topology": "triangle-list"},
            multisample={"count": samples},
        )
        usage, size = wgpu.TextureUsage.RENDER_ATTACHMENT, (640, 360, 1)
        self.views = [
            device.create_texture(
                size=size, format="rgba8unorm", sample_count=count, usage=usage
            ).create_view()
            for count in sorted({samples, 1}, reverse=True)
        ]

    def draw(self, encoder, passes=1):
        for _ in range(passes):
            target = {"view": self.views[0], "load_op": "clear", "store_op": "store"}
            if len(self.views) > 1:
                target["resolve_target"] = self.views[1]
            render = encoder.begin_render_pass(color_attachments=[target])
            render.set_pipeline(self.pipeline)
            render.draw(3)
            render.end()


@pytest.mark.parametrize(
    ("where", "passes", "samples"),
    [
        ("before", 1, 1),
        ("before", 4, 1),
        ("before", 1, 4),
        ("submitted before", 2, 1),
        ("around", 1, 1),
    ],
)
def test_drawing_is_not_part_of_the_times_of_slices(timed_gpu, where, passes, samples):
    """Frames that draw, as pygfx does, alternate with frames that draw nothing.

    A group of slices takes as long in both, and a long group longer than a short one, though a
    drawing takes longer than either.
    """
    if not timed_gpu.has_timestamps:
        pytest.skip("the device has no timestamps")
    ran, scene = session(timed_gpu), Scene(timed_gpu, samples)
    ran.run({"x": np.ones((1, 32, 64, 64), np.float32)})
    long, short = long_and_short(ran)
    executor, groups = timed_gpu.executor(), [long, short, long, short]
    times = {True: [[] for _ in groups], False: [[] for _ in groups]}
    for frame in range(30):
        draws = frame % 2 == 0
        if draws and where == "submitted before":
            with submitted(timed_gpu) as picture:
                scene.draw(picture, passes)
        with submitted(timed_gpu) as encoder:
            if draws and where in ("before", "around"):
                scene.draw(encoder, passes)
            executor.encode(encoder, frame, groups)
            if draws and where == "around":
                scene.draw(encoder, passes)
        timed_gpu.wait()
        for timing in executor.end_frame(frame):
            times[timing.frame % 2 == 0][timing.group].append(timing.ms)
    drawn, alone = ([median(ms) for ms in times[draws]] for draws in (True, False))
    assert max(drawn[1::2]) < 0.5 * min(drawn[::2]), drawn
    assert all(1 / 3 < drawn[i] / alone[i] < 3 for i in (0, 2)), (drawn, alone)


def network(channels, size):
    """Returns a graph of convolutions, a pool, an upsampling and elementwise functions.

    Its sizes differ from those at which the shipped numbers were measured.
    """
    net, wide = Net(1, channels, size, size), 2 * channels
    h = net(f"sigmoid(conv(relu(conv(x, {channels})), {wide}, 1))")
    h = net(f"max_pool({h}, size=[1, 1, 2, 2], stride=[1, 1, 2, 2])")
    h = net(f"nearest_upsample(conv({h}, {channels}, stride=[2, 2]), factor=[2, 2])")
    return net.graph(f"transpose({h}, axes=[0, 2, 3, 1])")


def errors(session, guess, took_ms):
    """Returns a list with the absolute log ratio of each step's prediction to its measured time."""
    model = CostModel(guess=guess)
    return [
        abs(math.log(model.predict_ms(cost, cost.groups) / ms))
        for cost, ms in zip(session.program.step_costs(), took_ms, strict=True)
    ]


def test_shipped_costs_improve_first_predictions(gpu):
    guess = FirstGuess.for_device(gpu.name)
    if not guess.kernels or not gpu.has_timestamps:
        pytest.skip("nothing measured is shipped for this device")
    with_it, without = [], []
    for channels, size in ((24, 48), (48, 80)):
        session = cml.Session(network(channels, size), gpu)
        session.run({"x": np.ones((1, channels, size, size), np.float32)})
        timer, steps = PassTimer(gpu), range(len(session.plan.steps))
        runs = [timer.time(steps, session.program.encode_all) for _ in range(25)]
        took_ms = [median(times) for times in zip(*runs, strict=True)]
        with_it += errors(session, guess, took_ms)
        without += errors(session, FirstGuess(), took_ms)
    assert fmean(with_it) < fmean(without)
