"""Tests of debug markers, logs, closed sessions, and the selection of a GPU."""

import logging

import numpy as np
import pytest
import wgpu
from wgpu.backends import wgpu_native

import cml_engine as cml
from cml_engine.errors import DeviceError, InputError
from cml_engine.gpu import native
from cml_engine.tools import cli
from tests.fixtures.frames.host import Host, conv_net
from tests.fixtures.memory import held_bytes
from tests.fixtures.messages import raises
from tests.fixtures.texels import submitted

pytestmark = pytest.mark.gpu

IMAGE = np.ones((1, 8, 24, 24), np.float32)


def test_debug_markers_name_every_operator(gpu, monkeypatch):
    calls, (set_pipeline, set_bind_group, dispatch, push, pop) = [], native._pass_functions()

    def watched(function, name=None):
        def call(compute, *args):
            calls.append(name or wgpu_native.ffi.string(args[0].data).decode())
            function(compute, *args)

        return call

    functions = (watched(dispatch, "dispatch"), watched(push), watched(pop, "end"))
    monkeypatch.setattr(
        native, "_pass_functions", lambda: (set_pipeline, set_bind_group, *functions)
    )
    for markers in (True, False):
        session = cml.Session(conv_net(layers=2), cml.Gpu(device=gpu.device, markers=markers))
        session.program.write_inputs({"x": IMAGE})
        with submitted(gpu) as encoder:
            compute = encoder.begin_compute_pass()
            calls.clear()
            session.program.encode_all(compute, 0)
            session.program.encode_range(compute, 1, 0, 1)
            first, second, *_ = (f"net: {step.title}" for step in session.plan.steps)
            marked = [first, "dispatch", "end", second, "dispatch", "end"]
            assert calls == (marked if markers else ["dispatch", "dispatch"])
            compute.end()
    with raises(InputError, "markers"):
        cml.Gpu(device=gpu.device, markers=1)


def test_closed_session_has_no_memory_and_refuses_use(gpu):
    host = Host(gpu, budget_ms=0.01)
    before = held_bytes(gpu)
    session = cml.Session(conv_net(), gpu)
    session.run({"x": IMAGE})
    job = host.submit(session, {"x": IMAGE})
    host.until(lambda: job.state == "running")
    with raises(InputError, "a run or a job is under way"):
        session.close()
    job.cancel()
    host.frame()
    host.frame()
    session.close()
    session.close()
    with raises(InputError, "the session of 'net' was closed"):
        session.run({"x": IMAGE})
    with raises(InputError, "the session of 'net' was closed"):
        host.scheduler.submit(session, {"x": IMAGE})
    assert gpu.memory.held_bytes <= before
    cml.Session(conv_net(), "cpu").close()


def test_without_an_adapter_the_reason_takes_one_line(monkeypatch, capsys):
    def fail(**_):
        raise RuntimeError(
            "Request failed: Validation Error\n\nCaused by:\n  no driver was found\n"
        )

    monkeypatch.delenv("CML_ADAPTER", raising=False)
    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", fail)
    with pytest.raises(DeviceError, match=r"^no GPU: no driver was found. Install .*--backend cpu"):
        cml.Gpu()
    assert cli.main(["devices"]) == 2
    assert "error: no GPU: no driver was found" in capsys.readouterr().err


def test_the_gpu_of_a_name_is_taken(gpu, monkeypatch, capsys):
    part = str(gpu.info["device"])[:6].upper()
    assert cml.Gpu(adapter=part).name == gpu.name
    with raises(DeviceError, "no GPU is called 'nothing like it': this machine has"):
        cml.Gpu(adapter="nothing like it")
    monkeypatch.setenv("CML_ADAPTER", "nor this")
    with raises(DeviceError, "'nor this'"):
        cml.Gpu()
    assert cli.main(["devices"]) == 2 and "called 'nor this'" in capsys.readouterr().err
    with raises(InputError, "give one of them"):
        cml.Gpu(device=gpu.device, adapter=part)


def test_load_build_evict_and_failure_are_logged(gpu, caplog):
    with caplog.at_level(logging.DEBUG):
        session = cml.Session(conv_net("logged", seed=9), gpu)
        gpu.memory._evict(session.program)
        session.program.close()  # a closed session would take no job
        host = Host(gpu, budget_ms=1.0)
        host.run(session, {"x": IMAGE})
    messages = [record.getMessage() for record in caplog.records]
    for expected in (
        "'logged' is ready: ",
        "'logged' is evicted: ",
        "job 'logged' failed: the session",
    ):
        assert any(expected in line for line in messages), expected
    assert {r.name.split(".")[0] for r in caplog.records} <= {"cml_engine", "scheduler"}
