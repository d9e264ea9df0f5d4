"""Pins each thread of a software driver to a core of its own, while that makes pictures faster.

llvmpipe starts one thread per core to fill pixels, and one for compute shaders. Linux sometimes
wakes two of them on the same core and moves one away only some milliseconds later; the picture, or
a network, then takes half as long again.
Pinned threads avoid that. But where another process takes a core, a pinned thread waits for it, and
the picture takes twice as long. So both are tried from time to time.
"""

from __future__ import annotations

import math
import os
import threading
from contextlib import suppress
from pathlib import Path

#: the start of the names of Mesa's threads; a number follows
_NAME = "llvmpipe-"
_TASKS = Path("/proc/self/task")
#: pictures whose times are compared, and the percentile that is
_PICTURES, _SHARE = 24, 0.8
#: pictures until the other way is tried, at first and at most
_PATIENCE, _MOST_PATIENCE = 90, 1440
#: factors of time by which the other way must be faster, and by which pictures must have become
#: slower for it to be tried at once
_FASTER, _SLOWER = 0.95, 1.3


class DriverPins:
    """Pins the driver's threads, or leaves them to the system, by the times of pictures.

    The other way is tried for some pictures, at growing intervals while it is not faster, and at
    once when pictures become slower. Does nothing where there is no such thread, or the system
    cannot pin threads.
    """

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._cores = set[int]()
        self._core_by_thread: dict[int, int] = {}
        if hasattr(os, "sched_setaffinity"):
            self._cores = os.sched_getaffinity(0)
            self._core_by_thread = assign_cores(tasks, sorted(self._cores))
        self._times: list[float] = []
        self._effort: object = None
        self._patience = self._left = _PATIENCE
        #: the time to beat while the other way is tried; None at other times
        self._to_beat_ms: float | None = None
        #: the usual time of a picture when the present way was chosen
        self._chosen_ms = math.inf
        self.is_pinned = False
        self._pin(True)

    def add_time(self, ms: float, effort: object) -> None:
        """Adds the time of a picture; it is compared with others of the same effort."""
        if not self._core_by_thread:
            return
        if effort != self._effort:
            self._effort = effort
            self._stop_trial()
            self._chosen_ms = math.inf
            return
        self._times.append(ms)
        self._left -= 1
        if self._to_beat_ms is not None:
            self._judge_trial(self._to_beat_ms)
        elif len(self._times) >= _PICTURES:
            del self._times[:-_PICTURES]
            usual_ms = _usual(self._times)
            if self._left <= 0 or usual_ms > _SLOWER * self._chosen_ms:
                self._to_beat_ms = _FASTER * usual_ms
                self._pin(not self.is_pinned)
                self._times.clear()
            elif math.isinf(self._chosen_ms):
                self._chosen_ms = usual_ms

    def _judge_trial(self, to_beat_ms: float) -> None:
        """Ends a trial as soon as its result is certain."""
        slower = sum(ms >= to_beat_ms for ms in self._times)
        if slower >= _PICTURES - int(_SHARE * _PICTURES):
            self._chosen_ms = to_beat_ms / _FASTER
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._stop_trial()
        elif len(self._times) == _PICTURES:
            self._to_beat_ms, self._chosen_ms = None, _usual(self._times)
            self._left = self._patience = _PATIENCE

    def _stop_trial(self) -> None:
        if self._to_beat_ms is not None:
            self._to_beat_ms = None
            self._pin(not self.is_pinned)
        self._times.clear()
        self._left = self._patience

    def _pin(self, is_pinned: bool) -> None:
        self.is_pinned = is_pinned
        for thread, core in self._core_by_thread.items():
            with suppress(OSError):  # it has ended, or may not be moved
                os.sched_setaffinity(thread, {core} if is_pinned else self._cores)


def _usual(times_ms: list[float]) -> float:
    return sorted(times_ms)[int(_SHARE * len(times_ms))]


def assign_cores(tasks: Path, cores: list[int]) -> dict[int, int]:
    """Returns the core for each driver thread in ``tasks``, a folder like ``/proc/self/task``.

    The keys are thread ids. Thread n of the driver gets core n, counted around if cores are fewer;
    so does its thread n for compute shaders.
    """
    drawing, unnamed = {}, []
    for task in tasks.iterdir() if tasks.is_dir() else ():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        number = name.removeprefix(_NAME)
        if name.startswith(_NAME) and number.isdecimal():
            drawing[int(task.name)] = int(number)
        elif not name.startswith(_NAME) and ":" not in name:
            unnamed.append(int(task.name))
    # the threads for compute shaders have no names; the driver starts as many right after these
    later = sorted(thread for thread in unnamed if thread > max(drawing, default=thread))
    computing = {thread: number for number, thread in enumerate(later[: len(drawing)])}
    return {
        thread: cores[number % len(cores)] for thread, number in {**drawing, **computing}.items()
    }


def native_threads() -> dict[int, str]:
    """Returns the names of this process's threads that run no Python, by thread id."""
    python = {thread.native_id for thread in threading.enumerate()}
    names = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        if int(task.name) not in python:
            with suppress(OSError):  # it has ended
                names[int(task.name)] = (task / "comm").read_text().strip()
    return names
