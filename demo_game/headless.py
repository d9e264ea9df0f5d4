"""Runs the game without a window: a scripted flight, its report, a screenshot and a film."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import wgpu
from PIL import Image

import cml_engine as cml
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.flight import Pose, ScriptedFlight
from cml_engine.demo_game.game import Game, Settings
from cml_engine.demo_game.render.binding import Descriptor
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.render.targets import target_format
from cml_engine.demo_game.reporting.digest import Digests
from cml_engine.demo_game.reporting.report import RunReport, bytes_by_owner, percentiles
from cml_engine.demo_game.streaming import Counts
from cml_engine.io import write_atomically
from cml_engine.panel import FrameSample

if TYPE_CHECKING:
    from cml_engine.demo_game.overlay.overlay import Overlay

FORMAT = "rgba8unorm-srgb"
#: seconds without a finished tile or a built kernel after which loading or settling fails
_PATIENCE_S = 120.0
_SAY_EVERY_S = 1.0
#: JPEG quality of 100: above it files grow without a visible difference
_JPEG_QUALITY = 88
#: frames until the last GPU times have arrived
_DRAIN = 12
#: pictures per second, and the film's length in seconds
RATE, SECONDS = 10, 8
#: the film's width in pixels, and its number of colours, at most
_WIDTH, _COLOURS = 400, 128
MODES = ("off", "sliced", "layer", "unsliced")
#: the share of a flight's frames from which the report says that they are late for guaranteed work:
#: one late frame is told of for half a second
_TOLD = 0.1


@dataclass(frozen=True)
class Options:
    """The options of a headless run: its frames, mode and clock, and what it draws."""

    frames: int = 600
    mode: str = "sliced"
    #: ``real`` paces the frames by the wall clock, ``virtual`` runs them one after the other
    clock: str = "real"
    budget_ms: float | None = None
    #: seconds of the path that are skipped
    start_s: float = 0.0
    #: when the program began, by :func:`time.perf_counter`
    started: float = field(default_factory=time.perf_counter)
    #: True: the overlay is drawn in every frame, and not only over the screenshot
    overlay: bool = False
    #: the titles of the overlay's open panels; None: those that are open at start
    panels: tuple[str, ...] | None = None
    #: the quality and settings of the screenshot; None: those of the flight
    still: tuple[Quality, Settings] | None = None


class HeadlessRun:
    """A game that draws to a texture of its own along a scripted flight, and records each frame."""

    def __init__(
        self, gpu: cml.Gpu, quality: Quality, settings: Settings, options: Options
    ) -> None:
        self.gpu, self.options = gpu, options
        self.format = target_format(gpu, FORMAT)
        self.game = Game(gpu, self.format, quality, settings)
        self.flight = ScriptedFlight(settings.seed)
        self._make_target()
        self.digests = Digests(self.game.agents.chain, settings.seed)
        self.game.streaming.hand_over = self.digests.take
        self.overlay: Overlay | None = None
        self.samples: list[FrameSample] = []
        #: :attr:`RunReport.flight`
        self.rows: list[list[float]] = []
        #: for each frame beside which others were late for guaranteed work, a sentence about it
        self.sentences: list[str] = []
        #: called about once a second with a line about the progress of loading
        self.progress: Callable[[str], object] = lambda line: None
        self.game.on_fit = lambda line: self.progress(line)
        if self.game.watch is not None:
            self.game.watch.on_change = lambda message: self.progress(message)
        self._said = time.perf_counter()
        #: times of :func:`time.perf_counter` of the first picture (of drafts), and of the first
        #: picture with the networks' ground everywhere
        self.first_picture = self.first_ground = math.inf
        self._seconds = 0.0

    @property
    def quality(self) -> Quality:
        """The picture's quality, which may change while the game fits the machine."""
        return self.game.quality

    def _make_target(self) -> None:
        """Creates a target of the size that the game has chosen."""
        self.target = self.gpu.memory.create_texture(
            size=(self.quality.width, self.quality.height, 1),
            format=self.format,
            usage=wgpu.TextureUsage.RENDER_ATTACHMENT
            | wgpu.TextureUsage.COPY_SRC
            | wgpu.TextureUsage.COPY_DST,
            owner="target",
        )
        self.view = self.target.create_view()
        self.game.resize(self.quality.width, self.quality.height)

    def _fit_target(self) -> None:
        """Replaces the target if the game has chosen another size."""
        if tuple(self.target.size[:2]) != (self.quality.width, self.quality.height):
            self.target.destroy()
            self._make_target()

    def open_overlay(self) -> None:
        """Opens the overlay, unless imgui is not installed or no panel is to be shown."""
        if self.options.panels == () or find_spec("imgui_bundle") is None:
            return
        from cml_engine.demo_game.overlay.overlay import Overlay

        quality, panels = self.quality, self.options.panels
        self.overlay = Overlay(self.game, self.format, quality.width, quality.height, panels=panels)

    def load(self) -> float:
        """Generates all tiles in view of the first frame, without a budget.

        Returns the seconds it took. It is the game's loading screen: it draws drafts at once,
        and a second picture when the networks have made ground everywhere.
        """
        started = time.perf_counter()
        self.game.controls.mode, self.game.loads_all = "unsliced", True
        self._until_complete(self._pose(0))
        return time.perf_counter() - started

    def _until_complete(self, pose: Pose) -> None:
        counts = self.game.streaming.counts
        done, since = (counts.finished, self.gpu.pipelines_built), time.perf_counter()
        while True:
            sample = self._frame(pose, draw=self._picture_due)
            self._say_progress()
            if self.game.complete and not self.digests.pending:
                return
            if self.game.streaming.error:
                raise cml.CmlError(self.game.streaming.error)
            now_done = counts.finished, self.gpu.pipelines_built
            if now_done != done or not self.game.renderer.ready:
                done, since = now_done, time.perf_counter()
            elif time.perf_counter() - since > _PATIENCE_S:
                raise cml.CmlError(
                    f"no tile and no kernel has come for {_PATIENCE_S:g} s: "
                    f"{len(self.game.selection.wanted)} are missing\n"
                    f"{self.game.streaming.describe()}\n{self.game.scheduler.describe()}"
                )
            if sample.inference_ms == 0.0:  # nothing ran: others build pipelines, or bring bytes
                time.sleep(0.008)

    def _say_progress(self) -> None:
        if time.perf_counter() - self._said > _SAY_EVERY_S:
            self._said = time.perf_counter()
            self.progress(self.game.progress)

    @property
    def _picture_due(self) -> bool:
        """Returns True if a loading frame draws: the first picture, or the first whole ground."""
        missing = self.first_ground if self.game.covered else self.first_picture
        return self.game.renderer.ready and missing == math.inf

    def fly(self) -> None:
        """Draws the measured frames and appends their times to ``samples``."""
        options, game = self.options, self.game
        game.inference = options.mode != "off"
        game.controls.mode = "sliced" if options.mode == "off" else options.mode  # type: ignore[assignment]
        game.controls.budget_ms = options.budget_ms
        game.log.frames.clear()  # loading is not the flight
        step = game.settings.frame_ms / 1e3
        for number in range(options.frames):
            start = time.perf_counter()
            self.samples.append(self._frame(self._pose(number)))
            self.rows.append(self._row(self.samples[-1]))
            scheduler = game.scheduler
            if sentence := scheduler.controller.describe(scheduler.budget):
                self.sentences.append(sentence)
            if options.clock == "real":
                time.sleep(max(0.0, start + step - time.perf_counter()))
            if game.streaming.error:
                raise cml.CmlError(game.streaming.error)

    def _row(self, sample: FrameSample) -> list[float]:
        """Returns the row of :attr:`RunReport.flight` of the last frame."""
        game, streaming = self.game, self.game.streaming
        report, selection = game.scheduler.last_report, game.selection
        missing = {*selection.wanted, *selection.ahead} - streaming.shown.keys()
        finished = streaming.counts.finished
        predicted_ms = report.predicted_ms if report is not None else 0.0
        times_ms = (game.elapsed_ms, predicted_ms, sample.frame_ms)
        return [*(round(ms, 2) for ms in times_ms), finished + len(missing), finished]

    def settle(self) -> str:
        """Generates all tiles of the last picture; returns the hash of the world in it."""
        pose = self._pose(self.options.frames)
        self.game.inference = True
        for _ in range(_DRAIN):
            self._frame(pose)
        self.game.controls.mode = "unsliced"
        self._until_complete(pose)
        return self.digests.world(self.game.finest(pose))

    def _pose(self, frame: int) -> Pose:
        return self.flight.pose(self.options.start_s + frame * self.game.settings.frame_ms / 1e3)

    def _frame(self, pose: Pose, draw: bool = True) -> FrameSample:
        self._fit_target()
        covered = self.game.covered
        over = self._draw_overlay if self.options.overlay else None
        sample = self.game.frame(self.view if draw else None, pose, self._seconds, over)
        # a window's loop would be held by the display; here the frame ends when the GPU is done
        self.game.end_frame(sample, waits=True)
        end = time.perf_counter()
        if draw:
            self.first_picture = min(self.first_picture, end)
            if covered:
                self.first_ground = min(self.first_ground, end)
        self._seconds += self.game.settings.frame_ms / 1e3
        self.digests.poll()
        return sample

    def _draw_overlay(self, encoder: wgpu.GPUCommandEncoder, writes: Descriptor | None) -> None:
        if self.overlay is not None:
            step_s = self.game.settings.frame_ms / 1e3
            self.overlay.draw(encoder, self.view, step_s, timestamp_writes=writes)

    def pixels(self) -> Array:
        """Returns the last frame's pixels, uint8 (height, width, 3)."""
        size = self.quality.width, self.quality.height
        data = self.gpu.queue.read_texture(
            {"texture": self.target},
            {"bytes_per_row": 4 * size[0]},
            (*size, 1),
        )
        pixels = np.frombuffer(data, np.uint8).reshape(size[1], size[0], 4)[..., :3]
        return np.ascontiguousarray(pixels)

    def screenshot(self, path: Path) -> None:
        """Writes the last frame at full resolution with the overlay, as a JPEG or PNG.

        The path's suffix decides. With ``options.still`` the frame is drawn in another quality.
        """
        if self.options.still is not None:
            self._screenshot_of_another_quality(path, *self.options.still)
            return
        pose = self._pose(max(0, self.options.frames - 1))
        self.game.draw_still(self.view, pose, self._seconds, self._draw_overlay)
        picture = Image.fromarray(self.pixels())
        format = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG"
        write_atomically(path, lambda file: picture.save(file, format, quality=_JPEG_QUALITY))

    def _screenshot_of_another_quality(
        self, path: Path, quality: Quality, settings: Settings
    ) -> None:
        """Writes the last frame in another quality, with this run's overlay over it.

        It loads the world once more.
        """
        last_s = max(0, self.options.frames - 1) * settings.frame_ms / 1e3
        start_s = self.options.start_s + last_s
        options = replace(self.options, frames=0, start_s=start_s, still=None)
        still_run = HeadlessRun(self.gpu, quality, settings, options)
        still_run.progress = self.progress
        try:
            still_run.load()
            still_run.overlay = self.overlay
            still_run.screenshot(path)
        finally:
            still_run.overlay = None
            still_run.close()

    def film(self, path: Path) -> None:
        """Flies the first seconds once more, unmeasured, and writes them as a GIF."""
        write_film(path, self._pictures())

    def _pictures(self) -> Iterator[Array]:
        frames_per_picture = max(1, round(1e3 / RATE / self.game.settings.frame_ms))
        for number in range(RATE * SECONDS):
            for step in range(frames_per_picture):
                self._frame(
                    self._pose(number * frames_per_picture + step),
                    draw=step == frames_per_picture - 1,
                )
            yield self.pixels()

    def close(self) -> None:
        """Frees the overlay, the game and the target texture."""
        if self.overlay is not None:
            self.overlay.close()
        self.game.close()
        self.target.destroy()


