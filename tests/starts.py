"""Starts the demo repeatedly to find hangs: ``python -m tests.starts --count 200``.

Every other start runs beside a process that keeps a core busy. A start is a flight of a few frames
without a window. It fails if it ends in an error or exceeds its time limit; the program then prints
what its tiles were waiting for. Exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.frames.noisy_neighbour import neighbour

ROOT = Path(__file__).resolve().parent.parent


def start(frames: int, limit_s: float) -> str:
    """Runs one start; returns the reason why it failed, or ""."""
    with tempfile.TemporaryDirectory(prefix="cml-start-") as folder:
        command = [sys.executable, "-m", "demo_game", "--headless", "--frames", str(frames)]
        command += ["--report", str(Path(folder, "report.json"))]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not over after {limit_s:g} s"
    return done.stderr.strip() if done.returncode else ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.starts", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--limit-s", type=float, default=180.0, help="when a start has hung")
    options = parser.parse_args(arguments)
    failed, times = 0, []
    for number in range(options.count):
        busy, began = number % 2 == 1, time.perf_counter()
        with neighbour(1e3, 1e3) if busy else nullcontext():
            why = start(options.frames, options.limit_s)
        times.append(time.perf_counter() - began)
        if why:
            failed += 1
            print(f"start {number}{' beside a busy process' if busy else ''}: {why}", flush=True)
    times.sort()
    print(
        f"{options.count} starts, half of them beside a busy process: {failed} failed; "
        f"median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
