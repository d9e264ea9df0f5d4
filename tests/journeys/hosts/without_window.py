"""Runs a program with canvases without a window: ``python without_window.py PROGRAM PICTURE``.

Its loop draws some frames of the canvas and writes the last one as a picture.
"""

import runpy
import sys
from types import ModuleType

import numpy as np
from PIL import Image
from rendercanvas.offscreen import OffscreenRenderCanvas

#: until the panel has found its size, and its numbers have been computed
FRAMES = 8
opened = []


class Canvas(OffscreenRenderCanvas):
    def __init__(self, **options):
        super().__init__(**options)
        opened.append(self)


class Loop:
    def run(self):
        (canvas,) = opened
        for _ in range(FRAMES):
            pixels = np.asarray(canvas.draw())
        Image.fromarray(pixels).save(sys.argv[2])


auto = ModuleType("rendercanvas.auto")
auto.RenderCanvas, auto.loop = Canvas, Loop()
sys.modules["rendercanvas.auto"] = auto
runpy.run_path(sys.argv[1], run_name="__main__")
