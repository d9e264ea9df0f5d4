"""One run of the generator at once and one in slices, and what is to say of both."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

import cml_engine as cml
from examples.stylegan2.parameters import Array
from scheduler import FrameReport, FrameScheduler

#: frames after a job's end in which the last measured times arrive
_DRAIN = 12


@dataclass(frozen=True)
class Sliced:
    """A run in frames: its image, its seconds by the wall clock, the frames with parts of it."""

    image: Array
    seconds: float
    frames: list[FrameReport]

    def __str__(self) -> str:
        """Frames, seconds, and the GPU time of a frame where it could be measured."""
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


def at_once(session: cml.Session, z: Array) -> tuple[Array, float]:
    """The image and the seconds from NumPy to NumPy, of the second of two runs."""
    session.run({"z": z})
    start = time.perf_counter()
    (image,) = session.run({"z": z}).values()
    return image, time.perf_counter() - start


def in_slices(gpu: cml.Gpu, session: cml.Session, z: Array, budget_ms: float) -> Sliced:
    """The same in frames of a host that draws nothing; two runs, the second is told of."""
    scheduler = FrameScheduler(gpu, budget_ms=budget_ms)
    _run(gpu, scheduler, session, z)
    return _run(gpu, scheduler, session, z)


def _run(gpu: cml.Gpu, scheduler: FrameScheduler, session: cml.Session, z: Array) -> Sliced:
    job = scheduler.submit(session, {"z": z})
    (name,) = session.outputs
    frames: list[FrameReport] = []
    image: Array | None = None
    start, seconds, rest = time.perf_counter(), 0.0, _DRAIN
    while rest:
        encoder = gpu.device.create_command_encoder()
        frames.append(scheduler.encode(encoder))
        gpu.queue.submit([encoder.finish()])
        scheduler.end_frame()
        if job.state == "failed":
            raise cml.CmlError(job.error)
        if image is None:
            found = job.read(name) if job.state == "done" else None
            image, seconds = found, time.perf_counter() - start
        else:
            rest -= 1
    return Sliced(np.asarray(image), seconds, [f for f in frames if f.slices])
