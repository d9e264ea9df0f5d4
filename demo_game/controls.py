"""The settings that the player may change while the game runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass
class Controls:
    """The player's settings; they apply from the next frame."""

    #: None: the time that the renderer leaves ("spare")
    budget_ms: float | None = None
    policy: Literal["least_laxity", "fair_share", "by_priority"] = "least_laxity"
    paused: set[str] = field(default_factory=set)
    #: True: the camera follows the scripted path
    scripted: bool = False
    #: how a frame's slices are chosen; "unsliced" runs a whole network in one frame
    mode: Literal["sliced", "layer", "unsliced"] = "sliced"
    recording: bool = False
    trace_path: Path | None = None
    overlay: bool = True
    #: True: the welcome note is shown
    welcome: bool = False
