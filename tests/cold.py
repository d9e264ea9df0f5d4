"""Measures commands on a machine on which every cache is empty, that of the driver too.

    python -m tests.cold              # the demo's first picture, then the whole suite
    python -m tests.cold demo         # or one of them

Prints the wall-clock seconds, the processor seconds, and the memory of the largest process (Linux).
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: commands of tasks.py, and their limits in seconds on two cores
COMMANDS: dict[str, tuple[list[str], float]] = {
    "demo": (["demo", "--headless", "--frames", "60"], math.inf),
    "suite": (["test"], 600),
}


def empty_caches(folder: Path) -> dict[str, str]:
    """Returns this process's environment variables with all cache folders inside an empty
    ``folder``."""
    places = ("CML_CACHE_DIR", "CML_DATA_DIR", "CML_TUNING_DIR", "MESA_SHADER_CACHE_DIR",
              "XDG_CACHE_HOME", "XDG_DATA_HOME")  # fmt: skip
    return {**os.environ, **{name: str(folder / name) for name in places}}


def measure(name: str) -> bool:
    """Runs one of :data:`COMMANDS` with empty caches and prints its times and memory.

    Returns True if the command succeeds within its time limit.
    """
    command, most_s = COMMANDS[name]
    with tempfile.TemporaryDirectory(prefix="cml-cold-") as folder:
        before, started = os.times(), time.perf_counter()
        code = subprocess.call(
            [sys.executable, "tasks.py", *command], cwd=ROOT, env=empty_caches(Path(folder))
        )
        seconds, after = time.perf_counter() - started, os.times()
    worked = sum(after[2:4]) - sum(before[2:4])
    largest_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"cold {name}: {seconds:.1f} s (at most {most_s:g} s), {worked:.0f} s of processor, "
        f"the largest process {largest_mb:.0f} MB, exit code {code}",
        flush=True,
    )
    return code == 0 and seconds <= most_s


def main(arguments: Sequence[str]) -> int:
    unknown = [name for name in arguments if name not in COMMANDS]
    if unknown:
        print(f"wanted some of {', '.join(COMMANDS)}, got {unknown[0]}", file=sys.stderr)
        return 2
    kept = [measure(name) for name in arguments or COMMANDS]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
