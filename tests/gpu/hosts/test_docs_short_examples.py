"""Tests that the documents' short Python examples run, with stand-ins for a host's objects."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import wgpu

import cml_engine as cml
from cml_engine.compiler.passes.rules import registered_rules, unregister_rule
from cml_engine.compiler.plugins import load_file
from cml_engine.ops import registered
from cml_engine.tools.testing import check
from tests.fixtures.graphs import Net
from tests.fixtures.models import write_model
from tests.fixtures.pages import ROOT, example, examples

OPERATORS = "docs/custom_operators.md"
SUM_KERNEL = """
groupshared float part[GROUP];
void kernel(uint group, uint lane) {
    uint i = group * GROUP + lane;
    part[lane] = i < values_size ? values[i] : 0.0;
    GroupMemoryBarrierWithGroupSync();
    if (lane == 0) {
        float sum = 0.0;
        for (uint k = 0; k < GROUP; k++) { sum += part[k]; }
        sums[group] = sum;
    }
}
"""
STEEPNESS = """
void kernel(uint thread) {
    uint i = thread + 1 < x_size ? thread + 1 : thread;
    y[thread] = abs(x[i] - x[thread]);
}
"""
STEEPNESS_IN_NUMPY = """
def steepness(attrs, x):
    flat = x.reshape(-1)
    return np.abs(np.append(flat[1:], flat[-1:]) - flat).reshape(x.shape)
"""
NET = """version 1.0;
graph net(x) -> (y) { x = external<scalar>(shape = [1, 3, 8, 8]); y = relu(x); }
"""


@pytest.fixture
def registrations():
    """Unregisters the operators that a test's example registered."""
    yield
    for name in {"cross", "soft_knee", "total", "steepness", "sharpened"} & names():
        cml.unregister(name)


def names():
    return set(registered())


def load_example(folder, text):
    """Loads an example that leaves its imports out as the file ``folder/mine.py``."""
    (folder / "mine.py").write_text(f"import numpy as np\nimport cml_engine as cml\n{text}")
    load_file(folder / "mine.py")


def one_input(name, **more):
    """Registers an operator of one tensor that keeps its shape, unless ``more`` says otherwise."""
    fields = {"infer": cml.same_as(0), "cpu": lambda attrs, x: x}
    signature = f"fragment {name}(x: tensor<scalar>) -> (y: tensor<scalar>);"
    cml.register(cml.OpSpec(name, signature=signature, **(fields | more)))


def test_the_worked_example_passes_its_check(tmp_path, gpu, registrations, capsys):
    text = (ROOT / OPERATORS).read_text(encoding="utf-8")
    (tmp_path / "cross.hlsl").write_text(text.split("```hlsl\n")[1].split("```")[0])
    load_example(tmp_path, examples(OPERATORS)[0])
    page = {}
    exec(example(OPERATORS, "def test_cross"), page)
    page["test_cross"]()
    assert "cross: 1 case" in capsys.readouterr().out


def test_the_expression_example_passes_its_check(gpu, registrations):
    exec(example(OPERATORS, "soft_knee"), {"cml": cml})
    assert check("soft_knee", gpu).compared


def test_the_example_of_several_passes_sums_a_tensor(gpu, registrations):
    page = {}
    exec(example(OPERATORS, "op.scratch(groups)"), page)
    one_input(
        "total",
        infer=lambda attrs, x: cml.Fact("scalar", (1,)),
        cpu=lambda attrs, x: x.sum(keepdims=True).reshape(1),
        kernel=cml.Kernel(source=SUM_KERNEL, lower=page["lower"]),
        cases=[cml.Case(((n,),)) for n in (1, 64, 65, 5000)],
    )
    assert check("total", gpu).compared


def test_the_example_of_a_rule_replaces_the_pattern(gpu, registrations):
    page = {}
    exec(example(OPERATORS, "register_rule"), page)
    rule = registered_rules()[0]
    net = Net(2, 8)
    graph = net.graph(net(f"mul(x, {net('abs(x)')})"))
    session = cml.Session(graph, gpu)
    assert [node.op for node in session.graph.nodes] == ["sharpened"]
    wanted = cml.Session(graph, "cpu", cml.CompileOptions(without=frozenset({"rules"})))
    inputs = net.input()
    (found,), (right,) = (s.run(inputs).values() for s in (session, wanted))
    unregister_rule(rule)
    np.testing.assert_allclose(found, right)


