"""Tests that a device's shipped first guess predicts its first frames better than the default."""

import math
from statistics import fmean, median

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import CostModel
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.gpu.timing.timers import PassTimer
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ops import load_families
from cml_engine.tools.testing import full_attrs
from scheduler.planning.first_guess import FirstGuess

load_families()


def network(channels, size):
    """Returns a graph of convolutions, a pool, an upsampling and elementwise functions.

    The shipped numbers were measured at other sizes.
    """
    c = channels
    parts = [
        ("conv", {}, [(c, c, 3, 3), (1, c)]),
        ("relu", {}, []),
        ("conv", {}, [(2 * c, c, 1, 1), (1, 2 * c)]),
        ("sigmoid", {}, []),
        ("max_pool", {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2]}, []),
        ("conv", {"stride": [2, 2]}, [(c, 2 * c, 3, 3), (1, c)]),
        ("nearest_upsample", {"factor": [2, 2]}, []),
        ("transpose", {"axes": [0, 2, 3, 1]}, []),
    ]
    rng = np.random.default_rng(1)
    nodes, weights, tensor = [], {}, "x"
    for k, (op, attrs, shapes) in enumerate(parts):
        names = [f"w{k}.{i}" for i in range(len(shapes))]
        weights |= {
            name: 0.1 * rng.standard_normal(shape, np.float32)
            for name, shape in zip(names, shapes, strict=True)
        }
        out = "y" if k == len(parts) - 1 else f"t{k}"
        nodes.append(Node(op, (tensor, *names), (out,), full_attrs(op, attrs)))
        tensor = out
    facts = {"x": Fact("scalar", (1, c, size, size))}
    facts |= {name: Fact("scalar", w.shape) for name, w in weights.items()}
    return infer_facts(Graph("net", ("x",), ("y",), tuple(nodes), facts, weights))


def errors(session, guess, took_ms):
    """Returns the absolute log ratio between each step's first prediction and its time."""
    model = CostModel(guess=guess)
    return [
        abs(math.log(model.predict_ms(cost, cost.groups) / ms))
        for cost, ms in zip(session.program.step_costs(), took_ms, strict=True)
    ]


def test_first_predictions_are_better_with_what_is_shipped(gpu):
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
