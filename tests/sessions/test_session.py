"""Tests that the GPU gives NumPy's results for any slices of the work and builds nothing twice."""

import contextlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.errors import InputError
from cml_engine.gpu.device import RANGE_SLOTS, Pipeline, PipelineCache
from cml_engine.gpu.program import inspect, preparation
from cml_engine.ir.graph import NUMPY_DTYPE, Attrs, Fact, Graph, Node
from cml_engine.ops.declaration.spec import Case
from cml_engine.testing import case_graph, full_attrs
from tests.fixtures.frames.host import Host

#: the blog's model has no version line, which is a notice
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

#: blocked layout, epilogues, views, several outputs, an unused input
MIXED = """\
version 1.0;
extension KHR_enable_operator_expressions;
graph mixed(x, unused) -> (a, b, c)
{
    x = external<scalar>(shape = [1, 3, 11, 9]);
    unused = external<scalar>(shape = [2]);
    w1 = variable<scalar>(shape = [8, 3, 3, 3], label = 'w1');
    w2 = variable<scalar>(shape = [8, 8, 3, 3], label = 'w2');
    w3 = variable<scalar>(shape = [12, 8, 1, 1], label = 'w3');
    slope = variable<scalar>(shape = [1, 8], label = 'slope');
    c1 = conv(x, w1, 0.1);
    p1 = prelu(c1, slope);
    c2 = conv(p1, w2, 0.0);
    s2 = add(c2, p1);
    r2 = relu(s2);
    c3 = conv(r2, w3, -0.25);
    shaped = reshape(c3, shape = [1, 3, 2, 2, 11, 9]);
    turned = transpose(shaped, axes = [0, 1, 4, 2, 5, 3]);
    a = reshape(turned, shape = [1, 3, 22, 18]);
    up = nearest_upsample(x, factor = [2, 2]);
    b = a + up * 0.5;
    c = softmax(mean_reduce(r2, axes = [2, 3]));
}
"""


@pytest.fixture(scope="module")
def mixed():
    rng = np.random.default_rng(3)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (12, 8, 1, 1), "slope": (1, 8)}
    tensors = {k: rng.standard_normal(s, np.float32) / 4 for k, s in shapes.items()}
    return cml.load(cml.nnef.MemoryModel(MIXED, tensors))


@pytest.fixture
def inputs(rng):
    return {
        "x": rng.standard_normal((1, 3, 11, 9), np.float32),
        "unused": np.zeros(2, np.float32),
    }


def test_ranges_that_a_slot_holds_are_not_uploaded_again(gpu, monkeypatch):
    """Results are bit-identical for any number of ranges, and a known range is not uploaded."""
    graph, inputs = case_graph("neg", Case(((400 * 1024,),)))
    session = cml.Session(graph, gpu)
    (expected,) = session.run(inputs).values()
    (step,), (place,) = session.plan.steps, session.plan.outputs.values()
    assert step.groups > RANGE_SLOTS + 64
    uniforms, written = session.program._preparation.uniforms, []
    write = uniforms.ranges.write
    monkeypatch.setattr(uniforms, "ranges", Mock(write=lambda *a: (written.append(a), write(*a))))
    order = np.random.default_rng(1).permutation(step.groups)
    inspect.fill_arena(session.program, 0x7FC0CAFE)
    inspect.run_ranges(session.program, inputs, [(0, int(n), 1) for n in order])
    assert_array_equal(inspect.read_tensor(session.program, place), expected)
    assert len(written) >= step.groups - RANGE_SLOTS
    written.clear()
    last = [(0, int(n), 2) for n in order[-RANGE_SLOTS:] if n + 2 <= step.groups]
    inspect.run_ranges(session.program, inputs, last)
    assert not written


