"""Tests that operators without a kernel run on the CPU, bit-identical in runs and in frames.

The GPU part runs in slices. The operands of the others are read back, a worker computes them, and
their results are uploaded; nothing of it holds a frame.
"""

import logging
import threading

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from cml_engine import FrameScheduler, ops
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.cooked.cook import cook
from cml_engine.runtime.node_check import check_nodes
from cml_engine.scheduler.planning.plan import operators_per_frame
from cml_engine.scheduler.planning.policy import by_priority
from cml_engine.scheduler.recording import decisions_of
from cml_engine.scheduler.tools.replay import replay
from tests.fixtures.frames.host import Host, creations, under_way
from tests.fixtures.frames.turns import turns
from tests.fixtures.graphs import Net
from tests.fixtures.operators import HEADER, declare, load_expression
from tests.fixtures.results import close, same_bits
from tests.fixtures.texels import texture_of

pytestmark = pytest.mark.gpu

TEXT = (
    HEADER
    + """graph net(x, z) -> (y, n)
{
    x = external<scalar>(shape = [1, 8, 16, 16]);
    z = external<scalar>(shape = [1, 8, 16, 16]);
    s = variable<scalar>(shape = [1, 8, 16, 16], label = 's');
    w1 = variable<scalar>(shape = [8, 8, 3, 3], label = 'w1');
    w2 = variable<scalar>(shape = [8, 8, 3, 3], label = 'w2');
    a = relu(conv(x, w1, 0.0));
    r = sort_rows(a + s);
    q = sort_rows(z);
    u = update(s, r * 0.5);
    b = relu(conv(r, w2, 0.0)) + q;
    n = count_positive(b);
    y = conv(b, w1, 0.0);
}
"""
)
SHAPE = (1, 8, 16, 16)


class Gate:
    """The state of the operator ``sort_rows``: how often it ran, and whether it may go on."""

    def __init__(self):
        self.runs, self.error = 0, None
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.threads = set()

    def close(self):
        """Holds the next run of the operator until ``open`` is set."""
        self.entered.clear()
        self.open.clear()

    def __call__(self, attrs, x):
        self.runs += 1
        self.threads.add(threading.current_thread())
        self.entered.set()
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        return np.sort(x, axis=-1)


@pytest.fixture
def gate(own_operators):
    gate = Gate()
    declare(signature="sort_rows", cpu=gate)
    declare(
        signature="count_positive",
        infer=lambda attrs, x: ops.Fact("scalar", (1,)),
        cpu=lambda attrs, x: np.array([(x > 0).sum()], np.float32),
    )
    yield gate
    gate.open.set()


@pytest.fixture
def graph(gate):
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((8, 8, 3, 3), np.float32) / 8 for n in ("w1", "w2")}
    return cml.load(cml.nnef.MemoryModel(TEXT, {"s": np.ones(SHAPE, np.float32), **weights}))


@pytest.fixture
def inputs():
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(SHAPE, np.float32) for name in "xz"}


@pytest.fixture
def session(gpu, graph):
    return cml.Session(graph, gpu)


@pytest.fixture
def expected(gpu, graph, inputs):
    """The outputs of a whole run."""
    return cml.Session(graph, gpu).run(inputs)


def outputs_of(host, job):
    host.until(lambda: job.ended and not job.waiting_for.startswith("done: waits"))
    assert job.state == "done", job.error
    return {name: job.read(name) for name in ("y", "n")}


def run_in_frames(host, session, inputs):
    return outputs_of(host, host.submit(session, inputs, read=True))


