"""The statistics of the game's own frames: the loop writes them, overlay and report read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cml_engine import FrameReport
from cml_engine.tools.panel import Key, OperatorTime

#: frames that the graphs show
HISTORY = 240


@dataclass(slots=True)
class FrameSample:
    """One frame, all times in ms. ``render_ms`` and ``inference_ms`` are GPU time and arrive some
    frames later (None until then); ``cause`` says why a frame took longer than it may."""

    number: int
    frame_ms: float
    cpu_ms: float = 0.0
    render_ms: float | None = None
    inference_ms: float | None = None
    budget_ms: float = 0.0
    overlay_ms: float = 0.0
    cause: str = ""
    #: False: as predicted, for nothing ran, or it was not timed
    inference_timed: bool = True


@dataclass
class Telemetry:
    """Rings of the last frames, and sums since the start."""

    target_ms: float
    frames: deque[FrameSample] = field(default_factory=lambda: deque(maxlen=HISTORY))
    operators: dict[Key, OperatorTime] = field(default_factory=dict)
    last_report: FrameReport | None = None
    tiles_ready: int = 0
    tiles_wanted: int = 0
    tiles_finished: int = 0
    tiles_cancelled: int = 0
    #: GPU memory in use at the end of each of the last frames
    memory: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def latest(self) -> Iterable[FrameSample]:
        """Oldest first."""
        return iter(self.frames)


@dataclass
class Controls:
    """The settings that the player may change while the game runs; they apply from the next
    frame."""

    #: None: what the renderer leaves ("spare")
    budget_ms: float | None = None
    policy: Literal["least_laxity", "fair_share", "by_priority"] = "least_laxity"
    paused: set[str] = field(default_factory=set)
    #: fly along the scripted path instead of by hand
    scripted: bool = False
    #: the whole network in one frame, as engines without slices do
    mode: Literal["sliced", "layer", "unsliced"] = "sliced"
    recording: bool = False
    trace_path: Path | None = None
    overlay: bool = True
    #: the explanation that a window begins with
    welcome: bool = False
