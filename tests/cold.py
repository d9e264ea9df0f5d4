"""Measures a fresh machine: every cache is empty, the driver's too.

    python -m tests.cold              # the demo's first picture, then the whole suite
    python -m tests.cold demo         # or one of them

Prints the wall-clock seconds, the processor seconds, and the peak memory of all processes together
(Linux).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: commands of tasks.py, and their limits on two cores: seconds, MB
COMMANDS: dict[str, tuple[list[str], float | None, float | None]] = {
    "demo": (["demo", "--headless", "--frames", "60"], None, None),
    "suite": (["test"], 600, 2560),
}
_EVERY_S = 0.5


def empty_caches(folder: Path) -> dict[str, str]:
    """Returns the environment of a machine on which nothing has run yet."""
    places = ("CML_CACHE_DIR", "CML_DATA_DIR", "CML_TUNING_DIR", "MESA_SHADER_CACHE_DIR",
              "XDG_CACHE_HOME", "XDG_DATA_HOME")  # fmt: skip
    return {**os.environ, **{name: str(folder / name) for name in places}}


class PeakMemory:
    """Samples the peak memory, in MB, of a process and its descendants together."""

    def __init__(self, pid: int) -> None:
        self.most_mb = 0.0
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_EVERY_S):
            self.most_mb = max(self.most_mb, sum(map(resident_mb, family(self._pid))))


def family(pid: int) -> list[int]:
    """Returns the ids of a process and its descendants, from /proc."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # the process may have ended since
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def resident_mb(pid: int) -> float:
    """Returns the resident memory of a process in MB, without its shared pages."""
    with suppress(OSError, IndexError, ValueError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


def measure(name: str) -> bool:
    """Runs one of :data:`COMMANDS` with empty caches and prints its time and memory.

    Returns True if it succeeded within its limits.
    """
    command, most_s, most_mb = COMMANDS[name]
    with tempfile.TemporaryDirectory(prefix="cml-cold-") as folder:
        before, started = os.times(), time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "tasks.py", *command], cwd=ROOT, env=empty_caches(Path(folder))
        )
        memory = PeakMemory(process.pid)
        code = process.wait()
        memory.stop()
        seconds, after = time.perf_counter() - started, os.times()
    worked = sum(after[2:4]) - sum(before[2:4])
    kept = (most_s is None or seconds <= most_s) and (most_mb is None or memory.most_mb <= most_mb)
    bounds = f" (at most {most_s} s, {most_mb} MB)" if most_s else ""
    print(
        f"cold {name}: {seconds:.1f} s, {worked:.0f} s of processor, {memory.most_mb:.0f} MB"
        f"{bounds}, exit code {code}",
        flush=True,
    )
    return code == 0 and kept


def main(arguments: Sequence[str]) -> int:
    unknown = [name for name in arguments if name not in COMMANDS]
    if unknown:
        print(f"wanted some of {', '.join(COMMANDS)}, got {unknown[0]}", file=sys.stderr)
        return 2
    kept = [measure(name) for name in arguments or COMMANDS]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
