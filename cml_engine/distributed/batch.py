"""Chooses how many units go in one task, so that a task takes about half a second.

Sending a task and receiving its result costs the scheduler and the client some milliseconds of
CPU time, whatever the size of the task. The number of units in a task follows the measured time
of a unit. A worker that runs over the time limit returns the units that it has not begun.
"""

from __future__ import annotations

from dataclasses import dataclass

#: the target duration of a task; its minimum while enough units are left; and the time after which
#: it begins no further unit (all in seconds)
TASK_S, SHORTEST_S, LONGEST_S = 0.5, 0.05, 1.0
#: the most units in a task
MOST = 256
#: the weight of the latest task in the moving average of a unit's time
_LATEST = 0.3


@dataclass(frozen=True)
class Batch:
    """A task: the units of layer ``layer`` at the positions ``at``, and whether to trace them.

    ``name`` is the run's name, by which a worker finds the work. Tasks take this class as their
    argument because Dask searches tuples and lists for futures.
    """

    name: str
    layer: str
    at: tuple[tuple[int, ...], ...]
    traced: bool


class Pace:
    """Chooses the number of units in a task from the measured time of a unit."""

    def __init__(self) -> None:
        self._unit_s = 0.0

    def record(self, units: int, seconds: float) -> None:
        """Updates the mean time of a unit with a task of ``units`` units that took ``seconds``."""
        latest = seconds / units
        was = self._unit_s or latest
        self._unit_s = was + _LATEST * (latest - was)

    def units(self, left: int, tasks: int) -> int:
        """Returns the number of units to put in the next task, at least 1.

        ``left`` is the number of units that remain, ``tasks`` the number of tasks that run at
        once. Tasks become smaller towards the end so that all workers finish together. Before the
        first :meth:`record`, a task has one unit.
        """
        if not self._unit_s:
            return 1
        fair = max(left // tasks, int(SHORTEST_S / self._unit_s))
        return max(1, min(MOST, int(TASK_S / self._unit_s), fair))
