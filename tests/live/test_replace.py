"""Tests of replacing a session's network: new weights, new operators, errors, watched files."""

import contextlib
import os
import time
from threading import Event

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine import Reloader
from cml_engine.gpu.memory.allocator import Allocation
from cml_engine.ops import load_file, unregister
from tests.fixtures.frames.turns import turns
from tests.fixtures.models import write_model
from tests.live.test_taps import graph_of, inputs

pytestmark = pytest.mark.gpu

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


def graph(value, text=TEXT):
    weights = {"w": np.full((1, 4, 1, 1), value, np.float32)}
    return cml.load(cml.nnef.MemoryModel(text, weights))


def value(session):
    return float(session.run(X)["y"][0, 0, 0, 0])


def test_replacement_takes_new_weights_and_operators(backend):
    session = cml.Session(graph(1), backend)
    change = session.replace(graph(3))
    session.take_replacement()
    assert change.state == "done" and value(session) == 6
    session.replace(lambda: graph(3, TEXT.replace("relu(x * w)", "relu(x * w) + 1.0")))
    session.take_replacement()
    assert value(session) == 7
    session.take_replacement()  # no replacement is left


def test_new_weights_build_no_pipeline(gpu):
    session, old = cml.Session(graph_of(), gpu), graph_of()
    other = old.with_(constants={name: 2 * array for name, array in old.constants.items()})
    expected = cml.Session(other, gpu).run(inputs())["y"]
    built, plan = gpu.pipelines_built, session.plan
    change = session.replace(other)
    session.take_replacement()
    assert change.error is None and session.plan is not plan
    assert_array_equal(session.run(inputs())["y"], expected)
    assert gpu.pipelines_built == built


def test_replacement_uploads_in_chunks(gpu, monkeypatch):
    """A replacement uploads its weights over many frames, at most 128 KB in each."""
    written = []
    write = Allocation.write

    def counted(allocation, data, offset=0):
        written.append(memoryview(data).nbytes)
        write(allocation, data, offset)

    session = cml.Session(heavy(1), gpu)
    change = session.replace(heavy(2))
    change._made.wait()
    monkeypatch.setattr(Allocation, "write", counted)
    frames = []
    while not change.ready:
        written.clear()
        change.advance(0.25)
        frames.append(sum(written))
        time.sleep(0.001)  # another thread checks the pipelines
    weights = sum(array.nbytes for _, array in session.plan.weights.values())  # type: ignore[union-attr]
    assert sum(frames) >= weights and max(frames) <= (64 << 10) + (64 << 10) < weights / 4
    assert_array_equal(session.run(X)["y"], cml.Session(heavy(2), gpu).run(X)["y"])


def heavy(value):
    """Returns a graph with about a megabyte of weights."""
    text = TEXT.replace("[1, 4, 1, 1]", "[144, 2048]")
    text = text.replace("relu(x * w)", "matmul(reshape(x, shape = [1, 144]), w)")
    return cml.load(cml.nnef.MemoryModel(text, {"w": np.full((144, 2048), value, np.float32)}))


