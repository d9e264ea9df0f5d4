"""Tests of the JavaScript player in Deno: its files, its types, its decisions and its results."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
import cml_engine.demo_game.operators
import players.build
from cml_engine.cooked import cook
from cml_engine.cooked.kernels import read_kernels
from cml_engine.cooked.reader import Container
from cml_engine.cooked.schema import F16, SUBGROUPS, KernelRow, KernelsHead, totals_of
from tests.fixtures.cooked import (
    BOMBS,
    DEVICES,
    changed,
    content_of,
    counter,
    few_bits_model,
    put,
    selected_model,
    with_wgsl,
)
from tests.fixtures.graphs import Net
from tests.fixtures.hostile_wgsl import kernel
from tests.integer.test_bits import net_of
from tests.players.deno import ROOT, WEB, is_right, need_core, play_golden, run_deno
from tests.proofs.cooked_networks import NETWORKS, check_in_web

HERE = Path(__file__).with_name("web")
MODULES = sorted(WEB.glob("*.js"))


def test_the_player_and_its_tests_are_typed():
    run_deno("check", *MODULES, *sorted(HERE.glob("*.js")))


def test_a_build_without_a_compiler_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(players.build, "find_compiler", lambda: False)
    with pytest.raises(players.build.BuildError, match="pip install ziglang"):
        players.build.build_core(tmp_path / "core.js")
    assert not [*tmp_path.iterdir()]


def test_web_player_imports_only_its_core():
    text = (WEB / "cml.js").read_text()
    assert re.findall(r"import\(([^)]*)\)", re.sub(r"/\*\*.*", "", text)) == ['"./core.js"']
    assert not re.search(r"^import ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("delete globalThis.WebAssembly;", "this browser has no WebAssembly"),
        ("WebAssembly.instantiate = () => { throw Error('csp'); };", "needs 'wasm-unsafe-eval'"),
        ("", "core.js, which belongs beside cml.js"),
    ],
)
def test_a_page_without_the_core_says_what_is_missing(before, problem, tmp_path):
    shutil.copy(WEB / "cml.js", tmp_path)
    if "beside" not in problem:
        shutil.copy(need_core(), tmp_path)
    (tmp_path / "host.js").write_text(
        f"""{before}
        const {{ CookedFile }} = await import("./cml.js");
        const show = (error) => console.log(error.code, error.message);
        CookedFile.open(new Uint8Array(9)).catch(show);"""
    )
    said = run_deno("run", "-A", "--no-check", tmp_path / "host.js").stdout
    assert said.startswith("DeviceError") and problem in said


def test_the_core_is_small():
    core = re.search(r'"(.+)"', need_core().read_text())
    assert core is not None and len(base64.b64decode(core[1])) <= 40_000


#: a page that has no large blocks of memory, and a core that traps once
FAILING = """
const { instantiate } = WebAssembly, show = (error) => console.log(error.code, error.message);
let isTrap = false;
WebAssembly.instantiate = async (...words) => {
  const { instance: { exports } } = await instantiate(...words);
  const allocate = (size) => size > 1e6 ? 0 : exports.allocate(size);
  const open_file = (...words) => {
    if (isTrap) throw new WebAssembly.RuntimeError("unreachable");
    return exports.open_file(...words);
  };
  return { instance: { exports: { ...exports, allocate, open_file } } };
};
const { CookedFile } = await import("./cml.js");
await CookedFile.open(new Uint8Array(2e6)).catch(show);
for (isTrap of [false, true, false]) await CookedFile.open(new Uint8Array(9)).catch(show);
"""


def test_a_core_without_memory_or_that_traps_says_so(tmp_path):
    """Memory that the page refuses is an error, and after a trap every call is refused."""
    for file in (WEB / "cml.js", need_core()):
        shutil.copy(file, tmp_path)
    (tmp_path / "host.js").write_text(FAILING)
    said = run_deno("run", "-A", "--no-check", tmp_path / "host.js").stdout.splitlines()
    assert said[0] == "DeviceError the page has no memory for 2000000 bytes"
    assert said[1].startswith("CorruptArtifact no whole cooked file")
    assert said[2] == said[3] and "is stopped, reload the page: unreachable" in said[2]


#: needs that no device meets here: offset, format and value in the plan, by the limit's name
NEEDS = {
    "maxStorageBuffersPerShaderStage": (72, "<I", 1000),
    "maxBufferSize": (56, "<Q", 1 << 50),
    "minStorageBufferOffsetAlignment": (40, "<I", 4),
    "maxComputeInvocationsPerWorkgroup": (64, "<I", 1 << 20),
    "bindings": (72, "<I", 9),
}


def bad_kernels() -> list[str]:
    """Returns WGSL that a scan accepts and a device refuses."""
    good, tensor = kernel(""), "var<storage, read_write> t: array<f32>"
    large = "@group(0) @binding(1) var<uniform> p: array<vec4<u32>, 64>;\n"
    return [
        "fn main() { nonsense }", "// nothing", good.replace("g.x", "g.q"),
        good.replace("fn main", "fn other"), good.replace("binding(2)", "binding(99)"),
        good.replace("size(1)", "size(1 << 20)"), good.replace("read_write", "read"),
        good.replace(tensor, "var t: texture_2d<f32>"), f"enable nothing_known;\n{good}",
        kernel("i = p[0].x;", large),
    ]  # fmt: skip


def long_step():
    """Returns a network whose first step takes llvmpipe a millisecond."""
    net = Net(1, 16, 48, 48)
    return net.graph(net.conv("x", 32, 5))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files of ``player.test.js``: a network, and others made from it."""
    folder = tmp_path_factory.mktemp("files")
    network = counter(40_000)
    small = cook(network, ["portable"], player=True, golden=False)
    plan, kernels = (next(content_of(small, tag)) for tag in ("plan", "kernels"))
    featured = changed(small, "plan", put(76, "<I", 4))  # lanes of a subgroup
    for at in range(KernelsHead.SIZE + 48, len(kernels), KernelRow.SIZE):
        featured = changed(featured, "kernels", put(at, "<I", SUBGROUPS | F16))
    made = {
        "counter": small,
        "long": cook(long_step(), ["portable"], player=True, golden=False),
        "golden": cook(network, ["portable"], player=True),
        "features": featured,
        **{name: changed(small, "plan", put(*field)) for name, field in NEEDS.items()},
        **{f"kernel {i}": with_wgsl(small, text) for i, text in enumerate(bad_kernels())},
    }
    for at in range(192, min(len(plan), 900), 4):
        value = 0 if any(plan[at : at + 4]) else 1 << 17
        made[f"plan {at}"] = changed(small, "plan", put(at, "<I", value))
    for name, data in made.items():
        (folder / f"{name}.cml").write_bytes(data)
    totals = totals_of(kernels, [plan])
    (folder / "totals.json").write_text(json.dumps({n: getattr(totals, n) for n in BOMBS.values()}))
    return folder


