"""Tests that the game leaves cores to other processes that keep them busy."""

import os

import pytest

from cml_engine.demo_game import cores as module
from cml_engine.demo_game.cores import CoreWatch

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class System:
    """A system with cores 2, 3 and 5 for this process, and its clocks."""

    def __init__(self, folder, monkeypatch):
        self.now_s = self.own_s = 10.0
        self.busy_s = {2: 1.0, 3: 2.0, 4: 3.0, 5: 4.0}
        self.allowed, self.stat = {2, 3, 5}, folder / "stat"
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: self.allowed, raising=False)
        monkeypatch.setattr(os, "sched_setaffinity", self._allow, raising=False)
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(module.time, "process_time", lambda: self.own_s)
        self.write()

    def _allow(self, thread, allowed):
        assert thread == 0
        self.allowed = set(allowed)

    def write(self):
        """Writes the system's file: half of the busy time in user code, the rest as interrupts."""
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for core, busy_s in self.busy_s.items():
            half = round(busy_s * TICKS / 2)
            lines.append(f"cpu{core} {half} 0 0 999999 99 {half} 0 7 0 0")
        self.stat.write_text("\n".join([*lines, "intr 1 2 3", ""]))

    def pass_time(self, seconds, own_s, **busy_s):
        self.now_s += seconds
        self.own_s += own_s
        for core, more in busy_s.items():
            self.busy_s[int(core[1:])] += more
        self.write()


@pytest.fixture
def system(tmp_path, monkeypatch):
    return System(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("busy_s", "taken"),
    [
        ({}, 0),
        ({"c3": 0.95}, 1),
        ({"c2": 0.5, "c3": 0.5}, 1),  # a process that moves
        ({"c3": 0.6}, 0),
        ({"c4": 1.0}, 0),  # not a core of this process
        ({"c2": 1.0, "c3": 0.9}, 2),
        ({"c2": 1.0, "c3": 1.0, "c5": 1.0}, 2),  # one is always left for the game
    ],
)
def test_cores_that_others_keep_busy_are_counted_and_left(system, busy_s, taken):
    watch = CoreWatch(system.stat)
    # the imports of this process keep a core busy too
    system.pass_time(1.0, 0.8, **{**busy_s, "c5": busy_s.get("c5", 0.0) + 0.8})
    assert watch.count_taken() == taken
    watch.leave(taken)
    assert system.allowed == {0: {2, 3, 5}, 1: {2, 3}, 2: {2}}[taken]
    watch.leave(0)
    assert system.allowed == {2, 3, 5}


def test_a_moment_is_too_short_to_know(system):
    watch = CoreWatch(system.stat)
    system.pass_time(0.05, 0.0, c2=0.05)
    assert watch.count_taken() == 0


def test_a_system_without_the_file_leaves_all_cores(system, tmp_path):
    watch = CoreWatch(tmp_path / "none")
    system.pass_time(1.0, 0.0, c2=1.0)
    assert watch.count_taken() == 0
