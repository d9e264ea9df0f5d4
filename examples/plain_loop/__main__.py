"""A render loop on plain wgpu that runs a network within its frames.

The host owns the device, the canvas and the one submit of each frame. The engine adopts the
device; the scheduler encodes as much of the network as the budget allows into the host's encoder.
When a run is done, its output is copied into a texture on the GPU and drawn.

``python -m examples.plain_loop`` opens a window if there is a display;
``--frames 120 --screenshot out/plain_loop.png`` needs none. ``--watch out/cartoon.nnef`` writes the
network to that folder and runs it from there: edit ``graph.nnef``, and the picture follows.
``--overlay`` shows the network's work in the frames, and a slider that changes one of its numbers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu
from numpy.typing import NDArray
from PIL import Image

import cml_engine as cml
from cml_engine import FrameScheduler, Job, Reloader
from cml_engine.ops import load_file
from examples.plain_loop import cartoon
from examples.plain_loop.summary import Summary

if TYPE_CHECKING:
    from examples.plain_loop.overlay import Overlay

SHADER = """
@group(0) @binding(0) var picture: texture_2d<f32>;
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
    return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}
struct Size { pixels: vec2<f32> }
@group(0) @binding(1) var<uniform> size: Size;
@fragment fn shade(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {
    let texel = at.xy / size.pixels * vec2<f32>(textureDimensions(picture));
    return textureLoad(picture, vec2<i32>(texel), 0);
}
"""


class Screen:
    """A canvas, a texture, and a pipeline that draws it: a game's rendering without the engine."""

    def __init__(self, canvas: Any, device: Any) -> None:
        self.canvas, self.device = canvas, device
        self.context = canvas.get_context("wgpu")
        # a format without gamma, because the network's numbers are already encoded
        target_format = str(self.context.get_preferred_format(device.adapter)).removesuffix("-srgb")
        self.context.configure(device=device, format=target_format)
        self.texture = device.create_texture(
            size=(cartoon.WIDTH, cartoon.HEIGHT, 1),
            format="rgba32float",
            usage=wgpu.TextureUsage.TEXTURE_BINDING
            | wgpu.TextureUsage.COPY_DST
            | wgpu.TextureUsage.COPY_SRC,
        )
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        self._size = device.create_buffer(size=8, usage=usage)
        self._make_pipeline(target_format)

    def _make_pipeline(self, target: str) -> None:
        stage = wgpu.ShaderStage.FRAGMENT
        texture = {"sample_type": "unfilterable-float", "view_dimension": "2d"}
        layout = self.device.create_bind_group_layout(
            entries=[
                {"binding": 0, "visibility": stage, "texture": texture},
                {"binding": 1, "visibility": stage, "buffer": {"type": "uniform"}},
            ]
        )
        module = self.device.create_shader_module(code=SHADER)
        self._pipeline = self.device.create_render_pipeline(
            layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
            vertex={"module": module, "entry_point": "corner"},
            primitive={"topology": "triangle-list"},
            fragment={"module": module, "entry_point": "shade", "targets": [{"format": target}]},
        )
        self._bind_group = self.device.create_bind_group(
            layout=layout,
            entries=[
                {"binding": 0, "resource": self.texture.create_view()},
                {"binding": 1, "resource": {"buffer": self._size, "offset": 0, "size": 8}},
            ],
        )

    def draw(self, encoder: wgpu.GPUCommandEncoder) -> Any:
        """Records the pass that draws the texture over the canvas; returns the canvas's view."""
        pixels = np.array(self.canvas.get_physical_size(), np.float32)
        self.device.queue.write_buffer(self._size, 0, pixels)
        view = self.context.get_current_texture().create_view()
        target = {"view": view, "load_op": "clear", "store_op": "store"}
        render = encoder.begin_render_pass(color_attachments=[target])
        render.set_pipeline(self._pipeline)
        render.set_bind_group(0, self._bind_group)
        render.draw(3)
        render.end()
        return view


class Game:
    """A game whose picture a network computes; :meth:`frame` is the body of its loop."""

    def __init__(
        self,
        canvas: Any,
        device: Any,
        budget_ms: float,
        watch: Path | None = None,
        ops: Sequence[Path] = (),
        *,
        overlay: bool = False,
    ) -> None:
        self.screen = Screen(canvas, device)
        self.gpu = cml.Gpu(device=device)
        # deferred: the scheduler uploads weights and builds pipelines during the frames
        self.session = cml.Session(_network(watch, ops, overlay), self.gpu, deferred=True)
        self.reloader = Reloader(self.session, watch, ops) if watch is not None else None
        self.gpu.build_texture_kernels()
        self.scheduler = FrameScheduler(self.gpu, budget_ms=budget_ms)
        self.summary = Summary(budget_ms, self.gpu.has_timestamps)
        self.overlay: Overlay | None = None
        if overlay:
            from examples.plain_loop.overlay import Overlay

            self.overlay = Overlay(canvas, device, self.scheduler, self.session)
        self.job: Job | None = None
        self.image = cartoon.image(0.0)
        #: the input image of the result in the texture
        self.shown: NDArray[np.float32] | None = None

    def frame(self) -> None:
        """Encodes the network's slices and the drawing, submits once, and collects the times.

        A result of the network is copied into the drawn texture. Raises
        :class:`cml_engine.CmlError` if the job failed.
        """
        if self.reloader is not None:
            self._reload(self.reloader)
        if self.job is None or self.job.ended:
            self.image = cartoon.image(time.perf_counter())
            moved = self.overlay.values if self.overlay else {}
            self.job = self.scheduler.submit(self.session, {"image": self.image, **moved})
        encoder = self.gpu.device.create_command_encoder()
        report = self.scheduler.encode(encoder)
        self.summary.encoded(report)
        if self.job.state == "done":
            self.job.copy_to_texture(encoder, "picture", self.screen.texture)
            self.job.release()
            self.shown = self.image
        elif self.job.state == "failed":
            raise cml.CmlError(self.job.error)
        view = self.screen.draw(encoder)
        if self.overlay is not None:
            self.overlay.draw(encoder, view)
        self.gpu.queue.submit([encoder.finish()])
        measured = self.scheduler.end_frame()
        self.summary.measured(measured)
        if self.overlay is not None:
            self.overlay.watch(report, measured)

    def _reload(self, reloader: Reloader) -> None:
        before = reloader.said
        reloader.poll()
        if reloader.said != before:
            print(reloader.said, file=sys.stderr, flush=True)


def _network(watch: Path | None, ops: Sequence[Path], overlay: bool) -> cml.Graph:
    """Returns the cartoon network, or the network in the folder ``watch``, after loading ``ops``.

    A new folder is filled with the cartoon network. With ``overlay`` the cartoon has a slider.
    """
    if watch is None:
        return cartoon.load(cartoon.SLIDERS if overlay else None)
    for file in ops:
        load_file(file)
    if not watch.exists():
        cartoon.write(watch)
    return cml.load(watch)


def open_device(timestamps: bool = True) -> Any:
    """Returns the host's device, with default limits and optionally timestamp queries."""
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    requested = {"timestamp-query"} if timestamps else set()
    return adapter.request_device_sync(required_features=sorted(requested & set(adapter.features)))


def has_display() -> bool:
    """Returns True if a window can probably be opened."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(named) or sys.platform in ("win32", "darwin")


def run_offscreen(canvas: Any, draw: Callable[[], None], frames: int) -> NDArray[np.float32]:
    """Runs ``frames`` frames at 60 per second without a window; returns the last one's pixels.

    Raises the exception of a failed ``draw``.
    """
    failed: list[Exception] = []

    def once() -> None:  # a canvas logs exceptions of its draw function and continues
        try:
            draw()
        except Exception as error:
            failed.append(error)

    canvas.request_draw(once)
    next_frame = time.perf_counter()
    for _ in range(frames):
        pixels = canvas.draw()
        if failed:
            raise failed[0]
        next_frame = max(next_frame + 1 / 60, now := time.perf_counter())
        time.sleep(next_frame - now)
    return np.asarray(pixels)


def run_window(canvas: Any, loop: Any, draw: Callable[[], None], frames: int | None) -> None:
    """Runs the window's event loop until it is closed, or until ``frames`` frames if given."""
    frames_left = frames or sys.maxsize

    def once() -> None:
        nonlocal frames_left
        frames_left -= 1
        if frames_left <= 0:
            loop.stop()
        draw()
        canvas.request_draw()

    canvas.request_draw(once)
    loop.run()


def options_of(
    argv: Sequence[str] | None,
    name: str,
    timestamps: bool,
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    """Returns the parsed options that all host examples share, and those that ``more`` adds.

    ``offscreen`` is set if a screenshot is requested or there is no display; ``frames`` is then
    120 by default.
    """
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}")
    more(parser)
    parser.add_argument("--frames", type=int, help="stop after so many")
    parser.add_argument("--budget-ms", type=float, default=2.0, help="GPU time per frame")
    parser.add_argument(
        "--timestamps",
        action=argparse.BooleanOptionalAction,
        default=timestamps,
        help="whether the host asks its device for timestamp-query",
    )
    parser.add_argument("--screenshot", type=Path, help="a PNG of the last frame; no window")
    options = parser.parse_args(argv)
    options.offscreen = bool(options.screenshot) or not has_display()
    if options.offscreen:
        options.frames = options.frames or 120
    return options


def play(
    options: argparse.Namespace, title: str, size: tuple[int, int], make: Callable[[Any], Any]
) -> int:
    """Opens a canvas, runs the game that ``make`` returns for it, and prints the game's summary.

    Returns the exit code. Without a window it writes the last frame to ``options.screenshot``.
    """
    try:
        if options.offscreen:
            from rendercanvas.offscreen import OffscreenRenderCanvas

            canvas = OffscreenRenderCanvas(size=size)
            game = make(canvas)
            pixels = run_offscreen(canvas, game.frame, options.frames)
            if options.screenshot is not None:
                options.screenshot.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(options.screenshot)
                print(options.screenshot)
        else:
            from rendercanvas.auto import RenderCanvas, loop

            canvas = RenderCanvas(size=size, title=title, max_fps=60)
            game = make(canvas)
            run_window(canvas, loop, game.frame, options.frames)
    except cml.CmlError as error:
        print(error, file=sys.stderr)
        return 1
    except ImportError as error:  # of the overlay, or of a window
        print(f'{error}: pip install "cml-engine[game]"', file=sys.stderr)
        return 1
    print(game.summary.text(game.gpu.name))
    return 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overlay", action="store_true", help="a panel (imgui-bundle)")
    parser.add_argument("--watch", type=Path, metavar="DIR", help="a network from 'image' to "
                        "'picture' that is replaced when its files change; the cartoon is written "
                        "there where there is none")  # fmt: skip
    parser.add_argument("--ops", type=Path, action="append", default=[], metavar="FILE",
                        help="operators of its own; watched, as the HLSL beside them")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = options_of(argv, "plain_loop", timestamps=True, more=_add_options)

    def make(canvas: Any) -> Game:
        device = open_device(options.timestamps)
        watched = options.watch, options.ops
        return Game(canvas, device, options.budget_ms, *watched, overlay=options.overlay)

    size = (4 * cartoon.WIDTH, 4 * cartoon.HEIGHT)
    return play(options, "CML in a plain wgpu loop", size, make)


if __name__ == "__main__":
    sys.exit(main())