def write_film(path: Path, pictures: Iterable[Array]) -> None:
    """Writes pictures, uint8 (height, width, 3), as the frames of a smaller animated GIF."""
    frames = [_small(Image.fromarray(picture)) for picture in pictures]

    def save(file: IO[bytes]) -> None:
        frames[0].save(
            file, "GIF", save_all=True, append_images=frames[1:], duration=1000 // RATE, loop=0
        )

    write_atomically(path, save)


def _small(picture: Image.Image) -> Image.Image:
    width = min(_WIDTH, picture.width)
    height = max(1, round(picture.height * width / picture.width))
    return picture.resize((width, height), Image.Resampling.BOX).quantize(_COLOURS)


def run(
    gpu: cml.Gpu,
    quality: Quality,
    settings: Settings,
    options: Options,
    *,
    screenshot: Path | None = None,
    progress: Callable[[str], object] | None = None,
    film: Path | None = None,
) -> RunReport:
    """Loads the world, flies and finishes the last picture; returns the report.

    It writes a screenshot and a film if their paths are given. ``progress`` is called with lines
    about loading.
    """
    flown = HeadlessRun(gpu, quality, settings, options)
    flown.progress = progress or flown.progress
    streaming = flown.game.streaming
    try:
        load_s = flown.load()
        if screenshot is not None or options.overlay:
            flown.open_overlay()
        streaming.counts = Counts()
        start = time.perf_counter()
        flown.fly()
        seconds = time.perf_counter() - start
        if screenshot is not None:
            flown.screenshot(screenshot)
        counts, streaming.counts = streaming.counts, Counts()
        start = time.perf_counter()
        world = flown.settle()
        settle_s = time.perf_counter() - start
        if film is not None:
            flown.film(film)
        return _report(flown, load_s, seconds, settle_s, counts, world)
    finally:
        flown.close()


