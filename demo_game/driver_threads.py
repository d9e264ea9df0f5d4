"""Pins each thread of a software driver to a core of its own.

llvmpipe starts one thread per core to fill pixels. Linux sometimes wakes two of them on the same
core and moves one away only some milliseconds later; the picture then takes half as long again.
Pinned threads avoid that.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

#: the start of the names of Mesa's threads; a number follows
_NAME = "llvmpipe-"
_TASKS = Path("/proc/self/task")


def pin_driver_threads() -> None:
    """Pins each thread of the software driver to one core.

    Does nothing if there is no such thread or the system cannot pin threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread, core in assign_cores(_TASKS, sorted(os.sched_getaffinity(0))).items():
        try:
            os.sched_setaffinity(thread, {core})
        except OSError:  # it has ended, or may not be moved
            continue


def assign_cores(tasks: Path, cores: list[int]) -> dict[int, int]:
    """Returns the core for each driver thread in ``tasks``, a folder like ``/proc/self/task``.

    The keys are thread ids. Thread n of the driver gets core n, counted around if cores are fewer.
    """
    numbers = {thread: int(name[len(_NAME) :]) for thread, name in driver_threads(tasks).items()}
    return {thread: cores[number % len(cores)] for thread, number in numbers.items()}


def native_threads() -> dict[int, str]:
    """Returns the names of this process's threads that run no Python, by thread id."""
    python = {thread.native_id for thread in threading.enumerate()}
    names = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        if int(task.name) not in python:
            with suppress(OSError):  # it has ended
                names[int(task.name)] = (task / "comm").read_text().strip()
    return names


def driver_threads(tasks: Path = _TASKS) -> dict[int, str]:
    """Returns the names of the threads that fill pixels, by thread id."""
    names = {}
    for task in tasks.iterdir() if tasks.is_dir() else ():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        if name.startswith(_NAME) and name[len(_NAME) :].isdecimal():
            names[int(task.name)] = name
    return names
