"""Dispatches that read a texture into a network's input before the network's own steps."""

from __future__ import annotations

from typing import Any, Protocol

import wgpu

from cml_engine.compiler.plan import Binding, StepCost
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.native import device_errors
from cml_engine.gpu.textures.checks import check_bound, level_size, texture_format
from cml_engine.gpu.textures.kernels import Params, kernels_of, step_cost
from cml_engine.ir.graph import Fact
from cml_engine.ir.textures import TextureInput, by_channel, planes

#: the modes of ``textures/load.hlsl``
_MODES = {None: 0, "nearest": 0, "bilinear": 1, "area": 2}


class Target(Protocol):
    """The interface of the memory that a tensor is loaded into: ``program.ProgramMemory``."""

    def place(self, binding: Binding) -> tuple[wgpu.GPUBuffer, int]: ...


class TextureLoad:
    """A dispatch that reads a texture into the input ``name`` of a network.

    It is created before the network has memory. The constructor raises :class:`InputError` if
    texture and tensor do not fit.
    """

    def __init__(self, gpu: Device, name: str, fact: Fact, given: TextureInput) -> None:
        what = f"input '{name}'"
        form = texture_format(gpu, what, given.texture, written=False)
        picture = planes(what, fact, given.layout)
        check_bound(gpu, what, fact.nbytes, "give it as an array or in a buffer (gpu.tensor)")
        width, height = level_size(what, given.texture, given.layer, given.mip)
        if given.resize is None and (width, height) != (picture.width, picture.height):
            raise InputError(
                f"{what}: the texture is {width} x {height}, the tensor {picture.width} x "
                f"{picture.height}: say resize='bilinear' (or 'area', 'nearest')"
            )
        count = picture.channels
        picked = given.picked(what, form, count)
        self._params = Params(
            picture.pixels,
            (picture.width, picture.height, width, height),
            (*picture.strides, count),
            (*picked, *[0] * (4 - count)),
            by_channel(given.scale, count, f"{what}: scale"),
            by_channel(given.shift, count, f"{what}: shift"),
            (_MODES[given.resize], given.srgb),
        )
        self._gpu, self._given = gpu, given
        per_pixel = {"bilinear": 4.0, "area": max(1.0, width * height / picture.pixels)}
        words = count + form.texel_bytes / 4 * per_pixel.get(given.resize or "", 1.0)
        #: the step's cost for the scheduler
        self.cost: StepCost = step_cost(
            "load_texture", f"load_texture '{name}'", self._params, words, given.at_once
        )
        self._bound: Any = None

    def bind(self, target: Target, binding: Binding) -> None:
        """Binds the texture to read and the memory to write; builds missing pipelines."""
        buffer, offset = target.place(binding)
        given, texture = self._given, self._given.texture

        def view() -> Any:
            return texture.create_view(
                dimension="2d",
                base_array_layer=given.layer,
                array_layer_count=1,
                base_mip_level=given.mip,
                mip_level_count=1,
            )

        kernels = kernels_of(self._gpu)
        with device_errors():
            kernels.build(
                self._gpu
            )  # only Session.run builds them here: a job waits for them before it begins
            view()  # a destroyed texture raises an error here, not at the host's submit
            self._bound = kernels.bound(
                "load",
                texture,
                (given.layer, given.mip, buffer, offset, binding.nbytes),
                lambda: (view(), {"buffer": buffer, "offset": offset, "size": binding.nbytes}),
            )

    def encode_range(self, compute: wgpu.GPUComputePassEncoder, first: int, count: int) -> None:
        """Records workgroups ``[first, first + count)`` of the dispatch into a compute pass."""
        part = (0, self._params.groups) if self._given.at_once else (first, first + count)
        kernels = kernels_of(self._gpu)
        kernels.dispatch(compute, "load", self._bound, self._params, part)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Records all workgroups of the dispatch into a compute pass."""
        self.encode_range(compute, 0, self.cost.groups)
