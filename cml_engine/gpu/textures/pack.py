"""Copies of tensors into textures: elements are packed into rows of texels, then copied.

Shader: ``shaders_hlsl/textures/pack.hlsl``.
"""

from __future__ import annotations

import weakref

import wgpu

from cml_engine.compiler.plan import StepCost
from cml_engine.errors import InputError
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.allocator import Allocation
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.native import device_errors, dispatch_recorder
from cml_engine.gpu.program.memory import TENSOR_USAGE
from cml_engine.gpu.textures.checks import check_bound, level_size, texture_format
from cml_engine.gpu.textures.pipelines import Params, kernels_of, step_cost
from cml_engine.gpu.timing.timestamp_ring import TimestampRing, TimestampWrites
from cml_engine.ir.textures import Planes, TextureFormat, TextureTarget, by_channel, planes

#: WebGPU's alignment in bytes of a row in a copy
ROW_BYTES = 256
#: the encodings of the kernel
_ENCODINGS = {"unorm8": 0, "float16": 1, "float32": 2}
#: the values of ``how.x`` in the kernel
_AS_IT_IS, _ENCODED, _DECODED = 0, 1, 2


class TextureCopies:
    """Copies tensors into textures on one device, for one frame scheduler.

    A kernel packs the elements into rows of texels, which are then copied. The packed rows are
    in memory that grows to the size of the largest texture. Copies can share it, because
    submitted work runs in order. One copy per frame is timed, because a timestamp ring has few
    slots.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._packed: Allocation | None = None
        self._free_packed: weakref.finalize[..., object] | None = None
        #: created by the first copy
        self._ring: TimestampRing | None = None
        self._timed = -1
        self._costs: dict[int, StepCost] = {}

    def copy(
        self,
        encoder: wgpu.GPUCommandEncoder,
        frame: int,
        name: str,
        tensor: GpuTensor,
        target: TextureTarget,
    ) -> StepCost:
        """Records the copy of the output ``name`` into the target texture and returns its cost.

        Raises :class:`InputError` if the texture does not fit the tensor.
        """
        if self._ring is None and self._gpu.has_timestamps:
            self._ring = TimestampRing(self._gpu, "texture copies", 1, chained=True)
        ring = self._ring
        slot = ring.begin(frame) if ring is not None and self._timed != frame else None
        if ring is None or slot is None:
            return self._copy(encoder, name, tensor, target, None)
        self._timed = frame
        try:
            ring.lead(encoder, slot)
            cost = self._copy(encoder, name, tensor, target, ring.writes(slot))
            ring.settle(encoder, slot)
            ring.resolve(encoder, slot)
        except Exception:
            ring.abandon(frame)
            raise
        self._costs[frame] = cost
        return cost

    def start_mapping(self, frame: int) -> bool:
        """Starts reading timings that are old enough at the end of ``frame``.

        Returns True if any are pending.
        """
        return self._ring is not None and self._ring.start_mapping(frame)

    def collect(self) -> list[tuple[StepCost, float]]:
        """Returns the cost and the milliseconds of each timed copy whose timing has arrived."""
        if self._ring is None:
            return []
        timings = [
            (self._costs[slot.frame], sum(ms))
            for slot, ms in self._ring.collect()
            if slot.frame in self._costs
        ]
        self._ring.take_unsubmitted()  # the executor's ring reports unsubmitted frames
        oldest = self._timed - 64
        self._costs = {frame: cost for frame, cost in self._costs.items() if frame > oldest}
        return timings

    def abandon(self, frame: int) -> None:
        """Drops the timings of a frame whose encoder is discarded."""
        if self._ring is not None:
            self._ring.abandon(frame)
            self._costs.pop(frame, None)

    @device_errors()
    def _copy(
        self,
        encoder: wgpu.GPUCommandEncoder,
        name: str,
        tensor: GpuTensor,
        target: TextureTarget,
        writes: TimestampWrites | None,
    ) -> StepCost:
        """Records a copy; ``writes`` are the timestamp writes for the whole of it."""
        label = f"output '{name}'"
        texel_format = texture_format(self._gpu, label, target.texture, written=True)
        picture = planes(label, tensor.fact, target.layout)
        _check_fits(label, picture, target)
        picked = target.picked(label, texel_format, picture.channels)
        row_bytes = texel_format.texel_bytes * picture.width
        pitch = -(-row_bytes // ROW_BYTES) * ROW_BYTES
        params = _params(label, texel_format, picture, target, picked, pitch)
        first, last = _at_both_ends(writes)
        if _needs_no_packing(texel_format, picture, tensor, target, row_bytes):
            _write_times(encoder, first)
            _copy(encoder, tensor.buffer, tensor.offset, row_bytes, picture, target)
            kernel, words_per_pixel = "copy_texture", texel_format.texel_bytes / 2
        else:
            bound_bytes = max(tensor.nbytes, pitch * picture.height)
            check_bound(self._gpu, label, bound_bytes, "read it (job.read) and write the texture")
            kernels, packed = kernels_of(self._gpu), self._rows(pitch * picture.height)
            kernels.build(self._gpu)
            compute = encoder.begin_compute_pass(label="cml texture", timestamp_writes=first)
            nbytes = tensor.nbytes
            bind_group = kernels.bind_group(
                "pack",
                tensor.buffer,
                (nbytes, packed.buffer, packed.offset, packed.nbytes),
                lambda: [
                    {"buffer": tensor.buffer, "offset": 0, "size": nbytes},
                    packed.binding(0, packed.nbytes),
                ],
            )
            part = (0, params.groups)
            dispatch = kernels.dispatch("pack", bind_group, params, part, (tensor.offset,))
            dispatch_recorder()(compute, (dispatch,))
            compute.end()
            _copy(encoder, packed.buffer, packed.offset, pitch, picture, target)
            kernel = "pack_texture"
            words_per_pixel = picture.channels + 3 * texel_format.texel_bytes / 4
        _write_times(encoder, last)
        return step_cost(kernel, f"{kernel} '{name}'", params, words_per_pixel, True)

    def _rows(self, nbytes: int) -> Allocation:
        if self._packed is None or self._packed.nbytes < nbytes:
            memory = self._gpu.memory
            grown = memory.allocate(
                nbytes, TENSOR_USAGE, owner="textures", category="staging", alignment=ROW_BYTES
            )
            if self._free_packed is not None:
                self._free_packed()
            self._packed, self._free_packed = grown, grown.free_with_owner(self)
        return self._packed


def _check_fits(label: str, picture: Planes, target: TextureTarget) -> None:
    x, y, layer = target.origin
    width, height = level_size(label, target.texture, layer, target.mip)
    if x + picture.width > width or y + picture.height > height:
        raise InputError(
            f"{label} of {picture.width} x {picture.height} does not fit into a texture of {width} "
            f"x {height} at ({x}, {y})"
        )


def _params(
    label: str,
    texel_format: TextureFormat,
    picture: Planes,
    target: TextureTarget,
    picked: tuple[int, ...],
    pitch: int,
) -> Params:
    count = picture.channels
    scale = by_channel(target.scale, count, f"{label}: scale")
    shift = by_channel(target.shift, count, f"{label}: shift")
    decode, encode = target.srgb and not texel_format.srgb, texel_format.srgb and not target.srgb
    return Params(
        picture.pixels,
        (
            picture.width,
            pitch // 4,
            texel_format.texel_bytes // 4,
            _ENCODINGS[texel_format.encoding],
        ),
        (*picture.strides, 0),
        picked,
        # in the order of the texture's channels
        tuple(scale[k] if k < count else 1.0 for k in picked),
        tuple(shift[k] if k < count else 0.0 for k in picked),
        (_ENCODED if encode else _DECODED if decode else _AS_IT_IS, texel_format.order == "bgra"),
    )


def _needs_no_packing(
    texel_format: TextureFormat,
    picture: Planes,
    tensor: GpuTensor,
    target: TextureTarget,
    row_bytes: int,
) -> bool:
    """Returns True if the tensor's memory can be copied into the texture without packing."""
    same = texel_format.encoding == "float32" and len(texel_format.order) == picture.channels
    aligned = row_bytes % ROW_BYTES == 0 and tensor.offset % texel_format.texel_bytes == 0
    return same and aligned and picture.interleaved and target.unchanged


