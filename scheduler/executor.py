"""The protocols of a device and its networks, as a scheduler uses them; it imports neither."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cml_engine.compiler.plan import Slice, StepCost, Timing

if TYPE_CHECKING:
    import wgpu

    from cml_engine.gpu.memory.tensors import GpuTensor
    from cml_engine.ir.graph import Array

#: the value of :attr:`Executor.clock_source` for a device that cannot time its own work
WALL_CLOCK = "wall clock"
#: an object that only the executor looks into: a network, outputs, an accepted input
Handle: TypeAlias = Any


class Network(Protocol):
    """The interface of a network on the device, such as a GPU session's ``program``.

    Examples
    --------
    >>> program: cml.scheduler.Network = network.program
    """

    @property
    def name(self) -> str:
        """The name of the network in reports."""

    def step_costs(self) -> Sequence[StepCost]:
        """Returns the cost (kernel, workgroups, FLOPs, bytes) of each step, in order."""

    @property
    def output_names(self) -> Collection[str] | None:
        """The names of the outputs; None if every name is one, as of a simulated network."""

    @property
    def ready(self) -> bool:
        """True once the weights are uploaded and the pipelines built, so that jobs can begin."""

    def prepare(self, budget_ms: float) -> None:
        """Continues to upload weights and build pipelines, for about ``budget_ms``; never waits."""

    @property
    def waiting_for(self) -> str:
        """A text that says what is missing until :attr:`ready`; "" if ready or unknown."""

    @property
    def exclusive_group(self) -> str | None:
        """The name of the group of networks that share this one's memory, or None.

        Only one network of a group has a running job.
        """

    @property
    def retains(self) -> bool:
        """True if an input that a job leaves out keeps its value from the job before.

        Jobs of such a network run in the order in which they were submitted.
        """

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> Sequence[int] | None:
        """Returns the numbers of the steps that a job with these inputs runs; None for all.

        With ``behind`` the job follows another unfinished job; otherwise it starts from the
        memory as it is now.
        """

    def advance_successor(self, budget_ms: float) -> None:
        """Prepares the network's replacement, if there is one, for about ``budget_ms``.

        Never waits and never raises.
        """

    @property
    def load_times_ms(self) -> Sequence[float]:
        """The milliseconds of each step, measured when the network was loaded.

        Empty on devices that can time their work in a frame.
        """


def exclusivity_key(network: Network) -> str | int:
    """Returns a key that only one running job may have: the group's name, or the network's id."""
    return network.exclusive_group or id(network)


class Run(Protocol):
    """The run of a job on the device; by its receipts the device notices frames that were lost."""

    @property
    def harm(self) -> str:
        """The reason why the results of the run are wrong; "" if no error is known."""


class Result(Protocol):
    """The outputs of a finished job, in memory of their own."""

    def tensor(self, name: str) -> GpuTensor:
        """Returns output ``name`` as a GPU tensor."""

    def read(self, name: str) -> Array | None:
        """Returns output ``name`` as a host array, or None until the readback has arrived."""

    @property
    def has_arrived(self) -> bool:
        """True if a readback of the outputs has arrived or failed."""

    def release(self) -> None:
        """Frees the outputs' memory, now or once no queued job reads them."""


