"""Tests of sessions in several threads and next to a running job.

Sessions that share memory run one at a time, and no call overwrites a job's tensors.
"""

import sys
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.gpu.program import inspect
from cml_engine.runtime.session import CompileOptions
from cml_engine.scheduler.planning.plan import operators_per_frame
from tests.fixtures.frames.host import Host, conv_net, run_net
from tests.fixtures.graphs import Net
from tests.fixtures.threads import together

pytestmark = pytest.mark.gpu

SIZE = 12


#: different inputs of a network of that size
IMAGES = [np.full((1, 8, SIZE, SIZE), 0.1 * k, np.float32) for k in (1, 2, 3)]


def slow(program, monkeypatch):
    """Adds 2 ms to each run of the program after its upload, so that another upload could
    interfere."""
    write = program.write_inputs

    def slowly(inputs):
        write(inputs)
        time.sleep(0.002)

    monkeypatch.setattr(program, "write_inputs", slowly)


@pytest.fixture(scope="module")
def net():
    return conv_net(layers=2, size=SIZE)


@pytest.mark.parametrize("kind", ["one session", "a deferred session", "sessions in one arena"])
def test_runs_in_several_threads_do_not_disturb_each_other(net, gpu, kind, monkeypatch):
    if kind == "sessions in one arena":
        graphs = [net, conv_net(layers=3, size=SIZE, seed=1)]
        sessions = [cml.Session(graph, gpu, arena="shared:threads") for graph in graphs]
    else:
        graphs = [net] * 3
        sessions = [cml.Session(net, gpu, deferred=kind == "a deferred session")] * 3
    images = IMAGES[: len(graphs)]
    expected = [run_net(cml.Session(g, gpu), x) for g, x in zip(graphs, images, strict=True)]
    for session in set(sessions):
        slow(session.program, monkeypatch)

    def runs(session, image):
        return lambda: [run_net(session, image) for _ in range(5)]

    for results, value in zip(together(*map(runs, sessions, images)), expected, strict=True):
        for array in results:
            assert_array_equal(array, value)


def test_no_update_of_a_variable_is_lost(backend):
    net = Net(2, 4)
    total = net.constant(np.zeros((2, 4)))
    graph = net.graph(total, net(f"add({total}, x)")).with_(updates=((total, "t0"),))
    session = cml.Session(graph, backend)
    one = {"x": np.ones((2, 4), np.float32)}

    def runs():
        return [float(session.run(one)[total][0, 0]) for _ in range(20)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        totals = together(runs, runs, runs)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(value for values in totals for value in values) == list(range(60))
    assert all(values == sorted(values) for values in totals)


# ---------------------------------------------------------------- next to a running job


def begun(session, gpu, image):
    """Returns a host and a running job of the session that has completed some of its steps."""
    host = Host(gpu, budget_ms=5.0)
    host.scheduler.planner = operators_per_frame(1)
    job = host.submit(session, {"x": image})
    host.until(lambda: job.step > 0)
    assert job.state == "running"
    return host, job


DISTURBING = {
    "run": lambda s, x: s.run({"x": x}),
    "rank": lambda s, x: s.rank({"x": x}, runs=1),
    "timer": lambda s, x: s.timer({"x": x})(),
    "ranges": lambda s, x: inspect.run_ranges(s.program, {"x": x}, [(0, 0, 1)]),
    "steps": lambda s, x: inspect.time_steps(s.program, {"x": x}, 1),
    "fill": lambda s, x: inspect.fill_arena(s.program, 1),
}


@pytest.mark.parametrize("what", DISTURBING)
@pytest.mark.parametrize("shared", [False, True])
def test_job_tensors_are_not_overwritten_by_runs(net, gpu, what, shared):
    image = IMAGES[0]
    expected = run_net(cml.Session(net, gpu), image)
    arena = "shared:disturbed" if shared else None
    session = cml.Session(net, gpu, arena=arena)
    other = cml.Session(net, gpu, arena=arena) if shared else session
    host, job = begun(session, gpu, image)
    with pytest.raises(cml.InputError, match="has a running job"):
        DISTURBING[what](other, image + 1)
    assert_array_equal(*host.finish(job), expected)
    DISTURBING[what](other, image + 1)  # allowed after the job has ended


def test_reset_during_a_job_is_refused(gpu):
    net = Net(2, 4)
    state = net.random(2, 4)
    h = net(f"add(x, {state})")
    graph = net.graph(f"mul({h}, {h})", state).with_(updates=((state, h),))
    options = CompileOptions(without=frozenset({"chains"}))
    session, other = (cml.Session(graph, gpu, options, arena="shared:reset") for _ in range(2))
    other.run(net.input())
    host, job = begun(session, gpu, np.ones((2, 4), np.float32))
    with pytest.raises(cml.InputError, match="has a running job"):
        session.reset()
    other.reset()  # it has its own variables
    host.until(lambda: job.ended)
    session.reset()
    for each in (session, other):
        assert_array_equal(each.run(net.input())[state], net.constants[state])


def test_new_session_does_not_disturb_a_job_in_its_arena(net, gpu, monkeypatch):
    """A session that is created while a job runs in the same arena is not timed at load.

    The job's result is right. Sessions are timed at load on devices without timestamps.
    """
    image = IMAGES[0]
    expected = run_net(cml.Session(net, gpu), image)
    session = cml.Session(net, gpu, arena="shared:made beside")
    host, job = begun(session, gpu, image)
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "has_timestamps", False)
        beside = cml.Session(net, gpu, arena="shared:made beside")
    assert beside.program.load_times_ms == ()
    assert_array_equal(*host.finish(job), expected)


