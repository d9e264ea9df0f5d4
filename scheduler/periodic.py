"""Jobs that come again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.frame_scheduler import FrameScheduler
    from scheduler.job import Job


@dataclass
class Periodic:
    """A run every ``period_ms``, made by :meth:`FrameScheduler.submit_periodic`.

    Its jobs share a slot: a run that is still waiting when the next is due is superseded, so a
    device that cannot keep up skips runs instead of piling them up. ``latest`` is the newest job
    that is done: its outputs hold until the next one is.

    Where ``make_inputs`` raises, or its inputs are refused, the job ends there: :attr:`stopped`,
    with the reason in :attr:`error`. The frame and the other jobs go on.
    """

    scheduler: FrameScheduler
    session: Any
    make_inputs: Callable[[], Mapping[str, Any]]
    period_ms: float
    options: dict[str, Any] = field(default_factory=dict)
    next_ms: float = 0.0
    stopped: bool = False
    error: str = ""
    latest: Job | None = None
    _under_way: list[Job] = field(default_factory=list)

    def due(self, now_ms: float) -> None:
        """Submit the next run if its time has come; a host that was away does not get all that
        it missed."""
        for job in self._under_way:
            if job.state == "done":
                self.latest = job
        self._under_way = [job for job in self._under_way if not job.ended]
        if self.stopped or now_ms < self.next_ms:
            return
        missed = (now_ms - self.next_ms) // self.period_ms
        self.next_ms += (missed + 1) * self.period_ms
        try:
            job = self.scheduler.submit(self.session, self.make_inputs(), **self.options)
        except Exception as error:  # the host's own code, in the middle of a frame
            network = getattr(self.session, "program", self.session)
            name = self.options.get("name") or getattr(network, "name", "job")
            self.error = (
                f"periodic job '{name}': its inputs could not be made, it is stopped: "
                f"{type(error).__name__}: {error}"
            )
            self.stop()
            return
        self._under_way.append(job)

    def stop(self) -> None:
        """No more runs; the one under way goes on."""
        self.stopped = True
