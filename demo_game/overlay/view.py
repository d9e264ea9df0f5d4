"""What the overlay is given to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cml_engine as cml
from demo_game.reporting.telemetry import Telemetry
from scheduler import FrameScheduler, Job


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
