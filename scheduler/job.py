"""One run of a network, spread over frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from scheduler.cost_model import CostModel
from scheduler.executor import Network, Slice, StepCost
from scheduler.status import waiting_for

if TYPE_CHECKING:
    from scheduler.frame_scheduler import FrameScheduler

State = Literal["queued", "running", "done", "cancelled", "failed"]
#: a kernel never measured before gets this share of the time: the guess may be off by its inverse
_PROBE_SHARE = 0.25
ENDED: frozenset[str] = frozenset({"done", "cancelled", "failed"})
#: jobs of several schedulers may take each other's outputs, so this is not a scheduler's own
_takers_lock = Lock()


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A tensor that a job will have made: give it as another job's input, which then waits for
    it and takes it on the GPU."""

    job: Job
    name: str


class _Gone:
    """The network of a job that has ended: whoever keeps the job keeps no session alive."""

    ready, exclusive_group = False, None

    def step_costs(self) -> Sequence[StepCost]:
        return ()

    def prepare(self, budget_ms: float) -> None: ...


@dataclass(eq=False)
class Job:
    """A submitted run. :attr:`state`, :attr:`progress`, :attr:`eta_ms` and :attr:`waiting_for` may
    be read at any time; :meth:`tensor` and :meth:`read` give the outputs once it is done."""

    number: int
    network: Network
    #: what it still needs; empty once they are in the network's memory, and when it has ended
    inputs: Mapping[str, Any]
    priority: float
    submitted_ms: float
    deadline_at_ms: float | None
    name: str
    slot: str | None
    scheduler: FrameScheduler = field(repr=False)
    state: State = "queued"
    paused: bool = False
    error: str = ""
    #: where it is: the step, and how many of its workgroups are done
    step: int = 0
    group: int = 0
    started_ms: float | None = None
    ended_ms: float | None = None
    ended_frame: int | None = None
    #: GPU time that it was given so far, as predicted, and the same over its priority
    given_ms: float = 0.0
    virtual_ms: float = 0.0
    last_served_ms: float = 0.0
    result: Any = None
    wants_read: bool = False
    #: why a readback will not come
    read_error: Exception | None = None
    #: why it could not start in the frame before, where that is not for ever
    held_up: str = ""
    costs: tuple[StepCost, ...] = ()
    #: numbers of the jobs whose outputs it took
    needs: tuple[int, ...] = ()
    _takers: int = 0
    _released: bool = False

    # --- what a game looks at

    @property
    def progress(self) -> float:
        """Share of its work that has been encoded, 0 to 1, by predicted time."""
        if self.state == "done":
            return 1.0
        total = self.remaining_ms + self.given_ms
        return self.given_ms / total if total > 0 else 0.0

    @property
    def eta_ms(self) -> float:
        """Milliseconds from now to its end if nothing else is submitted; 0 once ended."""
        return self.scheduler.eta_ms(self)

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def idle(self) -> bool:
        """Whether it has no share of its own, only what the others leave (priority 0)."""
        return self.priority == 0

    def output(self, name: str) -> JobOutput:
        """The future tensor, as an input for another job."""
        return JobOutput(self, name)

    def tensor(self, name: str) -> Any:
        """The output on the GPU, without a readback. Raises where the job is not done."""
        self.need_done(name)
        return self.scheduler.executor.tensor(self.result, name)

    @property
    def waiting_for(self) -> str:
        """Its state and what it waits for, in a line of text for people."""
        return waiting_for(self)

    def read(self, name: str) -> Any:
        """The output as a NumPy array, or None until it has arrived: the copy goes with the next
        frame, and arrives some frames later. Raises where the job was cancelled or failed."""
        return self.scheduler.read(self, name)

    def cancel(self) -> None:
        """Stop at the next slice; nothing of it runs any more."""
        self.scheduler.end(self, "cancelled")

    def pause(self) -> None:
        """Keep its place and its memory, run nothing of it until :meth:`resume`."""
        self.scheduler.pause(self, True)

    def resume(self) -> None:
        """Run on after :meth:`pause`."""
        self.scheduler.pause(self, False)

    def release(self) -> None:
        """Give its outputs' memory back now, not when the object goes. What jobs that were
        submitted before still need of them is kept until they have taken it."""
        with _takers_lock:
            self._released = True
            idle = not self._takers
        if idle:
            self._give_back()

    def _give_back(self) -> None:
        result, self.result = self.result, None
        if result is not None:
            self.scheduler.executor.release(result)

    def need_done(self, name: str) -> None:
        """Raises where it has no outputs, or no longer."""
        if self.state != "done":
            why = f": {self.error}" if self.error else ""
            raise RuntimeError(f"job '{self.name}' has no output '{name}', it is {self.state}{why}")
        if self._released or self.result is None:
            raise RuntimeError(f"job '{self.name}': its outputs were released")

    def take_back_end(self) -> None:
        """The frame in which it ended is abandoned: it goes on."""
        self.ended_ms = self.ended_frame = None
        self._released = False
        self._give_back()

    # --- those who take its outputs

    def keep_for_taker(self) -> bool:
        """Another job will take an output: it stays until :meth:`taken`. False where it is gone."""
        with _takers_lock:
            if self._released:
                return False
            self._takers += 1
            return True

    def taken(self) -> None:
        """A job of :meth:`keep_for_taker` has what it needs, or needs it no longer."""
        with _takers_lock:
            self._takers -= 1
            last = self._released and not self._takers
        if last:
            self._give_back()

    def for_taker(self, name: str) -> Any:
        """The output on the GPU, for a job that it is kept for."""
        if self.result is None:
            raise RuntimeError(f"job '{self.name}' has no output '{name}' any more")
        return self.scheduler.executor.tensor(self.result, name)

    def let_network_go(self) -> None:
        """It has ended for good."""
        self.network = _Gone()

    def let_inputs_go(self) -> None:
        """It needs its inputs no longer: they are in the network's memory, or it has ended."""
        inputs, self.inputs = self.inputs, {}
        for value in inputs.values():
            try:
                if isinstance(value, JobOutput):
                    value.job.taken()
                else:
                    self.scheduler.executor.let_go(value)
            except Exception as error:  # in the middle of a frame, where it is nobody's fault
                self.scheduler.note(error)

    # --- what the scheduler looks at

    @property
    def remaining_ms(self) -> float:
        """Predicted GPU time of what is left."""
        if self.ended or not self.costs or self.step >= len(self.costs):
            return 0.0
        model = self.scheduler.cost_model
        current = self.costs[self.step]
        tail = self.scheduler.tail_ms(self, self.step + 1)
        return model.predict_ms(current, current.groups - self.group) + tail

    def laxity_ms(self, now_ms: float, rate: float) -> float:
        """Time to spare before its deadline if it got all of every frame from now on; ``rate`` is
        GPU milliseconds per millisecond of wall time."""
        if self.deadline_at_ms is None:
            return float("inf")
        return self.deadline_at_ms - now_ms - self.remaining_ms / max(rate, 1e-9)

    def waits_for(self) -> list[Job]:
        """The jobs whose outputs it takes that have not ended."""
        return [v.job for v in self.inputs.values() if isinstance(v, JobOutput) and not v.job.ended]

    def take(self, model: CostModel, ms: float, granule: int, at_least_one: bool) -> Slice | None:
        """The next slice that is predicted to fit into ``ms``, and the cursor moved behind it."""
        cost = self.costs[self.step]
        left = cost.groups - self.group
        if model.samples(cost.key) == 0:
            ms *= _PROBE_SHARE
        count = model.groups_within(cost, left, ms)
        if granule > 1 and granule < count < left:
            count -= count % granule
        if count == 0 and at_least_one:
            count = min(left, granule)
        if count == 0:
            return None
        part = Slice(self.network, self.step, self.group, count)
        self.group += count
        if self.group == cost.groups:
            self.step, self.group = self.step + 1, 0
        return part

    @property
    def all_encoded(self) -> bool:
        return self.step >= len(self.costs)
