"""Tests of the game's window on an offscreen canvas, which needs no display."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("imgui_bundle")

from rendercanvas.offscreen import OffscreenRenderCanvas

from demo_game.game import Settings
from demo_game.render.quality import SOFTWARE
from demo_game.window import GameWindow
from demo_game.world.quadtree import Detail


@pytest.fixture
def window(gpu):
    canvas = OffscreenRenderCanvas(size=(320, 180))
    settings = Settings(detail=Detail(finest=3, coarsest=4, split=1.1, view_m=2000.0))
    quality = replace(SOFTWARE, width=320, height=180)
    opened = GameWindow(canvas, gpu, quality, settings, scripted=True)
    yield opened
    opened.close()


def test_frame_times_include_hitches_but_not_pauses(window, monkeypatch):
    now_s = window._started
    monkeypatch.setattr("demo_game.window.time", SimpleNamespace(perf_counter=lambda: now_s))
    for interval_s in (0.1, 0.1, 0.25, 0.1, 100.0, 0.1):
        now_s += interval_s
        window.canvas.draw()
    assert window.failed is None
    times = [sample.frame_ms for sample in window.game.log.frames]
    assert times[:3] == pytest.approx([100.0, 250.0, 100.0])
    assert times[3] < 50_000.0, "the pause"
