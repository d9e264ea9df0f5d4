"""Tests that a replayed recording makes the same decisions, and that Perfetto can open a trace."""

import contextlib
import json
import random

import pytest

from cml_engine import FrameScheduler, InputError
from cml_engine.scheduler import (
    AdmissionError,
    Job,
    VirtualClock,
    by_priority,
    fair_share,
    least_laxity,
)
from cml_engine.scheduler.planning.plan import operators_per_frame, plan_frame
from cml_engine.scheduler.recording import _FORMAT, Recording
from cml_engine.scheduler.tools.replay import replay
from cml_engine.scheduler.tools.simulate import Noise, SimGpu, SimNetwork, SimRun, SimStep
from cml_engine.scheduler.tools.trace import trace_events, write_trace
from tests.fixtures import hostile_json
from tests.fixtures.frames.simulated import run_random_host
from tests.scheduler.test_queues import networks, random_host, scheduler_for


def network(name, groups=50, ms=0.05, steps=5):
    return SimNetwork(name, [SimStep(f"{name}{i}", groups, ms) for i in range(steps)])


def recorded_run(frames=220):
    """Records a host with random jobs and frame times and returns the recording."""
    nets = networks()
    scheduler = scheduler_for(nets, least_laxity)
    recording = scheduler.record()
    run_random_host(scheduler, nets, 7, frames)
    return recording


def test_invalid_recording_is_refused(tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="not a recording"):
        Recording.load(file)
    more = json.dumps({"format": _FORMAT, "more": 1})
    kinds = json.dumps({"format": _FORMAT, "events": {}})
    old = json.dumps({"format": "cml recording 6", "events": [3]})
    for text in (more, kinds, old, *hostile_json.texts({})):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"x\.json' is not a recording"):
            Recording.load(file)


def test_recording_starts_before_the_first_job():
    scheduler = FrameScheduler(SimGpu(), budget_ms=1.0, clock=VirtualClock())
    scheduler.submit(network("a"), {})
    with pytest.raises(InputError, match="before the first job"):
        scheduler.record()


def test_a_trace_holds_frames_slices_and_counters(tmp_path):
    reports, jobs = random_host(least_laxity, 7, frames=60)
    names = {job.number: job.name for job in jobs}
    events = trace_events(reports, names, {"weights": 2**20})
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events if e["ph"] == "X")
    slices = [e for e in events if e["ph"] == "X" and e["tid"] >= 10]
    assert len(slices) == sum(len(r.slices) for r in reports)
    tracks = {e["args"]["name"] for e in events if e["ph"] == "M" and e["tid"] >= 10}
    ran = {names.get(part.job, f"job {part.job}") for report in reports for part in report.slices}
    assert tracks == ran  # jobs of one name share a track
    parts = {reports[3].frame: {"selecting tiles": 1.5, "the picture": 7.0}}
    hosts = [
        e for e in trace_events(reports, activities=parts) if e.get("tid") == 3 and e["ph"] == "X"
    ]
    assert [(e["name"], e["dur"]) for e in hosts] == [
        ("selecting tiles", 1500.0),
        ("the picture", 7000.0),
    ]
    at = 1e3 * (reports[3].now_ms - reports[0].now_ms)
    assert [e["ts"] for e in hosts] == [at, at + 1500.0]
    write_trace(tmp_path / "t.json", reports, names, about={"model": "x"})
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["displayTimeUnit"] == "ms" and data["otherData"] == {"model": "x"}
    assert len(data["traceEvents"]) > 100


