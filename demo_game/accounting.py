"""Accounts for a frame's time: the drawing thread's activities, and what delayed them.

Each moment between :meth:`FrameAccount.begin` and :meth:`FrameAccount.end` belongs to one activity.
Where the system says how long threads waited for a core (Linux: ``schedstat``), that time is taken
out of the activities and shown by thread.
"""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")
#: the activity of garbage collections, and of threads of this process that took the cores
COLLECTION, OTHERS = "garbage collection", "the game's other threads"


class ThreadTimes(NamedTuple):
    """Seconds that a thread has run on a core, and has waited for one."""

    ran_s: float
    delayed_s: float


class SystemClock:
    """Reads the times of the thread that draws and of the driver's threads from the system.

    ``drivers`` are the names of the driver's threads by id.
    """

    def __init__(self, drivers: Mapping[int, str], tasks: Path = _TASKS) -> None:
        self.drivers = dict(drivers)
        self._files: dict[int, int] = {}
        for thread in (os.getpid(), *drivers):
            try:
                self._files[thread] = os.open(tasks / str(thread) / "schedstat", os.O_RDONLY)
            except OSError:  # another system, or the thread has ended
                self.drivers.pop(thread, None)

    def read(self) -> dict[int, ThreadTimes]:
        """Returns the times by thread id; that of the process stands for its main thread."""
        times = {}
        for thread, file in list(self._files.items()):
            try:
                ran_ns, delayed_ns, _ = os.pread(file, 80, 0).split()
            except OSError:  # the thread has ended
                os.close(self._files.pop(thread))
                continue
            times[thread] = ThreadTimes(1e-9 * int(ran_ns), 1e-9 * int(delayed_ns))
        return times

    def close(self) -> None:
        """Closes the system's files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()


class FrameAccount:
    """Divides the frames of one thread among its activities.

    Call :meth:`begin`, then :meth:`add` at the end of each activity, then :meth:`end`.
    """

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock
        self._worked_s: defaultdict[str, float] = defaultdict(float)
        self._blocked_s: defaultdict[str, float] = defaultdict(float)
        self._waited_s: defaultdict[str, float] = defaultdict(float)
        self._collected_s = self._collection_began = 0.0
        self._mark = self._ran = 0.0
        self._process_s = 0.0
        self._threads: dict[int, ThreadTimes] = {}
        gc.callbacks.append(self._collect)

    def close(self) -> None:
        """Stops the account."""
        gc.callbacks.remove(self._collect)
        self._clock.close()

    def begin(self) -> None:
        """Begins a frame; time since the frame before belongs to no frame."""
        for times in (self._worked_s, self._blocked_s, self._waited_s):
            times.clear()
        self._collected_s = 0.0
        self._mark, self._ran = time.perf_counter(), time.thread_time()
        self._threads, self._process_s = self._clock.read(), time.process_time()

    def add(self, activity: str, *, waits: bool = False) -> None:
        """Assigns the time since the last call to an activity.

        ``waits`` says that the thread only waited for the GPU.
        """
        now, ran = time.perf_counter(), time.thread_time()
        passed_s, ran_s = now - self._mark, ran - self._ran
        self._mark, self._ran = now, ran
        if waits:
            self._waited_s[activity] += passed_s
        else:
            self._worked_s[activity] += min(passed_s, ran_s)
            self._blocked_s[activity] += max(0.0, passed_s - ran_s)

    def _collect(self, phase: str, info: Mapping[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._collection_began = now
        elif self._collection_began:
            passed_s = now - self._collection_began
            self._collected_s += passed_s
            # the activity that it interrupts goes on without it
            self._mark, self._ran = self._mark + passed_s, self._ran + passed_s

    def end(self) -> dict[str, float]:
        """Returns the milliseconds of the frame by activity; their sum is the frame's time."""
        now, process_s = self._clock.read(), time.process_time() - self._process_s
        passed = {
            thread: ThreadTimes(*(b - a for a, b in zip(self._threads[thread], times, strict=True)))
            for thread, times in now.items()
            if thread in self._threads
        }
        others_s = max(0.0, process_s - sum(times.ran_s for times in passed.values()))
        drivers = [thread for thread in self._clock.drivers if thread in passed]
        slowest = max(drivers, key=lambda thread: passed[thread].delayed_s, default=-1)
        parts_s = defaultdict(float, self._worked_s)
        if self._collected_s:
            parts_s[COLLECTION] += self._collected_s
        name = self._clock.drivers.get(slowest, "")
        for held_s, thread, culprit in (
            (self._blocked_s, os.getpid(), "the system, in the main thread"),
            (self._waited_s, slowest, f"the system, in thread {name}"),
        ):
            total_s = sum(held_s.values())
            delayed_s = passed[thread].delayed_s if thread in passed else 0.0
            taken_s = min(total_s, delayed_s)
            own_s = min(taken_s, others_s)  # the cores were taken by this process itself
            others_s -= own_s
            for part, ms in ((OTHERS, own_s), (culprit, taken_s - own_s)):
                if ms:
                    parts_s[part] += ms
            share = 1.0 - taken_s / total_s if total_s else 0.0
            for activity, seconds in held_s.items():
                parts_s[activity] += share * seconds
        return {activity: 1e3 * seconds for activity, seconds in parts_s.items()}
