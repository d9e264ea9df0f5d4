"""What workers did when, as a trace for Perfetto (ui.perfetto.dev): a process for each worker, in
it a slice for each unit, in that its steps or sessions, and in those their operators; beside them,
in a thread of its own, what is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cml_engine.io.arrays import check_place
from cml_engine.io.atomic_write import write_atomically

#: units that are traced, the first of a run: more no viewer opens
MOST = 1000


@dataclass(frozen=True)
class Moment:
    """Something that took time: ``kind`` is ``"unit"``, ``"step"`` or ``"operator"``. ``start`` is
    in seconds since 1970, as the worker's clock has it."""

    kind: str
    name: str
    start: float
    seconds: float
    thread: int


class Trace:
    """The moments of a run, written to ``path`` at its end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_place(self.path)
        self._events: list[dict[str, Any]] = []
        self._workers: dict[str, int] = {}
        self._left = MOST  # units

    def take(self, units: int) -> bool:
        """Whether units that are sent now are to be traced."""
        self._left -= units
        return self._left + units > 0

    def add(self, worker: str, moments: list[Moment]) -> None:
        """What a worker did."""
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
        """The file, whole; its times count from the first moment on."""
        first = min((event["ts"] for event in self._events), default=0.0)
        events = [{**event, "ts": round(event["ts"] - first, 1)} for event in self._events]
        names = [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": worker}}
            for worker, number in self._workers.items()
        ]
        write_atomically(self.path, json.dumps({"traceEvents": [*names, *events]}))
