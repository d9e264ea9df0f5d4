"""Tests that pictures computed in tiles, by a call or by jobs, are bit-identical to whole runs."""

import asyncio
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.errors import InputError
from cml_engine.runtime.tiling import spans

pytestmark = pytest.mark.gpu

#: reads two pixels around each pixel and doubles the size
NETWORK = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x, strength) -> (y)
{
    x = external<scalar>(shape = [1, 3, 24, 24]);
    strength = external<scalar>(shape = [1, 1]);
    w = variable<scalar>(shape = [8, 3, 3, 3], label = 'w');
    v = variable<scalar>(shape = [3, 8, 3, 3], label = 'v');
    inner = relu(conv(x, w, 0.0, border = 'replicate'));
    large = nearest_upsample(conv(inner, v, 0.0), factor = [2, 2]);
    y = mul(large, unsqueeze(strength, axes = [2, 3]));
}
"""
OVERLAP = 2


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(3)
    w, v = (rng.standard_normal(s, np.float32) for s in ((8, 3, 3, 3), (3, 8, 3, 3)))
    return cml.load(cml.nnef.MemoryModel(NETWORK, {"w": w, "v": v}))


@pytest.fixture
def inputs(rng):
    return {
        "x": rng.standard_normal((1, 3, 61, 43), np.float32),
        "strength": np.array([[1.5]], np.float32),
    }


@pytest.mark.parametrize("tile", [12, 24, 40])
def test_tiles_have_no_seams(graph, inputs, backend, tile):
    session = cml.Session(graph, backend)
    expected = session.reshaped({"x": (1, 3, 61, 43)}).run(inputs)["y"]
    done = []
    result = cml.run_tiled(session, inputs, tile, OVERLAP, progress=done.append)["y"]
    assert result.shape == (1, 3, 122, 86) and done == [*range(1, len(done) + 1)] and len(done) > 1
    if backend == "cpu":  # a matrix product of another size sums in another order
        assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    else:
        assert_array_equal(result, expected)


@pytest.fixture
def session(graph, gpu):
    return cml.Session(graph, gpu)


@pytest.fixture
def expected(session, inputs):
    return cml.run_tiled(session, inputs, 24, OVERLAP)["y"]


def test_tiled_jobs_are_bit_identical_to_run_tiled(session, inputs, expected, host):
    job = host.scheduler.submit_tiled(session, inputs, 24, OVERLAP, priority=2.0)
    assert job.read("y") is None and job.progress == 0
    seen = []
    host.until(lambda: seen.append(job.progress) or job.read("y") is not None)
    assert_array_equal(job.read("y"), expected)
    assert job.state == "done" and job.progress == 1 and max(np.diff(seen[:-1])) < 0.6
    gone = host.scheduler.submit_tiled(session, inputs, 24, OVERLAP)
    gone.cancel()
    assert gone.state == "cancelled" and host.scheduler.jobs == []
    with pytest.raises(cml.InputError, match="cancelled"):
        gone.read("y")
    for each in (job, gone, host.scheduler.submit_tiled(session, inputs, 24, OVERLAP)):
        with pytest.raises(cml.InputError, match="has no output 'z'; it has y"):
            each.read("z")


def test_a_tiled_job_ends_as_a_job_does(session, inputs, expected, gpu):
    """Wait, await and callbacks of a tiled job work as for a job, without a call in each frame."""
    scheduler, ended = cml.FrameScheduler(gpu, budget_ms=50.0), []
    job = scheduler.submit_tiled(session, inputs, 24, OVERLAP)
    job.add_done_callback(ended.append)
    assert job.wait(60) is job and ended == [job]
    assert_array_equal(job.read("y"), expected)
    job.add_done_callback(ended.append)
    assert ended == [job, job]

    async def run():
        job = scheduler.submit_tiled(session, inputs, 24, OVERLAP)
        waiting = asyncio.ensure_future(asyncio.wait_for(job, 60))
        while not waiting.done():
            scheduler._run_frame()
            await asyncio.sleep(0)
        assert_array_equal((await waiting).read("y"), expected)

    asyncio.run(run())
    with pytest.raises(TimeoutError):
        scheduler.submit_tiled(session, inputs, 24, OVERLAP).wait(0)


def test_the_host_may_change_its_picture_and_its_network_after_submit_tiled(
    session, inputs, expected, host
):
    given = {name: value.copy() for name, value in inputs.items()}
    job = host.scheduler.submit_tiled(session, given, 24, OVERLAP)
    for value in given.values():
        value[...] = 0
    graph = session.source_graph
    halved = {name: value / 2 for name, value in graph.constants.items()}
    session.replace(graph.with_(constants=halved))
    session.take_replacement()
    host.until(lambda: job.ended)
    assert_array_equal(job.read("y"), expected)


def test_a_picture_that_another_thread_cancels_stays_cancelled(session, inputs, host, monkeypatch):
    job, ended = host.scheduler.submit_tiled(session, inputs, 24, OVERLAP), []
    job.add_done_callback(ended.append)
    paste, thread = job._tiles.paste, threading.Thread(target=job.cancel)

    def cancelled_meanwhile(*arguments):
        if thread.ident is None:  # several tiles may arrive before the thread gets its turn
            thread.start()
            thread.join(0.1)
        paste(*arguments)

    monkeypatch.setattr(job._tiles, "paste", cancelled_meanwhile)
    host.until(lambda: thread.ident is not None)
    thread.join()
    for _ in range(5):
        host.frame()
    assert job.state == "cancelled" and ended == [job] and host.scheduler.jobs == []


def test_a_refused_picture_leaves_no_job(session, inputs, host, monkeypatch):
    scheduler, submit = host.scheduler, host.scheduler.submit
    with pytest.raises(cml.InputError, match="slot: the tiles of a picture"):
        scheduler.submit_tiled(session, inputs, 24, OVERLAP, slot="newest")

    def third_refused(*arguments, **options):
        if len(scheduler.jobs) == 2:
            raise cml.scheduler.AdmissionError("planted")
        return submit(*arguments, **options)

    monkeypatch.setattr(scheduler, "submit", third_refused)
    with pytest.raises(cml.scheduler.AdmissionError):
        scheduler.submit_tiled(session, inputs, 24, OVERLAP)
    assert scheduler.jobs == []


def test_a_failed_tile_fails_the_picture(session, inputs, gpu, monkeypatch):
    scheduler = cml.FrameScheduler(gpu, budget_ms=50.0)
    job = scheduler.submit_tiled(session, inputs, 12, OVERLAP)

    def planted(*_):
        raise cml.InputError("planted")

    monkeypatch.setattr(type(job._tiles), "inputs", planted)
    with pytest.raises(cml.InputError, match="planted"):
        job.wait(60)
    assert job.state == "failed" and scheduler.jobs == []
    with pytest.raises(cml.InputError, match="state is 'failed': planted"):
        job.read("y")


@pytest.mark.parametrize(
    "whole, tile, overlap, align",
    [
        (100, 32, 4, 1),
        (97, 32, 15, 1),
        (64, 32, 8, 8),
        (33, 32, 0, 1),
        (20, 32, 4, 1),
        (96, 32, 4, 4),
    ],
)
def test_tile_spans_cover_every_pixel_once(whole, tile, overlap, align):
    tiles = spans(whole, tile, overlap, align)
    assert [s.kept_first for s in tiles] == [0, *(s.kept_end for s in tiles[:-1])]
    assert tiles[-1].kept_end == whole
    for span in tiles:
        assert span.end - span.first == min(tile, whole) and span.first % align == 0
        assert span.first == 0 or span.kept_first - span.first >= overlap
        assert span.end == whole or span.end - span.kept_end >= overlap


@pytest.mark.parametrize(
    "change, says",
    [
        ({"tile": 4}, "keep nothing"),
        ({"align": 2}, "multiple of align=2"),
        ({"tile": 0}, "tile"),
    ],
)
def test_invalid_tiles_are_refused(graph, inputs, change, says):
    with pytest.raises(InputError, match=says):
        cml.run_tiled(cml.Session(graph, "cpu"), inputs, **{"tile": 24, "overlap": 2, **change})
