"""Tests that the Python examples of README.md and of the documents run as they are printed.

Short examples get stand-ins for a host's objects.
"""

import re
import shutil
import sys
from itertools import cycle
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

import cml_engine as cml
from cml_engine import FrameScheduler, ops
from cml_engine.compiler.passes.rules import registered_rules, unregister_rule
from cml_engine.ops import load_file
from cml_engine.testing import check
from tests.fixtures.frames.host import Host, open_device
from tests.fixtures.frames.turns import turns
from tests.fixtures.graphs import Net
from tests.fixtures.models import write_model
from tests.fixtures.operators import declare
from tests.fixtures.pages import ROOT, example, examples
from tests.fixtures.texels import texels_of, texture_of

pytestmark = pytest.mark.gpu

PAGE = "docs/in_your_engine.md"
UPRES = """version 1.0;
graph upres(image) -> (enlarged)
{
    image = external<scalar>(shape = [1, 4, 8, 8]);
    enlarged = nearest_upsample(image, factor = [2, 2]);
}
"""
TONE = """version 1.0;
graph tone(image) -> (toned)
{
    image = external<scalar>(shape = [1, 4, 16, 16]);
    toned = sqrt(image);
}
"""


@pytest.fixture
def names(gpu):
    """The names of a host that the short examples of the pages use."""
    scheduler = FrameScheduler(gpu, budget_ms=4.0)
    return {"cml": cml, "np": np, "gpu": gpu, "device": gpu.device, "scheduler": scheduler}


def run_frames(frame, condition):
    """Runs frames until ``condition()`` is true."""
    for _ in turns():
        frame()
        if condition():
            return


@pytest.fixture
def example_files(tmp_path, monkeypatch, run_cml):
    """A working folder with the files that ``cml example`` writes."""
    monkeypatch.chdir(tmp_path)
    assert run_cml("example").out.split() == ["bricks.png", "enlarge.onnx", "enlarge.tgz"]
    return tmp_path


def test_the_readme_runs(example_files):
    exec(example("README.md", "import cml_engine"), {})
    with Image.open(example_files / "enlarged.png") as enlarged:
        assert enlarged.size == (256, 256)


def test_the_first_network_and_the_first_frame_run(example_files, capsys):
    page = {}
    for words in ("session.rank", "scheduler.submit"):
        exec(example("docs/start.md", words), page)
    assert page["outputs"]["enlarged"].shape == (1, 3, 256, 256)
    assert "Operation ranking" in capsys.readouterr().out and page["job"].state == "queued"


def test_the_page_runs(tmp_path, monkeypatch, capsys, rng):
    write_model(tmp_path / "upres.nnef", UPRES)
    monkeypatch.chdir(tmp_path)
    device = open_device(timestamps=False)
    texture = texture_of(device, np.zeros((16, 16, 4), np.float32), "rgba32float")
    image = rng.random((1, 4, 8, 8), np.float32)
    page = {"device": device, "image": image, "texture": texture, "render": lambda encoder: None}
    exec(example(PAGE, "gpu = cml.Gpu(device=device)"), page)
    first = page["job"]
    run_frames(page["frame"], lambda: page["job"] is not first)
    assert first.state == "done"
    for _ in range(20):
        page["frame"]()
    seen = texels_of(device, texture, np.float32)
    assert_array_equal(seen, image.repeat(2, 2).repeat(2, 3).transpose(0, 2, 3, 1)[0])

    page["tone"] = cml.Session(cml.load(write_model(tmp_path / "tone.nnef", TONE)), page["gpu"])
    exec(example(PAGE, "newest ="), page)
    assert page["toned"].state == "cancelled" and "queued" in capsys.readouterr().out
    exec(example(PAGE, "def frame_of_a_window"), page)
    page["render"] = Mock(side_effect=cycle([RuntimeError("the window was resized"), None]))
    run_frames(page["frame_of_a_window"], lambda: page["newest"].ended)
    assert page["newest"].state == "done"