OPTIONS = {
    "as it is": cml.CompileOptions(),
    "no pass": cml.CompileOptions(without=frozenset({"fuse", "chains", "partition"})),
    "16 bits": cml.CompileOptions(storage="half"),
    "all kept": cml.CompileOptions(plan=PlanOptions(keep=True)),
    "taps": cml.CompileOptions(keep=("r", "q", "a")),
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("retain", [False, True], ids=["", "retain"])
def test_any_slicing_gives_the_bits_of_a_whole_run(gpu, graph, inputs, kind, retain):
    options = OPTIONS[kind]

    def session():
        return cml.Session(graph, gpu, options, retain=retain)

    unsliced = session()
    expected = [unsliced.run(inputs) for _ in range(3)]  # the variable changes from run to run
    assert not np.array_equal(expected[0]["y"], expected[1]["y"])
    for budget, planner in ((0.02, None), (5.0, None), (5.0, operators_per_frame(1))):
        sliced, host = session(), Host(gpu, budget_ms=budget)
        if planner:
            host.scheduler.planner = planner
        for run in expected:
            job = host.submit(sliced, inputs, read=True)
            same_bits(outputs_of(host, job), run)
        for name in options.keep:
            assert_array_equal(job.read(name), unsliced.tensor(name).read())


def test_a_run_with_one_new_input_computes_only_what_depends_on_it(gpu, host, graph, inputs, gate):
    session, unsliced = (cml.Session(graph, gpu, retain=True) for _ in range(2))
    run_in_frames(host, session, inputs)
    unsliced.run(inputs)
    before = gate.runs
    job = host.submit(session, {"x": -inputs["x"]}, read=True)
    got = outputs_of(host, job)
    assert gate.runs == before + 1, "the rows of z are retained"
    same_bits(got, unsliced.run({"x": -inputs["x"], "z": inputs["z"]}))


def test_reshaped_and_replaced_networks(gpu, graph, session, inputs, expected):
    session.replace(graph)
    session.take_replacement()
    same_bits(session.run(inputs), expected)
    small = cml.Session(load_expression("relu(sort_rows(x))", 1, 4), gpu)
    wide = np.float32([[3, -1, 2, 0, 5]])
    assert_array_equal(small.reshaped({"x": (1, 5)}).run({"x": wide})["y"], [[0, 0, 2, 3, 5]])


def test_operators_can_be_watched_in_order(session, inputs, expected):
    seen = []

    def note(node, results):
        seen.append(node.title)

    same_bits(session.run(inputs, watch=note, before=note), expected)
    assert seen == [node.title for node in session.graph.nodes for _ in range(2)]


def test_nothing_waits_in_a_frame(gpu, host, session, inputs, expected, gate, monkeypatch):
    """Frames go on while the operator does not, and no frame maps a buffer and waits for it."""
    gate.threads.clear()
    gate.close()

    def refuse(*args, **named):
        raise AssertionError("a frame waits")

    monkeypatch.setattr(wgpu.GPUBuffer, "map_sync", refuse)
    monkeypatch.setattr(type(gpu.queue), "read_buffer", refuse)
    job = host.submit(session, inputs, read=True)
    host.until(gate.entered.is_set)
    assert "on the CPU" in job.waiting_for and job.state == "running"
    host.until(lambda: host.reports[-1].reason == "all waiting")
    for _ in range(40):
        host.frame()
    assert threading.current_thread() not in gate.threads
    gate.open.set()
    same_bits(outputs_of(host, job), expected)


def test_copies_are_counted(gpu, host, session, inputs, monkeypatch):
    """A run copies each operand once to the host, and each result once to the device."""
    run_in_frames(host, session, inputs)
    parts = session.plan.cpu_parts
    nbytes = int(np.prod(SHAPE)) * 4
    assert sum(part.read_bytes for part in parts) == 3 * nbytes  # a + s, z and b
    assert sum(part.written_bytes for part in parts) == 2 * nbytes + 4  # r, q and n
    uploaded, read = [], []
    arena = session.program.residency.arena
    encoder = type(gpu.device.create_command_encoder())
    write, copy = type(arena).write, encoder.copy_buffer_to_buffer

    def count_write(self, data, offset=0):
        if self is arena:
            uploaded.append(memoryview(data).nbytes)
        return write(self, data, offset)

    def count_copy(self, source, at, target, to, size):
        if source in arena.buffers and int(target.usage) & wgpu.BufferUsage.MAP_READ:
            read.append(size)
        return copy(self, source, at, target, to, size)

    monkeypatch.setattr(type(arena), "write", count_write)
    monkeypatch.setattr(encoder, "copy_buffer_to_buffer", count_copy)
    run_in_frames(host, session, inputs)
    assert sum(uploaded) == sum(p.written_bytes for p in parts) + 2 * nbytes  # and x and z
    assert sum(read) == sum(part.read_bytes for part in parts)


def test_a_large_result_is_uploaded_over_several_frames(gpu, gate):
    session = cml.Session(load_expression("relu(sort_rows(x))", 8, 65536), gpu)
    x = np.random.default_rng(2).standard_normal((8, 65536), np.float32)
    host, uploads = Host(gpu, budget_ms=1.0), []
    write = type(session.program.residency.arena).write

    def count(self, data, offset=0):
        uploads[-1] += memoryview(data).nbytes
        return write(self, data, offset)

    job = host.submit(session, {"x": x}, read=True)
    host.until(lambda: job.running)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(session.program.residency.arena), "write", count)
        while not job.ended:
            uploads.append(0)
            host.frame()
    assert max(uploads) <= 2 * (256 << 10) and sum(uploads) >= x.nbytes
    assert_array_equal(*host.finish(job), np.maximum(np.sort(x, -1), 0))


