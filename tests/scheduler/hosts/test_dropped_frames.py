"""Tests of a host that drops the encoder of one frame without telling the scheduler.

Whichever frame it is, no value that is read from a job is wrong, before and after the loss is
noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.scheduler.jobs.job import Job
from cml_engine.scheduler.planning.plan import operators_per_frame
from tests.fixtures.frames.turns import turns
from tests.fixtures.operators import declare

pytestmark = pytest.mark.gpu

#: small numbers and their halves, which are bit-identical on every backend
TEXT = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x, z) -> (y)
{{
    x = external(shape = [4]); z = external(shape = [4]);
    s = variable(shape = [4], label = 's');
    a = {halve};
    b = max(a, z - 8.0);
    t = b + s * {decay};
    {update}
    y = t + z;
}}
"""
FIRST = 2.0
OPTIONS = cml.CompileOptions(without=frozenset({"chains", "fuse"}))


@pytest.fixture(autouse=True)
def halve(own_operators):
    """Registers ``halve``, an operator without a kernel."""
    declare(signature="halve", cpu=lambda attrs, x: x / 2)


def graph(decay, recurrent, on_cpu):
    update = "u = update(s, t);" if recurrent else ""
    halve = "halve(x)" if on_cpu else "x * 0.5"
    text = TEXT.format(decay=decay, update=update, halve=halve)
    return cml.load(cml.nnef.MemoryModel(text, {"s": np.full(4, FIRST, np.float32)}))


@dataclass
class Memory:
    """A model in Python of the variable and the inputs that one network retains on the device."""

    decay: float
    recurrent: bool
    values: dict[str, float] = field(default_factory=lambda: {"s": FIRST})

    def run(self, inputs, done):
        """Stores the given inputs and returns a job's output as a number.

        A job that is done also updates the variable of a recurrent network.
        """
        self.values |= inputs
        x, z, s = (np.float32(self.values[name]) for name in "xzs")
        t = np.float32(max(x * np.float32(0.5), z - np.float32(8)) + s * np.float32(self.decay))
        if done and self.recurrent:
            self.values["s"] = float(t)
        return float(np.float32(t + z))


class Network:
    """A session and the expected values in its memory."""

    def __init__(self, trial, recurrent, retain, on_cpu, decay=0.5):
        self.trial, self.recurrent, self.retain, self.on_cpu = trial, recurrent, retain, on_cpu
        self.memory = Memory(decay, recurrent)
        network = graph(decay, recurrent, on_cpu)
        self.session = cml.Session(network, trial.gpu, OPTIONS, retain=retain)

    def replace(self):
        """Replaces the session's network; jobs that were submitted before run on the old one."""
        self.session.replace(graph(0.25, self.recurrent, self.on_cpu))
        self.session.take_replacement()
        old, new = self.memory, Memory(0.25, self.recurrent)
        self.memory = new
        self.trial.events.append(lambda: new.values.update({**old.values, "s": FIRST}))

    def reset(self):
        self.session.reset()
        memory = self.memory
        self.trial.events.append(lambda: memory.values.update(s=FIRST))


class Entry:
    """A job with its inputs, and the values that were read from its output (``seen``)."""

    def __init__(self, trial, job, memory, inputs):
        self.trial, self.job, self.memory, self.inputs = trial, job, memory, inputs
        self.seen: set[float] = set()
        self.made = np.nan

    def read(self):
        if self.job.state == "done" and not self.job.outputs.released:
            array = self.job.read("y")
            self.seen |= set() if array is None else set(array.tolist())

    def check(self):
        """Computes the expected output and asserts that only this value was read, and none if it
        failed."""
        by_job = {id(entry.job): entry.made for entry in self.trial.entries}
        values = {name: by_job.get(id(v), v) for name, v in self.inputs.items()}
        done = self.job.state == "done"
        self.made = self.memory.run(values, done)
        if not self.job.outputs.released:
            assert self.seen == ({self.made} if done else set()), (self.job, self.made, self.seen)
        assert self.seen <= {self.made}, (self.job, self.made, self.seen)


