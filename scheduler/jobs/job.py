"""One run of a network, spread over frames, and its outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from weakref import WeakSet

from cml_engine.compiler.plan import StepCost
from cml_engine.errors import CmlError, InputError
from cml_engine.errors.arguments import check_callable, check_text
from cml_engine.scheduler.executor import Network, Result, Run

if TYPE_CHECKING:
    import wgpu

    from cml_engine.gpu.memory.tensors import GpuTensor
    from cml_engine.ir.graph import Array


#: global, because jobs of several schedulers may take each other's outputs
_lock = Lock()


class Outputs:
    """A job's outputs on the device.

    They are freed once the host has released them and no job needs them.
    """

    def __init__(self) -> None:
        self.result: Result | None = None
        #: True once the host has released the outputs
        self.released = False
        self._consumers: WeakSet[object] = WeakSet()

    def add_consumer(self, consumer: object) -> bool:
        """Keeps the outputs for job ``consumer`` until :meth:`remove_consumer`.

        Returns False, and keeps nothing, if the host has already released them.
        """
        with _lock:
            if not self.released:
                self._consumers.add(consumer)
            return not self.released

    def remove_consumer(self, consumer: object) -> None:
        """Notes that job ``consumer`` has copied the outputs or no longer needs them.

        Frees them if the host has released them and this was the last job. Has no effect for a
        job that :meth:`add_consumer` refused.
        """
        with _lock:
            was_taker = consumer in self._consumers
            self._consumers.discard(consumer)
            last = was_taker and self.released and not self._consumers
        if last:
            self.free()

    def release(self) -> None:
        """Records that the host no longer needs the outputs; frees them if no job does either."""
        with _lock:
            self.released = True
            idle = not self._consumers
        if idle:
            self.free()

    def free(self) -> None:
        """Frees the outputs' memory on the device now; no effect if there is none."""
        result, self.result = self.result, None
        if result is not None:
            result.release()

    def discard(self) -> None:
        """Frees the outputs because their job's end is undone; the job can produce new ones."""
        self.released = False
        self.free()


State = Literal["queued", "running", "done", "cancelled", "failed"]
ENDED: frozenset[str] = frozenset({"done", "cancelled", "failed"})


