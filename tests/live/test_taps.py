"""Tests of tensors that a session keeps to be read, from its memory and from jobs, and of a
watch."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from tests.fixtures.frames.host import Host
from tests.fixtures.graphs import BLOCKS
from tests.integer.test_files import INPUT, small_net
from tests.proofs.fuzz import computed_values

pytestmark = pytest.mark.gpu

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
    weights = {n: rng.standard_normal((8, 8, 3, 3), np.float32) / 8 for n in ("w0", "w1")}
    return cml.load(cml.nnef.MemoryModel(text, weights))


def inputs(seed=1):
    return {"x": np.random.default_rng(seed).standard_normal((1, 8, 12, 12), np.float32)}


def close(got, expected):
    assert_allclose(got, expected, 1e-4, 1e-4)


#: in the suite every second block has one storage; all have both in the long suite
STORED = [
    pytest.param(block, storage, marks=() if i % 4 == 2 * j + 1 else pytest.mark.long)
    for i, block in enumerate(BLOCKS)
    for j, storage in enumerate(("float", "half"))
]


@pytest.mark.parametrize(("block", "storage"), STORED)
def test_kept_tensors_change_no_bit_of_the_outputs(gpu, block, storage):
    """``keep`` changes no output, also for tensors that a pass removed or stored in 16 bits."""
    net = BLOCKS[block]()
    last = net.nodes[-1].outputs[-1]
    graph, values = net.graph(last), net.input()
    every = tuple(name for node in graph.nodes for name in node.outputs if name != last)
    rounding = 2e-2 if storage == "half" else 1e-4
    expected = computed_values(graph, values)
    bare = cml.Session(graph, gpu, cml.CompileOptions(storage=storage))
    plain = bare.run(values)[last]
    for names in (every, every[len(every) // 2 :][:1]):
        session = cml.Session(graph, gpu, cml.CompileOptions(storage=storage, keep=names))
        assert_array_equal(session.run(values)[last], plain)
        assert session.plan.layouts == bare.plan.layouts
        for name in names:
            largest = float(np.abs(expected[name]).max(initial=1.0))
            tensor = session.tensor(name)
            assert tensor.fact == graph.facts[name]
            assert_allclose(
                tensor.read(), expected[name], rounding, rounding * largest, err_msg=name
            )


def test_kept_tensors_of_an_integer_network_are_equal_on_both_backends(gpu):
    graph = small_net()
    outputs = cml.Session(graph, gpu).run(INPUT)
    options = cml.CompileOptions(keep=("t1",))
    sessions = [cml.Session(graph, backend, options) for backend in ("cpu", gpu)]
    for session in sessions:
        assert_array_equal(session.run(INPUT)["t2"], outputs["t2"])
    assert_array_equal(sessions[1].tensor("t1").read(), sessions[0].tensor("t1").read())


def test_a_kept_tensor_that_fusing_removed_has_a_node_of_its_own(gpu):
    graph = graph_of()
    bare = cml.Session(graph, gpu).plan
    plan = cml.Session(graph, gpu, cml.CompileOptions(keep=("c0", "r0"))).plan
    assert [s.full_op for s in bare.steps] == ["conv+relu", "conv+relu"]
    added = [s for s in plan.steps if s.full_op == "conv" or s.op == "pixel_shuffle"]
    assert [s.title for s in added] == ["conv 'c0'", "pixel_shuffle 'r0.kept'"]
    rest = [s for s in plan.steps if s not in added]
    assert [(s.title, s.path, s.defines, s.params) for s in rest] == [
        (s.title, s.path, s.defines, s.params) for s in bare.steps
    ]


def test_jobs_have_retained_tensors_of_their_own_run(gpu, host):
    graph = graph_of()
    session = cml.Session(graph, gpu, KEEP)
    one, two = (host.submit(session, inputs(seed)) for seed in (1, 2))
    host.finish(one, two)
    for job, seed in ((one, 1), (two, 2)):
        expected = computed_values(graph, inputs(seed))
        close(job.tensor("c0").read(), expected["c0"])
        for name in ("c0", "y"):
            (array,) = host.finish(job, name=name)
            close(array, expected[name])
    close(session.tensor("c0").read(), expected["c0"])
    assert_array_equal(session.tensor("x").read(), inputs(2)["x"])
    assert_array_equal(session.tensor("y").read(), array)
    with pytest.raises(cml.InputError, match="has no output 'c1'; it has y, c0, x"):
        one.tensor("c1")


def test_kept_values_arrive_in_frames_without_a_wait(gpu):
    """A callback gets the arrays of all kept tensors; the outputs are as without them."""
    graph, seen = graph_of(), {}
    plain = cml.Session(graph, gpu).run(inputs())["y"]
    session = cml.Session(graph, gpu, cml.CompileOptions(keep=("c0", "r0", "c1")))
    host, names = Host(gpu, budget_ms=0.05), ("c0", "r0", "c1", "y")
    job = host.submit(session, inputs(), read=True)
    job.add_done_callback(lambda done: seen.update({name: done.read(name) for name in names}))
    host.until(lambda: seen)
    assert_array_equal(seen["y"], plain)
    expected = computed_values(graph, inputs())
    for name in ("c0", "r0", "c1"):
        close(seen[name], expected[name])


def test_job_reads_another_jobs_retained_tensor(gpu, host):
    graph = graph_of()
    session, second = cml.Session(graph, gpu, KEEP), cml.Session(graph, gpu)
    first = host.submit(session, inputs())
    job = host.run(second, {"x": first.output("c0")})
    expected = computed_values(graph, {"x": computed_values(graph, inputs())["c0"]})["y"]
    close(job.tensor("y").read(), expected)


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
    with pytest.raises(cml.InputError, match="one buffer with the memory of 'net'"):
        Host(gpu).scheduler.submit(session, {"x": session.tensor("c0")})


def test_watch_sees_the_values_of_the_graph_as_written(gpu):
    graph, seen = graph_of(), []
    expected = computed_values(graph, inputs())

    def before(node, operands):
        for name, operand in zip(node.reads, operands, strict=True):
            close(operand, (session.graph.constants | inputs() | expected)[name])

    def watch(node, results):
        seen.extend(node.outputs)
        for name, result in zip(node.outputs, results, strict=True):
            close(result, expected[name])

    session = cml.Session(graph, gpu, KEEP)
    close(session.run(inputs(), watch=watch, before=before)["y"], expected["y"])
    assert "c0" in seen and seen[-1] == "y"


def test_a_watched_run_advances_variables(backend):
    text = (
        "version 1.0;\nextension KHR_enable_operator_expressions;\n"
        "graph n(x) -> (y) { x = external(shape = [4]); s = variable(shape = [4], label = 's');"
        " t = s + x; u = update(s, t); y = relu(t) + x; }"
    )
    model = cml.nnef.MemoryModel(text, {"s": np.zeros(4, np.float32)})
    ones, read = {"x": np.ones(4, np.float32)}, []
    session = cml.Session(cml.load(model), backend, cml.CompileOptions(keep=("s",)))
    session.run(ones, before=lambda node, operands: read.extend(map(np.array, operands)))
    assert_array_equal(read[0], [0, 0, 0, 0])
    assert_array_equal(session.run(ones)["y"], [3, 3, 3, 3])
    assert_array_equal(session.tensor("s").read(), [2, 2, 2, 2])
