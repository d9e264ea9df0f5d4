"""Tests of the game's window on an offscreen canvas, which needs no display."""

import time
from dataclasses import replace

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


def test_frame_times_include_hitches_but_not_pauses(window):
    for pause_s in (0.0, 0.0, 0.25, 0.0, 1.2, 0.0):
        time.sleep(pause_s)
        window.canvas.draw()
    assert window.failed is None
    times = [sample.frame_ms for sample in window.game.log.frames]
    assert times[1] > 250.0, "the interval from the second frame to the third"
    assert max(times) < 1200.0
