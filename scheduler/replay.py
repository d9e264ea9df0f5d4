"""Runs a recording again on the virtual clock, without the device it was made on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler import policy
from scheduler.budget import FixedBudget
from scheduler.clock import VirtualClock
from scheduler.frame_scheduler import FrameScheduler
from scheduler.job import Job
from scheduler.record import Recording, decisions_of
from scheduler.sim_device import SimGpu, SimNetwork, SimStep, SimTiming


class _Echo(SimGpu):
    """A device that gives back the recorded timings."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        kept = ("granule", "max_groups", "clock_source")
        super().__init__(**{name: options[name] for name in kept})
        self.arrived: list[SimTiming] = []
        self.busy = 0

    def encode(self, encoder: Any, frame: int, groups: Any) -> None: ...

    def end_frame(self, frame: int) -> list[SimTiming]:
        return self.arrived

    @property
    def frames_in_flight(self) -> int:
        return self.busy


def replay(recording: Recording) -> list[list[list[int]]]:
    """Run the recording again on the virtual clock; what it decides, frame by frame. Equal to
    ``recording.decisions``, or something is not as it should be."""
    return _Replay(recording).run()


class _Replay:
    def __init__(self, recording: Recording) -> None:
        options = recording.options
        self.recording = recording
        self.clock = VirtualClock()
        self.device = _Echo(options)
        self.budget = FixedBudget(options["budget_ms"])
        self.scheduler = FrameScheduler(
            self.device,
            options["frame_ms"],
            options["budget_ms"],
            policy=getattr(policy, options["policy"]),
            clock=self.clock,
        )
        self.scheduler.budget = self.budget
        self.scheduler.resume(options)
        self.networks = [_network(data) for data in recording.networks]
        self.jobs: dict[int, Job] = {}

    def run(self) -> list[list[list[int]]]:
        decided = []
        for event in self.recording.events:
            if "now" in event:
                self.clock.advance_to(event["now"])
            if event["kind"] == "frame":
                decided.append(self._frame(event))
            else:
                self._apply(event)
        return decided

    def _frame(self, event: Mapping[str, Any]) -> list[list[int]]:
        for index, ready in event["ready"].items():
            self.networks[int(index)].ready = ready
        self.budget.ms = event["budget"]
        self.scheduler.operators_per_frame = event["operators"]
        self.device.busy = 1 << 30 if event["waiting"] else 0
        report = self.scheduler.encode(None)
        named = {job.number: number for number, job in self.jobs.items()}
        return [[named[job], *rest] for job, *rest in decisions_of(report)]

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "end":
            self.device.arrived = [SimTiming(*timing) for timing in event["timings"]]
            self.scheduler.end_frame()
        elif kind == "abandoned":
            self.scheduler.abandon_frame()
        elif kind == "submit":
            self._submit(event)
        elif kind in ("cancelled", "failed"):
            self.scheduler.end(self.jobs[event["job"]], kind)
        else:
            self.jobs[event["job"]].paused = kind == "paused"

    def _submit(self, event: Mapping[str, Any]) -> None:
        deadline = event["deadline"]
        needs = {f"in{n}": self.jobs[n].output("out") for n in event["needs"] if n in self.jobs}
        job = self.jobs[event["job"]] = self.scheduler.submit(
            self.networks[event["network"]],
            needs,
            priority=event["priority"],
            deadline_ms=None if deadline is None else deadline - self.clock.now_ms(),
            slot=event["slot"],
        )
        job.deadline_at_ms = deadline  # to the last bit


def _network(data: Mapping[str, Any]) -> SimNetwork:
    steps = [
        SimStep(key, groups, 0.0, op, title, flops, nbytes)
        for key, op, title, groups, flops, nbytes in data["steps"]
    ]
    return SimNetwork(
        data["name"], steps, exclusive_group=data["group"], load_times_ms=data["load_ms"]
    )
