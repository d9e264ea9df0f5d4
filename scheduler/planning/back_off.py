"""Adjusts the budget by the intervals between the host's frames, without timestamps."""

from __future__ import annotations

from cml_engine.io.json_files import JsonObject

#: a frame longer than usual by this factor is late, not just jitter
_LATE = 1.15
#: the factor of the back-off for a late frame, its decay per frame in time, its limit
_GROWTH, _DECAY, _MOST_BACK_OFF = 1.25, 0.99, 16.0
#: weights of a new value: of the host's own frame time, and of an interval
_BELIEVED, _SMOOTHED = 0.25, 0.1
#: while frames are late, two frames in this number run no networks, to see if they are the cause
_SKIP_EVERY = 48
#: limit of an interval, in frames: a loading screen is not a frame
_LONGEST = 60


class BackOff:
    """A divisor of the budget that grows while the host's frames are late.

    While frames take longer than ``frame_ms``, the networks get less, down to a sixteenth. If that
    does not help, the host itself is slow, and its frames are compared with its own usual interval
    from then on. Frames without networks show this at once, so a late frame is sometimes followed
    by two of them (:attr:`skip_due`).
    """

    def __init__(self, frame_ms: float) -> None:
        self._frame_ms = self._usual_ms = frame_ms
        self._ended_ms: float | None = None
        #: the smoothed time from the end of one frame to the end of the next
        self.interval_ms = frame_ms
        self._intervals = 0
        #: True if the next frame should run no networks, to see if the host alone is late
        self.skip_due = False
        self._without = 0
        self._since_skip = _SKIP_EVERY
        #: the divisor of the budget, at least 1
        self.factor = 1.0

    def state(self) -> dict[str, float | None]:
        """Returns the learned values by name, as JSON, for :meth:`resume`."""
        return {
            "back_off": self.factor,
            "usual": self._usual_ms,
            "ended": self._ended_ms,
            "interval": self.interval_ms,
            "intervals": self._intervals,
            "without": self._without,
            "since_rest": self._since_skip,
            "rest_due": self.skip_due,
        }

    def resume(self, state: JsonObject) -> None:
        """Restores the values that :meth:`state` returned."""
        self.factor, self._usual_ms = state["back_off"], state["usual"]
        self._ended_ms = state["ended"]
        self.interval_ms, self._intervals = state["interval"], state["intervals"]
        self._without, self._since_skip = state["without"], state["since_rest"]
        self.skip_due = state["rest_due"]

    def frame_ended(self, now_ms: float) -> float | None:
        """Records the end of a frame; returns the milliseconds since the end of the frame before.

        Returns None for the first frame. A very long interval is cut off.
        """
        before, self._ended_ms = self._ended_ms, now_ms
        if before is None:
            return None
        interval = min(now_ms - before, _LONGEST * self._frame_ms)
        self._intervals += 1
        self.interval_ms += max(_SMOOTHED, 1 / self._intervals) * (interval - self.interval_ms)
        return interval

    def judge(self, interval: float, ran: bool) -> bool:
        """Updates :attr:`factor` after a frame of ``interval`` ms; returns True if it was late.

        ``ran`` is True if the frame ran networks. Frames without them show the usual frame time.
        """
        late = interval > _LATE * self._usual_ms
        self._without = 0 if ran else self._without + 1
        self._since_skip += 1
        if self._without == 1:  # the device may have been at the frame before
            self._learn_usual(interval, _BELIEVED)
        elif self._without:
            self._learn_usual(interval, 1.0 if self._without == 2 else _BELIEVED)
            self.skip_due, self._since_skip = False, 0
        elif late and self.factor == _MOST_BACK_OFF:
            self._learn_usual(interval, _BELIEVED)
        elif interval < self._usual_ms:
            self._learn_usual(interval, _SMOOTHED)
        if late and ran and self._since_skip > _SKIP_EVERY:
            self.skip_due = True
        elif late and ran:
            self.factor = min(_MOST_BACK_OFF, self.factor * _GROWTH)
        else:
            self.factor = 1 + (self.factor - 1) * _DECAY ** (interval / self._frame_ms)
        return late

    def _learn_usual(self, interval: float, weight: float) -> None:
        self._usual_ms += weight * (max(interval, self._frame_ms) - self._usual_ms)
