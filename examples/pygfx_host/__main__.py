"""A network within the frames of an existing engine, pygfx, on a mesh in its scene.

pygfx owns the device, the render loop and the submits. It has no hook for its command encoder, but
it passes the encoder to effect passes. This example uses the simplest effect pass, with the
scheduler's slices before it, so they are part of a submit that pygfx makes anyway (it makes two per
frame). In a host without such a hook, create an encoder and a submit for the slices.

pygfx requests a device without ``timestamp-query``: the budget then rests on times measured when
the session is loaded and on late frames (docs/in_your_engine.md). ``--timestamps`` requests it.

``python -m examples.pygfx_host`` opens a window if there is a display;
``--frames 120 --screenshot out/pygfx_host.png`` needs none. Needs the extra ``pygfx``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

try:
    import pygfx as gfx
    import pylinalg as la
    from pygfx.renderers.wgpu import CopyPass, get_shared
    from pygfx.renderers.wgpu.engine.update import ensure_wgpu_object
except ImportError as error:
    raise SystemExit(f'{error}: pip install "cml-engine[pygfx]"') from None

import cml_engine as cml
from cml_engine import FrameScheduler, Job
from examples.plain_loop import cartoon
from examples.plain_loop.__main__ import options_of, play
from examples.plain_loop.summary import Summary


class CopyAfter(CopyPass):  # type: ignore[misc]
    """A pygfx effect pass that calls a function with the encoder, then copies the picture."""

    def __init__(self, before: Callable[[Any], None]) -> None:
        super().__init__()
        self._before = before

    def render(self, command_encoder: Any, *textures: Any, **named: Any) -> None:
        """Calls the function with ``command_encoder``, then records the copy.

        pygfx calls it once per frame, before its submit.
        """
        self._before(command_encoder)
        super().render(command_encoder, *textures, **named)


class Scene:
    """A pygfx program without a network: a textured box that rotates before a camera."""

    def __init__(self, canvas: Any) -> None:
        self.canvas = canvas
        self.renderer = gfx.renderers.WgpuRenderer(canvas)
        self.texture = gfx.Texture(
            dim=2,
            size=(cartoon.WIDTH, cartoon.HEIGHT),
            format="rgba32float",
            usage=wgpu.TextureUsage.COPY_DST | wgpu.TextureUsage.COPY_SRC,
        )
        material = gfx.MeshBasicMaterial(map=gfx.TextureMap(self.texture, filter="linear"))
        self.box = gfx.Mesh(gfx.box_geometry(4, 3, 4), material)
        self.scene = gfx.Scene()
        self.scene.add(gfx.Background.from_color("#203040", "#101010"), self.box)
        self.camera = gfx.PerspectiveCamera(50, 4 / 3)
        self.camera.local.position = (0, 1.2, 6.5)
        self.camera.look_at((0, 0, 0))

    def draw(self) -> None:
        """Draws a frame with the box rotated by the clock; pygfx submits it."""
        self.box.local.rotation = la.quat_from_euler((0.0, 0.5 * time.perf_counter(), 0.0))
        self.renderer.render(self.scene, self.camera)


class Game:
    """The pygfx scene and a network in its frames; :meth:`frame` is the body of the loop."""

    def __init__(self, canvas: Any, budget_ms: float) -> None:
        self.scene = Scene(canvas)
        self.gpu = cml.Gpu(device=get_shared().device)
        self.session = cml.Session(cartoon.load(), self.gpu)
        self.gpu.build_texture_kernels()
        self.scheduler = FrameScheduler(self.gpu, budget_ms=budget_ms)
        self.summary = Summary(budget_ms, self.gpu.has_timestamps)
        self.job: Job | None = None
        self.image = cartoon.image(0.0)
        #: the input image of the result in the texture
        self.shown: NDArray[np.float32] | None = None
        self.scene.renderer.effect_passes = [CopyAfter(self.encode)]

    def encode(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Records the frame's slices of the network, and a result's copy into the box's texture.

        Raises :class:`cml_engine.CmlError` if the job failed.
        """
        if self.job is None or self.job.ended:
            self.image = cartoon.image(time.perf_counter())
            self.job = self.scheduler.submit(self.session, {"image": self.image})
        self.summary.encoded(self.scheduler.encode(encoder))
        if self.job.state == "done":
            self.job.copy_to_texture(encoder, "picture", ensure_wgpu_object(self.scene.texture))
            self.job.release()
            self.shown = self.image
        elif self.job.state == "failed":
            raise cml.CmlError(self.job.error)

    def frame(self) -> None:
        """Runs one frame: pygfx draws, calls :meth:`encode` and submits."""
        self.scene.draw()
        self.summary.measured(self.scheduler.end_frame())


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(argv, "pygfx_host", timestamps=False)
    if options.timestamps:
        gfx.renderers.wgpu.enable_wgpu_features("timestamp-query")
    return play(options, "CML in pygfx", (640, 480), lambda canvas: Game(canvas, options.budget_ms))


if __name__ == "__main__":
    sys.exit(main())
