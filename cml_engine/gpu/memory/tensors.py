"""Tensors in buffers: a job's outputs, or a range that the host has filled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.errors import InputError
from cml_engine.errors.arguments import IntegerRange, check_instance
from cml_engine.gpu.memory.words import empty, from_words
from cml_engine.gpu.native import device_errors
from cml_engine.ir.graph import Fact
from cml_engine.ir.layout import PLAIN

#: WebGPU copies whole words
_WORD = 4
_OFFSET = IntegerRange(0, 2**63 - 1)


class TensorOwner(Protocol):
    """The outputs of a job that a tensor is part of: ``frames.outputs.Result``."""

    @property
    def gone(self) -> bool:
        """True if the memory of the outputs was freed."""
        ...

    @property
    def run(self) -> Any:
        """The run that produced the outputs."""
        ...

    def count_takers(self, more: int) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuTensor:
    """A tensor on the GPU: row-major 32-bit elements in ``buffer``, starting at byte ``offset``.

    The renderer can bind it or copy it to a texture; another job can use it as an input.
    ``owner`` is the set of job outputs that it is part of, if any. Their memory lasts as long as
    the tensor object, or until the job's ``release()``.
    """

    buffer: wgpu.GPUBuffer
    offset: int
    nbytes: int
    fact: Fact
    owner: TensorOwner | None = field(default=None, repr=False, compare=False)

    @property
    def released(self) -> bool:
        """True if the tensor's memory was freed."""
        return self.owner is not None and self.owner.gone

    @device_errors()
    def read(self) -> Any:
        """Returns the current value as a NumPy array. Blocks; for tools and tests.

        Raises :class:`InputError` if the memory was freed.
        """
        if not self.fact.size:
            return empty(self.fact)
        if self.released:
            raise InputError("the GPU tensor's memory was released before")
        buffer: Any = self.buffer
        data = buffer._device.queue.read_buffer(self.buffer, self.offset, self.nbytes)
        return from_words(data, TensorPlace(Binding("", "", 0, self.nbytes), self.fact, PLAIN))

    def keep(self) -> None:
        """Keeps the memory for one job that will read it, until :meth:`let_go`; calls are counted.

        The memory stays even if the outputs are released before.
        """
        if self.owner is not None:
            self.owner.count_takers(1)

    def let_go(self) -> None:
        """Ends :meth:`keep`: the job has read the tensor or no longer needs it."""
        if self.owner is not None:
            self.owner.count_takers(-1)


def tensor_in(device: wgpu.GPUDevice, buffer: wgpu.GPUBuffer, offset: int, fact: Fact) -> GpuTensor:
    """Returns a tensor of shape and type ``fact`` at a byte offset of the host's buffer.

    Raises :class:`InputError` if the buffer is of another device, lacks ``COPY_SRC`` or is too
    small.
    """
    check_instance(wgpu.GPUBuffer, buffer, "a tensor's buffer")
    check_instance(Fact, fact, "a tensor's fact")
    _OFFSET.check(offset, "a tensor's offset")
    if getattr(buffer, "_device", device) is not device:
        raise InputError("a tensor's buffer is of another device than this cml.Gpu's")
    if not int(buffer.usage) & wgpu.BufferUsage.COPY_SRC:
        raise InputError(
            "a tensor's buffer is made without wgpu.BufferUsage.COPY_SRC: add it, for a network's "
            "input is copied out of it"
        )
    if offset % _WORD:
        raise InputError(f"a tensor's offset: wanted a multiple of {_WORD}, got {offset}")
    if offset + fact.nbytes > buffer.size:
        raise InputError(
            f"{fact} at offset {offset} ends at {offset + fact.nbytes}; the buffer has "
            f"{buffer.size} bytes"
        )
    return GpuTensor(buffer, int(offset), fact.nbytes, fact)
