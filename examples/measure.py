"""Runs a network at once and in slices, and describes both runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

import numpy as np

import cml_engine as cml
from cml_engine import FrameReport, FrameScheduler

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Inputs: TypeAlias = Mapping[str, Array]

#: frames after a job's end until the last measured times have arrived
_DRAIN = 12


@dataclass(frozen=True)
class Sliced:
    """A run in frames: result, wall-clock seconds, and reports of the frames that ran slices."""

    result: Array
    seconds: float
    frames: list[FrameReport]

    def __str__(self) -> str:
        """Returns a text with the frames, the seconds, and the GPU time per frame if measured."""
        text = f"{self.seconds:.2f} s in {len(self.frames)} frames"
        times = sorted(f.measured_ms for f in self.frames if f.measured_ms is not None)
        if not times:
            return f"{text}, which this device cannot time"
        tail = times[min(len(times) - 1, int(0.99 * len(times)))]
        over = sum(f.over_budget for f in self.frames) / len(times)
        return (
            f"{text}; GPU time per frame: median {median(times):.2f} ms, P99 {tail:.2f} ms, "
            f"largest {times[-1]:.2f} ms, {100 * over:.1f} % over budget"
        )


def at_once(session: cml.Session, inputs: Inputs) -> tuple[Array, float]:
    """Runs the network twice as a whole; returns the only output and the seconds of the second run.

    The time includes upload and readback.
    """
    session.run(inputs)
    start = time.perf_counter()
    (result,) = session.run(inputs).values()
    return result, time.perf_counter() - start


def in_slices(gpu: cml.Gpu, session: cml.Session, inputs: Inputs, budget_ms: float) -> Sliced:
    """Runs the network twice in frames of a host that draws no picture; returns the second run.

    Each frame has ``budget_ms`` of GPU time.
    """
    scheduler = FrameScheduler(gpu, budget_ms=budget_ms)
    _run(gpu, scheduler, session, inputs)
    return _run(gpu, scheduler, session, inputs)


def _run(gpu: cml.Gpu, scheduler: FrameScheduler, session: cml.Session, inputs: Inputs) -> Sliced:
    job = scheduler.submit(session, inputs)
    (name,) = session.outputs
    frames: list[FrameReport] = []
    result: Array | None = None
    start, seconds, rest = time.perf_counter(), 0.0, _DRAIN
    while rest:
        encoder = gpu.device.create_command_encoder()
        frames.append(scheduler.encode(encoder))
        gpu.queue.submit([encoder.finish()])
        scheduler.end_frame()
        if job.state == "failed":
            raise cml.CmlError(job.error)
        if result is None:
            found = job.read(name) if job.state == "done" else None
            result, seconds = found, time.perf_counter() - start
        else:
            rest -= 1
    return Sliced(np.asarray(result), seconds, [f for f in frames if f.slices])
