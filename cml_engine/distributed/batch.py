"""Several units are one task: to send a task and to hear of its end takes a scheduler and a client
some milliseconds of a processor, whatever is in it.

A task should take about half a second, so its units are counted by what units take; where they take
longer than was thought, a worker gives back those that it has not begun.
"""

from __future__ import annotations

from dataclasses import dataclass

#: seconds that a task should take; that it takes at least, where there are enough units; and after
#: which it begins no unit more
TASK_S, SHORTEST_S, LONGEST_S = 0.5, 0.05, 1.0
#: units of a task
MOST = 256
#: how much the last task counts in what a unit takes
_LATEST = 0.3


@dataclass(frozen=True)
class Batch:
    """Units of one ``layer`` for a run that every worker knows by its ``name``: a task. No tuple or
    list of them is a task's argument: Dask would look into each."""

    name: str
    layer: str
    at: tuple[tuple[int, ...], ...]
    traced: bool


class Pace:
    """How many units a task should have, as far as was seen."""

    def __init__(self) -> None:
        self._unit_s = 0.0

    def saw(self, units: int, seconds: float) -> None:
        """A task that took so long."""
        latest = seconds / units
        was = self._unit_s or latest
        self._unit_s = was + _LATEST * (latest - was)

    def units(self, left: int, tasks: int) -> int:
        """For the next of so many tasks that are under way at once, where so many units are
        ``left``: towards the end fewer, so that all workers end at once."""
        if not self._unit_s:
            return 1
        fair = max(left // tasks, int(SHORTEST_S / self._unit_s))
        return max(1, min(MOST, int(TASK_S / self._unit_s), fair))