class Trial:
    """A frame loop that drops the frame number ``drop`` and records all jobs in ``entries``."""

    def __init__(self, gpu, drop, timed):
        self.gpu, self.drop, self.timed, self.count = gpu, drop, timed, 0
        self.schedulers: list[FrameScheduler] = []
        self.entries: list[Entry] = []
        self.begun: set[Job] = set()
        #: the starts of jobs and all other changes of a memory, in order
        self.events: list[Callable[[], None]] = []

    def scheduler(self):
        made = FrameScheduler(self.gpu, budget_ms=20.0)
        made.planner = operators_per_frame(1)
        if not self.timed:  # as in a host that reports whole frames: receipts come in bundles
            made.controller.times = lambda frame: frame % 8 == 0  # type: ignore[method-assign]
            made.cost_model.is_settled = lambda step, count: True  # type: ignore[method-assign]
        return made

    def submit(self, network, where=0, options=None, **inputs):
        """Submits a job to the scheduler number ``where`` and returns it.

        Each input is a number, or a job whose output is read.
        """
        while len(self.schedulers) <= where:
            self.schedulers.append(self.scheduler())
        values = {
            name: (value.tensor("y") if value.state == "done" else value.output("y"))
            if isinstance(value, Job)
            else np.full(4, value, np.float32)
            for name, value in inputs.items()
        }
        job = self.schedulers[where].submit(network.session, values, **(options or {}))
        self.entries.append(Entry(self, job, network.memory, inputs))
        return job

    def fate(self):
        """Returns what happens to the frame that is being encoded: "dropped" or "submitted"."""
        return "dropped" if self.count == self.drop else "submitted"

    def frame(self):
        for scheduler in self.schedulers:
            encoder = self.gpu.device.create_command_encoder()
            if scheduler.encode(encoder).reason == "all waiting":
                time.sleep(0.001)  # the operators on the CPU need a core, too
            fate = self.fate()
            self.count += 1
            if fate == "abandoned":
                scheduler.abandon_frame()
                continue
            for entry in self.entries:
                if entry.job.started_ms is not None and entry.job not in self.begun:
                    self.begun.add(entry.job)
                    self.events.append(entry.check)
            if fate == "submitted":
                self.gpu.queue.submit([encoder.finish()])
            scheduler.end_frame()
        for entry in self.entries:
            entry.read()

    def until(self, *jobs):
        """Runs frames until these jobs have ended; returns True if all are done, False if one
        failed."""
        for _ in turns():
            if all(job.ended for job in jobs):
                break
            self.frame()
        return all(job.state == "done" for job in jobs)

    def settle(self):
        """Runs frames until all jobs have ended and all losses are noticed.

        Returns the set of the errors of jobs that are not done.
        """
        self.until(*(entry.job for entry in self.entries))
        for _ in range(14):
            self.frame()
            self.gpu.wait()  # the receipts of a busy device may arrive late
        return {entry.job.error for entry in self.entries if entry.job.state != "done"}


def in_order(trial, network):
    for turn in range(4):
        trial.submit(network, x=turn, z=2 * turn)


def one_by_one(trial, network):
    """Submits four jobs, each when the previous one has ended; no lost frame is noticed yet."""
    for turn in range(4):
        trial.until(trial.submit(network, x=turn, z=2 * turn))


def left_out(trial, network):
    trial.submit(network, x=1, z=2)
    trial.submit(network, z=20)
    trial.submit(network)
    trial.submit(network, x=64)
    trial.until(trial.submit(network, z=6))
    trial.until(trial.submit(network))
    trial.submit(network, z=40)


def replaced(trial, network):
    trial.submit(network, x=1, z=2)
    trial.submit(network, x=3, z=20)
    trial.frame()
    network.replace()
    trial.submit(network, x=5, z=6)
    trial.until(trial.submit(network, x=5, z=40))
    trial.submit(network, x=7, z=2)


def fed(trial, network):
    """Submits jobs that read another job's output before it is done, and one that reads it
    afterwards."""
    maker = Network(trial, recurrent=False, retain=False, on_cpu=False)
    trial.submit(network, x=trial.submit(maker, x=1, z=2), z=3)
    other = trial.submit(maker, x=9, z=4)
    trial.submit(network, x=5, z=6)
    if trial.until(other):
        trial.submit(network, x=other, z=1)
    if network.retain:
        trial.submit(network, z=8)


