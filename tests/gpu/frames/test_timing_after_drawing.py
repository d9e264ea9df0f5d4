"""Tests that measured compute times are right on a device that has drawn before.

A device's shipped first guess predicts them better than the default guess.
"""

import math
import time
from itertools import count
from statistics import fmean, median

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import CostModel
from cml_engine.compiler.plan import Slice
from cml_engine.gpu.timing.frame_timer import PassTimer
from cml_engine.scheduler.planning.cost_model import FirstGuess
from cml_engine.scheduler.planning.plan import operators_per_frame
from tests.fixtures.frames.host import Host
from tests.fixtures.graphs import Net
from tests.fixtures.texels import begin_clear, render_target, submitted


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
    host.scheduler.planner = operators_per_frame(100)
    steps, timer, timed = range(len(ran.plan.steps)), PassTimer(drawn_on), []
    for _ in range(12):
        timed.append(sum(timer.time(steps, ran.program.encode_all)))
        host.run(ran, {"x": x}).release()
    measured = [r.measured_ms for r in host.measured if r.measured_ms]
    assert len(measured) > 5
    assert 0.3 < median(measured) / median(timed) < 3


def test_groups_of_slices_are_timed_apart(drawn_on):
    """A group of several dispatches has its own time, and the short one behind it a short time.

    Another order has the same times: none is charged to a neighbour.
    """
    if not drawn_on.has_timestamps:
        pytest.skip("the device has no timestamps")
    ran = session(drawn_on)
    ran.run({"x": np.ones((1, 32, 64, 64), np.float32)})
    costs, executor = ran.program.step_costs(), drawn_on.executor()
    step = max(range(len(costs)), key=lambda i: costs[i].flops * costs[i].groups)
    long = [Slice(ran.program, step, 0, costs[step].groups)] * 2
    short = [Slice(ran.program, step, 0, 1)]
    ratios, frames = [], count()
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