def test_the_exact_example_passes_its_check(tmp_path, gpu, registrations):
    (tmp_path / "steepness.hlsl").write_text(STEEPNESS)
    text = next(text for text in examples(OPERATORS) if "bounds=" in text)
    load_example(tmp_path, STEEPNESS_IN_NUMPY + text)
    assert check("steepness", gpu).compared


def test_the_example_of_allocations_and_textures_runs(gpu):
    text = next(text for text in examples("docs/faster.md") if "owner=" in text)
    text = text.replace("usage=...", "usage=wgpu.TextureUsage.TEXTURE_BINDING")
    bound = []
    render_pass = SimpleNamespace(set_vertex_buffer=lambda *binding: bound.append(binding))
    names = {"gpu": gpu, "wgpu": wgpu, "render_pass": render_pass, "nbytes": 64}
    names["vertices"] = np.zeros(16, np.float32)
    exec(compile(text, "docs/faster.md", "exec"), names)
    assert bound[0][0] == 0 and bound[0][3] == 64
    names["sky"].destroy()


def test_the_example_of_the_rest_of_the_frame_runs(gpu):
    net = Net(1, 8, 16, 16)
    scheduler = cml.FrameScheduler(gpu, budget_ms="spare")
    job = scheduler.submit(cml.Session(net.graph(net("relu(x)")), gpu), net.input())
    names = {"device": gpu.device, "scheduler": scheduler, "ms_since_the_frame_began": 6.0}
    names |= {"wait": lambda: None, "wait_for_the_picture": lambda: None}
    while not job.ended:
        names["picture"] = gpu.device.create_command_encoder()
        exec(example("docs/frame_budget.md", "elapsed_ms"), names)
    assert job.state == "done"


def test_the_example_of_a_host_buffer_submits(gpu):
    net = Net(1, 1, 64, 64)
    session = cml.Session(net.graph(net("relu(x)")), gpu)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = gpu.device.create_buffer(size=256 + 4 * 64 * 64, usage=usage)
    scheduler = cml.FrameScheduler(gpu)
    text = next(text for text in examples("docs/in_your_engine.md") if "buffer, 256" in text)
    names = {"cml": cml, "gpu": gpu, "buffer": buffer, "scheduler": scheduler, "erosion": session}
    exec(text.replace('"heights":', '"x":'), names)
    assert names["job"].state == "queued"


def test_the_example_of_a_reloader_follows_the_files(tmp_path, gpu, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.nnef", NET)
    (tmp_path / "operators.py").write_text("")
    names = {"session": cml.Session(cml.load("net.nnef"), gpu)}
    exec(example("docs/see_inside.md", "import Reloader"), names)
    assert isinstance(names["frame_that_reloads"](), str)


def test_the_examples_of_onnx_files_and_graphs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    enlarged = cml.GraphBuilder("net")
    graph = enlarged.graph(y=enlarged.relu(enlarged.input("image", [1, 3, 224, 224])))
    exec(example("docs/onnx_operators.md", "dynamic={"), {"cml": cml, "graph": graph})
    names = {"cml": cml, "np": np}
    exec(example("docs/your_model.md", 'GraphBuilder("edges")'), names)
    assert names["graph"].facts["edges"].shape == (1, 1, 240, 320)
    renamed = cml.GraphBuilder("net")
    image = renamed.input("image", [1, 3, 224, 224])
    means = renamed.mean_reduce(image, axes=[2, 3])
    cml.save(renamed.graph(scores=renamed.reshape(means, shape=[1, 3])), "net.onnx")
    exec(example("docs/your_model.md", "builder.replace"), names)
    assert cml.load("net.nnef").inputs == ("photo",)


def test_the_example_of_an_onnx_network_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples/models/enlarge.onnx", "m.onnx")
    exec(example("docs/your_model.md", 'cml.load("m.onnx"'), {"cml": cml})


def test_the_example_of_pytorch_exports_a_network(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed (the extra 'oracles-torch')")
    monkeypatch.chdir(tmp_path)
    exec(example("docs/your_model.md", "import torch"), {})
    graph = cml.load("enlarge.onnx", shapes={"image": (1, 3, 8, 6)})
    assert graph.facts["enlarged"].shape == (1, 3, 16, 12)
