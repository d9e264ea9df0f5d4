"""Tests that sessions, schedulers and devices refuse arguments of a wrong type with clear errors.

Every parameter of every public call is tried with a table of wrong values.
"""

import warnings
from decimal import Decimal
from fractions import Fraction
from inspect import signature

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine import ops
from tests.fixtures.frames.host import SHAPE, Host, conv_net

pytestmark = pytest.mark.gpu

IMAGE = np.zeros(SHAPE, np.float32)
WIDE = {"x": np.zeros((1, 8, 48, 48), np.float32)}


class Odd:
    """A type that no parameter accepts."""


WRONG = (
    None, 3, -1, 0, 2.5, float("nan"), float("inf"), 10**400, "text", b"bytes", True, [], [1],
    ["x"], (), {}, {"x": None}, {"x": Odd()}, {"x": "text"}, {"x": [["a"]]}, {3: IMAGE},
    {"x": IMAGE, "zz": IMAGE}, {"x": [[1, 2], [3]]}, Odd(), Decimal(2), Decimal("nan"),
    Fraction(1, 3), np.float32(3), np.array(2.0), np.zeros(3), 1j, {"x"}, iter([1]),
)  # fmt: skip


def calls(gpu):
    """Returns the public calls by name, each as a function and arguments that it accepts."""
    session, on_cpu = (cml.Session(conv_net(), backend) for backend in (gpu, "cpu"))
    host = Host(gpu, budget_ms=50.0)
    scheduler = host.scheduler
    job = scheduler.submit(session, {"x": IMAGE})
    host.finish(job)
    encoder, timer = gpu.device.create_command_encoder(), gpu.frame_timer(["pass"])
    buffer = gpu.device.create_buffer(size=64, usage=wgpu.BufferUsage.COPY_SRC)
    found = {
        "FrameScheduler": (cml.FrameScheduler, {"gpu": gpu}),
        "submit": (scheduler.submit, {"session": session, "inputs": {"x": IMAGE}}),
        "submit_periodic": (
            scheduler.submit_periodic,
            {"session": session, "make_inputs": dict, "period_ms": 9.0},
        ),
        "resume": (scheduler.resume, {}),
        "encode": (scheduler.encode, {"encoder": encoder}),
        "render_took": (scheduler.render_took, {}),
        "frame_took": (scheduler.frame_took, {}),
        "submit_tiled": (
            scheduler.submit_tiled,
            {"session": session, "inputs": WIDE, "tile": 24, "overlap": 2},
        ),
        "run_tiled": (
            cml.run_tiled, {"session": session, "inputs": WIDE, "tile": 24, "overlap": 2},
        ),
        "read": (job.read, {}),
        "tensor": (job.tensor, {}),
        "output": (lambda name: scheduler.submit(session, {"x": job.output(name)}), {}),
        "copy_to_texture": (job.copy_to_texture, {"encoder": encoder, "name": "y", "texture": 0}),
        "Session": (cml.Session, {"graph": conv_net(), "backend": "cpu"}),
        "Gpu": (cml.Gpu, {}),
        "frame_timer": (gpu.frame_timer, {"names": ["pass"]}),
        "writes": (timer.writes, {}),
        "gpu.tensor": (
            gpu.tensor, {"buffer": buffer, "offset": 0, "fact": ops.Fact("scalar", (2,))},
        ),
        "allocate": (
            lambda nbytes, usage, owner, category, alignment=None: gpu.memory.allocate(
                nbytes, usage, owner=owner, category=category, alignment=alignment
            ).free(),
            {"nbytes": 64, "usage": 128, "owner": "a", "category": "render"},
        ),
    }  # fmt: skip
    for some in (session, on_cpu):
        for method in ("run", "reshaped", "rank", "timer", "tensor", "replace"):
            valid = {"inputs": {"x": IMAGE}} if method in ("run", "rank") else {}
            found[f"{some.backend} {method}"] = getattr(some, method), valid
    found["gpu rank_without"] = session.rank_without, {"operator": "conv", "runs": 1}
    return found


def test_every_public_parameter_refuses_wrong_types(gpu):
    told = []
    for name, (call, valid) in calls(gpu).items():
        for parameter in signature(call).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            for value in WRONG:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        result = call(**{**valid, parameter.name: value})
                        if isinstance(result, cml.FrameScheduler):
                            result.submit(cml.Session(conv_net(), gpu), {"x": IMAGE})
                            result._run_frame()
                            result.describe()
                except cml.CmlError as error:
                    assert str(error)
                except Exception as error:
                    told.append(f"{name}, {parameter.name}={value!r}: {type(error)}: {error}")
    assert not told, "\n".join(told)
