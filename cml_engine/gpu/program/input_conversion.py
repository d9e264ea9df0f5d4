"""Quantization of real numbers on the device to the input words of an integer network."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

import wgpu

from cml_engine.compiler.plan import Binding, StepCost, TensorPlace
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.program.shared_constants import TENSOR_USAGE
from cml_engine.gpu.textures.kernels import Params, kernels_of, step_cost
from cml_engine.gpu.textures.loads import Target
from cml_engine.ir.layout import block_words

_NOTHING = (0, 0, 0, 0)
_WORD = 4


def readable(tensor: GpuTensor) -> bool:
    """Returns True if a kernel can read the tensor in its own buffer (usage ``STORAGE``)."""
    return bool(int(tensor.buffer.usage) & wgpu.BufferUsage.STORAGE)


class Waiting:
    """A buffer for a copy of a tensor that no kernel can read in place; freed with this object."""

    def __init__(self, gpu: Device, name: str, nbytes: int) -> None:
        self._memory = gpu.memory.allocate(nbytes, TENSOR_USAGE, owner=name, category="staging")
        weakref.finalize(self, gpu.memory.free_later, self._memory.free).atexit = False

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]:
        """Returns the buffer and byte offset of the only tensor, for any binding."""
        return self._memory.buffer, self._memory.offset


class NumbersLoad:
    """A dispatch that quantizes one input's real numbers before a network's own steps."""

    def __init__(self, gpu: Device, name: str, place: TensorPlace) -> None:
        assert place.conversion is not None
        self._gpu, self._place = gpu, place
        batch, channels, *spatial = place.fact.shape
        blocks = batch * -(-channels // 4) * prod(spatial)
        entry = place.conversion
        self._params = Params(
            blocks,
            (channels, prod(spatial), 0, block_words(place.layout)),
            _NOTHING,
            _NOTHING,
            (entry.inverse, entry.low, entry.high, 0.0),
            (0.0, 0.0, 0.0, 0.0),
            (0, 0),
        )
        words = 4 + block_words(place.layout)
        #: the step's cost for the scheduler
        self.cost: StepCost = step_cost("enter", f"enter '{name}'", self._params, words)
        self._bound: Any = None
        self._from: Any = None

    def bind(self, target: Target, source: Target) -> None:
        """Binds the memory of the numbers (``source``) and of the resulting words (``target``)."""
        nbytes = self._place.fact.nbytes
        self._from = source
        self._bind(target, *source.place(Binding("", "", 0, nbytes)), nbytes)

    def read_from(self, target: Target, tensor: GpuTensor) -> None:
        """Binds the GPU tensor to read from, and the memory of the resulting words (``target``)."""
        before = tensor.offset % self._gpu.limits.storage_offset_alignment
        nbytes = before + self._place.fact.nbytes
        channels, positions, _, words = self._params.sizes
        self._params = self._params.with_sizes((channels, positions, before // _WORD, words))
        self._bind(target, tensor.buffer, tensor.offset - before, nbytes)

    def _bind(self, target: Target, buffer: wgpu.GPUBuffer, offset: int, nbytes: int) -> None:
        own, at, size = *target.place(self._place.binding), self._place.binding.nbytes
        kernels = kernels_of(self._gpu)
        with device_errors():
            kernels.build(
                self._gpu
            )  # only Session.run builds them here: a job waits for them before it begins
            self._bound = kernels.bound(
                "enter",
                buffer,
                (offset, nbytes, own, at, size),
                lambda: (
                    {"buffer": buffer, "offset": offset, "size": nbytes},
                    {"buffer": own, "offset": at, "size": size},
                ),
            )

    def encode_range(self, compute: wgpu.GPUComputePassEncoder, first: int, count: int) -> None:
        """Records workgroups ``[first, first + count)`` of the dispatch into a compute pass."""
        kernels = kernels_of(self._gpu)
        kernels.dispatch(compute, "enter", self._bound, self._params, (first, first + count))

    def encode_all(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Records all workgroups of the dispatch into a compute pass."""
        self.encode_range(compute, 0, self.cost.groups)