def test_steady_state_creates_nothing(gpu, host, session, inputs, monkeypatch):
    for _ in range(4):
        run_in_frames(host, session, inputs)
    created = creations(gpu, monkeypatch)
    for _ in range(4):
        run_in_frames(host, session, inputs)
    assert not created


def test_a_cancelled_job_leaves_the_next_one_alone(gpu, session, inputs, expected, gate):
    host, before = Host(gpu, budget_ms=1.0), gate.runs
    gate.close()
    job = host.submit(session, {name: 7 + inputs[name] for name in inputs})
    host.until(gate.entered.is_set)
    job.cancel()
    then = host.submit(session, inputs, read=True)
    for _ in range(10):
        host.frame()
    gate.open.set()
    same_bits(outputs_of(host, then), expected)
    assert job.state == "cancelled" and gate.runs == before + 1 + 2, "its second operator never ran"


def test_a_failing_operator_fails_its_job_with_its_line(
    host, session, inputs, expected, gate, caplog
):
    gate.error = ValueError("no rows")
    job = host.submit(session, inputs)
    caplog.set_level(logging.CRITICAL)
    host.until(lambda: job.ended)
    assert job.state == "failed"
    assert "sort_rows" in job.error and "no rows" in job.error and "graph.nnef:11" in job.error
    with pytest.raises(cml.CmlError, match="no rows"):
        job.wait()
    with pytest.raises(cml.CmlError, match=r"graph.nnef:1[12].*no rows"):
        session.run(inputs)
    gate.error = None
    same_bits(run_in_frames(host, session, inputs), expected)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_abandoned_frames_change_no_bit(gpu, session, inputs, expected, every):
    host = Host(gpu, budget_ms=0.1)
    job = host.submit(session, inputs, read=True)
    for turn in turns():
        if turn % every:
            host.frame()
        else:
            host.encode()
            host.scheduler.abandon_frame()
        if job.ended and job.read("y") is not None:
            break
    same_bits({name: job.read(name) for name in ("y", "n")}, expected)


def test_a_recorded_run_replays_exactly(gpu, session, inputs):
    host = Host(gpu, budget_ms=0.1)
    recording = host.scheduler.record()
    for _ in range(2):
        run_in_frames(host, session, inputs)
    assert recording.decisions == [decisions_of(report) for report in host.reports]
    assert replay(recording) == recording.decisions


def test_jobs_take_each_others_outputs_and_know_their_end(gpu, session, inputs, expected):
    after = cml.Session(load_expression("sort_rows(x)", *SHAPE), gpu)
    host, ended = Host(gpu, budget_ms=0.5), []
    first = host.submit(session, inputs, deadline_ms=50)
    second = host.submit(after, {"x": first.output("y")}, read=True)
    second.add_done_callback(ended.append)
    assert first.eta_ms > 0 and first.progress == 0
    under_way(host, first)
    second.wait(60)
    assert ended == [second] and first.progress == second.progress == 1.0
    assert_array_equal(second.read("y"), np.sort(expected["y"], -1))
    assert_array_equal(first.tensor("y").read(), expected["y"])
    third = host.submit(session, inputs, deadline_ms=1000)
    waited = third.owner.cpu_wait_ms(third)
    assert waited > 0 and third.eta_ms >= waited
    late = third.laxity_ms(third.submitted_ms, 1.0)
    assert late == pytest.approx(1000 - third.remaining_ms - waited)


def test_inputs_that_are_on_the_device_and_sliders(gpu, host, gate):
    """A texture, a tensor of the device and a slider of an attribute reach the operator."""
    signature = "fragment shifted(x: tensor<scalar>, by: scalar) -> (y: tensor<scalar>);"
    declare(signature=signature, cpu=lambda attrs, x: x + attrs.by)
    by = cml.Slider("y.by", low=0.0, high=9.0)
    session = cml.Session(
        load_expression("shifted(sort_rows(x), by = 1.0)", 1, 4, 4, 4, by=by), gpu
    )
    x = np.random.default_rng(3).integers(0, 255, (4, 4, 4)).astype(np.uint8)
    inputs = {"x": cml.TextureInput(texture_of(gpu.device, x)), "by": 5.0}
    (result,) = host.finish(host.submit(session, inputs))
    plain = np.moveaxis(x, -1, 0)[None].astype(np.float32) / 255
    assert_allclose(result, np.sort(plain, -1) + 5, rtol=1e-6)
    assert_array_equal(session.run(inputs)["y"], result)