def test_a_frame_does_not_wait_for_a_run_of_another_thread(net, gpu, host):
    image = IMAGES[0]
    session = cml.Session(net, gpu)
    expected = run_net(session, image)
    running, go_on = threading.Event(), threading.Event()

    def other_thread():
        with session.program.residency.exclusive():
            running.set()
            go_on.wait(timeout=240)

    thread = threading.Thread(target=other_thread)
    thread.start()
    running.wait(timeout=240)
    try:
        job = host.submit(session, {"x": image})
        for _ in range(3):
            host.frame()
        assert job.state == "queued" and not session.program.ready
        with pytest.raises(cml.InputError, match="cannot be evicted: it is running"):
            session.program.evict()
    finally:
        go_on.set()
        thread.join()
    assert_array_equal(*host.finish(job), expected)


@pytest.mark.parametrize("action", ["close", "evict"])
def test_freeing_memory_waits_for_others_of_the_arena(net, gpu, action):
    """Closing or evicting a session waits for running programs that share its arena."""
    session, other = (cml.Session(net, gpu, arena=f"shared:{action}") for _ in range(2))
    free = session.close if action == "close" else session.program.evict
    with session.program.residency.pinned(), pytest.raises(cml.InputError, match="cannot be"):
        free()
    freed = threading.Event()
    with other.program.residency.pinned():
        thread = threading.Thread(target=lambda: (free(), freed.set()))
        thread.start()
        assert not freed.wait(timeout=0.05)
    thread.join(timeout=240)
    assert freed.is_set() and not session.program.resident
    if action == "close":
        with pytest.raises(cml.InputError, match="was closed"):
            run_net(session, IMAGES[0])
    else:
        assert_array_equal(run_net(session, IMAGES[0]), run_net(other, IMAGES[0]))


def test_sessions_close_while_replacements_are_prepared(net, gpu):
    """Closing one session of a shared arena does not stop another session's replacement."""
    expected = run_net(cml.Session(net, gpu), IMAGES[1])
    for pause_ms in range(0, 20, 2):
        closing, stays = (cml.Session(net, gpu, arena="shared:replaced") for _ in range(2))
        replacements = [session.replace(net) for session in (closing, stays)]
        time.sleep(pause_ms / 1000)
        stays.program.evict()
        closing.close()
        assert replacements[0].state in ("superseded", "done")
        stays.take_replacement()
        assert_array_equal(run_net(stays, IMAGES[1]), expected)
