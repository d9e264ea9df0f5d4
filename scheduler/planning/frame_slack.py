"""Learns how much inference fits in a frame from the durations of whole frames.

A game does not lose a slice that exceeds its share: it loses a frame that misses its target. So
this module learns everything in a frame except the networks' predicted time: renderer, host, the
machine's hitches, and what the networks took beyond their prediction. A frame that would have been
late without networks does not limit the plan. Of the others only a given share may be late because
of the networks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass

from scheduler.planning.level import FRAMES, Level

#: frames that must have been seen before their spread is trusted
_ENOUGH = 16
#: a delay of more than this share of the frame's room is expected in the next frame too
_HELD_UP = 0.3
#: the most frames in a row without networks for lack of room
_MOST_RESTS = 2
#: remembered frames, and remembered frames without networks
_WINDOW, _BASELINE = 2400, 128
#: if frames are late anyway, one in this number runs no networks, to see if they are the cause;
#: half as often once _REST_KNOWN of them are known
_REST_EVERY, _REST_KNOWN = 48, 32
#: the least share of the room to plan if the networks turn out to cause the late frames
_LEAST = 0.125


@dataclass(slots=True)
class _Open:
    """A frame whose times are not all known."""

    frame: int
    aim_ms: float
    predicted_ms: float
    #: the level at which the frame was planned
    level_ms: float | None
    #: True if it runs nothing for lack of room; it is then no sample of frames without networks
    cramped: bool
    #: the number of such frames in a row before it, and of frames since the last rest
    before: tuple[int, int]
    #: True if the time of its networks will be known
    timed: bool
    total_ms: float | None = None
    render_ms: float | None = None
    measured_ms: float | None = None


class FrameSlack:
    """Plans the largest amount of work that keeps late frames rare.

    The share of frames that are late *because of the networks* stays below ``share``.
    """

    def __init__(self, share: float = 0.01) -> None:
        self.share = share
        self._residuals: deque[float] = deque(maxlen=_WINDOW)
        self._sorted: list[float] = []
        self._late: deque[bool] = deque(maxlen=_WINDOW)
        self._late_count = 0
        self._baseline: deque[bool] = deque(maxlen=_BASELINE)
        self._usual = Level()
        self._open: deque[_Open] = deque()
        self._since_rest = 0
        self._unheard = 0
        #: True if the host reports whole frames, not only render times
        self.whole_frames = False
        #: the time of everything except the networks in a usual frame
        self.level_ms = 0.0
        self._target_ms = math.inf
        self._held_up = self._cramped = False
        self._rests = 0
        self._aims: dict[float, float | None] = {}  # by target, until more is learned

    # --- inputs

    def encoded(
        self, frame: int, aim_ms: float, predicted_ms: float, *, timed: bool = True
    ) -> None:
        """Notes that a frame runs networks of ``predicted_ms``."""
        level_ms = self.level_ms if self._usual.sure else None
        cramped, self._cramped = self._cramped and not predicted_ms, False
        before = self._rests, self._since_rest
        timed = timed and predicted_ms > 0
        self._open.append(_Open(frame, aim_ms, predicted_ms, level_ms, cramped, before, timed))
        self._rests = self._rests + 1 if cramped else 0
        if predicted_ms:
            self._since_rest += 1
        elif not cramped:
            self._since_rest = 0
        self._unheard += 1
        if len(self._open) > FRAMES:  # its time does not come
            self._open.popleft()

    def abandoned(self) -> None:
        """Drops the frame that was encoded last, which never ran."""
        if self._open:
            self._rests, self._since_rest = self._open.pop().before

    def took(self, ms: float) -> float | None:
        """Learns the total time of the frame that was ended last.

        Returns the part of it beyond the networks' predicted time, or None if there is no such
        frame or its time was already given.
        """
        self.whole_frames = True
        if not self._open or self._open[-1].total_ms is not None:
            return None
        self._open[-1].total_ms = ms
        rest = max(0.0, ms - self._open[-1].predicted_ms)
        self._follow(rest)
        return rest

    def rendered(self, ms: float) -> None:
        """Notes the render time of a recent frame; the times arrive in the order of the frames."""
        entry = next((e for e in self._open if e.render_ms is None), None)
        if entry is not None:
            entry.render_ms = ms

    def measured(self, frame: int, ms: float) -> None:
        """Notes the measured time of a frame's networks."""
        for entry in self._open:
            if entry.frame == frame:
                entry.measured_ms = ms

    def learn(self, target_ms: float, patience: int) -> None:
        """Learns from the frames whose times have arrived.

        The networks' own times are no longer awaited after ``patience`` frames.
        """
        self._target_ms = target_ms
        while self._open:
            entry = self._open[0]
            known = entry.total_ms if self.whole_frames else entry.render_ms
            awaited = entry.timed and entry.measured_ms is None
            if known is None or (awaited and len(self._open) <= patience):
                return
            self._open.popleft()
            ran = entry.measured_ms if entry.measured_ms is not None else entry.predicted_ms
            beyond = ran - entry.predicted_ms
            rest = known - ran if self.whole_frames else known
            if beyond > 0:  # scale the excess to a frame of the planned size
                grown = max(1.0, entry.aim_ms / max(entry.predicted_ms, 0.25 * entry.aim_ms))
                beyond *= math.sqrt(grown)
            if not self.whole_frames:
                self._follow(rest)
            self._remember(rest + beyond, target_ms, entry)

    def _follow(self, rest_ms: float) -> None:
        """Updates the expected time of everything beside the networks."""
        self._usual.follow(rest_ms)
        self._aims.clear()
        usual = self._usual.ms
        self._held_up = rest_ms - usual > _HELD_UP * max(0.0, self._target_ms - usual)
        self.level_ms = rest_ms if self._held_up else usual

    def _remember(self, rest_ms: float, target_ms: float, frame: _Open) -> None:
        self._unheard = 0
        late, with_networks = rest_ms > target_ms, bool(frame.predicted_ms)
        if not with_networks and not frame.cramped:
            self._baseline.append(late)
        if frame.level_ms is not None:
            if len(self._residuals) == _WINDOW:
                del self._sorted[bisect_left(self._sorted, self._residuals[0])]
                self._late_count -= self._late[0]
            self._residuals.append(rest_ms - frame.level_ms)
            self._late.append(late and with_networks)
            self._late_count += late and with_networks
            insort(self._sorted, self._residuals[-1])
        self._aims.clear()

    # --- the plan

    @property
    def known(self) -> bool:
        """True if enough frames are known, and recent ones."""
        return len(self._sorted) >= _ENOUGH and self._unheard <= 2 * FRAMES

    @property
    def rest_due(self) -> bool:
        """True if the next frame should run no networks.

        Such a frame shows whether late frames are due to the networks.
        """
        allowed = self.share * len(self._sorted)
        every = _REST_EVERY * (1 + len(self._baseline) / _REST_KNOWN)
        return self._since_rest >= every and self._late_count > max(1.0, 0.5 * allowed)

    def rests(self, target_ms: float, least_ms: float) -> bool:
        """Returns True if the next frame runs no networks.

        Either a rest is due, or less than ``least_ms`` fit in the frame. A frame with networks
        costs some tenths of a millisecond by itself, so very little work is not worth it.
        """
        aim = self.aim_ms(target_ms)
        no_room = self._held_up or (aim is not None and aim < least_ms)
        self._cramped = no_room and self._rests < _MOST_RESTS
        return self._cramped or self.rest_due

    def aim_ms(self, target_ms: float) -> float | None:
        """Returns the predicted milliseconds to plan for in a frame of ``target_ms``.

        Returns None if most frames are late anyway.
        """
        if target_ms not in self._aims:
            self._aims[target_ms] = self._plan(target_ms)
        return self._aims[target_ms]

    def _plan(self, target_ms: float) -> float | None:
        room = target_ms - self.level_ms
        in_time = bisect_right(self._sorted, room)
        count = len(self._sorted)
        if in_time < 0.5 * count:
            return None
        allowed = self.share * (count + 1) - 1
        ours = self._ours()
        lost = max(0, min(in_time - 1, math.floor(allowed - ours)))
        aim = room - self._sorted[in_time - 1 - lost]
        if allowed < 0:  # too few frames to have seen the tail: extrapolate beyond the worst one
            reach = 0.5 * (self._sorted[in_time - 1] - self._sorted[in_time // 2])
            aim -= max(0.0, reach) * (1 - count * self.share)
        if ours > max(allowed, 1.0):
            aim = max(_LEAST * room, aim * max(allowed, 1.0) / ours)
        return max(0.0, aim)

    def _ours(self) -> float:
        """Returns the number of late frames that are due to the networks.

        These are the late frames beyond what frames without networks and chance explain.
        """
        frames = len(self._baseline)
        if not frames or not self._late_count:
            return 0.0
        share = (sum(self._baseline) + 1) / (frames + 2)
        expected = share * len(self._sorted)
        spread = math.sqrt(expected * (1 + len(self._sorted) / frames))
        return max(0.0, self._late_count - expected - 2 * spread)
