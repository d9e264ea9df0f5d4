"""Tests of the page that ``cml export --to web`` writes, which requires only a web server."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import cml_engine as cml
import cml_engine.demo_game.operators
from cml_engine.cooked.export import picture_of
from cml_engine.tools import cli
from tests.fixtures.models import write_model
from tests.players.deno import ROOT, find_deno, need_core, run_deno

HERE = Path(__file__).with_name("web")
MODELS = ROOT / "demo_game" / "models"

TWICE = """version 1.0;
graph twice(image) -> (large)
{
    image = external<scalar>(shape = [1, 3, 64, 64]);
    large = nearest_upsample(image, factor = [2, 2]);
}
"""


def cml_command(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture
def page(tmp_path):
    """The folder of an exported page for a network that upscales pictures."""
    need_core()
    model = write_model(tmp_path / "twice.nnef", TWICE)
    assert cml_command("export", model, tmp_path / "page", "--to", "web") == 0
    return tmp_path / "page"


def test_exported_page_is_complete(page):
    model = json.loads((page / "model.json").read_text())
    files = {path.name for path in page.iterdir()}
    assert set(model.pop("cml_files")) == files - {"model.json"}
    assert model == {
        "name": "twice", "file": "net.cml", "picture": True, "input": "image", "output": "large",
    }  # fmt: skip
    texts = {p.name: p.read_text() for p in page.iterdir() if p.suffix in (".js", ".html", ".css")}
    assert not [name for name, text in texts.items() if re.search(r"(src|href|from)\W+http", text)]
    expected = {
        m for text in texts.values() for m in re.findall(r'"(?:\./)?([\w.]+\.(?:js|css))"', text)
    }
    assert expected <= set(texts)
    cooked = cml.load_cooked(page / "net.cml").cooked_form
    assert [plan.profile for plan in cooked.plans] == ["discrete", "portable", "software-portable"]
    assert all(kernel.has_wgsl and not kernel.has_spirv for kernel in cooked.kernels.values())


def test_export_refuses_a_non_empty_folder(page, capsys):
    before = (page / "model.json").stat().st_mtime_ns
    words = ("export", MODELS / "population.nnef", page, "--to", "web")
    assert cml_command(*words) == 2
    assert "not empty" in capsys.readouterr().err
    assert (page / "model.json").stat().st_mtime_ns == before
    assert cml_command("export", MODELS / "population.nnef", page / "cml.js", "--to", "web") == 2
    assert "is a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "large, found",
    [
        ("[2, 2]", ("image", "large")),
        ("[1, 1]", ("image", "large")),
        ("[2, 4]", None),
    ],
)
def test_networks_of_picture_inputs_are_recognized(tmp_path, large, found):
    text = TWICE.replace("[2, 2]", large)
    assert picture_of(cml.load(write_model(tmp_path / "m.nnef", text))) == found


def test_a_network_without_a_picture_input_takes_none():
    assert picture_of(cml.load(MODELS / "population.nnef")) is None


def look(page, *words):
    """Opens the page in Chromium; returns what it shows (status, text and layouts) as a
    dictionary."""
    browser = shutil.which("chromium")
    if browser is None or find_deno() is None:
        pytest.skip("chromium or deno is not installed")
    done = run_deno("run", "-A", "--no-check", HERE / "look.js", page, browser, *words)
    return json.loads(done.stdout)


#: once the page has run: opens a picture of 64 x 64 as a user would, and waits for it
OPEN = """page.error || page.runs > 1 || (page.runs && !page.opened && (page.opened = (async () => {
  const canvas = new OffscreenCanvas(64, 64), files = new DataTransfer();
  canvas.getContext("2d").fillRect(0, 0, 32, 64);
  const blob = await canvas.convertToBlob();
  files.items.add(new File([blob], "a.png", { type: "image/png" }));
  document.getElementById("file").files = files.files;
  document.getElementById("file").dispatchEvent(new Event("change"));
})()) && false)"""


@pytest.mark.gpu
def test_the_page_runs_and_shows_the_result_without_scrolling(page, tmp_path):
    sizes = "1280x720,800x600,390x844,1920x1080"
    actual = look(page, "120", OPEN, tmp_path / "page.png", sizes)
    assert actual["error"] == "" and actual["runs"] > 1 and actual["frames"] > 3, actual
    assert "64 × 64 to 128 × 128" in actual["text"], actual
    for layout in actual["layouts"]:
        result, width, height = (layout[k] for k in ("result", "clientWidth", "clientHeight"))
        assert layout["scrollWidth"] <= width
        assert result["top"] >= 0 and result["bottom"] <= height
        shown = min(result["width"], result["height"])  # the picture is a square
        assert shown >= 0.6 * min(width, height), layout


@pytest.mark.gpu
@pytest.mark.parametrize(
    "gpu, problem",
    [
        ("undefined", "this browser has no WebGPU: use Chrome"),
        ("{ requestAdapter: async () => null }", "update the graphics driver"),
    ],
)
def test_page_without_webgpu_says_what_to_do(page, gpu, problem):
    index = page / "index.html"
    script = f'<script>Object.defineProperty(navigator, "gpu", {{ value: {gpu} }})</script>'
    index.write_text(index.read_text().replace("<meta charset", script + "<meta charset", 1))
    actual = look(page)
    assert problem in actual["error"]
    for advice in ("Chrome and Edge", "Safari", "Firefox", "about:config", "https://"):
        assert advice in actual["text"]
    assert "budget" not in actual["text"], "nothing else is shown"
