"""Tests that the host examples draw the network's output."""

import importlib.util

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from rendercanvas.offscreen import OffscreenRenderCanvas

import cml_engine as cml
from examples.plain_loop import __main__ as plain
from examples.plain_loop import cartoon
from tests.fixtures.frames.turns import turns
from tests.fixtures.texels import texels_of

pytestmark = pytest.mark.gpu

needs_pygfx = pytest.mark.skipif(
    importlib.util.find_spec("pygfx") is None, reason="pygfx is not installed"
)


def frames_until_shown(game, canvas):
    """Draws frames until a result is shown; returns the pixels of a later frame that shows it."""
    canvas.request_draw(game.frame)
    for _ in turns():
        canvas.draw()
        if game.shown is not None:
            break
    game.scheduler.budget.ms = 0.0  # there is no further result
    canvas.draw()
    return np.asarray(canvas.draw())


def texture_of(device, texture):
    return texels_of(device, texture, np.float32)[None]


def expected(game):
    session = cml.Session(cartoon.load(), game.gpu)
    picture = session.run({"image": game.shown})["picture"].transpose(0, 2, 3, 1)
    return np.concatenate([picture, np.ones_like(picture[..., :1])], 3)


def test_the_cartoon_is_one():
    picture = cml.Session(cartoon.load(), "cpu").run({"image": cartoon.image(1.0)})["picture"]
    assert picture.shape == (1, 3, cartoon.HEIGHT, cartoon.WIDTH)
    assert picture.min() >= 0 and picture.max() <= 1.2
    dark = (picture.max(1) < 0.05).mean()
    assert 0.005 < dark < 0.3, "some ink, not all"


@pytest.mark.parametrize("timestamps", [True, False])
def test_plain_loop_shows_the_network_output(timestamps):
    canvas = OffscreenRenderCanvas(size=(4 * cartoon.WIDTH, 4 * cartoon.HEIGHT))
    game = plain.Game(canvas, plain.open_device(timestamps), budget_ms=2.0)
    assert timestamps or not game.gpu.has_timestamps
    pixels = frames_until_shown(game, canvas)
    picture = expected(game)
    assert_array_equal(texture_of(game.gpu.device, game.screen.texture), picture)
    seen = pixels[2::4, 2::4, :3].astype(np.float32)
    assert_allclose(seen, 255 * np.clip(picture[0, ..., :3], 0, 1), atol=0.6)
    reports = [r for r in game.summary.reports if r.slices]
    assert reports and game.summary.runs >= 1
    assert "runs of the network" in game.summary.text("this device")


def test_plain_loop_reloads_changed_model_files(tmp_path, capsys):
    model = tmp_path / "cartoon.nnef"
    canvas = OffscreenRenderCanvas(size=(cartoon.WIDTH, cartoon.HEIGHT))
    game = plain.Game(canvas, plain.open_device(), 20.0, model)
    game.reloader._every_s = 0.05
    text = (model / "graph.nnef").read_text(encoding="utf-8")
    canvas.request_draw(game.frame)

    def until(said, shows):
        for _ in turns():
            canvas.draw()
            if said in capsys.readouterr().err:
                said = ""
            if not said and shows(texture_of(game.gpu.device, game.screen.texture)):
                return

    def edit(line):
        (model / "graph.nnef").write_text(text.replace("toned * ink", line), encoding="utf-8")

    until("", lambda shown: game.shown is not None and shown[..., :3].max() > 0.5)
    edit("tuned * ink")
    until("'cartoon.nnef' failed: ", lambda shown: shown[..., :3].max() > 0.5)
    edit("0.0 * toned * ink")
    until("'cartoon.nnef' done", lambda shown: shown[..., :3].max() == 0)


def test_a_plain_loop_has_the_panel_over_its_picture(monkeypatch):
    pytest.importorskip("imgui_bundle")
    canvas = OffscreenRenderCanvas(size=(4 * cartoon.WIDTH, 4 * cartoon.HEIGHT))
    game = plain.Game(canvas, plain.open_device(), budget_ms=2.0, overlay=True)
    frames_until_shown(game, canvas)
    with_panel = np.asarray(canvas.draw()).astype(int)
    monkeypatch.setattr(game.overlay, "draw", lambda encoder, view: None)
    assert np.abs(with_panel - np.asarray(canvas.draw())).max(-1).mean() > 20
    assert game.overlay.values == {"least light of ink": 0.0}


@needs_pygfx
def test_pygfx_shows_the_network_output_on_a_mesh():
    from pygfx.renderers.wgpu import get_shared
    from pygfx.renderers.wgpu.engine.update import ensure_wgpu_object

    from examples.pygfx_host import __main__ as host

    canvas = OffscreenRenderCanvas(size=(160, 120))
    game = host.Game(canvas, budget_ms=5.0)
    assert game.gpu.device is get_shared().device and not game.gpu.has_timestamps
    game.scene.box.local.scale = (0, 0, 0)
    without = np.asarray(canvas_of(game.scene)).astype(int)
    game.scene.box.local.scale = (1, 1, 1)
    pixels = frames_until_shown(game, canvas).astype(int)
    texture = ensure_wgpu_object(game.scene.texture)
    picture = expected(game)
    assert_array_equal(texture_of(game.gpu.device, texture), picture)
    # the box covers the middle and shows the picture's colours
    covered = np.abs(pixels - without).max(-1) > 8
    assert covered[40:80, 60:100].mean() > 0.9
    assert_allclose(pixels[covered][:, :3].mean(0), 255 * picture[0, ..., :3].mean((0, 1)), atol=30)


def canvas_of(scene):
    """Returns the pixels of a frame of the scene without the network's effect pass."""
    passes, scene.renderer.effect_passes = scene.renderer.effect_passes, []
    scene.canvas.request_draw(scene.draw)
    pixels = scene.canvas.draw()
    scene.renderer.effect_passes = passes
    return pixels
