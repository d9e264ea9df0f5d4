"""The interfaces to the data that the panels draw, and to the space for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cml_engine.runtime.session import Session
from cml_engine.tools.panel.operators import Key, OperatorTime
from cml_engine.tools.panel.sources import ShownFrame, ShownJob


class ShownView(Protocol):
    """The data to show in a frame; ``sessions`` has the sessions by the names of their jobs."""

    @property
    def sessions(self) -> Mapping[str, Session]: ...
    @property
    def operators(self) -> Mapping[Key, OperatorTime]: ...
    @property
    def jobs(self) -> Sequence[ShownJob]: ...
    @property
    def last_report(self) -> ShownFrame | None: ...
    @property
    def now_ms(self) -> float: ...


class Room(Protocol):
    """The available space; ``timeline_height`` is in points.

    With ``compact`` less important widgets are left out.
    """

    @property
    def compact(self) -> bool: ...
    @property
    def timeline_height(self) -> float: ...
    @property
    def ranking_rows(self) -> int: ...
