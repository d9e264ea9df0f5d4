"""Whose turn the interpreter is: a frame's, or a thread's that compiles a network beside it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Any

#: seconds for which a frame is made, at most: what has begun and does not end holds nobody up
_LONGEST_S = 0.05
#: seconds after a frame in which its thread has something left to do
_AFTER_S = 0.0005
#: seconds for which a thread stands still in all, where frames leave it no time
_MOST_S = 2.0
#: where it may: functions that hold no lock which a frame may wait for
_MAY_STAND = tuple(
    f"cml_engine.{name}"
    for name in ("graph", "passes.", "planning.", "ops.", "nnef.", "integer.", "gpu.shaders.hlsl")
)


class Turns:
    """A frame's Python calls the driver a thousand times, and each call lets another thread have
    the interpreter: while one compiles, frames take twice as long on processors that also draw. So
    it stands still while a frame is made, and works while the frame's thread waits for the display;
    where the host waits for the GPU, which may be these processors, not before it has done that."""

    def __init__(self) -> None:
        self._free = Event()
        self._free.set()
        #: whether somebody says when a frame has ended, and when the GPU has done it
        self._told = self._waits = False
        #: how often a thread has stood still
        self.stood = 0

    def begin_frame(self) -> None:
        """A frame is made from now on, where the end of one was told before."""
        if self._told:
            self._free.clear()

    def end_frame(self) -> None:
        """It is made, and submitted."""
        self._told = True
        if not self._waits:
            self._free.set()

    def gpu_is_done(self) -> None:
        """The frame's thread has waited for that."""
        self._waits = True
        self._free.set()

    def forget(self) -> None:
        """No frame is made, and none is waited for."""
        self._told = self._waits = False
        self._free.set()

    @contextmanager
    def between_frames(self) -> Iterator[None]:
        """This thread stands still while a frame is made."""
        if sys.getprofile() is not None:  # somebody looks at it
            yield
            return
        left_s = _MOST_S

        def called(frame: FrameType, event: str, _: Any) -> None:
            nonlocal left_s
            if event != "call" or self._free.is_set() or left_s <= 0.0:
                return
            if frame.f_globals.get("__name__", "").startswith(_MAY_STAND):
                left_s -= self._stand()

        sys.setprofile(called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _stand(self) -> float:
        """Until no frame is made; the seconds that it took."""
        self.stood += 1
        start = time.perf_counter()
        while not self._free.is_set():
            if not self._free.wait(_LONGEST_S):
                self.forget()
            time.sleep(_AFTER_S)
        return time.perf_counter() - start


turns = Turns()
