"""Another network in the place of a session's: weights, operators, a broken one; files watched."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.gpu.gpu import Gpu
from cml_engine.live.reloader import Reloader
from scheduler import FrameScheduler
from tests.fixtures.models import write_model
from tests.gpu.live.test_taps import finish, graph_of, inputs

TEXT = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x) -> (y)
{
    x = external(shape = [1, 4, 6, 6]);
    w = variable(shape = [1, 4, 1, 1], label = 'w');
    y = relu(x * w);
}
"""
X = {"x": np.full((1, 4, 6, 6), 2.0, np.float32)}


def graph(value: float, text: str = TEXT) -> cml.Graph:
    weights = {"w": np.full((1, 4, 1, 1), value, np.float32)}
    return cml.load(cml.MemoryModel(text, weights))


def sessions(gpu: Gpu, **options: Any) -> list[cml.Session]:
    return [cml.Session(graph(1), backend, **options) for backend in (gpu, "cpu")]


def value(session: cml.Session) -> float:
    return float(session.run(X)["y"][0, 0, 0, 0])


def test_new_weights_and_operators_take_the_place(gpu: Gpu) -> None:
    for session in sessions(gpu):
        assert value(session) == 2
        change = session.replace(graph(3))
        session.take_replacement()
        assert change.state == "done" and value(session) == 6
        session.replace(lambda: graph(3, TEXT.replace("relu(x * w)", "relu(x * w) + 1.0")))
        session.take_replacement()
        assert value(session) == 7
        session.take_replacement()  # there is none any more


def test_new_weights_build_no_pipeline(gpu: Gpu) -> None:
    session = cml.Session(graph_of(), gpu)
    built = gpu.pipelines_built
    session.replace(graph_of())
    session.take_replacement()
    session.run(inputs())
    assert gpu.pipelines_built == built


@pytest.mark.parametrize(
    "broken, said",
    [
        (lambda: cml.load(cml.MemoryModel("version 1.0; graph n(")), "expected|wanted"),
        (lambda: graph(1, TEXT.replace("(y)", "(z)").replace("y =", "z =")), "outputs y, got z"),
        (lambda: graph(1, TEXT.replace("6, 6]", "7, 6]")), r"input 'x' is scalar\[1,4,7,6\]"),
        (lambda: 1 // 0, "division"),
        (lambda: "net.nnef", "wanted a Graph"),
    ],
)
def test_a_broken_model_changes_nothing(gpu: Gpu, broken: Any, said: str) -> None:
    for session in sessions(gpu):
        change = session.replace(broken)
        with pytest.raises(cml.CmlError, match=said):
            session.take_replacement()
        assert change.state == "failed" and value(session) == 2
        session.replace(graph(5))
        session.take_replacement()
        assert value(session) == 10


def test_a_graph_that_does_not_fit_is_refused_at_once(gpu: Gpu) -> None:
    for session in sessions(gpu):
        with pytest.raises(cml.InputError, match=r"wanted scalar\[1,4,6,6\]"):
            session.replace(graph(1, TEXT.replace("6, 6]", "7, 6]")))
        assert value(session) == 2


def test_a_later_one_supersedes(gpu: Gpu) -> None:
    for session in sessions(gpu):
        first, second = session.replace(graph(3)), session.replace(graph(4))
        session.take_replacement()
        assert (first.state, second.state) == ("superseded", "done") and value(session) == 8


def test_retained_inputs_stay(gpu: Gpu) -> None:
    for session in sessions(gpu, retain=True):
        assert value(session) == 2
        session.replace(graph(3))
        session.take_replacement()
        assert session.run({})["y"][0, 0, 0, 0] == 6


def test_jobs_go_on_with_the_old_one_until_the_new_one_is_ready(gpu: Gpu) -> None:
    session = cml.Session(graph(1), gpu)
    scheduler = FrameScheduler(gpu, budget_ms=20.0)
    before = scheduler.submit(session, X)
    change = session.replace(graph(3))
    seen: list[float] = []
    finish(gpu, scheduler, before)
    seen.append(before.tensor("y").read()[0, 0, 0, 0])
    for _ in range(300):
        job = scheduler.submit(session, X)
        finish(gpu, scheduler, job)
        seen.append(job.tensor("y").read()[0, 0, 0, 0])
        if change.state == "done":
            break
        time.sleep(0.01)
    assert change.state == "done" and change.error is None
    assert seen[0] == 2 and seen[-1] == 6 and seen == sorted(seen)


def test_a_reloader_follows_the_files(gpu: Gpu, tmp_path: Path) -> None:
    def write(weight: float, text: str = TEXT) -> Path:
        return write_model(tmp_path / "net.nnef", text, w=np.full((1, 4, 1, 1), weight, np.float32))

    folder = write(1)
    now = [0.0]
    session = cml.Session(cml.load(folder), gpu)
    reloader = Reloader(session, folder, clock=lambda: now[0])

    def settle() -> None:
        for number in range(4):
            for file in folder.iterdir():
                if not number:
                    os.utime(file, ns=(int(now[0] * 1e9), int(now[0] * 1e9) + 7))
            now[0] += 1
            if reloader.poll() is not None:
                with contextlib.suppress(cml.CmlError):
                    session.take_replacement()
        reloader.poll()

    write(3)
    settle()
    assert value(session) == 6 and reloader.said == "'net.nnef' done"
    write(4, TEXT.replace("relu", "rilu"))
    settle()
    assert value(session) == 6 and "'net.nnef' failed: " in reloader.said
    assert "rilu" in reloader.said and "graph.nnef:7" in reloader.said
    write(4)
    settle()
    assert value(session) == 8
    assert reloader.poll() is None
