"""Keeps a background compile thread from taking the interpreter while the host records a frame."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Any

#: seconds after which a frame that was begun but never ended stops blocking
_LONGEST_S = 0.05
#: seconds after a frame during which its thread may still be busy
_AFTER_S = 0.0005
#: the longest total pause of a compile thread in seconds
_MOST_S = 2.0
#: modules in which a thread may pause: they hold no lock that a frame may need
_MAY_STAND = tuple(
    f"cml_engine.{name}"
    for name in ("graph", "passes.", "planning.", "ops.", "nnef.", "integer.", "gpu.shaders.hlsl")
)


class Turns:
    """The coordination of frames with a background compile thread.

    Recording a frame calls the driver about a thousand times, and each call releases the GIL. If
    a network compiles at the same time, frames take twice as long on processors that also draw.
    The compile thread therefore pauses while a frame is recorded and continues while the frame's
    thread waits for the display. If the host waits for the GPU (which may be these processors),
    the compile thread continues only after that wait.
    """

    def __init__(self) -> None:
        self._free = Event()
        self._free.set()
        #: True if the host calls end_frame, and if it calls gpu_is_done
        self._told = self._waits = False
        #: the number of pauses
        self.stood = 0

    def begin_frame(self) -> None:
        """Pauses compile threads from now on, if :meth:`end_frame` was called before."""
        if self._told:
            self._free.clear()

    def end_frame(self) -> None:
        """Lets compile threads continue, unless the host also waits for the GPU."""
        self._told = True
        if not self._waits:
            self._free.set()

    def gpu_is_done(self) -> None:
        """Lets compile threads continue, because the frame's thread has waited for the GPU."""
        self._waits = True
        self._free.set()

    def forget(self) -> None:
        """Lets compile threads continue and forgets how the host reports its frames."""
        self._told = self._waits = False
        self._free.set()

    @contextmanager
    def between_frames(self) -> Iterator[None]:
        """Pauses this thread in the ``with`` block whenever a frame is being recorded."""
        if sys.getprofile() is not None:  # a profiler is active
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
        """Blocks until no frame is being recorded; returns the seconds that it took."""
        self.stood += 1
        start = time.perf_counter()
        while not self._free.is_set():
            if not self._free.wait(_LONGEST_S):
                self.forget()
            time.sleep(_AFTER_S)
        return time.perf_counter() - start


turns = Turns()
