"""The numbers shipped for a device are nearer to its first frames than none at all."""

import math
from statistics import fmean

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.graph import Fact, Graph, Node
from cml_engine.ops import load_families
from cml_engine.passes.infer import infer_facts
from cml_engine.testing import full_attrs
from scheduler import CostModel, FrameScheduler
from scheduler.first_guess import FirstGuess

load_families()


def network(channels, size):
    """Convolutions of two kinds, a pool, an upsampling and functions of one element: of a size
    that the shipped numbers were not made from."""
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


def first_errors(gpu, session, inputs, guess):
    """|log(predicted / measured)| of each step in the first frame that ran it, for a scheduler
    that never saw the network."""
    scheduler = FrameScheduler(gpu, budget_ms=2.0, cost_model=CostModel(guess=guess))
    job = scheduler.submit(session, inputs)
    errors = {}
    for _ in range(4000):
        encoder = gpu.device.create_command_encoder()
        scheduler.encode(encoder)
        gpu.queue.submit([encoder.finish()])
        for report in scheduler.end_frame():
            for part in report.slices:
                if part.measured_ms:
                    error = abs(math.log(part.predicted_ms / part.measured_ms))
                    errors.setdefault(part.step, error)
        if job.ended and len(errors) == len(session.plan.steps):
            return list(errors.values())
    raise AssertionError(f"not all steps were measured: {errors}")


def test_first_predictions_are_better_with_what_is_shipped(gpu):
    guess = FirstGuess.for_device(gpu.name)
    if not guess.kernels or not gpu.has_timestamps:
        pytest.skip("nothing measured is shipped for this device")
    with_it, without = [], []
    for channels, size in ((24, 48), (48, 80)):
        session = cml.Session(network(channels, size), gpu)
        inputs = {"x": np.ones((1, channels, size, size), np.float32)}
        session.run(inputs)
        for _ in range(5):
            without += first_errors(gpu, session, inputs, FirstGuess())
            with_it += first_errors(gpu, session, inputs, guess)
    assert fmean(with_it) < fmean(without)