def run_by_wall_clock(frames=400):
    """Returns the recording of a run on a device without timestamps.

    Only the host's frame times are known. The device is half as fast as it was at load, some frames
    hitch, and the recording begins in the middle.
    """
    clock = VirtualClock(17.1)
    gpu = SimGpu(Noise.of_tail(1.5), seed=2, clock_source="wall clock")
    scheduler = FrameScheduler(gpu, budget_ms=6.0, over_share=0.05, clock=clock)
    nets = [network("a", 200, 0.02), network("b", 30, 0.09)]
    for net in nets:
        net.load_times_ms = [0.5 * step.groups * step.ms_per_group for step in net.steps]

    def frame(number):
        scheduler.encode(None)
        clock.advance(max(16.7, 11.3 + gpu.frame_ms) + (40.0 if number % 70 == 9 else 0.1))
        scheduler.end_frame()

    early = scheduler.submit(nets[1], {})
    number = 0
    while not early.ended:
        frame(number)
        number += 1
    recording = scheduler.record()
    for number in range(frames):
        if number % 30 == 0:
            scheduler.submit(nets[number // 30 % 2], {}, deadline_ms=333.3)
        if number == 181:
            scheduler.planner = operators_per_frame(1)
        if number == 184:
            scheduler.planner = plan_frame
        frame(number)
    return recording


class _FailingStarts(SimGpu):
    """A device on which jobs fail as they begin, evict a network, or turn out to be wrong later."""

    def __init__(self, chance, networks, **options):
        super().__init__(**options)
        self._chance, self._networks, self._runs = chance, networks, []

    def reserve(self, network, inputs):
        if self._chance.random() < 0.1:
            evicted = self._chance.choice(self._networks)
            evicted.ready, evicted.prepare_frames = False, 2
        return ""

    def begin_job(self, encoder, network, inputs):
        if self._chance.random() < 0.1:
            raise InputError("planted")
        self._runs.append(SimRun())
        return self._runs[-1]

    def take_losses(self):
        is_lost = bool(self._runs) and self._chance.random() < 0.1
        if is_lost:
            self._chance.choice(self._runs[-5:]).harm = "planted"
        return is_lost


def run_beside_another(seed=0, frames=200):
    """Returns the recording of one of two schedulers.

    Its jobs take outputs of the other's, whose frames are abandoned at times, and of each other.
    Some fail as they begin or after their end, some evict a network, and some are refused.
    """
    chance, clock = random.Random(seed), VirtualClock()
    nets = [network(name, ms=0.03, steps=2) for name in "abc"]
    gpu = _FailingStarts(chance, nets, clock_source="wall clock")
    scheduler = FrameScheduler(
        gpu,
        budget_ms=5.0,
        policy=chance.choice([by_priority, fair_share, least_laxity]),
        clock=clock,
    )
    other = FrameScheduler(SimGpu(), budget_ms=5.0, clock=clock)
    recording, jobs = scheduler.record(), []
    for frame in range(frames):
        for _ in range(chance.choice([0, 0, 1, 3]) if frame < 0.7 * frames else 0):
            net = chance.choice(nets)
            if chance.random() < 0.2:  # its costs are learned as its first job is submitted
                net = network(f"n{chance.randrange(9)}", ms=0.01)
                net.load_times_ms = [1.5 * step.groups * step.ms_per_group for step in net.steps]
            maker = other.submit(network("maker", ms=0.02, steps=2), {})
            with contextlib.suppress(AdmissionError):
                job = scheduler.submit(
                    net, chance.choice([{}, *({"x": m.output("y")} for m in (maker, *jobs[-2:]))]),
                    priority=chance.choice([1, 2]), deadline_ms=chance.choice([20, 500]),
                    admission=chance.choice(["accept", "refuse"]),
                )  # fmt: skip
                jobs.append(job)
        for change in (Job.pause, Job.resume, Job.resume, Job.cancel):
            if jobs and chance.random() < 0.1:
                change(chance.choice(jobs[-8:]))
        others_end = chance.choice([other.end_frame, other.end_frame, other.abandon_frame])
        for call in (other.encode, scheduler.encode):
            call(None)
        others_end()
        clock.advance(16.7)
        scheduler.end_frame()
    return recording


@pytest.mark.parametrize("lost", ["ends", "load times", "feedback", "share", "given"])
def test_every_value_of_a_recording_without_timestamps_matters(lost, tmp_path):
    """The replay of the saved recording makes equal decisions, and others if any of five recorded
    values is missing or changed."""
    recording = run_with_margin() if lost == "share" else run_by_wall_clock()
    recording.save(tmp_path / "run.json")
    assert replay(Recording.load(str(tmp_path / "run.json"))) == recording.decisions
    if lost == "share":
        recording.options["over_share"] = 0.5
    elif lost == "feedback":
        recording.options["feedback"]["factor"] = 9.0
    elif lost == "load times":
        recording.networks[0]["load_ms"] = []
    for event in recording.events:
        if lost == "given" and event["kind"] == "frame":
            event["given"] = False
        if lost == "ends" and event["kind"] == "end":
            del event["now"]
    assert replay(recording) != recording.decisions


def run_with_margin():
    """Returns the recording of a noisy device with a margin for at most 5 % of frames over
    budget."""
    clock = VirtualClock()
    scheduler = FrameScheduler(
        SimGpu(Noise.of_tail(2.0), seed=1), budget_ms=2.0, over_share=0.05, clock=clock
    )
    recording = scheduler.record()
    net = network("n", 400, 0.01)
    for number in range(200):
        if number % 20 == 0:
            scheduler.submit(net, {})
        scheduler.encode(None)
        clock.advance(16.0)
        scheduler.end_frame()
    return recording
