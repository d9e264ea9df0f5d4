"""A network beside an engine that does not render with wgpu: OpenGL, or any other API.

The network has a device of its own, on the same GPU. Its result comes to the CPU some frames later,
without a wait, and the host makes a texture of it: one copy down and one up. An engine on wgpu or
WebGPU needs neither (docs/in_your_engine.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine import FrameScheduler, Job
from examples.plain_loop.summary import Summary

Array = np.ndarray[Any, Any]


class NetworkBeside:
    """Runs a network again and again, a little in every frame.

    Parameters
    ----------
    session : on a :class:`cml_engine.Gpu` of its own.
    output : the result that the host wants.
    inputs : makes the inputs of the next run.
    """

    def __init__(
        self,
        session: cml.Session,
        output: str,
        inputs: Callable[[], Mapping[str, Array]],
        scheduler: FrameScheduler,
    ) -> None:
        assert session.gpu is not None
        self._session, self._output, self._inputs = session, output, inputs
        self._device = session.gpu.device
        self.scheduler = scheduler
        self._job: Job | None = None
        #: frames from the run's end until its result was here, of every run
        self.frames_under_way: list[int] = []
        self._done_since = 0

    def frame(self, summary: Summary) -> Array | None:
        """Call it once per frame: the result of a run that has arrived.
        :class:`cml_engine.CmlError` where the job failed."""
        if self._job is None:
            self._job = self.scheduler.submit(self._session, self._inputs())
        encoder = self._device.create_command_encoder()
        summary.encoded(self.scheduler.encode(encoder))
        self._device.queue.submit([encoder.finish()])
        summary.measured(self.scheduler.end_frame())
        return self._arrived(self._job)

    def _arrived(self, job: Job) -> Array | None:
        if job.state == "failed":
            raise cml.CmlError(job.error)
        if job.state != "done":
            return None
        self._done_since += 1
        found = job.read(self._output)  # asks for it, and is None until it is here
        if found is None:
            return None
        self.frames_under_way.append(self._done_since)
        self._done_since, self._job = 0, None
        return np.asarray(found)


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of CPU that it takes."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)
