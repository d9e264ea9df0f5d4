"""Runs a recording again on the virtual clock, without the device it was made on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cml_engine.compiler.plan import Timing
from cml_engine.io.json_files import JsonObject
from cml_engine.scheduler.clock import VirtualClock
from cml_engine.scheduler.executor import Handle, Network
from cml_engine.scheduler.frame_scheduler import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.controller import FixedBudget
from cml_engine.scheduler.planning.plan import (
    FramePlan,
    FrameState,
    Planner,
    plan_frame,
    planned_slice,
)
from cml_engine.scheduler.planning.policy import BUILT_IN
from cml_engine.scheduler.recording import Recording, decisions_of
from cml_engine.scheduler.tools.simulate import SimGpu, SimNetwork, SimRun, SimStep


class _Echo(SimGpu):
    """A simulated device that returns the recorded timings instead of its own."""

    def __init__(self, options: JsonObject) -> None:
        names = ("granule", "max_groups", "clock_source")
        super().__init__(**{name: options[name] for name in names})
        self.arrived: list[Timing] = []
        self.behind = False
        self.held: list[Network] = []
        self.back_from_cpu: list[Network] = []

    def reserve(self, network: Handle, inputs: object) -> str:
        return "memory" if network in self.held else ""

    def end_cpu_step(self, network: Handle, step: int, budget_ms: float) -> bool:
        is_done = network in self.back_from_cpu
        if is_done:
            self.back_from_cpu.remove(network)
        return is_done

    def finish_job(self, encoder: object, network: Handle) -> SimRun | None:
        return None if network in self.held else SimRun()

    def encode(
        self, encoder: object, frame: int, groups: object, *, timed: bool = True
    ) -> None: ...

    def end_frame(self, frame: int) -> list[Timing]:
        return self.arrived

    def is_behind(self, most_frames: int) -> bool:
        return self.behind


def replay(recording: Recording) -> list[list[list[int]]]:
    """Runs the recording again on the virtual clock and returns each frame's slices.

    A slice is ``[job, index, first, count]``. If the result differs from ``recording.decisions``,
    the scheduler depends on something unrecorded.

    Examples
    --------
    >>> recording = scheduler.record()
    >>> frame = scheduler.encode(encoder)
    >>> cml.scheduler.replay(recording) == recording.decisions
    True
    """
    return _Replay(recording).run()


class _Replay:
    def __init__(self, recording: Recording) -> None:
        options = recording.options
        self.recording = recording
        self.clock = VirtualClock()
        self.device = _Echo(options)
        self.spare = options["spare"]
        self.budget = FixedBudget(options["budget_ms"])
        self.scheduler = FrameScheduler(
            self.device,
            options["frame_ms"],
            options["budget_ms"],
            policy=BUILT_IN[options["policy"]],
            clock=self.clock,
        )
        self.scheduler.budget = self.budget
        self.scheduler.resume(options)
        self.networks = [_network(data) for data in recording.networks]
        self.jobs: dict[int, Job] = {}

    def run(self) -> list[list[list[int]]]:
        decided: list[list[list[int]]] = []
        for event in self.recording.events:
            if "now" in event:
                self.clock.advance_to(event["now"])
            if event["kind"] == "frame":
                slices = self.recording.decisions[len(decided)] if event["given"] else None
                decided.append(self._frame(event, slices))
            else:
                self._apply(event)
        return decided

    def _frame(self, event: JsonObject, slices: list[list[int]] | None) -> list[list[int]]:
        for index, ready in event["ready"].items():
            self.networks[int(index)].ready = ready
        self.budget.ms = event["budget"]
        self.budget.aim_ms = event["aim"] if self.spare else None
        # a given aim already excludes the copies
        self.scheduler.lifecycle.copy_costs.pending_ms = 0 if self.spare else event.get("copied", 0)
        self.scheduler.controller.skips = event["rests"]
        self.scheduler.planner = plan_frame if slices is None else _repeat_slices(slices, self.jobs)
        self.device.behind = event["waiting"]
        self.device.held = [self.jobs[n].network for n in event.get("held", ())]
        self.device.back_from_cpu = [self.jobs[n].network for n in event.get("back_from_cpu", ())]
        return decisions_of(self.scheduler.encode(None))

    def _apply(self, event: JsonObject) -> None:
        event_kind = event["kind"]
        if event_kind == "end":
            self.device.arrived = [Timing(*timing) for timing in event["timings"]]
            self.scheduler.end_frame()
        elif event_kind == "abandoned":
            self.scheduler.abandon_frame()
        elif event_kind == "submit":
            self._submit(event)
        elif event_kind == "work":
            network = self.jobs[event["job"]].network
            assert isinstance(network, SimNetwork)
            network.reuse[_input_stand_in(event["job"])] = _numbers(event)
        elif event_kind in ("cancelled", "failed"):
            self.scheduler.lifecycle.end(self.jobs[event["job"]], event_kind)
        else:
            self.scheduler.lifecycle.pause(self.jobs[event["job"]], event_kind == "paused")

    def _submit(self, event: JsonObject) -> None:
        network, now = self.networks[event["network"]], self.clock.now_ms()
        loads = _steps(event.get("loads", ()))
        job = Job(
            number=event["job"],
            network=network,
            inputs={f"in{n}": self.jobs[n].output("out") for n in event["needs"] if n in self.jobs},
            priority=event["priority"],
            submitted_ms=now,
            deadline_at_ms=event["deadline"],
            name=network.name,
            slot=event["slot"],
            owner=self.scheduler.lifecycle,
            last_served_ms=now,
            given=_input_stand_in(event["job"]),
            costs=tuple(loads),
            loads=len(loads),
        )
        network.reuse[job.given] = _numbers(event)
        self.jobs[job.number] = job
        self.scheduler.lifecycle.add(job, "accept")


def _input_stand_in(job: int) -> frozenset[str]:
    """Returns a stand-in for the names of a job's inputs, which a recording does not hold."""
    return frozenset({f"of job {job}"})


def _numbers(event: JsonObject) -> tuple[int, ...] | None:
    return None if event["steps"] is None else tuple(event["steps"])


def _network(data: JsonObject) -> SimNetwork:
    return SimNetwork(
        data["name"],
        _steps(data["steps"]),
        exclusive_group=data["group"],
        load_times_ms=data["load_ms"],
        retains=data["retains"],
    )


def _steps(rows: Iterable[list[Handle]]) -> list[SimStep]:
    return [
        SimStep(key, groups, 0.0, op, title, flops, nbytes)
        for key, op, title, groups, flops, nbytes in rows
    ]


def _repeat_slices(slices: list[list[int]], jobs_by_number: Mapping[int, Job]) -> Planner:
    """Returns a planner of one frame that repeats the ``slices`` of another planner."""

    def plan(state: FrameState) -> FramePlan:
        planned = []
        for number, step, first, count in slices:
            job = jobs_by_number[number]
            if job in state.jobs:  # otherwise the replay has already diverged
                planned.append(planned_slice(state, job, step, first, count))
        starts = [job for job in dict.fromkeys(part.job for part in planned) if not job.running]
        return FramePlan(planned, starts, state.otherwise, by_budget=False)

    return plan
