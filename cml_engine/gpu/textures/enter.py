"""Quantizes tensors of real numbers on the device, which are inputs of integer networks.

Shader: ``shaders_hlsl/textures/enter.hlsl``.
"""

from __future__ import annotations

from math import prod

from cml_engine.compiler.plan import TensorPlace
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocator import Allocation, BufferRange
from cml_engine.gpu.program.memory import TENSOR_USAGE
from cml_engine.gpu.textures.load import KernelLoad
from cml_engine.gpu.textures.pipelines import Params, kernels_of, step_cost
from cml_engine.ir.layout import block_words


class NumbersLoad(KernelLoad):
    """A dispatch that quantizes an input's real numbers to the words of an integer network."""

    kernel = "enter"

    def __init__(self, gpu: Device, name: str, place: TensorPlace) -> None:
        assert place.conversion is not None
        batch, channels, *spatial = place.fact.shape
        rule, block_size = place.conversion, block_words(place.layout)
        params = Params(
            batch * -(-channels // 4) * prod(spatial),
            (channels, prod(spatial), 0, block_size),
            scale=(rule.inverse, rule.low, rule.high, 0.0),
        )
        super().__init__(gpu, params, step_cost("enter", f"enter '{name}'", params, 4 + block_size))
        self._nbytes = place.fact.nbytes
        self._numbers: Allocation | None = None

    def bind(self, network: str, target: BufferRange) -> BufferRange:
        """Binds the memory of the resulting words; returns memory to which the numbers must go.

        That memory is freed with this object.
        """
        memory = self._gpu.memory
        numbers = memory.allocate(self._nbytes, TENSOR_USAGE, owner=network, category="staging")
        numbers.free_with_owner(self)
        source = numbers.binding(0, self._nbytes)
        self._bind_group = kernels_of(self._gpu).bind_group(
            self.kernel,
            numbers.buffer,
            (*source.values(), *target.values()),
            lambda: [source, target],
        )
        return source
