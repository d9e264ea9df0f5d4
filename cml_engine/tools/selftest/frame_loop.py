"""A frame loop without a picture, for the jobs of a self-test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cml_engine.errors import DeviceError
from cml_engine.ir.graph import Array
from cml_engine.runtime.session import Session
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.plan import FramePlan, FrameState, planned_slice
from cml_engine.testing import SENTINEL

if TYPE_CHECKING:
    from cml_engine.gpu.gpu import Gpu

#: slices of a step
_PARTS = 3
#: frames after which a job is given up
_MOST_FRAMES = 100_000
#: called with the encoder of the frame in which a job is done
Then = Callable[[Any, Job], None]


def one_part(state: FrameState) -> FramePlan:
    """Returns a plan of one slice: a third of a step's workgroups, however fast the device is."""
    if state.prevented_by or not (jobs := state.in_order()):
        return FramePlan((), (), state.prevented_by or state.otherwise)
    job = jobs[0]
    cost = job.costs[job.step]
    count = min(-(-cost.groups // _PARTS), cost.groups - job.group)
    part = planned_slice(state, job, job.step, job.group, count)
    return FramePlan([part], [] if job.running else [job], "budget", by_budget=False)


class FrameLoop:
    """Frames on a device, each with a part of one step of a network."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.scheduler = FrameScheduler(gpu)
        self.scheduler.planner = one_part

    def run(
        self, session: Session, *inputs: Mapping[str, Any], then: Then | None = None
    ) -> list[dict[str, Array]]:
        """Submits a job for each of these inputs, and returns the outputs of each by name.

        ``then`` is called once for each job when it is done. The memory of activations is
        overwritten before, so that no result of an earlier run is left in it. Raises
        :class:`DeviceError` if a job fails.
        """
        from cml_engine.gpu.program import inspect
        from cml_engine.gpu.program.program import GpuProgram

        assert isinstance(session.program, GpuProgram)
        inspect.fill_arena(session.program, SENTINEL)
        jobs = [self.scheduler.submit(session, values) for values in inputs]
        waiting = list(jobs) if then else []
        for _ in range(_MOST_FRAMES):
            encoder = self._gpu.device.create_command_encoder()
            self.scheduler.encode(encoder)
            if failed := next((job for job in jobs if job.state == "failed"), None):
                raise DeviceError(f"a job failed: {failed.error}")
            for job in [job for job in waiting if job.ended]:
                waiting.remove(job)
                if then:
                    then(encoder, job)
            self._gpu.queue.submit([encoder.finish()])
            self.scheduler.end_frame()
            found = [self._read(session, job) for job in jobs]
            if not waiting and all(len(outputs) == len(session.outputs) for outputs in found):
                return found
        raise DeviceError(
            f"jobs of '{session.graph.name}' are not done after {_MOST_FRAMES} frames"
        )

    def _read(self, session: Session, job: Job) -> dict[str, Array]:
        """Returns the outputs of a job that have arrived."""
        read = {name: job.read(name) for name in session.outputs} if job.ended else {}
        return {name: values for name, values in read.items() if values is not None}
