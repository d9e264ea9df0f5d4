"""Plans the rest of a frame for a host that encodes its networks last.

Such a host knows how much of the frame has passed, so no hitch of the renderer can make the
frame late because of the networks. This module learns how much longer than predicted the
networks take by the host's clock: with their submit, the wake-up after it, and other delays. A
frame that has been slower than usual so far is expected to stay slow, because the cause is still
there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from scheduler.planning.level import Level
from scheduler.planning.margin import TailMargin

#: frames in the median of the elapsed time, and the limits of a frame's ratio to it
_USUAL, _QUICKEST, _SLOWEST = 61, 0.9, 3.0
#: the most frames in a row without networks for lack of room: if they would be late anyway, and
#: if they would not
_RESTS_LATE, _RESTS = 2, 12
#: half of the room is planned at first, and three quarters after this many frames, because rare
#: long frames are not known yet
_DOUBTED = 20
#: the weight of the last plan in the usual plan
_SMOOTHED = 0.05


@dataclass(frozen=True, slots=True)
class _Open:
    """A frame whose total time is not known yet."""

    elapsed_ms: float
    room_ms: float
    slow: float
    predicted_ms: float
    #: True if it runs nothing for lack of room; ``rests`` is the number of such frames before it
    cramped: bool
    rests: int


class RestOfFrame:
    """Plans the work that fits in the rest of a frame.

    At most ``share`` of the frames are late because of the networks.
    """

    def __init__(self, share: float = 0.01) -> None:
        self._margin = TailMargin(share)
        #: the time of a frame with networks beyond their prediction
        self._beyond = Level()
        self._elapsed: deque[float] = deque(maxlen=_USUAL)
        self._open: _Open | None = None
        self._rests = self._learned = 0
        self._elapsed_ms = self._left_ms = 0.0
        self._cramped = False
        #: the factor by which everything is slower than usual in this frame
        self._slow = 1.0
        #: the planned milliseconds of a usual frame
        self.usual_ms = 0.0

    def begin_frame(self, elapsed_ms: float, left_ms: float) -> None:
        """Starts a frame of which ``elapsed_ms`` have passed and ``left_ms`` are left."""
        self._elapsed_ms, self._left_ms = elapsed_ms, left_ms
        self._elapsed.append(elapsed_ms)
        usual = sorted(self._elapsed)[len(self._elapsed) // 2]
        self._slow = min(_SLOWEST, max(_QUICKEST, elapsed_ms / usual)) if usual else 1.0

    @property
    def _beyond_ms(self) -> float:
        return max(0.0, self._beyond.ms)

    @property
    def room_ms(self) -> float:
        """The largest predicted time of the networks that fits in the frame."""
        return max(0.0, self._left_ms / self._slow - self._beyond_ms)

    @property
    def aim_ms(self) -> float:
        """The predicted milliseconds to plan for."""
        sure = 1 - 0.5 * _DOUBTED / (_DOUBTED + self._learned)
        return sure * self._margin.aim_ms(self.room_ms) if self.room_ms else 0.0

    def rests(self, least_ms: float) -> bool:
        """Returns True if the frame runs no networks because less than ``least_ms`` fit in it."""
        most = _RESTS if self._left_ms > 0 else _RESTS_LATE
        self._cramped = self._rests < most and self.aim_ms < least_ms
        return self._cramped

    def encoded(self, aim_ms: float, predicted_ms: float) -> None:
        """Notes that the frame runs ``predicted_ms`` of the ``aim_ms`` that it could have run."""
        cramped, self._cramped = self._cramped and not predicted_ms, False
        self._open = _Open(
            self._elapsed_ms, self.room_ms, self._slow, predicted_ms, cramped, self._rests
        )
        self._rests = self._rests + 1 if cramped else 0
        self.usual_ms += _SMOOTHED * (aim_ms - self.usual_ms) if self.usual_ms else aim_ms

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which never ran."""
        if self._open is not None:
            self._rests, self._open = self._open.rests, None

    def took(self, ms: float) -> None:
        """Learns the total time of the frame that was encoded last."""
        frame, self._open = self._open, None
        if frame is None:
            return
        if frame.cramped:
            self._beyond.forget()
        if not frame.predicted_ms:
            return
        beyond = (ms - frame.elapsed_ms) / frame.slow - frame.predicted_ms
        if self._beyond.sure and frame.room_ms:
            unforeseen = max(0.0, frame.predicted_ms + beyond - self._beyond_ms)
            self._margin.learn(frame.predicted_ms, unforeseen, frame.room_ms)
            self._learned += 1
        self._beyond.follow(beyond)
