"""Tests that the time of a frame is divided among its activities and what held them up."""

import gc
import os
from types import SimpleNamespace

import pytest

from cml_engine.demo_game import accounting
from cml_engine.demo_game.accounting import (
    COLLECTION,
    OTHERS,
    FrameAccount,
    SystemClock,
    ThreadTimes,
)
from cml_engine.demo_game.pieces import Pieces

MAIN, DRIVER, QUEUE = os.getpid(), -1, -2


class Machine:
    """A machine whose clocks go on only when told, in milliseconds."""

    def __init__(self):
        self.drivers = {DRIVER: "llvmpipe-0", QUEUE: "queue"}
        self.now, self.process = 0.0, 0.0
        self.times = {thread: [0.0, 0.0] for thread in (MAIN, *self.drivers)}

    def passes(self, ms, *, ran=None, delayed=None, others=0.0):
        """Lets ``ms`` pass. ``ran`` and ``delayed`` are ms by thread; the main thread runs."""
        ran = {MAIN: ms} if ran is None else ran
        self.now += ms
        self.process += sum(ran.values()) + others
        for index, by_thread in ((0, ran), (1, delayed or {})):
            for thread, amount in by_thread.items():
                self.times[thread][index] += amount

    def read(self):
        return {thread: ThreadTimes(r / 1e3, d / 1e3) for thread, (r, d) in self.times.items()}

    def close(self):
        pass


@pytest.fixture
def machine(monkeypatch):
    found = Machine()
    clock = SimpleNamespace(
        perf_counter=lambda: found.now / 1e3,
        thread_time=lambda: found.times[MAIN][0] / 1e3,
        process_time=lambda: found.process / 1e3,
    )
    monkeypatch.setattr(accounting, "time", clock)
    monkeypatch.setattr("cml_engine.demo_game.pieces.time", clock)
    return found


@pytest.fixture
def account(machine):
    opened = FrameAccount(machine)
    opened.begin()
    yield opened
    opened.close()


def test_a_frame_is_the_sum_of_its_activities(machine, account):
    machine.passes(2.0)
    account.add("selecting tiles")
    machine.passes(7.0, ran={DRIVER: 7.0})
    account.add("the picture", waits=True)
    machine.passes(1.0)
    account.add("selecting tiles")
    assert account.end() == pytest.approx({"selecting tiles": 3.0, "the picture": 7.0})
    account.begin()
    machine.passes(1.0)
    account.add("drawing")
    assert account.end() == pytest.approx({"drawing": 1.0}), "each frame for itself"


def test_what_the_system_took_is_shown_by_thread(machine, account):
    machine.passes(5.0, ran={MAIN: 1.0}, delayed={MAIN: 4.0})
    account.add("drawing")
    machine.passes(20.0, ran={DRIVER: 6.0}, delayed={DRIVER: 12.0, QUEUE: 3.0})
    account.add("the picture", waits=True)
    assert account.end() == pytest.approx(
        {
            "drawing": 1.0,
            "the system, in the main thread": 4.0,
            "the picture": 8.0,
            "the system, in thread llvmpipe-0": 12.0,
        }
    )


def test_cores_that_own_threads_took_are_not_the_systems(machine, account):
    """A thread that compiles beside the frame makes it late, not another program."""
    machine.passes(20.0, ran={DRIVER: 8.0}, delayed={DRIVER: 12.0}, others=10.0)
    account.add("the picture", waits=True)
    assert account.end() == pytest.approx(
        {"the picture": 8.0, OTHERS: 10.0, "the system, in thread llvmpipe-0": 2.0}
    )


def test_blocked_calls_stay_with_their_activity(machine, account):
    machine.passes(6.0, ran={MAIN: 1.0})
    account.add("submitting")
    assert account.end() == pytest.approx({"submitting": 6.0})


def test_garbage_collection_is_apart_from_what_it_interrupts(machine, account):
    machine.passes(1.0)
    account._collect("start", {})
    machine.passes(4.0)
    account._collect("stop", {})
    machine.passes(1.0)
    account.add("selecting tiles")
    assert account.end() == pytest.approx({"selecting tiles": 2.0, COLLECTION: 4.0})


def test_collections_are_heard_of_until_the_account_is_closed(machine):
    account = FrameAccount(machine)
    account.begin()
    gc.collect()
    assert account._collect in gc.callbacks and account._collection_began == 0.0
    account.close()
    assert account._collect not in gc.callbacks


def test_threads_of_the_system_are_read_and_those_that_end_are_left_out(tmp_path, monkeypatch):
    def raises():
        raise ProcessLookupError

    for thread, text in ((MAIN, "3000000000 5000000 7\n"), (11, "1000000 2000000 1\n")):
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "schedstat").write_text(text)
    clock = SystemClock({11: "llvmpipe-0", 12: "ended"}, tmp_path)
    assert clock.read() == {MAIN: (3.0, 0.005), 11: (0.001, 0.002)}
    assert clock.drivers == {11: "llvmpipe-0"}
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, *a: file == ended and raises() or read(file, *a))
    ended = clock._files[11]
    assert clock.read() == {MAIN: (3.0, 0.005)}, "it has ended since"
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(ended)
    clock.close()
    assert SystemClock({11: "llvmpipe-0"}, tmp_path / "none").read() == {}


# --- pieces of work


def work_of(machine, done, pieces):
    """Returns a function that begins work of ``pieces``, (name, ms) each."""

    def begin():
        for name, ms in pieces:
            yield name
            machine.passes(ms)
            done.append(name)

    return begin


def test_pieces_run_where_the_longest_of_their_kind_fits_twice(machine, account):
    done = []
    work = Pieces(work_of(machine, done, [("a", 3.0), ("b", 1.0), ("a", 3.0)]), account)
    work.run(0.011)
    assert done == ["a", "b", "a"], "unknown pieces run"
    work.run(machine.now / 1e3 + 0.0055)
    assert len(done) == 3, "the longest 'a' does not fit twice"
    work.run(machine.now / 1e3 + 0.0065)
    assert done[3:] == ["a", "b"], "and then the next 'a' does not"
    work.run(machine.now / 1e3 + 0.0045)
    assert done[3:] == ["a", "b"]
    assert account.end() == pytest.approx({"a": 9.0, "b": 2.0})


def test_pieces_go_on_without_any_time_if_one_must(machine, account):
    done = []
    work = Pieces(work_of(machine, done, [("a", 3.0), ("b", 9.0)]), account)
    for _ in range(4):
        work.run(0.0, at_least_one=True)
    assert done == ["a", "b", "a", "b"]
    work.run(0.0)
    assert len(done) == 4
    work.run(0.0, at_least_one=True)
    work.restart()
    work.run(0.0, at_least_one=True)
    assert done[4:] == ["a", "a"]


def test_a_piece_that_was_long_once_runs_again(machine, account):
    lengths = iter([50.0] + [1.0] * 100)
    done = []

    def begin():
        yield "a"
        machine.passes(next(lengths))
        done.append("a")

    work = Pieces(begin, account)
    for _ in range(60):
        work.run(machine.now / 1e3 + 0.005, at_least_one=False)
        machine.passes(16.0)
    assert len(done) > 20


def test_work_with_nothing_to_do_has_no_pieces(machine, account):
    work = Pieces(lambda: iter(()), account)
    work.run(1.0, at_least_one=True)
    assert account.end() == {}
