"""Tests of sessions at other shapes.

A reshaped session gives the results of one loaded at that shape and shares the weights on the
device. Shared memory is counted once and is released with the last of the sessions.
"""

import gc
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import OutOfGpuMemory
from cml_engine.gpu.memory.allocator import Allocation
from cml_engine.gpu.shaders import compilers
from tests.fixtures.frames.host import Host
from tests.fixtures.results import close, same_bits
from tests.fixtures.threads import together

pytestmark = pytest.mark.gpu

TEXT = """version 1.0;
extension KHR_enable_operator_expressions;
graph net(x) -> (y, mean)
{
    x = external(shape = [1, 8, 24, 24]);
    w0 = variable(shape = [8, 8, 3, 3], label = 'w0');
    w1 = variable(shape = [8, 8, 3, 3], label = 'w1');
    slopes = variable(shape = [1, 8], label = 'slopes');
    c0 = conv(x, w0, padding = [(1, 1), (1, 1)]);
    p = prelu(c0 * 2.0, slopes);
    c1 = conv(p, w1, padding = [(1, 1), (1, 1)]);
    y = relu(c1) + x;
    mean = mean_reduce(y, axes = [2, 3]);
}
"""
#: a constant that depends on the shape, and a kernel that depends on the number of positions
SHAPED = TEXT.replace(
    "mean_reduce(y, axes = [2, 3])",
    "sum_reduce(y, axes = [2, 3]) * [[1.0 / scalar(shape_of(x)[2] * shape_of(x)[3])]]",
)
STATE = """version 1.0;
extension KHR_enable_operator_expressions;
graph counter(x) -> (y)
{
    x = external(shape = [1, 8, 24, 24]);
    sums = variable(shape = [1, 8, 1, 1], label = 'sums');
    s = sums + sum_reduce(x, axes = [2, 3]);
    sums2 = update(sums, s);
    y = x * s;
}
"""
SMALL, LARGE = (1, 8, 24, 24), (2, 8, 32, 28)


@pytest.fixture
def own():
    """A device whose memory no other test uses."""
    return cml.Gpu()


@pytest.fixture
def weights(rng):
    weights = {f"w{k}": rng.standard_normal((8, 8, 3, 3), np.float32) / 8 for k in (0, 1)}
    weights["slopes"] = rng.standard_normal((1, 8), np.float32)
    return weights


@pytest.fixture
def model(weights):
    """The test network as a model in memory."""
    return cml.nnef.MemoryModel(TEXT, weights)


def image(shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def run(session, seed=3):
    return session.run({"x": image(session.inputs["x"].shape, seed)})


class Counted:
    """A context manager that records opened files, compiled kernels, uploads and new pipelines.

    ``all`` has the files, the kernels, the uploaded bytes of weights and the number of pipelines.
    """

    watching = None

    def __init__(self, gpu, monkeypatch):
        self.gpu, self.patch = gpu, monkeypatch
        self.files, self.compiled, self.uploaded, self.pipelines = [], [], 0, 0

    def __enter__(self):
        write, compile = Allocation.write, compilers.compile

        def counted(allocation, data, offset=0):
            if allocation.category == "weights":
                self.uploaded += memoryview(data).nbytes
            write(allocation, data, offset)

        self.patch.setattr(Allocation, "write", counted)
        self.patch.setattr(compilers, "compile", lambda r: self.compiled.append(r) or compile(r))
        self.built = self.gpu.pipelines_built
        Counted.watching = self
        return self

    def __exit__(self, *_):
        Counted.watching = None
        self.pipelines = self.gpu.pipelines_built - self.built
        self.patch.undo()

    @property
    def all(self):
        return self.files, self.compiled, self.uploaded, self.pipelines


def _opened(event, arguments):
    if event == "open" and Counted.watching is not None:
        Counted.watching.files.append(arguments[0])


sys.addaudithook(_opened)


def test_the_counters_count(own, model, monkeypatch, tmp_path):
    (tmp_path / "a").write_text("")
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path))
    with Counted(own, monkeypatch) as counted:
        cml.Session(cml.load(model), own).run({"x": image(SMALL)})
    assert counted.files and counted.uploaded > 4000 and counted.pipelines > 1


def test_reshaped_session_reads_and_compiles_nothing_new(own, model, monkeypatch):
    graph = cml.load(model)
    session = cml.Session(graph, own)
    run(session)
    expected = run(cml.Session(cml.load(model, shapes={"x": LARGE}), "cpu"))
    with Counted(own, monkeypatch) as counted:
        large = session.reshaped({"x": LARGE})
        got = run(large)
    assert counted.all == ([], [], 0, 0)
    assert large.inputs["x"].shape == LARGE and large.outputs["mean"].shape == (2, 8, 1, 1)
    close(got, expected, 2e-5)
    same_bits(run(session), run(cml.Session(graph, own)))
    assert large.plan.weights == session.plan.weights and not large.plan.own
    same_bits(run(large), run(cml.Session(cml.load(model, shapes={"x": LARGE}), own)))


def test_shape_dependent_memory_belongs_to_each_session(own, weights, monkeypatch):
    model, many = cml.nnef.MemoryModel(SHAPED, weights), (1, 8, 96, 96)
    session = cml.Session(cml.load(model), own)
    before = run(session)
    with Counted(own, monkeypatch) as counted:
        large = session.reshaped({"x": many})
        got = run(large)
    others = set(large.program._preparation.keys) - set(session.program._preparation.keys)
    assert others and counted.pipelines == len(others)
    assert counted.uploaded == 4 and len(large.plan.own) == 1
    same_bits(got, run(cml.Session(cml.load(model, shapes={"x": many}), own)))
    same_bits(run(session), before)
    large.program.evict()
    same_bits(run(large), got)


