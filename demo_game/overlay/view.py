"""The data that the overlay shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cml_engine as cml
from cml_engine import FrameReport, FrameScheduler, Job
from cml_engine.tools.panel import Key, OperatorTime
from demo_game.reporting.telemetry import Telemetry


@dataclass(frozen=True)
class FrameView:
    """The game's state in this frame. ``memory`` is the device's allocator, ``limits`` are the
    device's, ``notice`` is one line about the game."""

    telemetry: Telemetry
    scheduler: FrameScheduler
    jobs: Sequence[Job]
    memory: Any
    sessions: Mapping[str, cml.Session]
    adapter: str
    driver: str
    limits: Mapping[str, Any]
    notice: str

    @property
    def operators(self) -> Mapping[Key, OperatorTime]:
        """The accumulated cost of every operator."""
        return self.telemetry.operators

    @property
    def last_report(self) -> FrameReport | None:
        """The report of the newest frame."""
        return self.telemetry.last_report

    @property
    def now_ms(self) -> float:
        """The scheduler's time."""
        return self.scheduler.clock.now_ms()
