"""A network beside a game engine on OpenGL, Panda3D; its picture is a texture of the scene.

Panda3D owns its context, its loop and its frames. The network runs on a separate device. The cost
of transferring each result (download, upload) is measured and reported to the scheduler as part of
the frame.

``python -m examples.panda3d_host`` opens a window if there is a display;
``--frames 120 --screenshot out/panda3d_host.png`` needs none. Needs the extra ``opengl``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from direct.showbase.ShowBase import ShowBase
    from panda3d.core import CardMaker, NodePath, PNMImage, Texture, loadPrcFileData
except ImportError as error:
    raise SystemExit(f'{error}: pip install "cml-engine[opengl]"') from None

import cml_engine as cml
from cml_engine import FrameScheduler
from examples.panda3d_host.network_job import NetworkBeside, timed
from examples.plain_loop import cartoon
from examples.plain_loop.__main__ import options_of
from examples.plain_loop.summary import Summary

FRAME_MS = 1000 / 60


class Scene:
    """A Panda3D program without a network: four textured cards that rotate before a camera."""

    def __init__(self, offscreen: bool) -> None:
        settings = "audio-library-name null\nwin-size 640 480\nnotify-level-device fatal\n"
        settings += "notify-level-display error\nsync-video false\n"
        if offscreen:
            settings += "window-type offscreen\nload-display p3headlessgl\n"
        loadPrcFileData("", settings)
        self.base = ShowBase()
        self.base.disable_mouse()
        self.base.set_background_color(0.1, 0.12, 0.15)
        self.texture = Texture("picture")
        self.texture.setup_2d_texture(
            cartoon.WIDTH, cartoon.HEIGHT, Texture.T_unsigned_byte, Texture.F_rgb8
        )
        self.box: NodePath[Any] = NodePath("box")
        for face in range(4):
            self._card(90 * face)
        self.box.reparent_to(self.base.render)
        self.base.camera.set_pos(0, -6, 1.2)
        self.base.camera.look_at(0, 0, 0)

    def _card(self, heading: float) -> None:
        maker = CardMaker("side")
        maker.set_frame(-1.5, 1.5, -1.1, 1.1)
        turned = self.box.attach_new_node("turned")
        card = turned.attach_new_node(maker.generate())
        card.set_y(-1.5)
        card.set_texture(self.texture)
        card.set_two_sided(True)
        turned.set_h(heading)

    def show(self, picture: NDArray[np.float32]) -> None:
        """Copies the picture ``[1, 3, H, W]`` into the texture.

        Panda3D expects blue first and the lowest row first.
        """
        texels = np.clip(255 * picture[0, ::-1, ::-1] + 0.5, 0, 255)
        self.texture.set_ram_image(np.moveaxis(texels, 0, -1).astype(np.uint8).tobytes())

    def draw(self) -> None:
        """Draws one frame of Panda3D, with the cards rotated by the clock."""
        self.box.set_h(30 * time.perf_counter())
        self.base.task_mgr.step()

    def save(self, path: Path) -> None:
        """Writes a screenshot of the last frame to a file and creates its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        image = PNMImage()
        self.base.win.get_screenshot(image)
        image.remove_alpha()
        image.write(str(path))


class Game:
    """The Panda3D scene and a network whose results it shows; :meth:`frame` runs one frame."""

    def __init__(self, offscreen: bool, budget_ms: float) -> None:
        self.scene = Scene(offscreen)
        self.gpu = cml.Gpu()
        session = cml.Session(cartoon.load(), self.gpu, deferred=True)
        scheduler = FrameScheduler(self.gpu, frame_ms=FRAME_MS, budget_ms=budget_ms)
        self.network = NetworkBeside(session, "picture", self._inputs, scheduler)
        self.summary = Summary(budget_ms, self.gpu.has_timestamps)
        #: the result in the texture
        self.shown: NDArray[np.float32] | None = None
        self.image = cartoon.image(0.0)
        #: CPU milliseconds to copy each result into the texture
        self.uploads: list[float] = []

    def _inputs(self) -> dict[str, NDArray[np.float32]]:
        self.image = cartoon.image(time.perf_counter())
        return {"image": self.image}

    def frame(self) -> None:
        """Draws the scene, runs the network's slices, and shows a result that has arrived.

        The frame's wall-clock time is reported to the scheduler.
        """
        start = time.perf_counter()
        self.scene.draw()
        picture = self.network.frame(self.summary)
        if picture is not None:
            self.shown = picture
            self.uploads.append(timed(lambda: self.scene.show(picture)))
        self.network.scheduler.frame_took(1e3 * (time.perf_counter() - start))

    def cost(self) -> str:
        """Returns a line of text about the size, the latency and the upload time of a result."""
        if not self.uploads:
            return "no result has arrived"
        assert self.shown is not None
        return (
            f"one result: {self.shown.nbytes / 1024:.0f} KB, here after "
            f"{median(self.network.frames_under_way):.0f} frames (median), "
            f"{median(self.uploads):.2f} ms of CPU to make a texture of it"
        )


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(argv, "panda3d_host", timestamps=True)
    try:
        game = Game(options.offscreen, options.budget_ms)
        for _ in range(options.frames or sys.maxsize):
            start = time.perf_counter()
            game.frame()
            time.sleep(max(0.0, 1e-3 * FRAME_MS - (time.perf_counter() - start)))
    except cml.CmlError as error:
        print(error, file=sys.stderr)
        return 1
    except SystemExit:  # the window was closed
        pass
    if options.screenshot:
        game.scene.save(options.screenshot)
    print(game.summary.text(game.gpu.name))
    print(game.cost())
    return 0


if __name__ == "__main__":
    sys.exit(main())
