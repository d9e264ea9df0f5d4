"""Records a run of the workers as a trace for Perfetto (ui.perfetto.dev).

Each worker is a process. Its slices are units, which contain steps or sessions, which contain
operators. Writes are slices of a separate thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cml_engine.io.arrays import check_place
from cml_engine.io.atomic_write import write_atomically

#: the number of units that are traced, from the start of a run; viewers cannot open more
MOST = 1000


@dataclass(frozen=True)
class TraceEvent:
    """An interval in a worker's work; ``kind`` is ``"unit"``, ``"step"`` or ``"operator"``.

    ``start`` is the worker's clock in seconds since 1970, ``seconds`` is the length.
    """

    kind: str
    name: str
    start: float
    seconds: float
    thread: int


class Trace:
    """The timed events of a run's first ``MOST`` units, written to ``path`` by :meth:`write`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_place(self.path)
        self._events: list[dict[str, Any]] = []
        self._workers: dict[str, int] = {}
        self._left = MOST  # units

    def take(self, units: int) -> bool:
        """Counts ``units`` more units; returns True if they should be traced."""
        self._left -= units
        return self._left + units > 0

    def add(self, worker: str, moments: list[TraceEvent]) -> None:
        """Adds the events of a worker, named by its address."""
        if not moments:
            return
        number = self._workers.setdefault(worker, len(self._workers) + 1)
        self._events += [
            {
                "ph": "X",
                "cat": moment.kind,
                "name": moment.name,
                "pid": number,
                "tid": moment.thread % 2**31,
                "ts": round(1e6 * moment.start, 1),
                "dur": round(1e6 * moment.seconds, 1),
            }
            for moment in moments
        ]

    def write(self) -> None:
        """Writes the trace to its JSON file, atomically, with times relative to the first event."""
        first = min((event["ts"] for event in self._events), default=0.0)
        events = [{**event, "ts": round(event["ts"] - first, 1)} for event in self._events]
        names = [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": worker}}
            for worker, number in self._workers.items()
        ]
        write_atomically(self.path, json.dumps({"traceEvents": [*names, *events]}))
