"""Textures as inputs of networks. Shader: ``shaders_hlsl/textures/load.hlsl``."""

from __future__ import annotations

import wgpu

from cml_engine.compiler.plan import StepCost
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocator import BufferRange
from cml_engine.gpu.native import Dispatch, dispatch_recorder
from cml_engine.gpu.textures.checks import check_bound, level_size, texture_format
from cml_engine.gpu.textures.pipelines import Params, kernels_of, step_cost
from cml_engine.ir.graph import Fact
from cml_engine.ir.textures import TextureInput, by_channel, planes

#: the modes of the kernel
_MODES = {None: 0, "nearest": 0, "bilinear": 1, "area": 2}


class KernelLoad:
    """A dispatch that runs before a network's own steps and writes to one of its inputs.

    It is created before the network has memory.
    """

    kernel = ""

    def __init__(self, gpu: Device, params: Params, cost: StepCost) -> None:
        self._gpu, self._params = gpu, params
        #: the step's cost for the scheduler
        self.cost = cost
        self._bind_group: wgpu.GPUBindGroup | None = None

    def dispatch(self, first: int, count: int) -> Dispatch:
        """Returns the dispatch of workgroups ``[first, first + count)``."""
        at_once = self.cost.groups != self._params.groups
        part = (0, self._params.groups) if at_once else (first, first + count)
        kernels = kernels_of(self._gpu)
        return kernels.dispatch(self.kernel, self._bind_group, self._params, part)

    def encode_all(self, compute: wgpu.GPUComputePassEncoder) -> None:
        """Records all workgroups of the dispatch into a compute pass."""
        dispatch_recorder()(compute, (self.dispatch(0, self.cost.groups),))


class TextureLoad(KernelLoad):
    """A dispatch that reads a texture into the input ``name`` of a network.

    The constructor raises :class:`InputError` if texture and tensor do not fit.
    """

    kernel = "load"

    def __init__(self, gpu: Device, name: str, fact: Fact, source: TextureInput) -> None:
        label = f"input '{name}'"
        texel_format = texture_format(gpu, label, source.texture, written=False)
        picture = planes(label, fact, source.layout)
        check_bound(gpu, label, fact.nbytes, "give it as an array or in a buffer (gpu.tensor)")
        width, height = level_size(label, source.texture, source.layer, source.mip)
        if source.resize is None and (width, height) != (picture.width, picture.height):
            raise InputError(
                f"{label}: the texture is {width} x {height}, the tensor {picture.width} x "
                f"{picture.height}: say resize='bilinear' (or 'area', 'nearest')"
            )
        count = picture.channels
        params = Params(
            picture.pixels,
            (picture.width, picture.height, width, height),
            (*picture.strides, count),
            (*source.picked(label, texel_format, count), *[0] * (4 - count)),
            by_channel(source.scale, count, f"{label}: scale"),
            by_channel(source.shift, count, f"{label}: shift"),
            (_MODES[source.resize], source.srgb),
        )
        samples_per_pixel = {"bilinear": 4.0, "area": max(1.0, width * height / picture.pixels)}
        samples = samples_per_pixel.get(source.resize or "", 1.0)
        words_per_pixel = count + texel_format.texel_bytes / 4 * samples
        title = f"load_texture '{name}'"
        cost = step_cost("load_texture", title, params, words_per_pixel, source.at_once)
        super().__init__(gpu, params, cost)
        self._source = source

    def bind(self, target: BufferRange) -> None:
        """Binds the texture to read and the memory to write."""
        source = self._source

        def view() -> wgpu.GPUTextureView:
            return source.texture.create_view(
                dimension="2d",
                base_array_layer=source.layer,
                array_layer_count=1,
                base_mip_level=source.mip,
                mip_level_count=1,
            )

        view()  # a destroyed texture raises an error here, not at the host's submit
        self._bind_group = kernels_of(self._gpu).bind_group(
            self.kernel,
            source.texture,
            (source.layer, source.mip, *target.values()),
            lambda: [view(), target],
        )
