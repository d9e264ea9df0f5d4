"""Periodic jobs, which the scheduler submits again after every period."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from scheduler.jobs.job import Job

if TYPE_CHECKING:
    from cml_engine.runtime.session import Session
    from scheduler.executor import Network


class Submitter(Protocol):
    """The interface of a scheduler as its periodic jobs use it."""

    @property
    def submit(self) -> Callable[..., Job]: ...
    def forget_periodic(self, periodic: Periodic) -> None: ...


@dataclass
class Periodic:
    """A network run every ``period_ms``, created by :meth:`FrameScheduler.submit_periodic`.

    Its jobs share a slot: a run that still waits when the next is due is superseded, so a device
    that cannot keep up skips runs instead of queueing them. ``latest`` is the newest job that is
    done; its outputs are kept until the next job is done.

    If ``make_inputs`` raises, or its inputs are refused, the periodic job stops: :attr:`stopped` is
    True and :attr:`error` has the reason. The frame and the other jobs continue.
    """

    scheduler: Submitter
    session: Session | Network | None
    make_inputs: Callable[[], Mapping[str, object]] | None
    period_ms: float
    priority: float
    name: str | None
    slot: str
    next_ms: float
    stopped: bool = False
    error: str = ""
    _latest: Job | None = None
    _under_way: list[Job] = field(default_factory=list)
    #: a host may inspect or stop the object while a frame submits the next run
    _lock: Lock = field(default_factory=Lock)

    @property
    def latest(self) -> Job | None:
        """The newest job that is done; None before the first."""
        with self._lock:
            under_way = []
            for job in self._under_way:
                if not job.ended:
                    under_way.append(job)
                elif job.state == "done":
                    self._latest = job
            self._under_way = under_way
            return self._latest

    def due(self, now_ms: float) -> None:
        """Submits the next run if its time has come; runs that were missed are skipped."""
        _ = self.latest  # drops ended jobs
        with self._lock:
            session, make_inputs = self.session, self.make_inputs
        if session is None or make_inputs is None or now_ms < self.next_ms:
            return
        missed = (now_ms - self.next_ms) // self.period_ms
        self.next_ms += (missed + 1) * self.period_ms
        try:
            job = self.scheduler.submit(
                session, make_inputs(), priority=self.priority, deadline_ms=self.period_ms,
                name=self.name, slot=self.slot,
            )  # fmt: skip
        except Exception as error:  # the host's own code, in the middle of a frame
            name = self.name or "job"
            self.error = (
                f"periodic job '{name}': its inputs could not be made, it is stopped: "
                f"{type(error).__name__}: {error}"
            )
            self.stop()
            return
        with self._lock:
            self._under_way.append(job)

    def stop(self) -> None:
        """Stops further runs and drops the session; a run that has begun continues."""
        with self._lock:
            self.stopped = True
            self.session = self.make_inputs = None
        self.scheduler.forget_periodic(self)