def of_two_schedulers(trial, network):
    for turn in range(4):
        job = trial.submit(network, where=turn % 2, x=turn, z=2 * turn)
        trial.until(job)  # a session that retains inputs has the jobs of one scheduler at a time
    trial.submit(network, where=1, x=job, z=3)


NETWORKS = {
    "plain": (False, False, False),
    "recurrent": (True, False, False),
    "retaining": (False, True, False),
    "both": (True, True, False),
    "on the CPU": (True, True, True),
}
#: the other combinations run in the long suite
SHORT = {
    (in_order, "recurrent", "timed"),
    (one_by_one, "recurrent", "bundled"),
    (left_out, "both", "bundled"),
    (left_out, "on the CPU", "timed"),
    (replaced, "both", "timed"),
    (fed, "both", "timed"),
    (of_two_schedulers, "both", "timed"),
}
CASES = [
    pytest.param(*case, marks=() if case in SHORT else pytest.mark.long)
    for script in (in_order, one_by_one, left_out, replaced, fed, of_two_schedulers)
    for kind, (_, retain, _) in NETWORKS.items()
    for case in ((script, kind, "timed"), (script, kind, "bundled"))
    if retain or script is not left_out
]


@pytest.mark.parametrize(
    ("script", "kind", "receipts"), CASES, ids=lambda v: getattr(v, "__name__", v)
)
def test_whichever_frame_is_dropped_no_number_is_wrong(gpu, script, kind, receipts):
    recurrent, retain, on_cpu = NETWORKS[kind]
    drop, last = -1, 0
    errors = set()
    while drop <= last:
        trial = Trial(gpu, drop, timed=receipts == "timed")
        network = Network(trial, recurrent, retain, on_cpu)
        script(trial, network)
        trial.until(*(entry.job for entry in trial.entries))
        last = trial.count if drop == -1 else last
        messages = trial.settle()
        assert drop >= 0 or not messages
        errors |= messages
        # the network still works
        trial.drop = -1
        if not trial.until(trial.submit(network, x=3, z=4)):
            errors.add(trial.entries[-1].job.error)
            assert recurrent and "Session.reset()" in trial.entries[-1].job.error
            network.reset()
        assert trial.until(trial.submit(network, x=3, z=4), trial.submit(network, x=5, z=6))
        trial.settle()
        for event in trial.events:
            event()
        drop += 1
    assert any("never submitted. " in error or "never submitted, " in error for error in errors)
    assert any("Session.reset()" in error for error in errors) == recurrent
    allowed = ("never submitted", "' failed", "did not begin. Give it", "Give it again")
    assert all(any(reason in error for reason in allowed) for error in errors), errors


def test_a_frame_is_noticed_to_be_lost_however_late_its_receipt_is(gpu, monkeypatch):
    """A loop that does not wait for a slow device runs hundreds of frames until receipts arrive."""
    trial = Trial(gpu, drop=-1, timed=True)
    network = Network(trial, recurrent=False, retain=False, on_cpu=False)
    job = trial.submit(network, x=1, z=2)
    ring = trial.schedulers[0].executor._ring  # type: ignore[attr-defined]
    with monkeypatch.context() as slow:
        slow.setattr(ring, "start_mapping", lambda frame: False)
        trial.frame()
        assert job.started_ms is not None
        trial.drop = trial.count
        for _ in range(300):
            trial.frame()
    trial.settle()
    assert job.state == "failed" and "never submitted" in job.error


def test_a_frame_that_can_leave_no_receipt_does_no_work(gpu, monkeypatch):
    """Else its loss would not be noticed. A host may allow more frames than there are receipts."""
    trial = Trial(gpu, drop=-1, timed=True)
    network = Network(trial, recurrent=False, retain=False, on_cpu=False)
    jobs = [trial.submit(network, x=1, z=2) for _ in range(12)]
    trial.schedulers[0].max_frames_in_flight = 100
    ring = trial.schedulers[0].executor._ring  # type: ignore[attr-defined]
    with monkeypatch.context() as slow:
        slow.setattr(ring, "start_mapping", lambda frame: False)
        for _ in range(60):
            trial.frame()
        assert ring.dropped == 0 and not all(job.ended for job in jobs)
    trial.settle()
    assert [job.state for job in jobs] == ["done"] * 12
