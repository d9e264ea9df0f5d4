"""GPU time of the host's own passes, frame by frame, without ever waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import wgpu

from cml_engine.errors import DeviceError, InputError
from cml_engine.errors.arguments import TIMES, some_names, text
from cml_engine.gpu.device import Device
from cml_engine.gpu.native import device_errors, poll
from cml_engine.gpu.timing.timestamp_ring import SLOTS, FrameSlot, TimestampRing


class FrameTimer:
    """Times passes of the host by name; :meth:`cml_engine.Gpu.frame_timer` makes one.

    In every frame: :meth:`writes` for each pass to be timed, :meth:`resolve` at the end of the
    encoder, :meth:`end_frame` after the submit. Times arrive two frames later at the least.
    Nothing is created after the constructor. Without timestamp queries nothing is timed. On
    llvmpipe render passes are timed right, and compute passes only until the device has drawn
    something (the reason is at :class:`TimestampRing`; the scheduler's own passes go around it).

    Parameters
    ----------
    names : what the passes are called. A name may be given to several passes of a frame: their
        times are added up.
    passes : the most timed passes of one frame; a frame with more of them is not timed.
    every : of the frames one in so many is timed. On llvmpipe two timed passes make a frame half
        a millisecond longer.
    """

    def __init__(self, gpu: Device, names: Sequence[str], passes: int = 16, every: int = 1) -> None:
        self.names = some_names(names, "the names of a frame timer's passes")
        TIMES.check(passes, "passes of a frame timer")
        self._every = TIMES.check(every, "every")
        #: the number of the frame that is being encoded
        self.frame = 0
        self._gpu = gpu
        self._ring: TimestampRing | None = None
        if gpu.has_timestamps:
            self._ring = TimestampRing(gpu, "frame timer", passes)
        self._slot: FrameSlot | None = None
        self._timed: list[list[str]] = [[] for _ in range(SLOTS)]
        self._resolved = self._skipped = False

    @property
    def untimed_frames(self) -> int:
        """Frames that were not timed: too many were on their way, or they had too many passes."""
        return self._ring.dropped if self._ring else 0

    def writes(self, name: str) -> dict[str, Any] | None:
        """``timestamp_writes`` for a render or compute pass that is begun with it; None where it
        is not timed. :class:`InputError` for a name that the timer does not have."""
        if text(name, "a pass") not in self.names:
            raise InputError(f"no pass {name!r} in this timer: it has {', '.join(self.names)}")
        if self._ring is None or self._skipped or self._resolved or self.frame % self._every:
            return None
        if self._slot is None:
            self._slot = self._ring.begin(self.frame)
            if self._slot is None:
                self._skipped = True
                return None
            self._timed[self._slot.index].clear()
        if self._slot.passes == self._ring.passes:
            self._skip()
            return None
        self._timed[self._slot.index].append(name)
        return self._ring.writes(self._slot)

    @device_errors()
    def resolve(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Append what brings the frame's times home, after its last timed pass."""
        if self._ring is not None and self._slot is not None:
            self._ring.resolve(encoder, self._slot)
            self._resolved = True

    def end_frame(self) -> list[tuple[int, dict[str, float]]]:
        """Call after the submit. The frames whose times have arrived, oldest first: the frame's
        number and milliseconds by name; a pass that did not run in it has no entry."""
        if self._ring is None:
            return []
        if not self._resolved:
            self._ring.abandon(self.frame)
        frame = self._next_frame()
        try:
            with device_errors():
                if self._ring.ask(frame):
                    poll(self._gpu.device)
            arrived = [(s.frame, self._by_name(s, ms)) for s, ms in self._ring.take()]
        except DeviceError:  # the device is lost: nothing will come
            return []
        self._ring.take_unsubmitted()  # frames that never ran have no times
        return arrived

    def abandon_frame(self) -> None:
        """Call instead of the submit and :meth:`end_frame` where the encoder is thrown away."""
        if self._ring is not None:
            self._ring.abandon(self.frame)
        self._next_frame()

    def _next_frame(self) -> int:
        """Go on to the next frame; the number of the one that is over."""
        self._slot, self._resolved, self._skipped = None, False, False
        self.frame += 1
        return self.frame - 1

    def _skip(self) -> None:
        """Do not time this frame."""
        assert self._ring is not None
        self._ring.abandon(self.frame)
        self._ring.dropped += 1
        self._slot, self._skipped = None, True

    def _by_name(self, slot: FrameSlot, ms: Sequence[float]) -> dict[str, float]:
        times: dict[str, float] = {}
        for name, spent in zip(self._timed[slot.index], ms, strict=True):
            times[name] = times.get(name, 0.0) + spent
        return times
