"""Tensors in buffers, and the conversion of host arrays to and from their words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import wgpu

from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.errors import InputError
from cml_engine.errors.arguments import IntegerRange, check_choice, check_instance, check_shape
from cml_engine.gpu.frames.job_runs import JobRun
from cml_engine.gpu.memory.allocator import Data
from cml_engine.gpu.native import device_errors
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact
from cml_engine.ir.layout import BLOCKED, PLAIN, STORED, WHOLE, packed_words
from cml_engine.ops.common.integer_arrays import words_of


def to_words(array: Array, place: TensorPlace) -> Array:
    """Returns a host array as words in the tensor's layout and element type on the GPU.

    Numbers of an integer network's input are quantized first; arrays of integers are words already.
    """
    if place.conversion is not None and array.dtype.kind == "f":
        rule = place.conversion
        array = words_of(array, np.float32(rule.inverse), rule.low, rule.high)
    if place.layout in WHOLE:  # convert to the small type before elements are moved
        array = array.astype(STORED[place.layout])
    if place.layout in STORED:
        return packed_words(block(array), place.layout)
    logical = place.fact.dtype == "logical"
    dtype = np.dtype(np.uint32) if logical else NUMPY_DTYPE[place.fact.dtype]
    return np.ascontiguousarray(block(array) if place.layout in BLOCKED else array, dtype)


def from_words(data: Data, place: TensorPlace) -> Array:
    """Returns a tensor as a host array, from its bytes; an empty tensor needs none."""
    fact = place.fact
    if not fact.size:
        return np.zeros(fact.shape, NUMPY_DTYPE[fact.dtype])
    dtype = np.dtype(np.uint32) if fact.dtype == "logical" else NUMPY_DTYPE[fact.dtype]
    elements = np.frombuffer(data, STORED.get(place.layout, dtype))
    plain = unblock(elements, fact.shape) if place.layout in BLOCKED else elements[: fact.size]
    return np.array(plain.reshape(fact.shape), NUMPY_DTYPE[fact.dtype])


def block(array: Array) -> Array:
    """Returns a tensor ``[N, C, spatial…]`` in the c4 layout, with zeros for missing channels.

    The layout is described in ``cml_engine/ir/layout.py``.
    """
    batch, channels, *spatial = array.shape
    blocks = -(-channels // 4)
    padded = np.zeros((batch, blocks * 4, *spatial), array.dtype)
    padded[:, :channels] = array
    return np.moveaxis(padded.reshape(batch, blocks, 4, *spatial), 2, -1)


def unblock(elements: Array, shape: tuple[int, ...]) -> Array:
    """Returns the tensor of NCHW ``shape`` from c4 elements (``cml_engine/ir/layout.py``)."""
    batch, channels, *spatial = shape
    blocks = -(-channels // 4)
    size = batch * blocks * int(np.prod(spatial)) * 4
    blocked = elements[:size].reshape(batch, blocks, *spatial, 4)
    moved = np.moveaxis(blocked, -1, 2)
    return moved.reshape(batch, blocks * 4, *spatial)[:, :channels]


#: WebGPU copies whole words
_WORD = 4
_OFFSET = IntegerRange(0, 2**63 - 1)


class TensorOwner(Protocol):
    """The outputs of a job that a tensor is part of: ``frames.outputs.Result``."""

    @property
    def is_freed(self) -> bool:
        """True if the memory of the outputs was freed."""
        ...

    @property
    def run(self) -> JobRun | None:
        """The run that produced the outputs."""
        ...

    def count_readers(self, more: int) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuTensor:
    """A tensor on the GPU: row-major 32-bit elements in ``buffer``, starting at byte ``offset``.

    The renderer can bind it or copy it to a texture; another job can use it as an input.
    ``owner`` is the set of job outputs that it is part of, if any. Their memory lasts as long as
    the tensor object, or until the job's ``release()``.

    Examples
    --------
    >>> outputs = network.run({"image": image})
    >>> tensor = network.tensor("out")
    >>> tensor.fact.shape, tensor.read().dtype
    ((1, 4, 8, 8), dtype('float32'))
    """

    buffer: wgpu.GPUBuffer
    offset: int
    nbytes: int
    fact: Fact
    owner: TensorOwner | None = field(default=None, repr=False, compare=False)

    @property
    def released(self) -> bool:
        """True if the tensor's memory was freed."""
        return self.owner is not None and self.owner.is_freed

    @property
    def run(self) -> JobRun | None:
        """The run of the job that produced the value; None if no job did."""
        return None if self.owner is None else self.owner.run

    @device_errors()
    def read(self) -> Array:
        """Returns the current value as a NumPy array. Blocks; for tools and tests.

        Raises :class:`InputError` if the memory was freed.
        """
        if self.released:
            raise InputError("the GPU tensor's memory was released before")
        queue, data = self.buffer._device.queue, b""
        if self.fact.size:
            data = queue.read_buffer(self.buffer, self.offset, self.nbytes)
        return from_words(data, TensorPlace(Binding("", "", 0, self.nbytes), self.fact, PLAIN))

    def add_reader(self) -> None:
        """Keeps the memory for one job that will read it, until :meth:`remove_reader`.

        Calls are counted. The memory stays even if the outputs are released before.
        """
        if self.owner is not None:
            self.owner.count_readers(1)

    def remove_reader(self) -> None:
        """Ends :meth:`add_reader`: the job has read the tensor or no longer needs it."""
        if self.owner is not None:
            self.owner.count_readers(-1)


def tensor_in(device: wgpu.GPUDevice, buffer: wgpu.GPUBuffer, offset: int, fact: Fact) -> GpuTensor:
    """Returns a tensor of shape and type ``fact`` at a byte offset of the host's buffer.

    Raises :class:`InputError` if the buffer is of another device, lacks ``COPY_SRC`` or is too
    small.
    """
    check_instance(wgpu.GPUBuffer, buffer, "a tensor's buffer")
    check_instance(Fact, fact, "a tensor's fact")
    check_choice(tuple(NUMPY_DTYPE), fact.dtype, "a tensor's dtype")
    check_shape(fact.shape, "a tensor's shape")
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
