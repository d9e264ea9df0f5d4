"""Checks of the textures that a host gives: device, format, usage, size."""

from __future__ import annotations

import wgpu

from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.ir.textures import TextureFormat, known_format

_Usage = wgpu.TextureUsage


def texture_format(
    gpu: Device, label: str, texture: wgpu.GPUTexture, *, written: bool
) -> TextureFormat:
    """Returns the format of a host's texture that is to be read or ``written``.

    Raises :class:`InputError` if its device, format, usage, dimension or sample count do not
    allow it. ``label`` begins the message.
    """
    if not isinstance(texture, wgpu.GPUTexture):
        raise InputError(f"{label}: wanted a wgpu.GPUTexture, got {type(texture).__name__}")
    if getattr(texture, "_device", gpu.device) is not gpu.device:
        raise InputError(f"{label}: the texture is of another device than {gpu.name}")
    texel_format = known_format(str(texture.format), label, written=written)
    usage, flag = (_Usage.COPY_DST, "COPY_DST") if written else (
        _Usage.TEXTURE_BINDING, "TEXTURE_BINDING"
    )  # fmt: skip
    if not int(texture.usage) & usage:
        raise InputError(f"{label}: the texture is made without wgpu.TextureUsage.{flag}: add it")
    if str(texture.dimension) != "2d" or texture.sample_count != 1:
        raise InputError(
            f"{label}: wanted a 2d texture of one sample, got {texture.dimension} of "
            f"{texture.sample_count}: resolve it into one first"
        )
    return texel_format


def check_bound(gpu: Device, label: str, nbytes: int, advice: str) -> None:
    """Raises :class:`InputError` if the device cannot bind ``nbytes`` at once.

    The kernels between textures and tensors do not support tensors in several parts.
    """
    limit = gpu.limits.max_binding_bytes
    if nbytes > limit:
        raise InputError(
            f"{label}: it takes {nbytes} bytes beside a texture, this device binds at most {limit} "
            f"at once: {advice}"
        )


def level_size(label: str, texture: wgpu.GPUTexture, layer: int, mip: int) -> tuple[int, int]:
    """Returns the width and height in pixels of a mip level.

    Raises :class:`InputError` if the texture has no such layer or mip level.
    """
    layers, mips = texture.depth_or_array_layers, texture.mip_level_count
    if layer >= layers or mip >= mips:
        raise InputError(
            f"{label}: wanted layer {layer} and mip {mip}; the texture has {layers} layers and "
            f"{mips} mips"
        )
    return max(1, texture.width >> mip), max(1, texture.height >> mip)
