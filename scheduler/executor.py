"""The protocols through which a scheduler uses a device and its networks; it imports neither."""

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
#: an object that only the executor looks into: a network, a run, outputs, an accepted input
Handle: TypeAlias = Any


class Network(Protocol):
    """A network on the device, for a GPU session its :attr:`cml_engine.Session.program`.

    Examples
    --------
    >>> program: cml.Network = network.program
    """

    @property
    def name(self) -> str:
        """The name of the network in reports."""
        ...

    def step_costs(self) -> Sequence[StepCost]:
        """Returns the cost of each step, in order."""
        ...

    @property
    def ready(self) -> bool:
        """True once the weights are uploaded and the pipelines built."""
        ...

    def prepare(self, budget_ms: float) -> None:
        """Uploads weights and builds pipelines, for about ``budget_ms``; never waits."""
        ...

    @property
    def waiting_for(self) -> str:
        """A text about the steps until :attr:`ready`; "" if it is ready or nothing is known."""
        ...

    @property
    def exclusive_group(self) -> str | None:
        """The group of networks that share memory; only one of them has a running job."""
        ...

    @property
    def retains(self) -> bool:
        """True if an input that a job leaves out keeps its value from the job before.

        Jobs of such a network run in the order in which they were submitted.
        """
        ...

    def steps_for(self, given: Collection[str], *, behind: bool = False) -> Sequence[int] | None:
        """Returns the numbers of the steps that a job with these inputs runs; None for all.

        With ``behind`` the job follows another unfinished job; otherwise it starts from the
        memory as it is now.
        """
        ...

    def advance_successor(self, budget_ms: float) -> None:
        """Prepares the network's replacement, if there is one, for about ``budget_ms``.

        Never waits and never raises.
        """
        ...

    @property
    def load_times_ms(self) -> Sequence[float]:
        """The time of each step, measured when the network was loaded.

        Empty on devices that can time their work in a frame.
        """
        ...


def exclusivity_key(network: Network) -> str | int:
    """Returns the key that only one running job may have: a network, or its shared memory."""
    return network.exclusive_group or id(network)


class Executor(Protocol):
    """The device's side of a frame loop.

    Examples
    --------
    >>> executor: cml.Executor = gpu.executor()
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

    def accept(self, network: Handle, inputs: Mapping[str, object]) -> dict[str, object]:
        """Checks the inputs of a new job and returns them in the form that the device keeps.

        Host arrays are copied; GPU tensors are kept until :meth:`release_input`. A value with
        ``job`` and ``name`` is the output of that name of the network ``job.network``. Raises
        :class:`cml_engine.InputError` if the network or a tensor belongs to another device, or
        an input does not fit.
        """
        ...

    def input_steps(self, network: Handle, inputs: Mapping[str, object]) -> Sequence[StepCost]:
        """Returns the costs of the texture loads that run before the network's first step.

        They are in the order of the accepted inputs.
        """
        ...

    def release_input(self, value: Handle) -> None:
        """Frees an accepted input."""
        ...

    def reserve(self, network: Handle, inputs: Mapping[str, object]) -> str:
        """Reserves the network and the memory for its outputs, before a job begins.

        Returns "" if both are available, else a text that says what the job waits for. Never
        waits itself; raises if they can never become available.
        """
        ...

    def begin_job(
        self, encoder: wgpu.GPUCommandEncoder, network: Handle, inputs: Mapping[str, object]
    ) -> Handle:
        """Copies the inputs (host arrays or GPU tensors) to the buffers that the network reads.

        Returns a handle of the run, for :meth:`harm`. If it raises, it has already released what
        :meth:`reserve` took.
        """
        ...

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        frame: int,
        groups: Sequence[Sequence[Slice]],
        *,
        timed: bool = True,
    ) -> Sequence[tuple[Handle, Exception]] | None:
        """Encodes the slices; with ``timed``, each group is timed as one.

        Returns the networks whose slices could not be encoded, with the error; all others were
        encoded.
        """
        ...

    def finish_job(self, encoder: wgpu.GPUCommandEncoder, network: Handle) -> Handle:
        """Encodes copies of the outputs into memory of their own and returns a handle.

        Returns None if there is no memory for the outputs yet.
        """
        ...

    def end_job(self, network: Handle) -> None:
        """Ends a job that had begun, whether it is done, was cancelled or failed."""
        ...

    def resume_job(self, network: Handle) -> None:
        """Continues a job whose end was part of a frame that is being abandoned."""
        ...

    def end_frame(self, frame: int) -> Sequence[Timing]:
        """Notes that the host has submitted the frame and returns the timings that have arrived.

        Never waits.
        """
        ...

    def abandon_frame(self, frame: int) -> None:
        """Discards a frame whose commands will never be submitted."""
        ...

    def new_encoder(self) -> wgpu.GPUCommandEncoder:
        """Returns a new encoder for a frame that is not the host's."""
        ...

    def submit(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Submits an encoder of :meth:`new_encoder`."""
        ...

    def check_encoder(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Raises :class:`cml_engine.InputError` if this is not an encoder of the host."""
        ...

    def check(self) -> None:
        """Raises if the device is lost."""
        ...

    def preparing(self) -> str:
        """Returns a text that says what the preparation thread is doing, and its last error."""
        ...

    def take_losses(self) -> bool:
        """Returns True if more runs are known to be wrong since the last call.

        Runs are wrong if a frame was ended and never submitted.
        """
        ...

    def harm(self, run: Handle) -> str:
        """Returns the reason why the results of a run are wrong, or "" if none is known."""
        ...

    @property
    def frames_in_flight(self) -> int:
        """The number of frames that were ended and whose timings have not arrived."""
        ...

    # --- outputs of finished jobs

    def tensor(self, result: Handle, name: str) -> GpuTensor:
        """Returns a GPU tensor of a finished job."""
        ...

    def copy_to_texture(
        self,
        encoder: wgpu.GPUCommandEncoder,
        result: Handle,
        name: str,
        options: Mapping[str, object],
    ) -> StepCost:
        """Encodes the copy of an output into a host's texture and returns its cost."""
        ...

    def take_copies(self) -> Sequence[tuple[StepCost, float]]:
        """Returns the copies whose measured milliseconds have arrived, each only once."""
        ...

    def request_read(self, encoder: wgpu.GPUCommandEncoder, result: Handle) -> None:
        """Encodes the copy that a readback needs."""
        ...

    def read(self, result: Handle, name: str) -> Array | None:
        """Returns the output as a host array, or None until the readback has arrived."""
        ...

    def is_reading(self, result: Handle) -> bool:
        """Returns True if a readback of the result has been requested and has not arrived."""
        ...

    def release(self, result: Handle) -> None:
        """Frees the outputs."""
        ...


class ExecutorSource(Protocol):
    """A device that creates executors, such as :class:`cml_engine.Gpu`."""

    def executor(self) -> Executor:
        """Returns a new executor."""
        ...
