"""Flies ten minutes without a window: ``python -m tests.display.long_flight --minutes 10``.

Prints GPU memory, wgpu's objects and the process's memory once per minute of game time. Exit code 1
means that one of them grew after the first two minutes.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace
from pathlib import Path

import cml_engine as cml
from demo_game.command import parser as game_parser
from demo_game.headless import HeadlessRun, Options
from demo_game.settings import choose

#: MiB and objects that may come and go with tiles in flight
_SLACK_MIB, _SLACK_OBJECTS = 8.0, 60


def resident_mib() -> float:
    """Returns the process's resident memory in MiB, if the system reports it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 2**20


def objects() -> int:
    """Returns the number of wgpu's live objects."""
    gc.collect()
    return sum(str(type(o).__module__).startswith("wgpu.back") for o in gc.get_objects())


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=int, default=10)
    minutes = asked.parse_args().minutes
    gpu = cml.Gpu()
    quality, settings, notice = choose(gpu, game_parser().parse_args([]))
    print(notice)
    frames = round(60_000 / settings.frame_ms)
    flown = HeadlessRun(gpu, quality, settings, Options(frames=frames, clock="virtual"))
    flown.load()
    rows = []
    for minute in range(minutes):
        flown.options = replace(flown.options, start_s=60.0 * minute)
        flown.fly()
        flown.samples.clear()
        rows.append((gpu.memory.held_bytes / 2**20, objects(), resident_mib()))
        made = flown.game.streaming.counts.finished
        print(
            f"minute {minute + 1}: {rows[-1][0]:.2f} MiB on the GPU, {rows[-1][1]} objects, "
            f"{rows[-1][2]:.0f} MiB resident, {made} tiles made",
            flush=True,
        )
    held, counted, resident = zip(*rows[1:], strict=True)
    grew = (
        held[-1] > held[0] + _SLACK_MIB
        or counted[-1] > counted[0] + _SLACK_OBJECTS
        or resident[-1] > 1.1 * resident[0] + 4 * _SLACK_MIB
    )
    print("something grew" if grew else "nothing grew")
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
