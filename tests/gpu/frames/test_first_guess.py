"""Tests that a device's shipped first guess predicts times better than the default guess."""

import math
from statistics import fmean, median

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import CostModel
from cml_engine.gpu.timing.frame_timer import PassTimer
from cml_engine.ops import load_families
from scheduler.planning.cost_model import FirstGuess
from tests.fixtures.graphs import Net

load_families()


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
