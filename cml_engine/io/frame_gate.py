"""Keeps a background compile thread from taking the interpreter while the host records a frame."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, local

#: seconds after which a frame that was begun but never ended stops blocking
_LONGEST_S = 0.05
#: seconds after a frame during which its thread may still be busy
_AFTER_S = 0.0005
#: the longest total pause of a background thread in seconds, unless it gives another
_MOST_S = 2.0


class FrameGate:
    """A gate that is closed for background compile threads while a frame is recorded.

    Recording a frame calls the driver about a thousand times, and each call releases the GIL. If
    a network compiles at the same time, frames take twice as long on processors that also draw.
    The compile thread therefore pauses at its next checkpoint (:meth:`yield_to_frame`) while a
    frame is recorded, and continues while the frame's thread waits for the display. If the host
    waits for the GPU (which may be these processors), it continues only after that wait.
    """

    def __init__(self) -> None:
        self._open = Event()
        self._open.set()
        #: True if the host calls end_frame, and if it calls gpu_is_done
        self._frames_end = self._waits_for_gpu = False
        self._thread = local()
        #: the number of pauses
        self.pauses = 0

    def begin_frame(self) -> None:
        """Closes the gate, if the host has ever called :meth:`end_frame`.

        Without that, nothing would open the gate again.
        """
        if self._frames_end:
            self._open.clear()

    def end_frame(self) -> None:
        """Opens the gate, unless the host also calls :meth:`gpu_is_done`, which then opens it."""
        self._frames_end = True
        if not (self._waits_for_gpu or self._open.is_set()):
            self._open.set()

    def gpu_is_done(self) -> None:
        """Opens the gate; the frame's thread calls it after its wait for the GPU."""
        self._waits_for_gpu = True
        self._open.set()

    def reset(self) -> None:
        """Opens the gate and forgets how the host reports its frames."""
        self._frames_end = self._waits_for_gpu = False
        self._open.set()

    @contextmanager
    def background(self, longest_s: float = _MOST_S) -> Iterator[None]:
        """Makes this thread pause in :meth:`yield_to_frame` during the ``with`` block.

        Its pauses add up to about ``longest_s`` seconds at most.
        """
        self._thread.left_s = longest_s
        try:
            yield
        finally:
            self._thread.left_s = 0.0

    def yield_to_frame(self) -> None:
        """Blocks a thread that is in :meth:`background` until no frame is being recorded.

        Compile stages call it every millisecond or so, where they hold no lock that a frame may
        need. It returns at once on other threads. A frame that does not end in ``_LONGEST_S``
        seconds resets the gate.
        """
        if self._open.is_set() or getattr(self._thread, "left_s", 0.0) <= 0.0:
            return
        self.pauses += 1
        start = time.perf_counter()
        while not self._open.is_set():
            if not self._open.wait(_LONGEST_S):
                self.reset()
            time.sleep(_AFTER_S)
        self._thread.left_s -= time.perf_counter() - start


#: the gate of this process
frame_gate = FrameGate()
#: the checkpoint that compile stages call
yield_to_frame = frame_gate.yield_to_frame