class Executor(Protocol):
    """The interface of a device to a scheduler: memory, encoding, timings and readbacks.

    Examples
    --------
    >>> executor: cml.scheduler.Executor = gpu.executor()
    """

    #: the number of workgroups that the device runs at once; slices are multiples of it
    granule: int
    #: the device's name, for tables and files
    name: str
    #: "timestamps", or "wall clock" if there are no timings and only late frames can be noticed
    clock_source: str
    #: the number of groups of slices that can be timed in one frame
    max_groups: int
    #: True if timing takes a considerable part of a frame (a software driver)
    timing_is_expensive: bool

    def accept(
        self, network: Handle, inputs: Mapping[str, object]
    ) -> tuple[dict[str, object], Sequence[StepCost]]:
        """Checks the inputs of a new job and returns them by name, as the device keeps them.

        The second value has the costs of the loads that run before the network's first step, one
        for each texture, in the order of the inputs.

        Host arrays are copied; GPU tensors are kept until :meth:`release_input`. A value with
        ``job`` and ``name`` is the output of that name of the network ``job.network``. Raises
        :class:`cml_engine.InputError` if the network or a tensor belongs to another device, or
        an input does not fit.
        """

    def release_input(self, value: Handle) -> None:
        """Frees an input value that :meth:`accept` returned."""

    def reserve(self, network: Handle, inputs: Mapping[str, object]) -> str:
        """Reserves the network and the memory for its outputs for a job, before the job begins.

        Returns "" if both are available, else a text that says what the job waits for. Never
        waits itself; raises if they can never become available.
        """

    def begin_job(
        self, encoder: wgpu.GPUCommandEncoder, network: Handle, inputs: Mapping[str, object]
    ) -> Run:
        """Encodes copies of a job's inputs to the network's buffers; returns the new run.

        Inputs are host arrays or GPU tensors. If it raises, it has already released what
        :meth:`reserve` took.
        """

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        frame: int,
        groups: Sequence[Sequence[Slice]],
        *,
        timed: bool = True,
    ) -> Sequence[tuple[Handle, Exception]] | None:
        """Encodes the slices of a frame; with ``timed``, each group of slices gets one timing.

        Returns the networks whose slices could not be encoded, each with the error; all others were
        encoded. None means that all were.
        """

    def begin_cpu_step(self, encoder: wgpu.GPUCommandEncoder, network: Handle, step: int) -> None:
        """Encodes the readback of the operands of a step on the CPU; no effect if it has begun.

        A worker then computes the step.
        """

    def end_cpu_step(self, network: Handle, step: int, budget_ms: float) -> bool:
        """Uploads a part of the results of a step on the CPU, for about ``budget_ms``.

        Returns True once all are on the device, so that the job can go on. Never waits. Raises
        the error of an operator.
        """

    def finish_job(self, encoder: wgpu.GPUCommandEncoder, network: Handle) -> Result | None:
        """Encodes copies of the outputs into separate memory and returns the copies.

        Returns None if there is no memory for the outputs yet.
        """

    def end_job(self, network: Handle) -> None:
        """Frees the network after its job, which is done, was cancelled or failed."""

    def resume_job(self, network: Handle) -> None:
        """Undoes :meth:`end_job` for a job that ended in a frame that is being abandoned."""

    def end_frame(self, frame: int) -> Sequence[Timing]:
        """Notes that the host has submitted the frame; returns the timings that have arrived.

        The timings belong to earlier frames. Never waits.
        """

    def abandon_frame(self, frame: int) -> None:
        """Discards a frame whose commands will never be submitted."""

    def new_encoder(self) -> wgpu.GPUCommandEncoder:
        """Returns a new command encoder, for a frame that the scheduler runs without the host."""

    def submit(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Submits an encoder of :meth:`new_encoder` to the device."""

    def check_encoder(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Raises :class:`cml_engine.InputError` if ``encoder`` is not a command encoder."""

    def check(self) -> None:
        """Raises an exception if the device is lost."""

    def preparing(self) -> str:
        """Returns a text that says what the preparation thread is doing, and its last error."""

    def take_losses(self) -> bool:
        """Returns True if since the last call more runs became known to have wrong results.

        A run's results are wrong if one of its frames was ended and never submitted.
        """

    def is_behind(self, most_frames: int) -> bool:
        """Returns True if the timings of ``most_frames`` ended frames have not arrived.

        It is True too if another frame could leave no receipt, by which it is known to have run.
        """

    # --- outputs of finished jobs

    def copy_to_texture(
        self,
        encoder: wgpu.GPUCommandEncoder,
        result: Handle,
        name: str,
        options: Mapping[str, object],
    ) -> StepCost:
        """Encodes the copy of output ``name`` into a host's texture; returns the copy's cost.

        ``options`` are the other arguments of :meth:`Job.copy_to_texture`.
        """

    def take_copies(self) -> Sequence[tuple[StepCost, float]]:
        """Returns the texture copies whose measured milliseconds have arrived, each only once."""

    def request_read(self, encoder: wgpu.GPUCommandEncoder, result: Handle) -> None:
        """Encodes the copy of a finished job's outputs that :meth:`Result.read` needs."""


class ExecutorSource(Protocol):
    """The interface of a device that creates executors, such as :class:`cml_engine.Gpu`."""

    def executor(self) -> Executor:
        """Returns a new executor."""