@pytest.mark.gpu
def test_in_deno(files):
    run_deno("test", "-A", "--no-check", HERE / "player.test.js", "--", files)


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a cooked file of the demo's terrain network."""
    file = tmp_path_factory.mktemp("cooked") / "terrain.cml"
    graph = cml.load(ROOT / "demo_game" / "models" / "terrain.nnef")
    file.write_bytes(cook(graph, ["portable"]))
    return file


@pytest.mark.gpu
def test_web_player_agrees_with_python(terrain, tmp_path, gpu):
    """A float network agrees with Python within 1e-4, and integer networks exactly; the kernels of
    one multiply bytes (``dot4I8Packed``) and are in the file as WGSL only.

    An output with a counted axis has 0 behind its elements.
    Any slices are bit-identical to a whole run, also of networks with weights in few bits.
    """
    devices = DEVICES if gpu.limits.software else ["portable"]
    integers = cook(net_of(8)[0], ["portable"])
    kernels = read_kernels(Container(memoryview(integers), None), trusted=True)
    wgsl = [k.kernel.code() for k in kernels if not k.has_spirv]
    assert wgsl and all("dot4I8Packed" in text for text in wgsl)
    files = {
        "exact": cook(NETWORKS["integer-population"](), devices),
        "bytes": integers,
        "selected": cook(selected_model(), devices),
        **{f"bits {bits}": cook(few_bits_model(bits)[0], ["portable"]) for bits in (8, 4)},
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = play_golden([terrain, *(tmp_path / name for name in files)])
    assert all(is_right(one) for one in found), found
    # a driver that rounds as NumPy has an error of 0
    assert found[0]["error"] < 1e-4 and found[0]["tolerance"] > 0
    assert found[1]["tolerance"] == found[2]["error"] == 0


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_agrees_with_python(name, gpu, tmp_path):
    assert check_in_web(name, gpu, tmp_path)


@pytest.mark.gpu
def test_frames_are_measured_as_by_the_command(terrain):
    words = ("--frames", "10", "--budget-ms", "0.5", "--json")
    actual = json.loads(run_deno("run", "-A", WEB / "frames.js", terrain, *words).stdout)
    assert actual["identical"] and actual["budget_ms"] == 0.5 and actual["jobs"] >= 1
    kinds = [actual[f"{kind}_ms"]["p50"] for kind in ("slices", "control", "layers", "unsliced")]
    assert np.isfinite(kinds).all() and min(kinds) > 0
