"""A network beside an engine that does not render with wgpu: OpenGL, or any other API.

The network has a separate device on the same GPU. Its result reaches the CPU some frames later,
without a wait, and the host uploads it to a texture: one copy down and one up. An engine on wgpu or
WebGPU needs neither (docs/in_your_engine.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

import cml_engine as cml
from cml_engine import FrameScheduler, Job
from examples.plain_loop.summary import Summary

Array = NDArray[np.float32]


class NetworkBeside:
    """Runs a network repeatedly, a part in every frame.

    Parameters
    ----------
    session : a session on a separate :class:`cml_engine.Gpu`.
    output : the name of the output that the host uses.
    inputs : a function that returns the inputs of the next run.
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
        #: for every run, the number of frames from its end until its result arrived
        self.frames_under_way: list[int] = []
        self._done_since = 0

    def frame(self, summary: Summary) -> Array | None:
        """Encodes and submits a frame of the network; returns an output that has arrived.

        Returns None in other frames. Call it once per frame: it starts the next run after a
        result. ``summary`` receives the frame's reports. Raises :class:`cml_engine.CmlError` if
        the job failed.
        """
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
        output = job.read(self._output)  # requests a readback; None until it has arrived
        if output is None:
            return None
        self.frames_under_way.append(self._done_since)
        self._done_since, self._job = 0, None
        return np.asarray(output)


def timed(work: Callable[[], object]) -> float:
    """Calls ``work`` and returns its wall-clock milliseconds."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)