def test_a_recording_replays(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(example("docs/frame_budget.md", "scheduler.record()"), names)


def test_documented_frame_timer_loop_runs():
    device = open_device()
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp queries")
    page = {"gpu": cml.Gpu(device=device), "device": device, "FrameScheduler": FrameScheduler}
    page["draw"] = lambda encoder, writes: encoder.begin_compute_pass(timestamp_writes=writes).end()
    exec(example(PAGE, "def timed_frame"), page)
    before = page["scheduler"].next_budget_ms
    run_frames(page["timed_frame"], lambda: page["scheduler"].next_budget_ms > 2 * before)


def test_a_panel_is_mounted_in_three_lines(tmp_path, gpu, names, rng):
    imgui = pytest.importorskip("imgui_bundle").imgui
    file = write_model(tmp_path / "tone.nnef", TONE.replace("sqrt(image)", "mul(image, 2.0)"))
    tone = cml.Session(cml.load(file, sliders={"strength": "toned.y"}), gpu)
    page = names | {"imgui": imgui, "tone": tone, "image": rng.random((1, 4, 16, 16))}
    imgui.set_current_context(imgui.create_context())
    imgui.get_io().set_ini_filename("")
    imgui.get_io().display_size = 800, 600
    imgui.get_io().backend_flags |= imgui.BackendFlags_.renderer_has_textures.value
    exec(example(PAGE, "def frame_with_a_panel"), page)
    (printed,) = (text for text in examples(PAGE) if "def frame_with_a_panel" in text)
    assert len(re.findall(r"# \d:", printed)) == 3
    for _ in range(30):
        page["frame_with_a_panel"]()
    assert imgui.get_draw_data().total_vtx_count > 500
    assert page["panel"].values("tone") == {"strength": 2.0}
    with pytest.raises(cml.InputError, match="no network 'upres'; it has tone"):
        page["panel"].values("upres")


#: until the panel has found its size, and its numbers have been computed
_FRAMES = 8


@pytest.fixture
def canvases(monkeypatch):
    """The canvases that a program opens: offscreen ones, whose loop draws some frames of each.

    On a software driver pygfx takes a second for a frame.
    """
    from rendercanvas.offscreen import OffscreenRenderCanvas

    opened = []

    class Canvas(OffscreenRenderCanvas):
        def __init__(self, **options):
            super().__init__(**options)
            opened.append(self)

    def run():
        for canvas in opened:
            for _ in range(_FRAMES):
                canvas.pixels = np.asarray(canvas.draw())

    module = SimpleNamespace(RenderCanvas=Canvas, loop=SimpleNamespace(run=run))
    monkeypatch.setitem(sys.modules, "rendercanvas.auto", module)
    return opened


@pytest.mark.parametrize("host", ["import RenderCanvas", "import pygfx"])
def test_a_panel_is_drawn_by_a_whole_program(host, example_files, canvases):
    pytest.importorskip("imgui_bundle")
    texts = [text for text in examples(PAGE) if "import Panel" in text and host in text]
    program = next(text for text in texts if ("pygfx" in text) == ("pygfx" in host))
    if "pygfx" in host:
        pytest.importorskip("pygfx")
    page = {}
    exec(compile(program, PAGE, "exec"), page)
    assert is_panel(canvases[0].pixels) and page["panel"].log.operators
    assert page["panel"].log.last_report.frame >= _FRAMES - 2


def test_a_panel_is_drawn_without_a_window(example_files):
    pytest.importorskip("imgui_bundle")
    exec(example(PAGE, "ImguiWgpuBackend"), {})
    with Image.open("panel.png") as picture:
        assert is_panel(np.asarray(picture))


def is_panel(pixels):
    """Returns True if a picture of 800x600 has a panel with texts at its left and nothing below."""
    top, bottom = pixels[:200, :600, :3], pixels[500:, :, :3]
    assert pixels.shape == (600, 800, 4)
    return (top > 180).any(axis=2).sum() > 500 and np.ptp(bottom) < 20


def test_the_page_of_textures_runs(tmp_path, gpu, names, rng):
    data = rng.integers(0, 256, (8, 8, 4)).astype(np.uint8)
    scene = texture_of(gpu.device, data)
    shown = texture_of(gpu.device, np.zeros((16, 16, 4), np.uint8))
    upres = cml.Session(cml.load(write_model(tmp_path / "upres.nnef", UPRES)), gpu)
    page = names | {"session": upres, "scene": scene, "shown": shown, "erosion": None}
    gpu.build_texture_kernels()
    exec(example(PAGE, "colour ="), page)
    run_frames(page["frame"], lambda: page["job"].ended)
    assert page["job"].state == "done"
    assert_array_equal(texels_of(gpu.device, shown), data.repeat(2, 0).repeat(2, 1))


THREE_CONVOLUTIONS = """version 1.0;
graph net(image, style) -> (out)
{
    image = external<scalar>(shape = [1, 8, 16, 16]);
    style = external<scalar>(shape = [1, 8, 1, 1]);
    first = variable<scalar>(shape = [8, 8, 3, 3], label = 'first');
    second = variable<scalar>(shape = [8, 8, 3, 3], label = 'second');
    conv1 = conv(image, first, 0.0, padding = [(1, 1), (1, 1)]);
    conv2 = conv(conv1, second, 0.0, padding = [(1, 1), (1, 1)]);
    conv3 = conv(conv2, first, 0.0, padding = [(1, 1), (1, 1)]);
    out = mul(conv3, style);
}
"""


#: examples that need no more than a network, by a word in them
SHORT = {
    "docs/faster.md": [
        "import Tuning", 'storage="half"', "print(gpu.memory)", "shared:agents", "arena_limit="
    ],
    "docs/see_inside.md": ["keep=", "retain=", "session.replace", "decide="],
}  # fmt: skip


@pytest.mark.parametrize(("page", "words"), [(p, w) for p, found in SHORT.items() for w in found])
def test_a_short_example_runs(page, words, gpu, names, rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = THREE_CONVOLUTIONS
    if words != "retain=":  # the only one with two inputs
        text = text.replace("image, style", "image").replace("mul(conv3, style)", "relu(conv3)")
        text = text.replace("    style = external<scalar>(shape = [1, 8, 1, 1]);\n", "")
    graph = cml.load(write_model(tmp_path / "m.nnef", text), random_weights=1)
    cml.save(graph, "net.nnef")
    names |= {"graph": graph, "session": cml.Session(graph, gpu), "engine_device": gpu.device}
    names["graphs"] = [graph, graph]
    if words != "import Tuning":  # the examples have an ellipsis where frames run
        names["scheduler"] = SimpleNamespace(submit=Host(gpu).run)
    names |= {name: rng.random(graph.facts[name].shape, np.float32) for name in graph.inputs}
    exec(example(page, words), names | {"other": names.get("style")})


def test_the_examples_of_tiles_integers_and_cooked_files_run(example_files, gpu, names, run_cml):
    graph = cml.load("enlarge.onnx", shapes={"image": (1, 3, 32, 32)})
    samples = [{"image": np.full((1, 3, 32, 32), i / 8, np.float32)} for i in range(9)]
    page = names | {"graph": graph, "samples": samples, "session": cml.Session(graph, gpu)}
    page["photo"] = np.zeros((1, 3, 40, 300), np.float32)
    exec(example("docs/your_model.md", "submit_tiled"), page)
    exec(example("docs/integer.md", "cml.quantize"), page)
    assert page["graph"].integer
    command = ["cook", "enlarge.onnx", "--shape", "1,3,32,32", "-o", "enlarge.cml"]
    run_cml(*command, "--devices", "software,portable")
    exec(example("docs/ship_it.md", "load_cooked"), page)
    assert page["session"].run(samples[0])["enlarged"].shape == (1, 3, 64, 64)


# --- the short examples, with stand-ins for a host's objects

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
NET = """version 1.0;
graph net(x) -> (y) { x = external<scalar>(shape = [1, 3, 8, 8]); y = relu(x); }
"""


def load_example(folder, text):
    """Loads an example that leaves its imports out as the file ``folder/mine.py``."""
    (folder / "mine.py").write_text(f"import numpy as np\nimport cml_engine as cml\n{text}")
    load_file(folder / "mine.py")


def test_the_worked_example_passes_its_check(tmp_path, gpu, own_operators, capsys):
    text = (ROOT / OPERATORS).read_text(encoding="utf-8")
    (tmp_path / "cross.hlsl").write_text(text.split("```hlsl\n")[1].split("```")[0])
    load_example(tmp_path, examples(OPERATORS)[0])
    page = {}
    exec(example(OPERATORS, "def test_cross"), page)
    page["test_cross"]()
    assert "cross: 1 case" in capsys.readouterr().out


def test_the_expression_example_passes_its_check(gpu, own_operators):
    exec(example(OPERATORS, "soft_knee"), {"cml": cml})
    assert check("soft_knee", gpu).compared


def test_the_example_of_several_passes_sums_a_tensor(gpu, own_operators):
    page = {}
    exec(example(OPERATORS, "op.scratch(groups)"), page)
    declare(
        signature="total",
        infer=lambda attrs, x: ops.Fact("scalar", (1,)),
        cpu=lambda attrs, x: x.sum(keepdims=True).reshape(1),
        kernel=cml.Kernel(source=SUM_KERNEL, lower=page["lower"]),
        cases=[ops.Case(((n,),)) for n in (1, 64, 65, 5000)],
    )
    assert check("total", gpu).compared


def test_the_example_of_a_rule_replaces_the_pattern(gpu, own_operators):
    page = {}
    exec(example(OPERATORS, "register_rule"), page)
    rule = registered_rules()[0]
    net = Net(2, 8)
    graph = net.graph(f"mul(x, {net('abs(x)')})")
    session = cml.Session(graph, gpu)
    assert [node.op for node in session.graph.nodes] == ["sharpened"]
    expected = cml.Session(graph, "cpu", cml.CompileOptions(without=frozenset({"rules"})))
    inputs = net.input()
    (result,), (right,) = (s.run(inputs).values() for s in (session, expected))
    unregister_rule(rule)
    assert_allclose(result, right)


def test_the_exact_example_passes_its_check(tmp_path, gpu, own_operators):
    load_example(tmp_path, next(text for text in examples(OPERATORS) if "bounds=" in text))
    assert check("steepness", gpu).compared


def test_the_example_of_allocations_and_textures_runs(names):
    text = next(text for text in examples("docs/faster.md") if "owner=" in text)
    text = text.replace("usage=...", "usage=wgpu.TextureUsage.TEXTURE_BINDING")
    render_pass = Mock()
    names |= {"wgpu": wgpu, "render_pass": render_pass, "nbytes": 64}
    names["vertices"] = np.zeros(16, np.float32)
    exec(compile(text, "docs/faster.md", "exec"), names)
    bound = render_pass.set_vertex_buffer.call_args.args
    assert bound[0] == 0 and bound[3] == 64
    names["sky"].destroy()


def test_the_example_of_the_rest_of_the_frame_runs(gpu, names):
    net = Net(1, 8, 16, 16)
    scheduler = cml.FrameScheduler(gpu, budget_ms="spare")
    job = scheduler.submit(cml.Session(net.graph("relu(x)"), gpu), net.input())
    names |= {"scheduler": scheduler, "ms_since_the_frame_began": 6.0}
    names |= {"wait": lambda: None, "wait_for_the_picture": lambda: None}
    while not job.ended:
        names["picture"] = gpu.device.create_command_encoder()
        exec(example("docs/frame_budget.md", "elapsed_ms"), names)
    assert job.state == "done"


def test_the_example_of_a_host_buffer_submits(gpu, names):
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = gpu.device.create_buffer(size=256 + 4 * 64 * 64, usage=usage)
    session = cml.Session(Net(1, 1, 64, 64).graph("relu(x)"), gpu)
    text = next(text for text in examples(PAGE) if "buffer, 256" in text)
    names |= {"buffer": buffer, "erosion": session}
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