def held(gpu, category):
    gpu.memory.free_deferred()
    return sum(h.nbytes for (_, kind), h in gpu.memory.stats().holdings.items() if kind == category)


def test_weights_are_counted_once_and_live_as_long_as_one_session(own, model):
    session = cml.Session(cml.load(model), own)
    first = held(own, "weights")
    large = session.reshaped({"x": LARGE})
    expected = run(large)
    assert held(own, "weights") <= first + 256
    session.program.evict()
    assert held(own, "weights") >= first
    same_bits(run(large), expected)
    before = run(session)
    large.program.evict()
    same_bits(run(session), before)
    run(large)
    del session
    assert held(own, "weights") > 0
    same_bits(run(large), expected)
    large.program.evict()
    assert held(own, "weights") == held(own, "activations") == 0
    same_bits(run(large), expected)
    del large
    assert held(own, "weights") == held(own, "activations") == 0


def test_memory_budget_counts_shared_weights_once(own, model):
    """A request that eviction cannot satisfy raises ``OutOfGpuMemory`` and evicts nothing.

    Shared weights count once: the sum over all sessions is larger than what is allocated.
    """
    session = cml.Session(cml.load(model), own)
    others = [session.reshaped({"x": (1, 8, 24 + 8 * k, 24)}) for k in range(3)]
    for each in (session, *others):
        run(each)
    everything = own.memory.held_bytes
    tenants = [each.program for each in (session, *others)]
    resident = sum(part.nbytes for t in tenants for part in t.resident)
    assert resident > held(own, "weights") + held(own, "activations")
    own.memory.budget_bytes = own.memory.reserved_bytes
    kept = held(own, "uniform")
    usage = tenants[0].residency.weights.buffer.usage
    with pytest.raises(OutOfGpuMemory):
        own.memory.allocate(
            own.memory.budget_bytes - kept + 4096, usage, owner="big", category="render"
        )
    assert own.memory.evictions == 0 and own.memory.held_bytes == everything


def test_recent_shape_returns_the_same_session(gpu, model):
    session = cml.Session(cml.load(model), gpu, shapes_kept=2)
    large = session.reshaped({"x": LARGE})
    assert session.reshaped({"x": list(LARGE)}) is large
    assert large.reshaped({"x": SMALL}) is session and session.reshaped({}) is session
    program = large.program
    del large
    assert session.reshaped({"x": LARGE}).program is program
    for size in (8, 16):
        session.reshaped({"x": (1, 8, size, 8)})
    assert session.reshaped({"x": LARGE}).program is not program


def test_a_shape_that_is_not_kept_frees_its_memory(own, model):
    session = cml.Session(cml.load(model), own, shapes_kept=0)
    first = held(own, "activations")
    run(session.reshaped({"x": LARGE}))
    assert held(own, "activations") == first
    del session
    gc.disable()
    try:
        assert held(own, "activations") == held(own, "weights") == 0
    finally:
        gc.enable()


def test_reshaped_sessions_have_separate_variables(backend, rng):
    model = cml.nnef.MemoryModel(STATE, {"sums": rng.standard_normal((1, 8, 1, 1), np.float32)})
    session, shapes = cml.Session(cml.load(model), backend), {"x": (1, *LARGE[1:])}
    run(session), run(session)
    large, fresh = session.reshaped(shapes), cml.Session(cml.load(model, shapes=shapes), backend)
    for _ in range(2):
        same_bits(run(large), run(fresh))
    third, other = run(session), cml.Session(cml.load(model), backend)
    run(other), run(other)
    same_bits(third, run(other))
    large.reset()
    fresh.reset()
    same_bits(run(large), run(fresh))


def test_switching_known_shapes_builds_and_uploads_nothing(own, model, monkeypatch):
    """Switching between known resolutions opens, compiles, builds and uploads nothing."""
    session, host = cml.Session(cml.load(model), own), Host(own, budget_ms=50.0)
    steps = [(1, 8, size, size) for size in (16, 20, 24)]

    def result(shape):
        job = host.submit(session.reshaped({"x": shape}), {"x": image(shape)})
        (array,) = host.finish(job)
        job.release()
        return array

    expected = {shape: run(session.reshaped({"x": shape}))["y"] for shape in steps}
    for shape in steps:  # behind a loading screen
        result(shape)
    memory = own.memory.held_bytes
    with Counted(own, monkeypatch) as counted:
        for shape in 3 * steps:
            assert_array_equal(result(shape), expected[shape])
    assert counted.all == ([], [], 0, 0)
    assert own.memory.held_bytes <= memory


def test_concurrent_requests_of_a_shape_get_one_session(gpu, model):
    session = cml.Session(cml.load(model), gpu)
    sessions = together(*[lambda: session.reshaped({"x": LARGE})] * 4)
    assert len({id(each) for each in sessions}) == 1


def test_invalid_shapes_are_refused_and_change_nothing(gpu, model):
    session = cml.Session(cml.load(model), gpu)
    with pytest.raises(cml.ModelError, match=r"graph.nnef:9:\d+: conv 'c0'"):
        session.reshaped({"x": (1, 9, 8, 8)})
    with pytest.raises(cml.InputError, match="no input 'z'; its inputs are x"):
        session.reshaped({"z": SMALL})
    with pytest.raises(cml.InputError, match="shapes_kept: wanted a whole number"):
        cml.Session(cml.load(model), gpu, shapes_kept=-1)
    changed = cml.Session(cml.load(model).with_(name="other"), gpu)
    with pytest.raises(cml.InputError, match="does not know how it was loaded"):
        changed.reshaped({"x": LARGE})
    run(session)
