"""Budgets: the milliseconds of GPU time that the networks may have in a frame."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.checks import checked


@dataclass(slots=True)
class FixedBudget:
    """The same every frame. ``aim_ms`` is planned for; None: what the margin leaves of it."""

    ms: float
    aim_ms: float | None = None

    def __post_init__(self) -> None:
        checked("ms", self.ms)

    def next_ms(self) -> float:
        """Returns the milliseconds for the next frame's networks, which never change."""
        return self.ms

    def observe(self, render_ms: float) -> None:
        """Does nothing: a fixed budget does not depend on render times."""

    def begin_frame(self) -> None:
        """Does nothing: a fixed budget does not count frames."""


@dataclass(slots=True)
class SpareBudget:
    """A budget of the time that the renderer leaves: ``frame_ms`` less the smoothed render time.

    Once enough frames are known, :class:`scheduler.planning.frame_slack.FrameSlack` decides
    between floor and ceiling instead. ``headroom`` is the share that stays unused because render
    times do not cover the whole frame; it is ignored if the host reports whole frames
    (:meth:`FrameScheduler.frame_took`).

    The budget falls at once when the renderer needs more. It rises by ``rise`` of the gap per
    frame, and only if the gap is larger than ``hysteresis`` ms, so that it does not oscillate.
    It stays between ``floor_ms`` and ``ceiling_ms``. If rendering alone exceeds the frame by the
    factor ``emergency`` it is zero (shedding), for at most ``shed_frames`` frames in a row; then
    the floor applies. The floor also applies after as many frames without a render time.
    """

    frame_ms: float
    floor_ms: float = 0.5
    ceiling_ms: float = 12.0
    headroom: float = 0.1
    rise: float = 0.1
    hysteresis: float = 0.2
    emergency: float = 1.25
    shed_frames: int = 30
    _render_ms: float = 0.0
    _current: float = -1.0
    _shed: int = 0
    _unheard: int = 0

    def __post_init__(self) -> None:
        checked("frame_ms", self.frame_ms, above=True)
        for name in ("floor_ms", "ceiling_ms", "headroom", "rise", "hysteresis", "emergency"):
            checked(name, getattr(self, name))

    def next_ms(self) -> float:
        """Returns the milliseconds for the next frame's networks; 0 during shedding."""
        if 0 < self._shed <= self.shed_frames and self._unheard <= self.shed_frames:
            return 0.0
        return self._current if self._current >= 0 else self.floor_ms

    def within(self, ms: float) -> float:
        """Returns the milliseconds limited to the range from floor to ceiling."""
        return min(self.ceiling_ms, max(self.floor_ms, ms))

    def begin_frame(self) -> None:
        """Counts a frame, to notice that render times have stopped."""
        self._unheard += 1

    def observe(self, render_ms: float) -> None:
        """Updates the budget with the renderer's own GPU time in a frame."""
        self._unheard = 0
        self._render_ms += (render_ms - self._render_ms) * (
            0.5 if render_ms > self._render_ms else 0.1
        )
        over = self._render_ms > self.emergency * self.frame_ms
        self._shed = self._shed + 1 if over else 0
        if self._shed > self.shed_frames:
            self._shed = -self.shed_frames
        spare = self.frame_ms * (1 - self.headroom) - self._render_ms
        wanted = self.within(spare)
        if self._current < 0 or wanted < self._current:
            self._current = wanted
        elif wanted - self._current > self.hysteresis:
            self._current += self.rise * (wanted - self._current)
