"""Copies of outputs into textures within frames, with their costs and timings."""

from __future__ import annotations

import wgpu

from cml_engine.compiler.plan import StepCost
from cml_engine.gpu.device import Device
from cml_engine.gpu.memory.tensors import GpuTensor
from cml_engine.gpu.textures.copies import TexturePacker
from cml_engine.gpu.timing.timestamp_ring import TimestampRing
from cml_engine.ir.textures import TextureTarget


class TextureCopies:
    """The texture copies of one frame scheduler.

    One copy per frame is timed, because a timestamp ring has few slots.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._packer = TexturePacker(gpu)
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
        """Records the copy of ``tensor`` into the target texture and returns its cost."""
        if self._ring is None and self._gpu.has_timestamps:
            self._ring = TimestampRing(self._gpu, "texture copies", 1, chained=True)
        ring = self._ring
        slot = ring.begin(frame) if ring is not None and self._timed != frame else None
        if ring is None or slot is None:
            return self._packer.copy(encoder, name, tensor, target)
        self._timed = frame
        try:
            ring.lead(encoder, slot)
            cost = self._packer.copy(encoder, name, tensor, target, ring.writes(slot))
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
        found = [
            (self._costs[slot.frame], sum(ms))
            for slot, ms in self._ring.collect()
            if slot.frame in self._costs
        ]
        self._ring.take_unsubmitted()  # the executor's ring reports unsubmitted frames
        oldest = self._timed - 64
        self._costs = {frame: cost for frame, cost in self._costs.items() if frame > oldest}
        return found

    def abandon(self, frame: int) -> None:
        """Drops the timings of a frame whose encoder is discarded."""
        if self._ring is not None:
            self._ring.abandon(frame)
            self._costs.pop(frame, None)