@pytest.mark.parametrize("deferred", [False, True])
def test_progress_of_a_compilation_is_reported(mixed, inputs, gpu, deferred):
    calls = []
    report = lambda *call: calls.append(call)  # noqa: E731
    session = cml.Session(mixed, gpu, deferred=deferred, on_progress=report)
    session.run(inputs)
    total = len(set(session.program._preparation.keys))
    expected = [("plan", 0, 1), ("plan", 1, 1), *(("kernels", n, total) for n in range(total + 1))]
    assert calls == expected
    session.run(inputs)
    assert calls == expected

    def stop(stage, done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        cml.Session(mixed, gpu, on_progress=stop)
    with pytest.raises(InputError, match="on_progress is 'x', wanted a function"):
        cml.Session(mixed, gpu, on_progress="x")


def test_pipelines_are_built_in_parallel_once_each(mixed, inputs, monkeypatch):
    """Several threads build pipelines in parallel, each pipeline once.

    The first two builds wait for each other, which would block a single thread.
    """
    gpu = cml.Gpu()
    build, built, meet = gpu._build, [], threading.Barrier(2)

    def watched(key, make_uniforms):
        built.append((threading.current_thread(), key))
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(timeout=240)
            meet.abort()  # only the first two
        return build(key, make_uniforms)

    monkeypatch.setattr(gpu, "_build", watched)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    preparation._builders.forget()
    session = cml.Session(mixed, gpu)
    threads, keys = ({pair[i] for pair in built} for i in (0, 1))
    assert len(keys) == len(built) == gpu.pipelines_built > 2
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    for name, expected in cml.Session(mixed, "cpu").run(inputs).items():
        assert_allclose(session.run(inputs)[name], expected, rtol=1e-5, atol=1e-5)


class Named:
    label = "a kernel"


def test_concurrently_requested_pipeline_is_built_once(gpu, monkeypatch):
    asked, started, answers = [], [], queue.Queue()
    key = Named()

    class Watched(PipelineCache):
        def get(self, key, build):
            asked.append(key)
            return super().get(key, build)

    def build(key, make_uniforms):
        started.append(key)
        answer = answers.get(timeout=240)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(gpu, "_build", build)
    monkeypatch.setattr(gpu, "_pipelines", Watched())
    with ThreadPoolExecutor(4) as pool:
        for answer in (cml.DeviceError("refused"), Pipeline("a kernel", None, None)):
            asked.clear(), started.clear()
            expected = [pool.submit(gpu.pipeline, key, ()) for _ in range(4)]
            while len(asked) < 4 and not any(future.done() for future in expected):
                time.sleep(0.01)
            answers.put(answer)
            ended = [future.exception() or future.result() for future in expected]
            assert ended == [answer] * 4 and started == [key]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 0, 3), (3,)], ids=str)
@pytest.mark.parametrize("dtype", ["scalar", "integer", "logical"])
def test_every_output_has_its_declared_type_and_shape(dtype, shape, gpu):
    """Outputs have their declared type and shape, with and without elements.

    This holds for computed values, inputs, constants and variables, read from a run, a job or a
    file.
    """
    value = np.ones(shape, NUMPY_DTYPE[dtype])
    turned = full_attrs("transpose", {"axes": list(range(len(shape)))[::-1]})
    reshaped = full_attrs("reshape", {"shape": [*shape, 1]})
    nodes = (
        Node("copy", ("x",), ("copied",), Attrs()),
        Node("transpose", ("x",), ("turned",), turned),
        Node("reshape", ("x",), ("shaped",), reshaped),
    )
    facts = dict.fromkeys(("x", "k", "v"), Fact(dtype, shape))
    outputs = ("copied", "turned", "shaped", "x", "k", "v")
    built = Graph(
        "g", ("x",), outputs, nodes, facts, {"k": value, "v": value}, updates=(("v", "x"),)
    )
    graph = infer_facts(built)
    inputs = {"x": value}
    for backend in (gpu, "cpu"):
        session = cml.Session(graph, backend)
        results = [session.run(inputs)]
        if backend is gpu:
            host = Host(gpu, budget_ms=5.0)
            job = host.submit(session, inputs)
            results.append({name: host.finish(job, name=name)[0] for name in outputs})
            assert {name: job.tensor(name).fact for name in outputs} == session.outputs
        for arrays in results:
            for name, fact in session.outputs.items():
                array = arrays[name]
                assert isinstance(array, np.ndarray) and array.dtype == NUMPY_DTYPE[dtype], name
                assert array.shape == fact.shape and np.all(array == 1), name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": None}, "input 'x' is missing"),
        ({"z": np.zeros(1)}, "unknown input 'z'"),
        ({"x": np.zeros((1, 3, 9, 11), np.float32)}, r"wanted shape \[1, 3, 11, 9\], got"),
        ({"x": np.zeros((1, 3, 11, 9), complex)}, "wanted scalar"),
    ],
)
def test_wrong_inputs_are_refused_with_a_reason(mixed, inputs, gpu, change, says):
    given = {k: v for k, v in {**inputs, **change}.items() if v is not None}
    with pytest.raises(InputError, match=says):
        cml.Session(mixed, gpu).run(given)
