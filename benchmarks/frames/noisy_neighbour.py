"""Measures the demo beside a busy process: ``python -m benchmarks.frames.noisy_neighbour``.

Another process occupies one core for 100 ms, twice a second, while the demo flies without networks,
with sliced networks, and with whole networks in a frame. The expected result: slicing loses tiles
per second, not frames.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

import cml_engine as cml
from demo_game.command import parser as game_parser
from demo_game.headless import Options, run
from demo_game.reporting.report import WORDS, RunReport
from demo_game.settings import choose

_MODES = ("off", "sliced", "unsliced")


def take(busy_s: float, every_s: float) -> None:
    """Spins for ``busy_s`` seconds out of every ``every_s`` seconds, in an endless loop."""
    while True:
        until = time.monotonic() + busy_s
        while time.monotonic() < until:
            pass
        time.sleep(every_s - busy_s)


@contextmanager
def neighbour(busy_ms: float, every_ms: float) -> Iterator[None]:
    """Runs a process beside the block that spins ``busy_ms`` out of every ``every_ms``."""
    apart = multiprocessing.get_context("spawn")
    process = apart.Process(target=take, args=(busy_ms / 1e3, every_ms / 1e3), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def table(flights: Sequence[Sequence[RunReport]]) -> str:
    """Returns a text table with one row per mode: late frames, tiles and the wait for a tile.

    ``flights`` has for each flight the reports of all modes. Cells are means over the flights; late
    frames and tiles also have their range.
    """
    lines = [f"{'':36s} {'late frames':>24s} {'tiles':>16s} {'seen after':>11s}"]
    for mode, reports in zip(_MODES, zip(*flights, strict=True), strict=True):
        late = [100 * report.over_share for report in reports]
        tiles = [report.tiles for report in reports]
        waits = [report.latency_s["p50"] for report in reports]
        lines.append(
            f"{WORDS[mode]:36s} {fmean(late):7.2f} % ({min(late):5.2f} to {max(late):5.2f}) "
            f"{fmean(tiles):6.0f} ({min(tiles)} to {max(tiles)}) {fmean(waits):9.1f} s"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--frames", type=int, default=900, help="of each flight")
    options.add_argument("--rounds", type=int, default=4, help="flights of each kind, in turns")
    options.add_argument("--busy-ms", type=float, default=100.0, help="0: no neighbour")
    options.add_argument("--every-ms", type=float, default=500.0)
    asked = options.parse_args(argv)
    if asked.rounds < 1:
        options.error(f"--rounds: wanted at least 1, got {asked.rounds}")
    if not 0 <= asked.busy_ms < asked.every_ms:
        options.error(f"--busy-ms: wanted 0 to below {asked.every_ms:g}, got {asked.busy_ms:g}")
    gpu = cml.Gpu()
    quality, settings, notice = choose(gpu, game_parser().parse_args([]))
    print(notice)
    with neighbour(asked.busy_ms, asked.every_ms):
        flights = [
            [run(gpu, quality, settings, Options(asked.frames, mode)) for mode in _MODES]
            for _ in range(asked.rounds)
        ]
    print(table(flights))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