def _report(
    flown: HeadlessRun, load_s: float, seconds: float, settle_s: float, counts: Counts, world: str
) -> RunReport:
    """Returns the report of a flight of ``seconds``; ``counts`` are those of the flight alone."""
    gpu, options, quality = flown.gpu, flown.options, flown.quality
    settings = flown.game.settings
    samples = flown.samples
    rendered = [s.render_ms for s in samples if s.render_ms is not None]
    inferred = [s for s in samples if s.inference_ms]
    spent = [s.inference_ms or 0.0 for s in inferred]
    allowed = sum(s.budget_ms for s in inferred)
    timed = gpu.has_timestamps
    return RunReport(
        mode=options.mode,
        device=str(gpu.info.get("device")),
        driver=str(gpu.info.get("description")),
        quality=quality.name,
        width=quality.width,
        height=quality.height,
        seed=settings.seed,
        clock=options.clock,
        target_ms=round(settings.frame_ms, 3),
        frames=len(samples),
        first_picture_s=round(flown.first_picture - options.started, 3),
        ground_s=round(flown.first_ground - options.started, 3),
        load_s=round(load_s, 3),
        settle_s=round(settle_s, 3),
        frame_ms=percentiles([s.frame_ms for s in samples]),
        frame_times_ms=[round(s.frame_ms, 2) for s in samples],
        cpu_ms=percentiles([s.cpu_ms for s in samples]),
        render_ms=percentiles(rendered) if timed else None,
        inference_ms=percentiles(spent) if timed else None,
        frames_over=sum(s.frame_ms > settings.frame_ms for s in samples),
        frames_over_budget=(
            sum((s.inference_ms or 0.0) > s.budget_ms for s in inferred if s.inference_timed)
            if timed
            else None
        ),
        budget_used=round(sum(spent) / allowed, 4) if timed and allowed else None,
        tiles=counts.finished,
        tiles_cancelled=counts.cancelled,
        tiles_ahead=counts.ahead,
        tiles_per_s=round(counts.finished / seconds, 2),
        jobs_per_s={
            name: round(counts.by_agent[name] / seconds, 2) for name in flown.game.agents.sessions
        },
        latency_s=percentiles(counts.latencies_s),
        memory_peak_bytes=gpu.memory.peak_bytes,
        memory_bytes_by_owner=dict(sorted(bytes_by_owner(gpu).items(), key=lambda item: -item[1])),
        world=world,
        late_frames=_late_frames(samples, settings.frame_ms),
        unexplained_share=_unexplained(samples, settings.frame_ms),
        notice=settings.fit.describe() if settings.fit is not None else "",
        guarantee=flown.sentences[-1] if len(flown.sentences) > _TOLD * len(samples) else "",
        max_tiles=flown.game.max_tiles,
        view_km=flown.game.detail.view_m / 1e3,
        operators=_operators(flown.game),
        flight=flown.rows,
        networks=_networks(flown.game, counts),
    )


