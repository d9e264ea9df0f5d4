"""Flies the demo and runs ``cml frames`` on machines that are made of this one.

``python -m benchmarks.machines`` prints two tables. It flies without networks, in slices and
unsliced, and then measures a fixed budget, on each of:

- this machine as it is;
- llvmpipe with vectors of 128 bits, with one thread, and with the process on one core;
- SwiftShader, where its driver is installed (Debian's package chromium has it);
- beside a process that takes a core always, and one that takes it for 100 ms twice a second.

The flight in slices is also repeated on a virtual clock (``tests/scheduler/budgets/flights.py``).
The flights of a machine have the same picture and tiles, which the first one chooses, and must make
the same world; so must a flight of whole operators. Run it with nothing else running. An asterisk
says that frames in slices were late for the networks' guaranteed work, because the picture alone
takes the frame's time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cml_engine.demo_game.game import OVER_SHARE
from cml_engine.errors import IntegerRange
from tests.scheduler.budgets.flights import Flight, FlightResult, simulate

#: SwiftShader's driver, unless ``--swiftshader`` names it
_SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
_MODES = ("off", "sliced", "unsliced")
#: a process that takes a core, always or for 100 ms twice a second
_BUSY = "while True: pass"
_BURSTS = (
    "import time\nwhile True:\n end = time.perf_counter() + 0.1\n"
    " while time.perf_counter() < end: pass\n time.sleep(0.4)"
)


@dataclass(frozen=True)
class Machine:
    """This machine under conditions that resemble another one.

    ``environment`` has variables for the driver, ``cores`` are the only cores that its processes
    use, and ``beside`` is Python code that runs at the same time.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] = frozenset()
    beside: str = ""


def machines(swiftshader: Path) -> list[Machine]:
    """Returns the machines; SwiftShader only if its driver's file exists."""
    found = [
        Machine("as it is"),
        Machine("vectors of 128 bits", {"LP_NATIVE_VECTOR_WIDTH": "128"}),
        Machine("one thread", {"LP_NUM_THREADS": "1"}),
        Machine("one core", {"LP_NUM_THREADS": "1"}, frozenset({0})),
        Machine("beside a busy core", beside=_BUSY),
        Machine("beside bursts", beside=_BURSTS),
    ]
    if swiftshader.exists():
        found.insert(4, Machine("SwiftShader", {"VK_ICD_FILENAMES": str(swiftshader)}))
    return found


@contextmanager
def _beside(machine: Machine) -> Iterator[None]:
    """Runs the machine's other process during the block."""
    if not machine.beside:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", machine.beside])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(machine: Machine, arguments: Sequence[str], folder: Path) -> str:
    """Runs a Python module in a process of its own; returns what it prints.

    Raises ``RuntimeError`` if it fails.
    """
    # llvmpipe's cache does not tell kernels of other vector widths apart
    cache = folder / "-".join(["driver", *machine.environment.values()]).replace("/", "_")

    def limit() -> None:
        if machine.cores:
            os.sched_setaffinity(0, machine.cores)

    environment = {**os.environ, **machine.environment, "MESA_SHADER_CACHE_DIR": str(cache)}
    with _beside(machine):
        done = subprocess.run(
            [sys.executable, "-m", *arguments], env=environment, preexec_fn=limit,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        command, error = " ".join(arguments), done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"{machine.name}, {command}: {error}")
    return done.stdout


def fly(machine: Machine, frames: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Compares the demo's flights in a process of its own; returns their reports by mode."""
    report = folder / "report.json"
    flights = ["demo_game", "--headless", "--compare", "--frames", str(frames)]
    run(machine, [*flights, "--report", str(report)], folder)
    reports = json.loads(report.read_text(encoding="utf-8"))
    return {each["mode"]: each for each in reports}


def flight_row(machine: Machine, frames: int, folder: Path) -> str:
    """Flies the demo and returns the machine's line of the first table."""
    reports = fly(machine, frames, folder)
    off, sliced, unsliced = (reports[mode] for mode in _MODES)
    late = [f"{100 * r['frames_over_share']:.1f}" for r in (off, sliced, unsliced)]
    if sliced["guarantee"]:
        late[1] += " \\*"
    waits = [f"{r['latency_s']['p50']:.1f}" for r in (sliced, unsliced)]
    worlds = {report["world"] for report in reports.values()}
    cells = [
        machine.name,
        f"{sliced['width']}x{sliced['height']}, {sliced['max_tiles']}, {sliced['view_km']:g} km",
        f"{off['frame_ms']['p50']:.1f}",
        *late,
        f"{sliced['tiles']} of {unsliced['tiles']}",
        ", ".join(waits),
        f"{sliced['settle_s']:.1f}",
        _simulated(sliced),
        "the same" if len(worlds) == 1 else "DIFFERS",
    ]
    return f"| {' | '.join(cells)} |"


def _simulated(report: Mapping[str, Any]) -> str:
    """Returns work and late frames of the flight in slices, and those of its simulation."""
    flight = Flight(report["flight"], report["networks"])
    real, simulated = FlightResult.of(flight), simulate(flight, OVER_SHARE)
    return (
        f"{real.work_ms:.1f} ms, {100 * real.late:.1f} % / "
        f"{simulated.work_ms:.1f} ms, {100 * simulated.late:.1f} %"
    )


def budget_row(machine: Machine, frames: int, folder: Path) -> str:
    """Runs ``cml frames`` and returns the machine's line of the second table."""
    command = ["cml_engine", "frames", MODEL, "--budget-ms", "4", "--frames", str(frames), "--json"]
    report = json.loads(run(machine, command, folder))
    over = report["frames_over_budget"] / max(1, report["frames"])
    cells = [
        machine.name,
        f"{100 * over:.1f}",
        f"{report['slices_ms']['p99']:.1f}, {report['control_ms']['p99']:.1f}",
        f"{report['sliced_over_unsliced']:.3f}",
        f"{100 * report['budget_used']:.0f}",
        "yes" if report["identical"] else "NO",
    ]
    return f"| {' | '.join(cells)} |"


#: the network of the second table
MODEL = "demo_game/models/upres.nnef"
HEADER = """\
| machine | chosen | picture ms | late %, off | sliced | unsliced | tiles | wait s | complete s \
| work, late / on the virtual clock | world |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"""
BUDGET_HEADER = """
| machine | over 4 ms % | P99 ms, control's | sliced / unsliced | budget used % | same bits |
|---|--:|--:|--:|--:|---|"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machines", description=__doc__)
    frames = IntegerRange(1, 100_000)
    parser.add_argument("--frames", type=frames, default=600, help="of each flight (600)")
    parser.add_argument("--only", nargs="*", default=[], help="words of the machines' names")
    parser.add_argument("--swiftshader", type=Path, default=_SWIFTSHADER, metavar="ICD.json")
    options = parser.parse_args(arguments)
    chosen = [
        machine
        for machine in machines(options.swiftshader)
        if not options.only or any(word in machine.name for word in options.only)
    ]

    with tempfile.TemporaryDirectory() as folder:
        for header, measure in ((HEADER, flight_row), (BUDGET_HEADER, budget_row)):
            print(header, flush=True)
            for machine in chosen:
                try:
                    print(measure(machine, options.frames, Path(folder)), flush=True)
                except RuntimeError as error:
                    print(f"| {error} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