@pytest.mark.parametrize(
    "broken, message",
    [
        (lambda: cml.load(cml.nnef.MemoryModel("version 1.0; graph n(")), "expected|wanted"),
        (lambda: graph(1, TEXT.replace("(y)", "(z)").replace("y =", "z =")), "outputs y, got z"),
        (lambda: graph(1, TEXT.replace("6, 6]", "7, 6]")), r"input 'x' is scalar\[1,4,7,6\]"),
        (lambda: 1 // 0, "division"),
        (lambda: "net.nnef", "wanted a Graph"),
    ],
)
def test_failed_replacement_keeps_the_old_network(backend, broken, message):
    session = cml.Session(graph(1), backend)
    change = session.replace(broken)
    with pytest.raises(cml.CmlError, match=message):
        session.take_replacement()
    assert change.state == "failed" and value(session) == 2
    session.replace(graph(5))
    session.take_replacement()
    assert value(session) == 10


def test_replacement_with_other_interface_is_refused(backend):
    session = cml.Session(graph(1), backend)
    with pytest.raises(cml.InputError, match=r"wanted scalar\[1,4,6,6\]"):
        session.replace(graph(1, TEXT.replace("6, 6]", "7, 6]")))
    assert value(session) == 2


@pytest.mark.parametrize("ends", [lambda: graph(3), lambda: 1 // 0])
def test_superseded_replacement_is_dropped(backend, ends):
    session, go = cml.Session(graph(1), backend), Event()
    first = session.replace(lambda: go.wait() and ends())
    session.replace(graph(4))
    go.set()
    first.finish()
    assert first.state == "superseded" and first.error is None
    session.take_replacement()
    assert value(session) == 8


def test_jobs_use_the_old_network_until_the_replacement_is_ready(gpu, host):
    session = cml.Session(graph(1), gpu)
    before = host.submit(session, X)
    change = session.replace(graph(3))
    host.until(lambda: before.ended)
    seen = [before.tensor("y").read()[0, 0, 0, 0]]
    for _ in turns():
        seen.append(host.run(session, X).tensor("y").read()[0, 0, 0, 0])
        if change.state == "done":
            break
    assert change.state == "done" and change.error is None
    assert seen[0] == 2 and seen[-1] == 6 and seen == sorted(seen)


class Followed:
    """A session with a :class:`Reloader` that watches its files, on a simulated clock."""

    def __init__(self, session, model, **options):
        self.session, self.now = session, 0.0
        self.reloader = Reloader(session, model, clock=lambda: self.now, **options)

    def settle(self, *changed, wait=True):
        """Marks these files as changed and polls until the load has ended; returns the reloader's
        message.

        With ``wait`` it takes the replacement.
        """
        for file in changed:
            os.utime(file, ns=(int(self.now * 1e9), int(self.now * 1e9) + 7))
        for _ in range(4):
            self.now += 1
            if self.reloader.poll() is not None and wait:
                with contextlib.suppress(cml.CmlError):
                    self.session.take_replacement()
        return self.poll()

    def poll(self):
        """Polls until no load is in progress, and returns the reloader's message."""
        for _ in turns():
            self.reloader.poll()
            if not self.reloader.said.endswith("loading"):
                break
        return self.reloader.said


def write(folder, weight, text=TEXT):
    model = write_model(folder / "net.nnef", text, w=np.full((1, 4, 1, 1), weight, np.float32))
    return list(model.iterdir())


def test_a_reloader_follows_the_files(gpu, tmp_path):
    write(tmp_path, 1)
    session = cml.Session(cml.load(tmp_path / "net.nnef"), gpu)
    followed = Followed(session, tmp_path / "net.nnef")
    assert followed.settle(*write(tmp_path, 3)) == "'net.nnef' done"
    assert value(session) == 6
    message = followed.settle(*write(tmp_path, 4, TEXT.replace("relu", "rilu")))
    assert value(session) == 6 and "'net.nnef' failed: " in message
    assert "rilu" in message and "graph.nnef:7" in message
    followed.settle(*write(tmp_path, 4))
    assert value(session) == 8 and followed.reloader.taken == 2
    assert followed.reloader.poll() is None


def test_a_reloader_keeps_sliders_and_shapes(backend, tmp_path):
    write(tmp_path, 1, TEXT.replace("relu(x * w)", "leaky_relu(x * w, alpha = 0.5)"))
    shapes, sliders = {"x": (1, 4, 2, 2)}, {"bend": "y.alpha"}
    model = tmp_path / "net.nnef"
    session = cml.Session(cml.load(model, shapes=shapes, sliders=sliders), backend)
    x = np.full((1, 4, 2, 2), -2.0, np.float32)
    followed = Followed(session, model)
    text = TEXT.replace("relu(x * w)", "leaky_relu(x * w, alpha = 0.25)")
    assert followed.settle(*write(tmp_path, 3, text)) == "'net.nnef' done"
    assert session.sliders["bend"].default == 0.25
    assert (session.run({"x": x, "bend": 2.0})["y"] == -12).all()
    without = Followed(session, model, make=lambda: cml.load(model, shapes=shapes))
    without.now = 100.0  # the files get new times
    message = without.settle(*write(tmp_path, 4, text))
    assert "no slider 'bend'" in message and "sliders={'bend': 'y.alpha'}" in message
    assert (session.run({"x": x, "bend": 2.0})["y"] == -12).all()


OPERATOR = """\
from pathlib import Path
import cml_engine as cml

cml.register(cml.OpSpec(
    name="reloaded",
    signature="fragment reloaded(x: tensor<scalar>) -> (y: tensor<scalar>);",
    infer=lambda attrs, x: x,
    cpu=lambda attrs, x: x + 1,
    kernel=cml.Kernel("reloaded.hlsl"),
))
"""
KERNEL = "void kernel(uint thread) { y[thread] = x[thread] + 1.0; }\n"


@pytest.fixture
def operator(tmp_path):
    """The path of a loaded Python file that registers the operator ``reloaded``, with its kernel.

    The operator is unregistered afterwards.
    """
    file = tmp_path / "operators.py"
    file.write_text(OPERATOR, encoding="utf-8")
    (tmp_path / "reloaded.hlsl").write_text(KERNEL, encoding="utf-8")
    load_file(file)
    yield file
    unregister("reloaded")


EDITS = {
    "operators.py": (
        (OPERATOR.replace("x + 1", "x + 2"), 4, "done"),
        (OPERATOR.replace("x + 1", "x +"), 4, "{file}:8: "),
        ("1 // 0\n", 4, "{file}:1: ZeroDivisionError"),
        (OPERATOR.replace("x + 1", "x + 3"), 5, "done"),
    ),
    "reloaded.hlsl": (
        (KERNEL.replace("1.0", "5.0"), 7, "done"),
        (KERNEL.replace("= x[", "= xx["), 7, "reloaded.hlsl:1"),
        (KERNEL, 3, "done"),
    ),
}


def test_a_reloader_follows_operators_and_kernels(backend, operator, tmp_path):
    write(tmp_path, 1, TEXT.replace("relu(", "reloaded("))
    session = cml.Session(cml.load(tmp_path / "net.nnef"), backend)
    name = "operators.py" if backend == "cpu" else "reloaded.hlsl"
    file, followed = tmp_path / name, Followed(session, tmp_path / "net.nnef", ops=[operator])
    assert value(session) == 3
    for text, expected, message in EDITS[name]:
        file.write_text(text, encoding="utf-8")
        assert message.format(file=file) in followed.settle(file, wait=False)
        assert value(session) == expected


SLIDING = """\
import cml_engine as cml

KERNEL = "void kernel(uint thread) { y[thread] = x[thread] * gain; }"


def lower(op):
    size, half = op.inputs[0].size, op.scratch(op.inputs[0].size)
    yield op.launch(size, reads={"x": op.in_names[0]}, writes={"y": half})
    second = cml.Kernel("second.hlsl")
    yield op.launch(size, reads={"x": half}, writes={"y": op.out_names[0]}, kernel=second)


cml.register(cml.OpSpec(
    name="reloaded",
    signature="fragment reloaded(x: tensor<scalar>, gain: scalar = 3.0) -> (y: tensor<scalar>);",
    infer=lambda attrs, x: x,
    kernel=cml.Kernel(%s),
))
"""
SECOND = "void kernel(uint thread) { y[thread] = x[thread] * gain; }\n"
IN_FILE, IN_SOURCE, IN_PASSES = '"second.hlsl"', "source=KERNEL", "source=KERNEL, lower=lower"


@pytest.mark.parametrize(
    "kernel, power, file, good, broken",
    [
        (IN_FILE, 1, "second.hlsl", "* gain", "* gian"),
        (IN_FILE, 1, "second.hlsl", "void kernel", "void kernal"),
        (IN_SOURCE, 1, "operators.py", "* gain", "* gian"),
        (IN_PASSES, 2, "second.hlsl", "* gain", "* gian"),
        (IN_PASSES, 2, "operators.py", "OpSpec(", "OpSpc("),
        (IN_FILE, 1, "operators.py", "gain: scalar", "gian: scalar"),
        (IN_FILE, 1, "net.nnef/graph.nnef", "reloaded", "relaoded"),
    ],
)
def test_sliders_and_shapes_change_while_a_reload_fails(
    gpu, host, tmp_path, kernel, power, file, good, broken
):
    write(tmp_path, 1, TEXT.replace("relu(", "reloaded("))
    operators, edited = tmp_path / "operators.py", tmp_path / file
    operators.write_text(SLIDING % kernel, encoding="utf-8")
    (tmp_path / "second.hlsl").write_text(SECOND, encoding="utf-8")
    load_file(operators)
    try:
        session = cml.Session(cml.load(tmp_path / "net.nnef", sliders={"gain": "y.gain"}), gpu)
        followed = Followed(session, tmp_path / "net.nnef", ops=[operators])
        heights = iter(range(1, 6))  # each is a new shape

        def check(gain):
            x = np.full((1, 4, next(heights), 3), 2.0, np.float32)
            for some, values in ((session, X["x"]), (session.reshaped({"x": x.shape}), x)):
                results = some.run({"x": values, "gain": gain})["y"]
                assert (results == 2 * np.float32(gain) ** power).all()
            job = host.submit(session, {**X, "gain": gain + 1})
            (submitted,) = host.finish(job, name="y")
            assert (submitted == 2 * np.float32(gain + 1) ** power).all()

        check(3.0)
        text = edited.read_text(encoding="utf-8")
        edited.write_text(text.replace(good, broken), encoding="utf-8")
        check(5.0)  # nothing has looked at the file yet
        assert "'net.nnef' failed: " in followed.settle(edited, wait=False)
        check(7.0)
        edited.write_text(text, encoding="utf-8")
        assert followed.settle(edited, wait=False) == "'net.nnef' done"
        check(9.0)
    finally:
        unregister("reloaded")