def _late_frames(samples: Sequence[FrameSample], target_ms: float) -> list[dict[str, object]]:
    """Returns the number, time, cause and activities of each frame over the target."""
    return [
        {
            "frame": sample.number,
            "frame_ms": round(sample.frame_ms, 2),
            "cause": sample.cause,
            "parts_ms": {name: round(ms, 2) for name, ms in sample.parts.items()},
        }
        for sample in samples
        if sample.frame_ms > target_ms
    ]


def _unexplained(samples: Sequence[FrameSample], target_ms: float) -> float:
    """Returns the largest share of a frame over the target that no activity explains."""
    late = [sample for sample in samples if sample.frame_ms > target_ms]
    return round(max((1 - sum(s.parts.values()) / s.frame_ms for s in late), default=0.0), 4)


def _networks(game: Game, counts: Counts) -> dict[str, dict[str, object]]:
    chain, model = game.agents.chain, game.scheduler.cost_model
    return {
        name: {
            "takes": sorted({source.session for source in chain.sources[name].values()}),
            "runs": counts.by_agent[name],
            "steps": [
                [cost.groups, round(model.predict_ms(cost, cost.groups), 4)]
                for cost in (session.plan.step_costs() if session.plan else ())
            ],
        }
        for name, session in game.agents.sessions.items()
    }


def _operators(game: Game) -> list[dict[str, object]]:
    ranked = sorted(game.log.operators.values(), key=lambda o: -o.total_ms)
    return [
        {
            "network": o.network,
            "operator": o.title,
            "total_ms": round(o.total_ms, 3),
            "is_measured": o.is_measured,
            "predicted_ms": round(o.predicted_ms, 3),
            "runs": round(o.runs, 2),
        }
        for o in ranked[:20]
    ]
