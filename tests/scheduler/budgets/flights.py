"""Repeats a flight of the demo on a virtual clock: simulated frames must be like the real ones.

``python -m demo_game --headless --mode sliced --report REPORT.json`` records a flight, and
``python -m tests.scheduler.budgets.flights REPORT.json ...`` prints its networks' work and late
frames beside those of the simulation. The simulation has from the flight: each frame's time before
its networks, how much longer than predicted its networks took (which includes what it costs to have
networks in a frame at all), when tiles were needed, and the steps of the networks of a tile. It
decides by itself what a frame runs. ``--keep NAME`` adds the flight to those that the tests repeat.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cml_engine.demo_game.streaming import IN_FLIGHT, LEAST_IN_FLIGHT, WORK_FRAMES
from cml_engine.scheduler.clock import VirtualClock
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.controller import SpareBudget
from cml_engine.scheduler.planning.cost_model import SETTLED, CostModel
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimStep

FRAME_MS = 1000 / 60
#: the flights that the tests repeat
RECORDED = Path(__file__).with_name("flights_recorded")
#: the demo's settings of the recorded flights: guaranteed work, share of late frames, deadlines
_LEAST_MS, _OVER_SHARE, _DEADLINE_MS = 1.0, 0.01, 1000.0


@dataclass(frozen=True)
class Flight:
    """A recorded flight: the report of a headless run of the demo in slices."""

    rows: Sequence[Sequence[float]]
    networks: Mapping[str, Mapping[str, Any]]

    @classmethod
    def load(cls, path: Path) -> Flight:
        report = json.loads(path.read_text(encoding="utf-8"))
        return cls(report["flight"], report["networks"])

    def save(self, path: Path) -> None:
        data = {"flight": self.rows, "networks": self.networks}
        path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


@dataclass
class FlightResult:
    """A flight's work of networks per frame, its share of late frames, and its finished tiles."""

    work_ms: float
    late: float
    tiles: int

    @classmethod
    def of(cls, flight: Flight) -> FlightResult:
        """Returns the result of the flight as it was."""
        rows = flight.rows
        work_ms = sum(row[1] for row in rows) / len(rows)
        late = sum(row[2] > FRAME_MS for row in rows) / len(rows)
        return cls(work_ms, late, int(rows[-1][4] - rows[0][4]))

    def row(self, name: str) -> str:
        return f"{name:32s} {self.work_ms:8.2f} {100 * self.late:7.2f} % {self.tiles:6d}"


@dataclass
class _Tiles:
    """The tiles of a flight. Submits the jobs of the next tiles as the demo does."""

    flight: Flight
    scheduler: FrameScheduler
    nets: dict[str, SimNetwork]
    making: list[dict[str, Job]] = field(default_factory=list)
    requested: int = 0
    finished: int = 0

    def request(self, needed: int) -> None:
        """Drops finished tiles and requests others until ``needed`` or enough are under way."""
        done = [jobs for jobs in self.making if all(job.state == "done" for job in jobs.values())]
        self.finished += len(done)
        self.making = [jobs for jobs in self.making if jobs not in done]
        while self.requested < needed and not self._is_busy:
            self.making.append(self._submit())
            self.requested += 1

    @property
    def _is_busy(self) -> bool:
        if len(self.making) < LEAST_IN_FLIGHT:
            return False
        left_ms = sum(job.remaining_ms for jobs in self.making for job in jobs.values())
        enough_ms = WORK_FRAMES * self.scheduler.rate * FRAME_MS
        return len(self.making) >= IN_FLIGHT or left_ms > enough_ms

    def _submit(self) -> dict[str, Job]:
        """Submits a tile's jobs; networks that only some tiles need run as often as they did."""
        most = max(entry["runs"] for entry in self.flight.networks.values())
        jobs: dict[str, Job] = {}
        for name, entry in self.flight.networks.items():
            share = entry["runs"] / most if most else 1.0
            if int((self.requested + 1) * share) > int(self.requested * share):
                takes = {n: jobs[n].output("y") for n in entry["takes"] if n in jobs}
                jobs[name] = self.scheduler.submit(
                    self.nets[name], takes, name=name, deadline_ms=_DEADLINE_MS
                )
        return jobs


class _Gpu(SimGpu):
    """A simulated device whose frames exceed their predicted times as the flight's did."""

    timing_is_expensive = True

    def __init__(self, flight: Flight) -> None:
        super().__init__()
        rows = [row for row in flight.rows if row[1]]
        self._beyond_ms = [row[2] - row[0] - row[1] for row in rows] or [0.0]
        self._idle_ms = [row[2] - row[0] for row in flight.rows if not row[1]] or [0.0]

    def after_ms(self, frame: int, ms: float) -> float:
        """Returns the milliseconds of a frame after its picture, with ``ms`` of networks."""
        beyond = self._beyond_ms if ms else self._idle_ms
        return max(0.0, ms + beyond[frame % len(beyond)])


def simulate(flight: Flight, over_share: float = _OVER_SHARE) -> FlightResult:
    """Returns the result of the flight on a virtual clock; ``over_share`` is the scheduler's."""
    nets = {
        name: SimNetwork(
            name,
            [
                SimStep(f"{name}{i}", groups, ms / groups)
                for i, (groups, ms) in enumerate(entry["steps"])
            ],
        )
        for name, entry in flight.networks.items()
    }
    device, clock, model = _Gpu(flight), VirtualClock(), CostModel()
    for net in nets.values():
        for step in net.steps:
            for count in {1, max(1, step.groups // 8), step.groups}:
                for _ in range(SETTLED):
                    model.learn([(step, count)], step.ms(count))
    scheduler = FrameScheduler(
        device, FRAME_MS, "spare", over_share=over_share, clock=clock, cost_model=model
    )
    scheduler.budget = SpareBudget(FRAME_MS, _LEAST_MS)
    tiles, work_ms, late = _Tiles(flight, scheduler, nets), 0.0, 0
    already = int(flight.rows[0][4])
    for number, (elapsed_ms, _, _, needed, _) in enumerate(flight.rows):
        tiles.request(int(needed) - already)
        scheduler.encode(None, elapsed_ms)
        took_ms = elapsed_ms + device.after_ms(number, device.frame_ms)
        work_ms += device.frame_ms
        late += took_ms > FRAME_MS
        clock.advance(max(FRAME_MS, took_ms))
        scheduler.frame_took(took_ms)
        scheduler.end_frame()
    tiles.request(0)
    return FlightResult(work_ms / len(flight.rows), late / len(flight.rows), tiles.finished)


def table(paths: Sequence[Path]) -> str:
    """Returns a text table with two lines for each recorded flight."""
    lines = [f"{'flight':32s} {'ms/frame':>8s} {'late':>9s} {'tiles':>6s}"]
    for path in paths:
        flight = Flight.load(path)
        lines += [FlightResult.of(flight).row(path.stem), simulate(flight).row("  simulated")]
    return "\n".join(lines)


def main() -> str:
    parser = argparse.ArgumentParser("python -m tests.scheduler.budgets.flights")
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--keep", metavar="NAME", help="keep the first flight for the tests")
    options = parser.parse_args()
    if options.keep:
        Flight.load(options.reports[0]).save(RECORDED / f"{options.keep}.json")
    return table(options.reports)


if __name__ == "__main__":
    print(main())
