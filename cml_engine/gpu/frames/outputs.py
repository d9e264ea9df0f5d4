"""The outputs of finished jobs: tensors on the GPU, and readbacks, which take several frames."""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock
from typing import TYPE_CHECKING

import wgpu

from cml_engine.compiler.plan import RESULT_ALIGNMENT, TensorPlace
from cml_engine.errors import DeviceError, InputError, OutOfGpuMemory
from cml_engine.errors.arguments import check_text
from cml_engine.gpu.device import Device
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.memory.allocator import Allocation, Allocator
from cml_engine.gpu.memory.staging import Staging
from cml_engine.gpu.memory.tensors import GpuTensor, from_words
from cml_engine.gpu.native import Copy, copy_recorder, device_errors
from cml_engine.gpu.program.memory import TENSOR_USAGE
from cml_engine.gpu.timing.timestamp_ring import AGE
from cml_engine.ir.counted import trimmed
from cml_engine.ir.graph import Array

if TYPE_CHECKING:
    from cml_engine.gpu.program.program import GpuProgram


#: any thread may submit jobs and release tensors
_readers_lock = Lock()


class Readback:
    """Tensors of a network on their way to the host, which takes several frames. No call blocks.

    ``places`` are the tensors' places in the ``nbytes`` that are copied.
    """

    def __init__(
        self, memory: Allocator, owner: str, places: dict[str, TensorPlace], nbytes: int
    ) -> None:
        self.places, self.nbytes = places, nbytes
        self._allocator, self._owner = memory, owner
        self.requested_frame = -1
        self._data: bytes | None = None
        #: why the readback failed
        self.error: DeviceError | None = None
        self._staging: Staging | None = None

    @property
    def is_freed(self) -> bool:
        """True if the tensors can no longer be read."""
        raise NotImplementedError

    def record_copies(self, encoder: wgpu.GPUCommandEncoder, target: Allocation) -> None:
        """Records the copies of the tensors into mappable memory."""
        raise NotImplementedError

    def begin_read(self, encoder: wgpu.GPUCommandEncoder, frame: int) -> None:
        """Allocates mappable memory and records copies of the tensors into it."""
        staging = Staging(self._allocator, self.nbytes, self._owner)
        self.record_copies(encoder, staging.memory)
        self._staging, self.requested_frame = staging, frame

    def start_mapping(self, oldest: int) -> None:
        """Starts mapping the staging buffer if its copy is from frame ``oldest`` or before."""
        if (
            self._staging is not None
            and not self._staging.is_mapping
            and self.requested_frame <= oldest
        ):
            self._staging.start_mapping()

    def collect(self) -> bool:
        """Stores arrived bytes in ``data``. Returns True if no readback is pending.

        If the mapping failed, ``error`` is set and nothing is pending.
        """
        if self._staging is not None and self._staging.arrived:
            try:
                with device_errors(RuntimeError):
                    self._data = self._staging.collect()
            except DeviceError as error:
                self.error = error
            self.stop_reading()
        return self._staging is None

    @property
    def has_arrived(self) -> bool:
        """True if the bytes have arrived or never will."""
        return self._data is not None or self.error is not None

    def fail(self, error: DeviceError) -> None:
        """Ends the readback with ``error`` because the bytes will never arrive."""
        self.error = error
        self.stop_reading()

    def stop_reading(self) -> None:
        """Ends the readback, if there is one, and frees its mappable memory."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.free()

    def place(self, name: str) -> TensorPlace:
        if check_text(name, "an output's name") not in self.places:
            raise InputError(f"no output {name!r}: there is {', '.join(self.places)}")
        return self.places[name]

    def bytes_of(self, name: str) -> bytes | None:
        """Returns the bytes of a tensor if they have arrived, else None.

        Raises :attr:`error` if the readback failed.
        """
        if self.error is not None:
            raise self.error
        binding = self.place(name).binding
        return None if self._data is None else self._data[binding.offset : binding.end]


class Result(Readback):
    """The outputs of one job, in their own memory until they are released."""

    def __init__(self, network: GpuProgram) -> None:
        places, nbytes = network.plan.packed_results
        super().__init__(network.gpu.memory, network.name, places, nbytes)
        #: True if nothing is left to free
        self._is_given_back = True
        self.memory = network.gpu.memory.allocate(
            self.nbytes,
            TENSOR_USAGE,
            owner=network.name,
            category="output",
            alignment=RESULT_ALIGNMENT,
        )
        self._is_given_back = False
        self._counted = network.counted
        #: the run that produced them, once they are copied here
        self.run: JobRun | None = None
        #: the number of jobs that will read from it
        self._readers = 0
        self._released = False

    def __del__(self) -> None:  # weakref.finalize takes a tenth of a job's start
        if not self._is_given_back:
            self._allocator.free_later(self.memory.free)

    @property
    def is_freed(self) -> bool:
        """True if the memory was freed."""
        return self.memory.freed

    def release(self) -> None:
        """Frees the memory, immediately or once no queued job reads from it."""
        self._released = True
        self.count_readers(0)

    def count_readers(self, more: int) -> None:
        """Adds ``more`` to the number of jobs that will read from the outputs.

        ``more`` may be negative. Frees the memory if it was released and no reader is left.
        """
        with _readers_lock:
            self._readers += more
            frees = self._released and not self._readers and not self._is_given_back
            self._is_given_back |= frees
        if frees:
            self.memory.free()

    def tensor(self, name: str) -> GpuTensor:
        """Returns the output ``name`` as a GPU tensor, a range of this result's memory."""
        place = self.place(name)
        offset = self.memory.offset + place.binding.offset
        return GpuTensor(self.memory.buffer, offset, place.fact.nbytes, place.fact, self)

    def copy_from(self, encoder: wgpu.GPUCommandEncoder, network: GpuProgram) -> None:
        """Records the copies of the outputs from the network's memory into this result's memory."""
        source_of, results = network.residency.place, network.plan.results
        buffer, start = self.memory.buffer, self.memory.offset
        copies: list[Copy] = []
        for name, place in self.places.items():
            source = results[name].binding
            copies.append((*source_of(source), buffer, start + place.binding.offset, source.nbytes))
        copy_recorder()(encoder, copies)

    def record_copies(self, encoder: wgpu.GPUCommandEncoder, target: Allocation) -> None:
        """Records the copy of all outputs into mappable memory."""
        source = self.memory
        encoder.copy_buffer_to_buffer(
            source.buffer, source.offset, target.buffer, target.offset, self.nbytes
        )

    def read(self, name: str) -> Array | None:
        """Returns the output ``name`` as an array if it has arrived on the host, else None.

        Raises :attr:`error` if the readback failed.
        """
        array = self._array(name)
        if array is None or name not in self._counted:
            return array
        numbers = {n: self._array(n) for n in self._counted[name].values()}
        return trimmed(
            name, array, self._counted, {n: a for n, a in numbers.items() if a is not None}
        )

    def _array(self, name: str) -> Array | None:
        data = self.bytes_of(name)
        return None if data is None else from_words(data, self.place(name))