class JobOwner(Protocol):
    """The interface of a scheduler as its own jobs use it."""

    def end(self, job: Job, state: State, error: str = "") -> None: ...
    def pause(self, job: Job, paused: bool) -> None: ...
    def read(self, job: Job, name: str) -> Array | None: ...
    def copy_to_texture(
        self, job: Job, encoder: wgpu.GPUCommandEncoder, name: str, options: Mapping[str, object]
    ) -> None: ...
    def eta_ms(self, job: Job) -> float: ...
    def remaining_ms(self, job: Job) -> float: ...
    def cpu_wait_ms(self, job: Job) -> float: ...
    def waiting_for(self, job: Job) -> str: ...
    def is_final(self, job: Job) -> bool: ...
    def add_done_callback(self, job: Job, callback: Callable[[Job], object]) -> None: ...
    def wait(self, job: Job, timeout: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A future output tensor of a job.

    Given as another job's input, it makes that job wait for the output, which stays on the GPU.

    Examples
    --------
    >>> first = scheduler.submit(network, {"image": image})
    >>> second = scheduler.submit(after, {"x": first.output("out")})  # stays on the GPU
    """

    job: Job
    name: str


def check_output_name(job: str, name: str, names: Collection[str] | None) -> None:
    """Raises :class:`cml_engine.InputError` if ``names`` are given and lack the output ``name``.

    ``job`` is the job's name in the message.
    """
    check_text(name, "an output's name")
    if names is not None and name not in names:
        raise InputError(
            f"job '{job}' has no output '{name}'; it has {', '.join(names) or '(none)'}"
        )


class EndedNetwork:
    """A stand-in that replaces an ended job's network, so that the job keeps no session alive."""

    name, waiting_for, ready, exclusive_group = "", "", False, None
    load_times_ms: Sequence[float] = ()
    retains = False

    def __init__(self, output_names: Collection[str] | None) -> None:
        self.output_names = output_names

    def step_costs(self) -> Sequence[StepCost]:
        return ()

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> Sequence[int] | None:
        return None

    def prepare(self, budget_ms: float) -> None: ...
    def advance_successor(self, budget_ms: float) -> None: ...


class Awaitable:
    """The end of a job, for coroutines: the part that jobs and pictures in tiles share."""

    name: str
    state: State
    error: str
    exception: Exception | None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def __await__(self) -> Generator[object, None, Self]:
        """Waits for the end in asyncio and returns the job; another thread may run the frame loop.

        Raises as ``wait`` does. Cancelling the waiting task does not cancel the job.
        """
        loop = asyncio.get_running_loop()
        end: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not end.done():  # the waiting task may be cancelled
                end.set_result(None)

        def wake(job: object) -> None:
            with suppress(RuntimeError):  # the event loop was closed meanwhile
                loop.call_soon_threadsafe(resolve)

        self.add_done_callback(wake)
        yield from end
        self.raise_unless_done()
        return self

    def raise_unless_done(self) -> None:
        """Raises the error that failed the job, or ``CancelledError`` if it was cancelled."""
        if self.state == "cancelled":
            raise CancelledError(f"job '{self.name}' was cancelled")
        if self.state == "failed":
            raise self.exception or CmlError(f"job '{self.name}' failed: {self.error}")


@dataclass(eq=False, repr=False)
class Job(Awaitable):
    """A submitted run of a network.

    :attr:`state`, :attr:`progress`, :attr:`eta_ms` and :attr:`waiting_for` may be read at any time;
    :meth:`tensor` and :meth:`read` return the outputs once the job is done. ``await job``,
    :meth:`add_done_callback` and :meth:`wait` say when, without polling.

    Examples
    --------
    >>> job = scheduler.submit(network, {"image": image}, deadline_ms=250)
    >>> job.state
    'queued'
    >>> job.cancel()
    """

    number: int
    network: Network
    #: the pending inputs; empty once they are in the network's memory, and when the job has ended
    inputs: Mapping[str, object]
    priority: float
    submitted_ms: float
    deadline_at_ms: float | None
    name: str
    slot: str | None
    owner: JobOwner
    state: State = "queued"
    paused: bool = False
    error: str = ""
    #: the current step, an index of :attr:`costs`, and the number of its workgroups that are done
    step: int = 0
    group: int = 0
    started_ms: float | None = None
    ended_ms: float | None = None
    ended_frame: int | None = None
    #: the predicted GPU time of all work so far, and that time divided by the priority
    given_ms: float = 0.0
    virtual_ms: float = 0.0
    last_served_ms: float = 0.0
    wants_read: bool = False
    #: the error because of which the readback will not arrive
    read_error: Exception | None = None
    #: why the job could not start in the previous frame, if it may start later
    blocked_by: str = ""
    #: the names of the inputs, and the numbers of the network's steps that the job runs (None: all)
    given: frozenset[str] = frozenset()
    steps: tuple[int, ...] | None = None
    _knows_steps: bool = field(default=False, init=False)
    #: the costs of the texture loads, then of the steps; ``step`` counts both
    costs: tuple[StepCost, ...] = ()
    #: the steps without a kernel, as indices of :attr:`costs`
    cpu_steps: tuple[int, ...] = field(default=(), init=False)
    #: the number of texture loads
    loads: int = 0
    #: the number of each step among the network's, behind the loads, as the executor counts them
    numbers: Sequence[int] = field(default=(), init=False)
    outputs: Outputs = field(default_factory=Outputs, init=False)
    #: the error that failed the job, if one was raised
    exception: Exception | None = field(default=None, init=False)
    #: called when the job has ended for good; None once they were called
    callbacks: list[Callable[[Job], object]] | None = field(default_factory=list, init=False)
    #: the run on the device, once the job has begun
    run: Run | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<Job {self.number} '{self.name}', {self.state}>"

    # --- for games

    @property
    def progress(self) -> float:
        """The share of the job's work that is encoded, from 0 to 1, measured in predicted time."""
        if self.state == "done":
            return 1.0
        total = self.remaining_ms + self.given_ms
        return self.given_ms / total if total > 0 else 0.0

    @property
    def eta_ms(self) -> float:
        """Predicted wall milliseconds until the job's end, without later jobs; 0 once ended."""
        return self.owner.eta_ms(self)

    @property
    def running(self) -> bool:
        return self.state == "running"

    def output(self, name: str) -> JobOutput:
        """Returns a placeholder for the output ``name``, to give to another job as an input.

        Raises :class:`cml_engine.InputError` if the network has no such output.
        """
        self.check_output(name)
        return JobOutput(self, name)

    def tensor(self, name: str) -> GpuTensor:
        """Returns output ``name`` as a tensor on the GPU, without a readback.

        Raises :class:`cml_engine.InputError` if the job is not done or its outputs were released.
        """
        return self.require_result(name).tensor(name)

    def copy_to_texture(
        self,
        encoder: wgpu.GPUCommandEncoder,
        name: str,
        texture: wgpu.GPUTexture,
        scale: float | Sequence[float] = 1.0,
        shift: float | Sequence[float] = 0.0,
        *,
        srgb: bool = False,
        layout: Literal["nchw", "nhwc"] = "nchw",
        origin: tuple[int, int, int] = (0, 0, 0),
        mip: int = 0,
    ) -> None:
        """Encodes the copy of an output into a texture.

        A shader then reads ``value * scale + shift`` there. The texture needs ``COPY_DST`` and a
        format that docs/in_your_engine.md names; any size will do. The time of the copy counts
        in the budget of the next frame.

        ``scale`` and ``shift`` are one number for all channels, or one for each. One channel
        becomes grey; alpha is 1 if the output has none. With ``srgb`` the values are
        gamma-encoded as in a PNG file, not linear. ``origin`` is a column, a row and a layer.
        Raises :class:`cml_engine.InputError` if the output does not fit into the texture.
        """
        options = {
            "texture": texture, "scale": scale, "shift": shift, "srgb": srgb, "layout": layout,
            "origin": origin, "mip": mip,
        }  # fmt: skip
        self.owner.copy_to_texture(self, encoder, name, options)

    @property
    def waiting_for(self) -> str:
        """A line of text that says in which state the job is and what it waits for."""
        return self.owner.waiting_for(self)

    def read(self, name: str) -> Array | None:
        """Returns output ``name`` as a NumPy array, or None until it has arrived.

        The first call requests the readback: the copy is part of the next frame and arrives some
        frames later. Raises if the job was cancelled or failed.
        """
        return self.owner.read(self, name)

    def add_done_callback(self, callback: Callable[[Job], object]) -> None:
        """Calls ``callback(job)`` in the ``end_frame`` after which the job has ended for good.

        Arrays that were requested (:meth:`read`, or ``submit(..., read=True)``) have then arrived.
        The callback runs on the thread of the frame loop, for done, failed and cancelled jobs
        alike; it runs at once if the job ended in an earlier frame. Its exceptions are logged.
        """
        self.owner.add_done_callback(self, check_callable(callback, "callback"))

    def wait(self, timeout: float | None = None) -> Job:
        """Waits until the job has ended and returns it, for tools without a frame loop.

        It encodes, submits and ends frames itself, unless another thread runs the frame loop.
        ``timeout`` is in seconds.

        Raises
        ------
        TimeoutError : the job has not ended within the timeout.
        concurrent.futures.CancelledError : the job was cancelled.
        cml_engine.InputError : it is called between ``encode`` and ``end_frame`` of a frame, or the
            job is paused.
        Exception : the error that failed the job.
        """
        self.owner.wait(self, timeout)
        self.raise_unless_done()
        return self

    def cancel(self) -> None:
        """Ends the job as cancelled: none of its remaining slices run.

        An ended job stays as it is.
        """
        self.owner.end(self, "cancelled")

    def pause(self) -> None:
        """Pauses the job until :meth:`resume`; it keeps its memory and its progress."""
        self.owner.pause(self, True)

    def resume(self) -> None:
        """Continues the job after :meth:`pause`."""
        self.owner.pause(self, False)

    def release(self) -> None:
        """Frees the outputs' memory now, and not only when the object is deleted.

        Outputs that jobs submitted earlier still take as inputs are kept until these have taken
        them.
        """
        self.outputs.release()

    # --- for the scheduler

    @property
    def idle(self) -> bool:
        """True for priority 0: the job gets only the time that the others leave."""
        return self.priority == 0

    def laxity_ms(self, now_ms: float, rate: float) -> float:
        """Returns the milliseconds to spare before the deadline, negative if it will be missed.

        It assumes that the job gets all of every frame from now on. ``rate`` is GPU milliseconds
        per millisecond of wall time. Infinite without a deadline.
        """
        if self.deadline_at_ms is None:
            return float("inf")
        needed_ms = self.owner.remaining_ms(self) / max(rate, 1e-9)
        if self.cpu_steps:
            needed_ms += self.owner.cpu_wait_ms(self)
        return self.deadline_at_ms - now_ms - needed_ms

    @property
    def result(self) -> Result | None:
        """The outputs on the device; None before the job is done and once they are freed."""
        return self.outputs.result

    def check_output(self, name: str) -> None:
        """Raises :class:`cml_engine.InputError` if the job's network has no output ``name``."""
        check_output_name(self.name, name, self.network.output_names)

    def require_result(self, name: str) -> Result:
        """Returns the outputs, among which is ``name``.

        Raises :class:`cml_engine.InputError` if there are none, or none of that name.
        """
        self.check_output(name)
        if self.state != "done":
            reason = f": {self.error}" if self.error else ""
            advice = "" if self.ended else "; it exists once that is 'done'"
            raise InputError(
                f"output '{name}' of job '{self.name}' does not exist: the job's state is "
                f"'{self.state}'{reason}{advice}"
            )
        result = self.result
        if self.outputs.released or result is None:
            raise InputError(f"job '{self.name}': its outputs were released")
        return result

    def find_steps(self, *, behind: bool) -> bool:
        """Updates :attr:`steps` and :attr:`costs` of the job; returns True if they changed.

        With ``behind`` the job follows another unfinished job; otherwise it starts from the
        network's memory as it is now.
        """
        numbers = self.network.steps_for(self.given, behind=behind)
        steps = None if numbers is None else tuple(numbers)
        if self._knows_steps and steps == self.steps:
            return False
        all_costs = self.network.step_costs()
        own_costs = all_costs if steps is None else [all_costs[number] for number in steps]
        self._knows_steps, self.steps = True, steps
        loads = self.loads
        self.costs = (*self.costs[:loads], *own_costs)
        self.numbers = range(len(self.costs))
        if steps is not None:
            self.numbers = (*range(loads), *(loads + number for number in steps))
        self.cpu_steps = tuple(i for i, cost in enumerate(self.costs) if cost.on_cpu)
        return True

    def network_step(self, step: int) -> int:
        """Returns the network's number of the job's step ``step``, which is no texture load."""
        return self.numbers[step] - self.loads

    def undo_end(self) -> None:
        """Discards the job's end time and outputs, because its last frame is abandoned."""
        self.ended_ms = self.ended_frame = None
        self.outputs.discard()

    @property
    def remaining_ms(self) -> float:
        """The predicted GPU milliseconds of the work that is not encoded yet."""
        return self.owner.remaining_ms(self)

    @property
    def producers(self) -> list[Job]:
        """The jobs whose outputs this job takes as inputs; empty once the inputs are released."""
        return [v.job for v in self.inputs.values() if isinstance(v, JobOutput)]

    @property
    def pending_producers(self) -> list[Job]:
        """The producers whose outputs do not exist yet.

        The end of another scheduler's job counts once its frame is submitted: this job's frame may
        be submitted before, or the other frame be abandoned.
        """
        return [
            producer
            for producer in self.producers
            if not producer.ended
            or (producer.owner is not self.owner and not producer.owner.is_final(producer))
        ]

    @property
    def all_encoded(self) -> bool:
        return self.step >= len(self.costs)

    @property
    def is_on_cpu(self) -> bool:
        """True if the job's next step has no kernel, so that the CPU computes it."""
        return self.step < len(self.costs) and self.costs[self.step].on_cpu