def test_a_session_says_what_it_computes_on_the_cpu(gpu, graph, caplog):
    with caplog.at_level(logging.WARNING):
        session = cml.Session(graph, gpu)
    assert "no kernel" in caplog.text and "sort_rows" in caplog.text
    rows = {row.name for row in session.rank(runs=1).rows}
    assert any("sort_rows" in name for name in rows) and session.timer()() > 0
    refused = cml.CompileOptions(cpu="refuse")
    with pytest.raises(cml.CmlError, match=r"graph.nnef:1[12].*has no GPU kernel"):
        cml.Session(graph, gpu, refused)
    cml.Session(graph, "cpu", refused)


def test_a_partitioned_network_is_not_cooked(graph):
    with pytest.raises(cml.CmlError, match=r"sort_rows.*NumPy"):
        cook(graph)


def test_scheduler_runs_beside_other_jobs(gpu, session, inputs, gate):
    """A network without CPU operators goes on while another waits for the CPU."""
    plain = cml.Session(load_expression("relu(x)", *SHAPE), gpu)
    gate.close()
    scheduler = FrameScheduler(gpu, budget_ms=1.0, policy=by_priority)
    waiting = scheduler.submit(session, inputs, priority=10)
    done = scheduler.submit(plain, {"x": inputs["x"]}, read=True).wait(60)
    assert_array_equal(done.read("y"), np.maximum(inputs["x"], 0))
    assert waiting.state == "running" and 0 <= waiting.progress < 1
    gate.open.set()
    waiting.wait(60)


def refuse(op):
    raise op.refuse("it wants an even number of rows")


#: 8 operands and a result, behind operators that can be in bands
TOTAL = "total(conv(relu(conv(x, 32)), 8), x, x, x, x, x, x, x)"


@pytest.mark.parametrize(
    "shape, text",
    [
        ((1, 1, 40000), "resize(relu(x), output_size=[40000])"),
        ((1, 70000, 1), "col2im(relu(x), output_size=[70000], size=[70000], padding=[(0, 0)])"),
        ((1, 8, 3, 4), "picky(conv(x, 8))"),
        ((1, 8, 32, 32), TOTAL),
    ],
    ids=["resize", "col2im", "game", "bindings"],
)
def test_a_node_that_its_kernel_refuses_runs_on_the_cpu(
    gpu, own_operators, caplog, set_limits, shape, text
):
    set_limits(max_storage_buffers=8)
    kernel = {"lower": refuse, "layouts": "same"}
    declare("void main() {}", "picky", cpu=lambda attrs, x: np.sort(x, axis=-1), kernel=kernel)
    add_parts = "for (uint k = 0; k < parts_count; k++) { y[i] += parts_load(k, i); }"
    declare(
        f"void kernel(uint i) {{ y[i] = 0; {add_parts} }}",
        "fragment total(parts: tensor<scalar>[]) -> (y: tensor<scalar>)",
        cpu=lambda attrs, *parts: sum(parts[1:], parts[0]),
    )
    net = Net(*shape)
    graph, inputs = net.graph(f"neg({text})"), net.input()
    refused = "fit in 32 bits|use smaller windows|even number|together 9, this device allows 8"
    with pytest.raises(cml.CmlError, match=refused):
        cml.Session(graph, gpu, cml.CompileOptions(cpu="refuse"))
    with pytest.raises(cml.CmlError, match=refused):
        cook(graph)
    with caplog.at_level(logging.WARNING):
        session = cml.Session(graph, gpu)
    name = text.partition("(")[0]
    assert f"no kernel, so computed on the CPU: {name} on CPU" in caplog.text
    assert all(check.ok for check in check_nodes(graph, gpu, inputs))
    sessions = [session]
    if text == TOTAL:
        set_limits(max_buffer_bytes=100_000)
        sessions.append(cml.Session(graph, gpu))
        assert sessions[1].plan.bands
    want = cml.Session(graph, "cpu").run(inputs)
    for session in sessions:
        assert [step.op for step in session.plan.steps if step.cpu_part] == [f"{name} on CPU"]
        close(session.run(inputs), want, 1e-5)