def _copy(
    encoder: wgpu.GPUCommandEncoder,
    buffer: wgpu.GPUBuffer,
    offset: int,
    pitch: int,
    picture: Planes,
    target: TextureTarget,
) -> None:
    encoder.copy_buffer_to_texture(
        {
            "buffer": buffer,
            "offset": offset,
            "bytes_per_row": pitch,
            "rows_per_image": picture.height,
        },
        {"texture": target.texture, "mip_level": target.mip, "origin": target.origin},
        (picture.width, picture.height, 1),
    )


def _at_both_ends(
    writes: TimestampWrites | None,
) -> tuple[TimestampWrites | None, TimestampWrites | None]:
    """Splits a pass's timestamp writes into the writes of its beginning and of its end.

    They go to two passes around the copy, because a copy cannot write timestamps. The first is None
    if only the end is written.
    """
    if writes is None:
        return None, None
    last: TimestampWrites = {
        "query_set": writes["query_set"],
        "end_of_pass_write_index": writes["end_of_pass_write_index"],
    }
    if "beginning_of_pass_write_index" not in writes:
        return None, last
    index = writes["beginning_of_pass_write_index"]
    return {"query_set": writes["query_set"], "beginning_of_pass_write_index": index}, last


def _write_times(encoder: wgpu.GPUCommandEncoder, writes: TimestampWrites | None) -> None:
    """Records an empty pass that writes the timestamps; does nothing if ``writes`` is None."""
    if writes is not None:
        encoder.begin_compute_pass(timestamp_writes=writes).end()
