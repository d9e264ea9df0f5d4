"""Tests on the virtual clock of texture loads and texture copies within the frame budget."""

from __future__ import annotations

import json
from dataclasses import asdict

from cml_engine.scheduler.recording import Recording
from cml_engine.scheduler.tools.replay import replay
from cml_engine.scheduler.tools.simulate import SimStep
from tests.fixtures.frames import simulated

BUDGET_MS = 2.0
TEXTURE = SimStep("load", 1000, 0.005, "load_texture", "load_texture 'x'")
TARGET = SimStep("pack", 1, 0.8, "pack_texture", "pack_texture 'y'")


class Loop(simulated.Loop):
    def __init__(self):
        super().__init__(exact=False, budget_ms=BUDGET_MS)
        self.jobs = []

    def frame(self, copy=False):
        """Runs one frame and returns its milliseconds of inference and copies.

        With ``copy`` the output of every finished job is copied to a texture.
        """
        self.reports.append(self.scheduler.encode(None))
        done = [job for job in self.jobs if job.state == "done"] if copy else []
        for job in done:
            job.copy_to_texture(None, "y", TARGET)
            self.jobs.remove(job)
        copied = len(done) * TARGET.ms_per_group
        self.scheduler.end_frame()
        self.clock.advance(simulated.FRAME)
        return self.gpu.frame_ms + copied


def warm(loop, net):
    """Runs jobs until the costs of all steps, loads and copies are known, then clears the
    reports."""
    for _ in range(12):
        loop.jobs.append(loop.scheduler.submit(net, {"x": TEXTURE}))
        while loop.scheduler.jobs:
            loop.frame(copy=True)
    for _ in range(4):
        loop.frame(copy=True)
    loop.reports.clear()


def test_loads_are_slices_of_the_job_within_the_budget():
    loop, net = Loop(), simulated.network(total_ms=3.0, steps=3)
    warm(loop, net)
    job = loop.scheduler.submit(net, {"x": TEXTURE})
    plain = loop.scheduler.submit(net, {})
    assert job.remaining_ms > plain.remaining_ms + 4.0, "five milliseconds of texture"
    spent = []
    while loop.scheduler.jobs:
        spent.append(loop.frame())
    assert max(spent) <= BUDGET_MS * 1.001
    loads = [p for r in loop.reports for p in r.slices if p.job == job.number and p.step is None]
    assert {part.index for part in loads} == {0} and sum(p.count for p in loads) == TEXTURE.groups
    assert len(loads) >= 3, "over several frames"
    own = {p.step for r in loop.reports for p in r.slices if p.step is not None}
    assert own == {0, 1, 2} and job.progress == plain.progress == 1.0


def test_a_copy_is_paid_for_by_the_next_frame():
    loop, net = Loop(), simulated.network(total_ms=3.0, steps=3)
    warm(loop, net)
    spent = []
    for _ in range(60):
        if not loop.scheduler.jobs:
            loop.jobs.append(loop.scheduler.submit(net, {"x": TEXTURE}))
        spent.append(loop.frame(copy=True))
    after = [r for r in loop.reports if r.copied_ms]
    assert after and all(abs(r.copied_ms - 0.8) < 0.01 for r in after)
    assert all(r.aim_ms <= BUDGET_MS - r.copied_ms + 1e-9 for r in after)
    assert sum(spent) / len(spent) <= BUDGET_MS


def test_a_recording_with_textures_replays(tmp_path):
    loop, net = Loop(), simulated.network(total_ms=3.0, steps=3)
    recording = loop.scheduler.record()
    small = SimStep("load", 10, 0.005, "load_texture", "load_texture 'x'")
    for k in range(9):
        inputs = ({"x": TEXTURE}, {}, {"x": small})[k % 3]
        loop.jobs.append(loop.scheduler.submit(net, inputs))
        loop.frame(copy=True)
    while loop.scheduler.jobs:
        loop.frame(copy=True)
    assert any(report.copied_ms for report in loop.reports)
    loads = {e["job"]: len(e["loads"]) for e in recording.events if e["kind"] == "submit"}
    assert any(part[1] < loads[part[0]] for frame in recording.decisions for part in frame)
    assert replay(recording) == recording.decisions
    steps = [[[n, i - loads[n], *rest] for n, i, *rest in frame] for frame in recording.decisions]
    old = {**asdict(recording), "format": "cml recording 6", "decisions": steps}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert Recording.load(tmp_path / "old.json").decisions == recording.decisions
    changed = Recording(recording.options, recording.networks, recording.events[:], [])
    changed.events = [{**e, "copied": 1.9} if e["kind"] == "frame" else e for e in changed.events]
    assert replay(changed) != recording.decisions, "copies count"