def network_tensor(network: GpuProgram, name: str) -> GpuTensor:
    """Returns a network's output or retained tensor as a view of the network's own memory.

    The tensor contains the values of the last run, until the next run overwrites them.
    """
    buffer, offset, place = network.result_place(name)
    return GpuTensor(buffer, offset, place.fact.nbytes, place.fact)


class Readbacks:
    """The readbacks that have not arrived. No call blocks."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._unasked: list[Readback] = []
        self._reading: list[Readback] = []

    @property
    def pending(self) -> bool:
        """True if there are postponed readbacks for :meth:`request_again`."""
        return bool(self._unasked)

    def request(self, encoder: wgpu.GPUCommandEncoder, result: Readback, frame: int) -> None:
        """Records the copy of a result into mappable memory; sets ``result.error`` if that fails.

        The copy is postponed to a later frame if running models use all of the memory.
        """
        try:
            with device_errors():
                result.begin_read(encoder, frame)
        except OutOfGpuMemory as error:
            if self._gpu.memory.may_ever_fit(result.nbytes):
                self._unasked.append(result)
            else:
                result.error = error
        except DeviceError as error:
            result.error = error
        else:
            self._reading.append(result)

    def request_again(self, encoder: wgpu.GPUCommandEncoder, frame: int) -> None:
        """Records the postponed copies, except of results that were freed.

        A copy was postponed if an earlier frame had no memory for it or was abandoned.
        """
        postponed, self._unasked = self._unasked, []
        for result in postponed:
            if not result.is_freed:
                self.request(encoder, result, frame)

    def start_mapping(self, frame: int) -> bool:
        """Starts mapping the copies that were recorded at least ``AGE`` frames before ``frame``.

        Returns True if any readback is pending.
        """
        for result in self._reading:
            result.start_mapping(frame - AGE)
        return bool(self._reading)

    def collect(self, before: float) -> None:
        """Collects the arrived copies of the frames before frame ``before`` into their results."""
        self._reading = [
            result
            for result in self._reading
            if result.requested_frame >= before or not result.collect()
        ]

    def fail(self, error: DeviceError) -> None:
        """Ends all pending readbacks with ``error`` because the device is lost."""
        for result in self._reading:
            result.fail(error)
        self._reading.clear()

    def postpone(self, result: Readback) -> None:
        """Queues the readback for :meth:`request_again` in the next frame."""
        self._unasked.append(result)

    def abandon(self, frames: Collection[int]) -> None:
        """Postpones the copies that were recorded in ``frames``, which the host has abandoned."""
        for result in [r for r in self._reading if r.requested_frame in frames]:
            self._reading.remove(result)
            result.stop_reading()
            self.postpone(result)
