"""What a scheduler asks of a device and of a network, as protocols: it imports neither."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: what :attr:`Executor.clock_source` says of a device that cannot time its own work
WALL_CLOCK = "wall clock"


class StepCost(Protocol):
    """What is known of a step before it ever ran.

    ``key`` is equal for steps whose workgroups cost the same (same kernel variant, same work per
    workgroup), in every process on every machine; ``flops`` and ``nbytes`` are per workgroup.
    """

    @property
    def key(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def groups(self) -> int: ...
    @property
    def flops(self) -> float: ...
    @property
    def nbytes(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Workgroups ``[first, first + count)`` of one step of a network; steps below 0 are the loads
    of the textures that its job takes, of which the last is -1."""

    network: Network
    step: int
    first: int
    count: int


class Timing(Protocol):
    """Measured GPU time of one timed group of slices; ``group`` counts within its frame."""

    @property
    def frame(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def ms(self) -> float: ...


class Network(Protocol):
    """A network on the device: what :attr:`cml_engine.Session.program` is for a GPU session."""

    @property
    def name(self) -> str:
        """What to call it in reports."""
        ...

    def step_costs(self) -> Sequence[StepCost]:
        """One entry for each step, in order."""
        ...

    @property
    def ready(self) -> bool:
        """Weights are uploaded and pipelines built."""
        ...

    def prepare(self, budget_ms: float) -> None:
        """Do some of what is missing until :attr:`ready`, for about that long; never waits."""
        ...

    @property
    def waiting_for(self) -> str:
        """What it lacks to be ready, in words; "" where it is, or where nothing is known."""
        ...

    @property
    def exclusive_group(self) -> str | None:
        """Networks of the same group share memory: only one of them has a running job."""
        ...

    @property
    def retains(self) -> bool:
        """An input that a job leaves out keeps its value: a job builds on the one before, and they
        run in the order in which they were submitted."""
        ...

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> Sequence[int] | None:
        """The numbers of the steps that a job does which is given these inputs, None for all;
        ``behind`` another job, else as the memory is now."""
        ...

    def advance_successor(self, budget_ms: float) -> None:
        """Prepare what will take the network's place, if anything, for about that long; never waits
        and never raises."""
        ...

    @property
    def load_times_ms(self) -> Sequence[float]:
        """What each step took when the network was loaded, on a device that cannot time its work
        in a frame; empty on others."""
        ...


def exclusivity_key(network: Network) -> str | int:
    """What only one running job has at a time: a network, or the memory that several share."""
    return network.exclusive_group or id(network)


class Results(Protocol):
    """The outputs of jobs that are done, on the device."""

    def tensor(self, result: Any, name: str) -> Any:
        """A GPU tensor of a finished job."""
        ...

    def copy_to_texture(
        self, encoder: Any, result: Any, name: str, options: Mapping[str, Any]
    ) -> StepCost:
        """Append the copy of an output into a host's texture; what it costs."""
        ...

    def take_copies(self) -> Sequence[tuple[StepCost, float]]:
        """Copies whose times have arrived, in milliseconds; each is told once."""
        ...

    def request_read(self, encoder: Any, result: Any) -> None:
        """Append the copy that a readback needs."""
        ...

    def read(self, result: Any, name: str) -> Any:
        """The output as a host array, or None while it is on its way."""
        ...

    def is_reading(self, result: Any) -> bool:
        """Whether a readback of it is on its way."""
        ...

    def release(self, result: Any) -> None:
        """The outputs are not needed any more."""
        ...


class Executor(Results, Protocol):
    """The device's side of a frame loop."""

    #: how many workgroups the device runs at once, where that is known; slices are multiples of it
    granule: int
    #: the device's name, for tables and files
    name: str
    #: "timestamps", or "wall clock": no timings come, and late frames are all that is known
    clock_source: str
    #: how many groups of slices can be timed in one frame
    max_groups: int
    #: whether timing takes it a part of a frame that counts (a software driver)
    timing_is_dear: bool

    def accept(self, network: Network, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Check the inputs of a job to come, copy host arrays and keep GPU tensors until
        :meth:`let_go`. :class:`cml_engine.InputError` where the network or a tensor is another
        device's, or an input does not fit. A value with ``job`` and ``name`` is the output of that
        name of the network ``job.network``."""
        ...

    def input_steps(self, network: Network, inputs: Mapping[str, Any]) -> Sequence[StepCost]:
        """What accepted inputs take on the device before the network's first step: the loads of
        textures, in the order of the inputs."""
        ...

    def let_go(self, value: Any) -> None:
        """An accepted input is not needed any more."""
        ...

    def reserve(self, network: Network, inputs: Mapping[str, Any]) -> str:
        """Take the network for a job, and the memory that its outputs need, before it begins. ""
        where it has both, else what it waits for, in words; never waits itself, and raises where
        they can never be had."""
        ...

    def begin_job(self, encoder: Any, network: Network, inputs: Mapping[str, Any]) -> Any:
        """Put the inputs (host arrays or GPU tensors) where the network reads them. Returns a
        handle of the run, for :meth:`harm`. Where it raises, it has given back what
        :meth:`reserve` took."""
        ...

    def encode(
        self, encoder: Any, frame: int, groups: Sequence[Sequence[Slice]], *, timed: bool = True
    ) -> Sequence[tuple[Network, Exception]] | None:
        """Append the slices; each group is ``timed`` as one, or none is. Returns the networks whose
        slices could not be encoded, with the reason; those of all others were."""
        ...

    def finish_job(self, encoder: Any, network: Network) -> Any:
        """Append copies of the outputs into memory that stays theirs; returns a handle, or None
        where there is no memory for them now, but will be."""
        ...

    def end_job(self, network: Network) -> None:
        """A job that began is over, whether it is done, was cancelled or failed."""
        ...

    def resume_job(self, network: Network) -> None:
        """The job's end was part of a frame that is being abandoned: it goes on."""
        ...

    def end_frame(self, frame: int) -> Sequence[Timing]:
        """The host has submitted the frame; returns what timings have arrived. Never waits."""
        ...

    def abandon_frame(self, frame: int) -> None:
        """What was encoded for the frame will never be submitted."""
        ...

    def check_encoder(self, encoder: Any) -> None:
        """:class:`cml_engine.InputError` where that is no encoder of the host's."""
        ...

    def check(self) -> None:
        """Raises where the device is lost."""
        ...

    def preparing(self) -> str:
        """What the thread that makes networks ready is doing, and its last error, in words."""
        ...

    def take_losses(self) -> bool:
        """Whether more runs have turned out to be wrong, since this was last asked, because a frame
        was ended and never submitted."""
        ...

    def harm(self, run: Any) -> str:
        """Why the numbers of a run are wrong; "" where nothing is known of that."""
        ...

    @property
    def frames_in_flight(self) -> int:
        """Frames that were ended and whose timings have not arrived."""
        ...
