"""Tests of three.js as the host of networks on one device: numbers in Deno, pictures in
Chromium."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from examples.three_host.__main__ import fetch_three, main, write_host
from tests.fixtures.models import write_model
from tests.players.deno import ROOT, WEB, find_deno, need_core, run_deno

HERE = Path(__file__).with_name("web")
SIDE, PLACED, BORDER = 128, slice(8, 120), slice(9, 121)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    if find_deno() is None:
        pytest.skip("deno is not installed (the extra `players`)")
    folder = tmp_path_factory.mktemp("three")
    need_core()
    try:
        write_host(folder, ["portable"])
    except cml.CmlError as error:
        pytest.skip(str(error))
    return folder


@pytest.mark.gpu
def test_three_js_texture_equals_the_network_output(host):
    """The painted texture equals the network's output in sRGB; the scene from above shows the
    texture."""
    done = run_deno("run", "-A", "--no-check", HERE / "three.js", host)
    actual = json.loads(done.stdout)
    assert actual["errors"] == [] and actual["runs"] == 1
    empty, seen, above, painted = (
        np.array(actual[name], int).reshape(SIDE, SIDE, 4)[..., :3]
        for name in ("empty", "seen", "above", "painted")
    )
    albedo = np.array(actual["albedo"]).reshape(-1, SIDE, SIDE)[:3].transpose(1, 2, 0)
    assert np.abs(painted - 255 * in_srgb(albedo.clip(0, 1))).max() < 1
    assert painted.std((0, 1)).max() > 5, "a picture of one colour would show nothing"
    off = np.abs(above[PLACED, PLACED] - painted[BORDER, BORDER])
    assert off.max() <= 8 and off.mean() < 0.5
    assert (empty == empty[0, 0]).all(), "before the first tile there is only the sky"
    assert (seen != empty).any(-1).mean() > 0.2


#: what the example of the documentation calls its own: a canvas, a scene, a picture
BEFORE = """
import {{ bytesOf, canvasOf }} from "{here}/canvas.js";
const read = async () => (await Deno.readFile("{folder}/net.cml")).buffer;
globalThis.fetch = () => ({{ arrayBuffer: read }});
globalThis.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 5);
globalThis.cancelAnimationFrame = clearTimeout;
const {{ canvas, shown }} = canvasOf();
const pixels = Float32Array.from({{ length: 192 }}, (_, i) => i / 192);
const scene = new THREE.Scene(), camera = new THREE.OrthographicCamera(-1, 1, 1, -1, 0, 2);
camera.position.z = 1;
"""
AFTER = """
for (let frames = 0; frames < 3; frames += job === null ? 1 : 0) {
  await new Promise((done) => setTimeout(done, 50));
}
console.log(JSON.stringify([...await bytesOf(device, shown.texture)]));
Deno.exit(0);
"""
ENLARGE = """version 1.0;
graph enlarge(image) -> (enlarged)
{
    image = external<scalar>(shape = [1, 3, 8, 8]);
    enlarged = nearest_upsample(image, factor = [2, 2]);
}
"""


@pytest.mark.gpu
def test_the_example_of_the_documentation_shows_the_output(tmp_path):
    """The examples of docs/ship_it.md run as printed, and three.js shows the network's output."""
    text = (ROOT / "docs/ship_it.md").read_text(encoding="utf-8")
    first, three = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    try:
        files = fetch_three()
    except cml.CmlError as error:
        pytest.skip(str(error))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    graph = cml.load(write_model(tmp_path / "enlarge.nnef", ENLARGE))
    (tmp_path / "net.cml").write_bytes(cook(graph, ["portable"]))
    imports = {"cml-engine": "cml.js", "cml-engine/picture.js": "picture.js"}
    paths = {name: (WEB / file).as_uri() for name, file in imports.items()}
    paths["three/webgpu"] = (tmp_path / "three.webgpu.js").as_uri()
    (tmp_path / "deno.json").write_text(json.dumps({"imports": paths}))
    before = BEFORE.format(here=HERE.as_uri(), folder=tmp_path)
    setup = first[: first.index("function frame")]
    (tmp_path / "host.js").write_text(before + setup + three + AFTER)
    config = tmp_path / "deno.json"
    done = run_deno("run", "-A", "--no-check", "--config", config, tmp_path / "host.js")
    found = np.array(json.loads(done.stdout)).reshape(SIDE, SIDE, 4)[..., :3]
    picture = (np.arange(192) / 192).reshape(3, 8, 8).transpose(1, 2, 0)
    expected = 255 * picture.repeat(2, 0).repeat(2, 1)
    assert np.abs(found[4::8, 4::8] - expected).max() <= 2, (
        "in the middle of each of 16 x 16 texels"
    )


def in_srgb(linear):
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def test_missing_three_js_is_reported(tmp_path, capsys):
    assert main([str(tmp_path / "page"), "--three", str(tmp_path)]) == 2
    assert "no three.js in" in capsys.readouterr().err
