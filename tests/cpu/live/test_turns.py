"""A background compile thread pauses while the host records a frame, and never blocks
permanently."""

import time
from threading import Thread

from cml_engine.gpu.turns import Turns

from cml_engine.compiler.optimize import optimize
from tests.fixtures.graphs import Net


def working(turns):
    """Starts a thread that yields like a compiling one."""
    net = Net(1, 8, 6, 6)
    graph = net.graph(net("relu(conv(x, 8))"))

    def work():
        with turns.between_frames():
            optimize(graph)

    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_it_stands_still_until_the_frame_has_ended(monkeypatch):
    monkeypatch.setattr("cml_engine.gpu.turns._LONGEST_S", 60.0)
    turns = Turns()
    turns.end_frame()
    turns.begin_frame()
    thread = working(turns)
    while thread.is_alive() and not turns.stood:
        time.sleep(0.001)
    assert thread.is_alive()
    turns.end_frame()
    thread.join(60)
    assert not thread.is_alive()


def test_a_frame_that_does_not_end_holds_nobody_up():
    turns = Turns()
    turns.end_frame()
    turns.begin_frame()
    thread = working(turns)
    thread.join(60)
    assert not thread.is_alive() and turns.stood == 1


def test_it_does_not_wait_where_nobody_says_when_a_frame_ends():
    turns = Turns()
    turns.begin_frame()
    thread = working(turns)
    thread.join(60)
    assert not thread.is_alive() and turns.stood == 0
