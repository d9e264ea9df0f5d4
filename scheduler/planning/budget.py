"""Budgets: the milliseconds of GPU time that the networks may have in a frame."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.checks import checked


@dataclass(slots=True)
class FixedBudget:
    """The same every frame. ``aim_ms`` is planned for; None: what the margin leaves of it.

    Examples
    --------
    >>> cml.FixedBudget(4.0).ms
    4.0
    """

    ms: float
    aim_ms: float | None = None

    def __post_init__(self) -> None:
        checked("ms", self.ms)


@dataclass(slots=True)
class SpareBudget:
    """A budget of the time that the rest of a frame of ``frame_ms`` leaves.

    It stays between ``floor_ms`` and ``ceiling_ms``. ``headroom`` is the share of the frame that
    stays unused because render times do not cover the whole frame; it is ignored if the host
    reports whole frames (:meth:`FrameScheduler.frame_took`).

    Examples
    --------
    >>> cml.SpareBudget(frame_ms=1000 / 60, ceiling_ms=6.0).clamp(9.0)
    6.0
    """

    frame_ms: float
    floor_ms: float = 0.5
    ceiling_ms: float = 12.0
    headroom: float = 0.1

    def __post_init__(self) -> None:
        checked("frame_ms", self.frame_ms, above=True)
        for name in ("floor_ms", "ceiling_ms", "headroom"):
            checked(name, getattr(self, name))

    def clamp(self, ms: float) -> float:
        """Returns the milliseconds limited to the range from floor to ceiling."""
        return min(self.ceiling_ms, max(self.floor_ms, ms))
