"""One run of a network, spread over frames."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from scheduler.checks import ranges, refused
from scheduler.executor import Executor, Network, StepCost
from scheduler.jobs.outputs import Outputs
from scheduler.planning.policy import Ranked

State = Literal["queued", "running", "done", "cancelled", "failed"]
ENDED: frozenset[str] = frozenset({"done", "cancelled", "failed"})


class JobOwner(Protocol):
    """What a job asks of the scheduler that it was submitted to."""

    @property
    def executor(self) -> Executor: ...
    def end(self, job: Job, state: State, error: str = "") -> None: ...
    def pause(self, job: Job, paused: bool) -> None: ...
    def read(self, job: Job, name: str) -> Any: ...
    def copy_to_texture(
        self, job: Job, encoder: Any, name: str, options: Mapping[str, Any]
    ) -> None: ...
    def note(self, error: Exception) -> None: ...
    def eta_ms(self, job: Job) -> float: ...
    def remaining_ms(self, job: Job) -> float: ...
    def waiting_for(self, job: Job) -> str: ...


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A tensor that a job will have made: give it as another job's input, which then waits for
    it and takes it on the GPU."""

    job: Job
    name: str


class Gone:
    """The network of a job that has ended: whoever keeps the job keeps no session alive."""

    name, waiting_for, ready, exclusive_group = "", "", False, None
    load_times_ms: Sequence[float] = ()
    retains = False

    def step_costs(self) -> Sequence[StepCost]:
        return ()

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> Sequence[int] | None:
        return None

    def prepare(self, budget_ms: float) -> None: ...
    def advance_successor(self, budget_ms: float) -> None: ...


@dataclass(eq=False)
class Job(Ranked):
    """A submitted run. :attr:`state`, :attr:`progress`, :attr:`eta_ms` and :attr:`waiting_for` may
    be read at any time; :meth:`tensor` and :meth:`read` give the outputs once it is done."""

    number: int
    network: Network
    #: what it still needs; empty once they are in the network's memory, and when it has ended
    inputs: Mapping[str, Any] = field(repr=False)
    priority: float
    submitted_ms: float
    deadline_at_ms: float | None
    name: str
    slot: str | None
    owner: JobOwner = field(repr=False)
    state: State = "queued"
    paused: bool = False
    error: str = ""
    #: where it is: the step of :attr:`costs`, and how many of its workgroups are done
    step: int = 0
    group: int = 0
    started_ms: float | None = None
    ended_ms: float | None = None
    ended_frame: int | None = None
    #: GPU time that it was given so far, as predicted, and the same over its priority
    given_ms: float = 0.0
    virtual_ms: float = 0.0
    last_served_ms: float = 0.0
    wants_read: bool = False
    #: why a readback will not come
    read_error: Exception | None = None
    #: why it could not start in the frame before, where that is not for ever
    held_up: str = ""
    #: the inputs that it was given, and the numbers of the network's steps that it does, None for
    #: all
    given: frozenset[str] = frozenset()
    steps: tuple[int, ...] | None = None
    has_looked: bool = field(default=False, init=False, repr=False)
    #: the loads of its textures, then those steps; ``step`` counts all of them
    costs: tuple[StepCost, ...] = ()
    #: how many loads these are
    loads: int = 0
    #: numbers of the jobs whose outputs it took
    needs: tuple[int, ...] = ()
    outputs: Outputs = field(init=False, repr=False)
    #: the device's handle of what it has done
    run: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.outputs = Outputs(self.owner.executor.release)

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
        return self.owner.eta_ms(self)

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def output(self, name: str) -> JobOutput:
        """The future tensor, as an input for another job."""
        return JobOutput(self, ranges().text(name, "an output's name"))

    def tensor(self, name: str) -> Any:
        """The output on the GPU, without a readback. Raises where the job is not done."""
        self.need_done(name)
        return self.owner.executor.tensor(self.result, name)

    def copy_to_texture(
        self,
        encoder: Any,
        name: str,
        texture: Any,
        scale: float | Sequence[float] = 1.0,
        shift: float | Sequence[float] = 0.0,
        *,
        srgb: bool = False,
        layout: Literal["nchw", "nhwc"] = "nchw",
        origin: tuple[int, int, int] = (0, 0, 0),
        mip: int = 0,
    ) -> None:
        """Append the copy of an output into a texture of any size and format that
        docs/in_your_engine.md names, with ``COPY_DST``: a shader then reads ``value * scale +
        shift`` there. What it takes is counted in the budget of the next frame.

        ``scale`` and ``shift`` are for all channels or for each. One channel becomes grey, alpha
        is 1 where there is none. ``srgb``: the numbers are encoded as a PNG's, and not linear.
        ``origin`` is a column, a row and a layer. :class:`cml_engine.InputError` where the output
        does not fit into the texture."""
        options = {
            "texture": texture, "scale": scale, "shift": shift, "srgb": srgb, "layout": layout,
            "origin": origin, "mip": mip,
        }  # fmt: skip
        self.owner.copy_to_texture(self, encoder, name, options)

    @property
    def waiting_for(self) -> str:
        """Its state and what it waits for, in a line of text for people."""
        return self.owner.waiting_for(self)

    def read(self, name: str) -> Any:
        """The output as a NumPy array, or None until it has arrived: the copy goes with the next
        frame, and arrives some frames later. Raises where the job was cancelled or failed."""
        return self.owner.read(self, name)

    def cancel(self) -> None:
        """Stop at the next slice; nothing of it runs any more."""
        self.owner.end(self, "cancelled")

    def pause(self) -> None:
        """Keep its place and its memory, run nothing of it until :meth:`resume`."""
        self.owner.pause(self, True)

    def resume(self) -> None:
        """Run on after :meth:`pause`."""
        self.owner.pause(self, False)

    def release(self) -> None:
        """Give its outputs' memory back now, not when the object goes. What jobs that were
        submitted before still need of them is kept until they have taken it."""
        self.outputs.release()

    # --- what the scheduler looks at

    @property
    def result(self) -> Any:
        """The device's handle of its outputs."""
        return self.outputs.result

    def need_done(self, name: str) -> None:
        """:class:`cml_engine.InputError` where it has no outputs, or no longer."""
        if self.state != "done":
            why = f": {self.error}" if self.error else ""
            raise refused(f"job '{self.name}' has no output '{name}', it is {self.state}{why}")
        if self.outputs.released or self.result is None:
            raise refused(f"job '{self.name}': its outputs were released")

    def take_back_end(self) -> None:
        """The frame in which it ended is abandoned: it goes on."""
        self.ended_ms = self.ended_frame = None
        self.outputs.take_back()

    def let_inputs_go(self) -> None:
        """It needs its inputs no longer: they are in the network's memory, or it has ended."""
        inputs, self.inputs = self.inputs, {}
        for value in inputs.values():
            try:
                if isinstance(value, JobOutput):
                    value.job.outputs.taken(self)
                else:
                    self.owner.executor.let_go(value)
            except Exception as error:  # in the middle of a frame, where it is nobody's fault
                self.owner.note(error)

    @property
    def remaining_ms(self) -> float:
        """Predicted GPU time of what is left."""
        return self.owner.remaining_ms(self)

    @property
    def makers(self) -> list[Job]:
        """The jobs whose outputs it takes."""
        return [v.job for v in self.inputs.values() if isinstance(v, JobOutput)]

    @property
    def all_encoded(self) -> bool:
        return self.step >= len(self.costs)
