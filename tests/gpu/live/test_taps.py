"""Tests of tensors that a session keeps to be read, from its memory and from jobs, and of a
watch."""

import gc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine import FrameScheduler
from tests.cpu.live.test_taps import values_of

TEXT = """version 1.0;
graph net(x) -> (y)
{
    x = external(shape = [1, 8, 12, 12]);
    w0 = variable(shape = [8, 8, 3, 3], label = 'w0');
    w1 = variable(shape = [8, 8, 3, 3], label = 'w1');
    c0 = conv(x, w0, padding = [(1, 1), (1, 1)]);
    r0 = relu(c0);
    c1 = conv(r0, w1, padding = [(1, 1), (1, 1)]);
    y = relu(c1);
}
"""
KEEP = cml.CompileOptions(keep=("c0", "x"))


def graph_of(text=TEXT):
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8 for n in ("w0", "w1")}
    return cml.load(cml.MemoryModel(text, weights))


def inputs(seed=1):
    return {"x": np.random.default_rng(seed).standard_normal((1, 8, 12, 12)).astype(np.float32)}


def close(got, wanted):
    assert_allclose(got, wanted, 1e-4, 1e-4)


def finish(gpu, scheduler, *jobs):
    for _ in range(200):
        encoder = gpu.device.create_command_encoder()
        scheduler.encode(encoder)
        gpu.device.queue.submit([encoder.finish()])
        scheduler.end_frame()
        if all(job.ended for job in jobs):
            return
    raise AssertionError(scheduler.describe())


def read(gpu, scheduler, job, name):
    for _ in range(200):
        if (value := job.read(name)) is not None:
            return value
        encoder = gpu.device.create_command_encoder()
        scheduler.encode(encoder)
        gpu.device.queue.submit([encoder.finish()])
        scheduler.end_frame()
    raise AssertionError("no readback")


@pytest.mark.parametrize("storage", ["float", "half"])
def test_retained_tensor_equals_the_unoptimized_graphs(gpu, storage):
    graph, given = graph_of(), inputs()
    wanted = values_of(graph, given)
    options = cml.CompileOptions(keep=("c0", "x"), storage=storage)
    session = cml.Session(graph, gpu, options)
    outputs = session.run(given)
    assert list(outputs) == ["y"]
    tensor = session.tensor("c0")
    assert tensor.fact == graph.facts["c0"]
    assert_allclose(tensor.read(), wanted["c0"], 2e-3, 2e-3)
    assert_array_equal(session.tensor("x").read(), given["x"])
    assert_array_equal(session.tensor("y").read(), outputs["y"])


def test_jobs_have_retained_tensors_of_their_own_run(gpu):
    graph = graph_of()
    session = cml.Session(graph, gpu, KEEP)
    scheduler = FrameScheduler(gpu, budget_ms=20.0)
    one, two = (scheduler.submit(session, inputs(seed)) for seed in (1, 2))
    finish(gpu, scheduler, one, two)
    for job, seed in ((one, 1), (two, 2)):
        wanted = values_of(graph, inputs(seed))
        close(job.tensor("c0").read(), wanted["c0"])
        close(read(gpu, scheduler, job, "c0"), wanted["c0"])
        close(read(gpu, scheduler, job, "y"), wanted["y"])
    close(session.tensor("c0").read(), values_of(graph, inputs(2))["c0"])
    with pytest.raises(cml.InputError, match="no output 'c1': there is y, c0, x"):
        one.tensor("c1")


def test_job_reads_another_jobs_retained_tensor(gpu):
    graph = graph_of()
    session, second = cml.Session(graph, gpu, KEEP), cml.Session(graph, gpu)
    scheduler = FrameScheduler(gpu, budget_ms=20.0)
    first = scheduler.submit(session, inputs())
    job = scheduler.submit(second, {"x": first.output("c0")})
    finish(gpu, scheduler, job)
    wanted = values_of(graph, {"x": values_of(graph, inputs())["c0"]})["y"]
    close(job.tensor("y").read(), wanted)


def test_shared_arena_run_invalidates_retained_tensors(gpu):
    graph = graph_of()
    one, two = (cml.Session(graph, gpu, KEEP, arena="shared:taps") for _ in range(2))
    one.run(inputs())
    one.tensor("c0")
    two.run(inputs())
    with pytest.raises(cml.InputError, match="others had the memory since"):
        one.tensor("c0")
    two.tensor("c0")


def test_tensor_in_the_sessions_own_buffer_is_refused_as_input(gpu):
    session = cml.Session(graph_of(), gpu, KEEP)
    session.run(inputs())
    scheduler = FrameScheduler(gpu, budget_ms=20.0)
    with pytest.raises(cml.InputError, match="one buffer with the memory of 'net'"):
        scheduler.submit(session, {"x": session.tensor("c0")})


def test_watch_sees_equal_values_on_gpu_and_cpu(gpu):
    graph, given = graph_of(), inputs()
    seen = {"gpu": {}, "cpu": {}}
    outputs = {}
    for backend, values in seen.items():
        session = cml.Session(graph, gpu if backend == "gpu" else "cpu", KEEP)

        def watch(node, results, values=values):
            values[node.title] = [r.copy() for r in results]

        outputs[backend] = session.run(given, watch=watch)
    assert list(seen["gpu"]) == list(seen["cpu"])
    assert "conv 'c0'" in seen["gpu"]
    for title, values in seen["cpu"].items():
        close(seen["gpu"][title][0], values[0])
    close(outputs["gpu"]["y"], outputs["cpu"]["y"])


def test_a_watched_run_advances_variables(gpu):
    text = (
        "version 1.0;\nextension KHR_enable_operator_expressions;\n"
        "graph n(x) -> (y) { x = external(shape = [4]); s = variable(shape = [4], label = 's');"
        " t = s + x; u = update(s, t); y = relu(t) + x; }"
    )
    model = cml.MemoryModel(text, {"s": np.zeros(4, np.float32)})
    ones = {"x": np.ones(4, np.float32)}
    for backend in (gpu, "cpu"):
        session = cml.Session(cml.load(model), backend, cml.CompileOptions(keep=("s",)))
        session.run(ones, watch=lambda node, results: None)
        assert_array_equal(session.run(ones)["y"], [3, 3, 3, 3])
        value = session.tensor("s")
        value = value if isinstance(value, np.ndarray) else value.read()
        assert_array_equal(value, [2, 2, 2, 2])
    gc.collect()
