"""One frame of the game: it requests tiles, runs slices of the networks, draws picture and overlay.

A frame has one submit. On a software driver it has two: the picture, then the networks.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import wgpu

import cml_engine as cml
from cml_engine import FixedBudget, FrameReport, FrameScheduler, SpareBudget
from cml_engine.demo_game.accounting import FrameAccount, SystemClock
from cml_engine.demo_game.agents import Agents, FileWatch
from cml_engine.demo_game.chain import Chain, load_chain
from cml_engine.demo_game.driver_threads import DriverPins, native_threads
from cml_engine.demo_game.fitting import BEHIND_SHARE, PICTURE_SHARE, MachineFit
from cml_engine.demo_game.flight import CameraWay, Pose
from cml_engine.demo_game.operators.light import relight
from cml_engine.demo_game.pieces import Pieces
from cml_engine.demo_game.render.binding import Descriptor
from cml_engine.demo_game.render.camera import Camera
from cml_engine.demo_game.render.drawn import DrawnTiles
from cml_engine.demo_game.render.pace import EFFORTS, DrawingPace, Effort
from cml_engine.demo_game.render.quality import Quality
from cml_engine.demo_game.render.renderer import DrawStats, Renderer
from cml_engine.demo_game.streaming import Streaming
from cml_engine.demo_game.world.bounds import Boxes
from cml_engine.demo_game.world.draft import LEVELS as DRAFT_LEVELS
from cml_engine.demo_game.world.quadtree import (
    Detail,
    Selection,
    compute_boxes,
    fit_detail,
    list_ahead,
    list_needed,
    select,
)
from cml_engine.demo_game.world.sun import DAY, Light
from cml_engine.demo_game.world.tile import TileId
from cml_engine.panel import FrameLog, FrameSample
from cml_engine.scheduler import (
    by_priority,
    fair_share,
    least_laxity,
    operators_per_frame,
    plan_frame,
)

if TYPE_CHECKING:
    from cml_engine.demo_game.bake.flying import PlanetTiles

Mode = Literal["sliced", "layer", "unsliced"]
#: encodes the overlay's pass; its second argument is the pass's ``timestamp_writes``
DrawOverlay: TypeAlias = Callable[[wgpu.GPUCommandEncoder, Descriptor | None], None]
POLICIES = {policy.__name__: policy for policy in (least_laxity, fair_share, by_priority)}
#: the planner of each mode; all but the first show other methods for comparison
PLANNERS: dict[Mode, cml.scheduler.Planner] = {
    "sliced": plan_frame,
    "layer": operators_per_frame(1),
    "unsliced": operators_per_frame(1_000_000),
}
#: share of a frame that the networks leave free if only the picture's time is known
_HEADROOM = 0.15
#: milliseconds that an average frame's networks get in any case, so that the world grows
LEAST_MS = 1.0
#: share of frames that may be late because of the networks; half of what the demo promises, because
#: a flight is short and an estimate of rare frames is uncertain
OVER_SHARE = 0.005
#: number of wanted tiles (half a second of work) above which the picture's share of a frame is
#: ``BEHIND_SHARE``
_FEW = 4
#: share of a frame for the networks while the world is loaded
_LOADING_SHARE = 0.8
#: slots that stay free for unfinished tiles if a view needs more tiles than there are slots
SPARE_SLOTS = 8
#: on a software driver only every 16th frame times its passes, to learn the overlay's share:
#: timestamps make frames longer, and waiting for the picture already gives its time
_TIMED_EVERY = 16
#: pictures that are measured after a first one, to fit the machine; the second slowest counts,
#: because a program on one of the cores slows only some of them
_PICTURES = 9
#: tiles, after all networks have run, by which the cost of a tile is known: first runs of kernels
#: take long, and so does all that runs while others are compiled
_KNOWN_TILES = 12
#: frames until imgui's windows have their final sizes
_OVERLAY_FRAMES = 4
#: frames between two selections of tiles: flying over a tile takes many frames
_LOOK_EVERY = 12
#: frames without time for a selection after which each frame gives a share of its time to it
_POSTPONED, _LOOK_SHARE = 6, 1 / 16
#: activities of a frame
SELECTING, BOUNDING, REQUESTING = "selecting tiles", "bounding tiles", "requesting tiles"
LEARNING, ENCODING = "collecting times", "encoding the networks"
PICTURE, NETWORKS = "the picture", "the networks"


@dataclass
class Controls:
    """The player's settings; they apply from the next frame."""

    #: None: the time that the renderer leaves ("spare")
    budget_ms: float | None = None
    #: a key of :data:`POLICIES`
    policy: str = "least_laxity"
    paused: set[str] = field(default_factory=set)
    #: True: the camera follows the scripted path
    scripted: bool = False
    #: how a frame's slices are chosen; "unsliced" runs a whole network in one frame
    mode: Mode = "sliced"
    recording: bool = False
    trace_path: Path | None = None
    overlay: bool = True
    #: True: the welcome note is shown
    welcome: bool = False


@dataclass(frozen=True)
class Settings:
    """The settings that a game starts with: its world, networks, light and detail."""

    seed: int = 7
    models: Path | None = None
    #: a network that makes the colours four times as fine (see :func:`load_chain`)
    enlarge: Path | None = None
    #: a baked part of the world
    planet: Path | None = None
    #: the sun's position and colours, in the tiles and in the picture
    light: Light = DAY
    #: True: the integer world, which is the same on every machine
    integer: bool = False
    #: True: the files of models and kernels are watched, and changed networks are reloaded
    watch: bool = False
    frame_ms: float = 1000 / 60
    detail: Detail = field(default_factory=Detail)
    #: chooses picture and detail by the machine's times; None: they stay as they are
    fit: MachineFit | None = None


class Game:
    """The world, its networks and its picture on one device.

    A window's or a headless loop calls :meth:`frame` once per frame.
    """

    def __init__(
        self, gpu: cml.Gpu, target_format: str, quality: Quality, settings: Settings
    ) -> None:
        chain = _load_chain(settings)
        quality = replace(quality, texels=chain.texel_side)
        #: the size of ``quality`` is the one that the target should have
        self.gpu, self.settings, self.quality = gpu, settings, quality
        #: the most tiles of a view, and the world's level of detail; what a view needs may be less
        self.max_tiles, self.detail = quality.slots, settings.detail
        #: called with a line about what was chosen for this machine
        self.on_fit: Callable[[str], object] = lambda line: None
        self.controls = Controls()
        self.scheduler = FrameScheduler(gpu, settings.frame_ms, "spare", over_share=OVER_SHARE)
        # first, because its threads build pipelines while the networks are planned
        self.renderer = Renderer(gpu, target_format, quality, settings.light)
        self.agents = Agents(gpu, chain)
        self.watch = FileWatch(self.agents) if settings.watch else None
        self.planet = _planet(gpu, settings, self.agents)
        tiles = self.planet or self.agents
        self.streaming = Streaming(tiles, self.scheduler, self.renderer.tiles, settings.seed)
        self._drawn = DrawnTiles(self.streaming)
        self._on_cpu = gpu.limits.software
        every = _TIMED_EVERY if self._on_cpu else 1
        self.timer = gpu.frame_timer(("render", "overlay"), every)
        self.log = FrameLog(settings.frame_ms, self.agents.sessions)
        #: False: no tile is requested, to measure the picture without inference
        self.inference = True
        self.draw_stats: DrawStats | None = None
        self.pace = DrawingPace(PICTURE_SHARE * settings.frame_ms, quality.effort)
        self.selection = Selection()
        #: the boxes of the tiles to draw; None before the first selection
        self._boxes: Boxes | None = None
        self._look_at = self._finished = self._unseen = 0
        #: the steps of networks that have run, by name and number, and what the GPU works on
        self._dispatched, self._waited_for = set[tuple[str, int | None]](), PICTURE
        self._way, self.account = CameraWay(), FrameAccount(SystemClock(native_threads()))
        self._spare = SpareBudget(settings.frame_ms, LEAST_MS, headroom=_HEADROOM)
        self._fixed = FixedBudget(0.0)
        self._loading = FixedBudget(_LOADING_SHARE * settings.frame_ms)
        #: True until the networks have made ground everywhere and each has run: they get most of
        #: each frame
        self.loading = True
        #: True: loading goes on until every tile is there, as behind a loading screen
        self.loads_all = False
        self._looking = Pieces(self._look, self.account)
        self._collecting = Pieces(self._collect_later, self.account)
        self._began = self._planted = self._encoded = False
        #: the number of finished tiles when all networks had run; 0 before
        self._all_ran_at = 0
        #: the milliseconds of the last frame before its networks, on a software driver
        self.elapsed_ms = 0.0
        self._pins = DriverPins()
        if settings.fit is not None:  # another game may have measured
            self._take_over(settings.fit)

    def resize(self, width: int, height: int) -> None:
        """Changes the size of the target, in pixels."""
        self.renderer.resize(width, height)

    def frame(
        self,
        target_view: wgpu.GPUTextureView,
        pose: Pose,
        now_s: float,
        draw_overlay: DrawOverlay | None = None,
    ) -> FrameSample:
        """Draws and submits a frame with its slices of the networks; returns its times.

        ``target_view`` is drawn to; None draws no picture, as behind a loading screen. ``now_s``
        is the game's own time in seconds. ``draw_overlay(encoder, timestamp_writes)`` is called
        last.
        """
        start = self._start = time.perf_counter()
        self.account.begin()
        self._apply_controls()
        if self.watch is not None and self.watch.poll():
            self.renew()
        camera = self.renderer.camera(pose.position, pose.yaw, pose.pitch)
        self._seen = camera, pose, now_s
        self._unseen += 1
        self._fit_machine(camera, now_s)
        self.account.add("the game's controls")
        if self.loading or self._unseen > _POSTPONED:
            share_s = _LOOK_SHARE * 1e-3 * self.settings.frame_ms
            self._looking.run(math.inf if self.loading else start + share_s, at_least_one=True)
        encoder = self.gpu.device.create_command_encoder()
        report = None
        if not self._on_cpu:
            self._collect_times()
            self.account.add(LEARNING)
            report = self.scheduler.encode(encoder)
            self.account.add(ENCODING)
        self.streaming.collect(encoder, now_s)
        self.account.add("copying tiles")
        if target_view is not None:
            self._draw_all(encoder, target_view, camera, now_s, draw_overlay)
        self.timer.resolve(encoder)
        self.gpu.queue.submit([encoder.finish()])
        submitted = time.perf_counter()
        self.account.add("submitting the picture")
        self.streaming.submitted()
        self._take_times()
        self.account.add(LEARNING)
        if report is None:
            return self._fill_rest(start, submitted, target_view is not None)
        self._encoded = True
        self._waited_for = PICTURE
        return self.log.begin(report, _ms_since(start))

    def _draw_all(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        camera: Camera,
        now_s: float,
        draw_overlay: DrawOverlay | None,
    ) -> None:
        """Encodes the picture and the overlay; without its shaders, an empty picture."""
        if self.renderer.ready:
            self._draw(encoder, target_view, camera, now_s)
        else:
            self.renderer.clear(encoder, target_view)
        self.account.add("encoding the picture")
        if draw_overlay is not None:
            draw_overlay(encoder, self.timer.writes("overlay"))
            self.account.add("the overlay")

    def _fill_rest(self, start: float, submitted: float, is_drawn: bool) -> FrameSample:
        """Waits for the picture, then submits slices of the networks in the rest of the frame.

        Returns its times. Only for software drivers: they draw on the cores that the game's code
        runs on, so waiting costs nothing, and the frame's remaining time is known.
        """
        self._collect_times()  # where the frame before had no time for it
        self.account.add(LEARNING)
        wait_start = time.perf_counter()
        self.gpu.wait()
        self.account.add(PICTURE, waits=True)
        waited_ms, self.elapsed_ms = _ms_since(wait_start), _ms_since(start)
        picture_ms = _ms_since(submitted)
        if is_drawn:
            self._pins.add_time(picture_ms, self.renderer.effort)
            self.pace.add_time(self.elapsed_ms)
        encoder = self.gpu.device.create_command_encoder()
        report = self.scheduler.encode(encoder, self.elapsed_ms)
        self.account.add(ENCODING)
        self.gpu.queue.submit([encoder.finish()])
        self.account.add("submitting the networks")
        self._encoded = True
        self._waited_for = self._name_networks(report)
        return self.log.begin(report, _ms_since(start) - waited_ms, picture_ms)

    def _name_networks(self, report: FrameReport) -> str:
        """Returns the activity of waiting for the networks; it says if kernels run first."""
        steps = {(part.name, part.step): part for part in report.slices}
        new = [steps[key] for key in steps.keys() - self._dispatched]
        self._dispatched |= steps.keys()
        return f"the first run of {new[0].name} {new[0].title}" if new else NETWORKS

    def end_frame(self, sample: FrameSample, waits: bool) -> None:
        """Ends the frame of ``sample``, and does deferred work in the time that it has left.

        ``waits`` says that the frame ends when the GPU is done, which is then waited for. Sets the
        frame's time and its division among activities.
        """
        target_s = 1e-3 * self.settings.frame_ms
        if waits:
            self.gpu.wait()
            self.account.add(self._waited_for, waits=True)
            self.scheduler.frame_took(_ms_since(self._start))
        sample.frame_ms = _ms_since(self._start)
        self._collecting.run(self._start + target_s)
        self._looking.run(self._start + target_s)
        if time.perf_counter() > self._start + target_s:  # the next one could not begin in time
            sample.frame_ms = _ms_since(self._start)
        self.account.add("the game's controls")
        sample.parts = self.account.end()

    def _collect_later(self) -> Iterator[str]:
        """Collects the networks' times, as one piece of work."""
        yield LEARNING
        self._collect_times()

    def renew(self) -> None:
        """Has all tiles computed again; the present ones are drawn until then."""
        self.streaming.renew()
        self._look_at, self._unseen = 0, _POSTPONED
        self._looking.restart()

    def draw_still(
        self,
        target_view: wgpu.GPUTextureView,
        pose: Pose,
        now_s: float,
        draw_overlay: DrawOverlay,
    ) -> None:
        """Draws the picture at full resolution with the overlay, apart from measured frames."""
        for _ in range(_OVERLAY_FRAMES):  # the overlay's windows find their sizes
            encoder = self.gpu.device.create_command_encoder()
            draw_overlay(encoder, None)
            self.gpu.queue.submit([encoder.finish()])
        encoder = self.gpu.device.create_command_encoder()
        camera = self.renderer.camera(pose.position, pose.yaw, pose.pitch)
        self._draw(encoder, target_view, camera, now_s, EFFORTS[0])
        draw_overlay(encoder, None)
        self.gpu.queue.submit([encoder.finish()])

    def _draw(
        self,
        encoder: wgpu.GPUCommandEncoder,
        target_view: wgpu.GPUTextureView,
        camera: Camera,
        now_s: float,
        effort: Effort | None = None,
    ) -> None:
        self.renderer.effort = effort or self.pace.effort
        rich = self.quality.rich
        visible_tiles = self._boxes.in_view(camera.sees_boxes, rich) if self._boxes else []
        self.draw_stats = self.renderer.draw(
            encoder,
            target_view,
            camera,
            self._drawn.list_visible(visible_tiles, self.selection, self.selection.detail, now_s),
            now_s,
            timed=lambda: None if effort else self.timer.writes("render"),
        )

    def _collect_times(self) -> None:
        """Passes the networks' measured times to the log.

        Does nothing if no slices were encoded since.
        """
        if not self._encoded:
            return
        self._encoded = False
        for done in self.scheduler.end_frame():
            self.log.add_inference(done)
        self._update_counts()

    @property
    def _measures_picture(self) -> bool:
        """True until the machine's picture was measured, beside which nothing else should run."""
        fit = self.settings.fit
        return fit is not None and fit.picture_ms is None

    @property
    def _is_tile_known(self) -> bool:
        """True once the networks of a tile have run often enough to know what they cost."""
        finished = self.streaming.counts.finished
        if not self._all_ran_at and self._has_run_all:
            self._all_ran_at = finished
        return 0 < self._all_ran_at <= finished - _KNOWN_TILES

    def _fit_machine(self, camera: Camera, now_s: float) -> None:
        """Measures picture and tiles in the first seconds, and chooses the ones that fit."""
        fit = self.settings.fit
        if fit is None or fit.is_done:
            return
        if self._measures_picture:
            if self.draw_stats is not None and self.renderer.complete:
                fit.fit_picture(partial(self._measure_picture, camera, now_s))
                self._take_over(fit)
        elif self._is_tile_known:
            costs = self.agents.costs_by_level(self.scheduler.cost_model)
            fit.fit_tiles(costs, self._seen[1].position, self.settings.seed)
            self._take_over(fit)

    def _take_over(self, fit: MachineFit) -> None:
        """Uses the settings chosen for the machine so far, and reports them once all are chosen."""
        if fit.picture_ms is not None:
            chosen = fit.quality
            self.quality = replace(
                self.quality, width=chosen.width, height=chosen.height, effort=chosen.effort
            )
            self.pace = DrawingPace(self.pace.most_ms, chosen.effort)
        self.detail, self.max_tiles = fit.detail, fit.max_tiles or self.max_tiles
        self.renderer.view_m = self.detail.view_m
        if fit.is_done:
            self.on_fit(fit.describe())

    def _measure_picture(self, camera: Camera, now_s: float, share: float, effort: int) -> float:
        """Returns the second longest time in ms of some pictures drawn apart from the target.

        ``share`` is that of the target's sides. What else runs on the machine all the time counts,
        and a hitch does not.
        """
        renderer, before = self.renderer, (self.renderer.width, self.renderer.height)
        width, height = (round(share * side) for side in before)
        target = self.gpu.memory.create_texture(
            size=(width, height, 1),
            format=renderer.target_format,
            usage=wgpu.TextureUsage.RENDER_ATTACHMENT,
            owner="target",
        )
        renderer.resize(width, height)
        times_ms = []
        for _ in range(1 + _PICTURES):
            start = time.perf_counter()
            encoder = self.gpu.device.create_command_encoder()
            self._draw(encoder, target.create_view(), camera, now_s, EFFORTS[effort])
            self.gpu.queue.submit([encoder.finish()])
            self.gpu.wait()
            times_ms.append(_ms_since(start))
        renderer.resize(*before)
        target.destroy()
        return sorted(times_ms[1:])[-2]  # the driver compiles shaders in the first

    def _take_times(self) -> None:
        """Passes the measured times of pictures to the log, the scheduler and the drawing pace."""
        for number, passes in self.timer.end_frame():
            sample = self.log.add_passes(number, passes)
            if sample is not None and not self._on_cpu:
                gpu_ms = (sample.render_ms or 0.0) + sample.overlay_ms
                self.scheduler.render_took(gpu_ms)
                self.pace.add_time(gpu_ms)

    def _update_counts(self) -> None:
        if self.complete:
            self.streaming.drop_drafts()
        if self.loading and (self.complete if self.loads_all else self._has_run_all):
            self.loading = False
            # otherwise Python's garbage collector scans all loaded objects, 50 ms within a frame;
            # they live as long as the game
            gc.collect()
            gc.freeze()

    @property
    def _has_run_all(self) -> bool:
        """True if the ground is covered and all networks have run; first runs take long."""
        if self.planet is not None or not self.covered:
            return self.covered
        names = self.agents.chain.sessions_for(TileId(self.detail.finest, 0, 0))
        return all(self.streaming.counts.by_agent[name] for name in names)

    def _apply_controls(self) -> None:
        """Applies the player's settings to the scheduler and the jobs."""
        controls, scheduler = self.controls, self.scheduler
        scheduler.policy = POLICIES[controls.policy]
        scheduler.planner = PLANNERS[controls.mode]
        if self.loading:
            scheduler.budget = self._loading
        elif controls.budget_ms is None:
            scheduler.budget = self._spare
        elif self._fixed.ms != controls.budget_ms or scheduler.budget is not self._fixed:
            self._fixed = FixedBudget(controls.budget_ms)
            scheduler.budget = self._fixed
        for job in self.streaming.jobs:
            if job.paused != (job.name in controls.paused):
                (job.resume if job.paused else job.pause)()

    def _look(self) -> Iterator[str]:
        """Selects the tiles to draw and to generate, and requests them, in pieces of work.

        It yields the activity of each piece before it. Does nothing before the next selection is
        due: every few frames, and when a tile was finished.
        """
        camera, pose, now_s = self._seen
        self._unseen = 0
        frame, finished = self.scheduler.frame, self.streaming.counts.finished
        if frame < self._look_at and finished == self._finished:
            return
        self._look_at, self._finished = frame + _LOOK_EVERY, finished
        if self._boxes is None:
            yield SELECTING
            self._draft(pose, now_s)
        yield SELECTING
        moments = self._way.predict(pose.position, now_s, self.streaming.lead_s)
        seed = self.settings.seed
        for eye in (pose.position, *(point for _, point in moments[-1:])):
            for _ in compute_boxes(eye, seed, self.detail):
                yield BOUNDING
        yield SELECTING
        selection = self._select(pose, now_s)
        yield SELECTING
        selection.ahead |= list_ahead(
            selection, moments, seed, selection.detail, self.streaming.ready
        )
        if self._planted and self.loading:  # all networks run once before the flight
            below = self._tile_below(pose)
            if not self.streaming.ready(below):
                selection.ahead[below] = 0.0, 0.0
        boxes = Boxes(selection.draw, seed)
        yield SELECTING
        if not all(map(self.streaming.drawn, selection.draw)):  # another tile took a slot
            self._look_at = 0
            return
        self._publish(selection, boxes, now_s)
        if not self._began:
            self._look_at = 0
        elif self.inference:
            for _ in self._request_tiles():
                yield REQUESTING

    def _tile_below(self, pose: Pose) -> TileId:
        """Returns the finest tile below the camera."""
        span = TileId(self.detail.finest, 0, 0).span_m
        x, _, z = pose.position
        return TileId(self.detail.finest, math.floor(x / span), math.floor(z / span))

    def _publish(self, selection: Selection, boxes: Boxes, now_s: float) -> None:
        """Draws the selected tiles from now on, and starts to build the kernels that they need."""
        self.selection, self._boxes = selection, boxes
        self.streaming.draw(selection.draw, now_s)
        if not self._began and self.renderer.ready and not self._measures_picture:
            self._began = True  # the networks' kernels come after the picture's
            self.agents.build_ahead(self.detail.coarsest)
        elif self._began and self.covered and not self._planted:
            self._planted = True  # the kernels of plants come after the ground
            self.agents.build_ahead(self.detail.finest)
        is_behind = self.inference and not self.loading and len(selection.wanted) > _FEW
        share = BEHIND_SHARE if is_behind else PICTURE_SHARE
        self.pace.most_ms = share * self.settings.frame_ms

    def _request_tiles(self) -> Iterator[TileId]:
        """Requests the tiles of the selection, and yields each before."""
        tiles = [*self.selection.wanted, *self.selection.ahead]
        boxes, (camera, _, now_s) = Boxes(tiles, self.settings.seed), self._seen
        in_view = set(boxes.in_view(camera.sees_boxes))
        return self.streaming.request_each(self.selection, in_view, now_s)

    def _select(self, pose: Pose, now_s: float) -> Selection:
        """Returns the tiles to generate, and the finest available tiles to draw."""
        streaming = self.streaming
        max_tiles = min(self.max_tiles, self.renderer.tiles.slots - SPARE_SLOTS)
        seed = self.settings.seed
        detail = fit_detail(pose.position, seed, self.detail, max_tiles)

        def settled(tile: TileId) -> bool:
            return streaming.fade(tile, now_s) == 0.0 or streaming.drawn(tile.parent) is None

        selection = select(pose.position, seed, detail, streaming.ready, settled)
        if streaming.drafts:
            drawable = select(
                pose.position, seed, detail, lambda t: bool(streaming.drawn(t)), settled
            )
            selection.draw, selection.coarse = drawable.draw, drawable.coarse
        return selection

    def finest(self, pose: Pose) -> list[TileId]:
        """Returns the tiles that are drawn from this pose, chosen among the finished tiles."""
        detail = self.selection.detail
        return select(pose.position, self.settings.seed, detail, self.streaming.ready).draw

    def _draft(self, pose: Pose, now_s: float) -> None:
        """Has drafts made of coarse tiles around the camera, to draw while kernels compile."""
        detail = self.detail
        detail = replace(detail, finest=max(detail.finest, detail.coarsest - DRAFT_LEVELS + 1))
        self.streaming.draft(list_needed(pose.position, self.settings.seed, detail), now_s)

    @property
    def covered(self) -> bool:
        """Returns True if the networks have generated ground in every direction, however coarse."""
        roots = (tile.level == self.detail.coarsest for tile in self.selection.wanted)
        return self._boxes is not None and not any(roots)

    @property
    def complete(self) -> bool:
        """Returns True if every tile of the picture has been generated and none is under way."""
        selected = self._boxes is not None
        return selected and not self.selection.wanted and not self.streaming.making

    @property
    def progress(self) -> str:
        """The progress of loading as a line of text."""
        if not self.renderer.ready:
            return "the picture's shaders are compiled"
        n_made, n_wanted = len(self.streaming.shown), len(self.selection.wanted)
        kernels = self.gpu.pipelines_built
        return f"{kernels} kernels of the networks, {n_made} tiles made, {n_wanted} wanted next"

    @property
    def notice(self) -> str:
        """A line about the game: an error, else the file watch's last message, else tile counts."""
        counts, watch = self.streaming.counts, self.watch
        tiles = f"{self.quality.name}: {self.streaming.summary}, {counts.cancelled} cancelled"
        return self.streaming.error or (watch.message if watch is not None else "") or tiles

    def close(self) -> None:
        """Cancels the unfinished jobs and frees the picture's memory."""
        self._collect_times()
        self.streaming.submitted()
        self.streaming.cancel_all()
        if self.planet is not None:
            self.planet.close()
        self.renderer.close()
        self.account.close()
        gc.unfreeze()


def _ms_since(start: float) -> float:
    return 1e3 * (time.perf_counter() - start)


def _load_chain(settings: Settings) -> Chain:
    # a planet is identified by its models' digests, which need the models and not cooked files
    cooked = settings.planet is None
    chain = load_chain(settings.models, settings.enlarge, cooked, settings.integer)
    if settings.light is DAY:
        return chain
    surface = relight(cml.load(chain.folders["surface"]), settings.light)  # cooked is the day's
    return replace(chain, graphs={**chain.graphs, "surface": surface})


def _planet(gpu: cml.Gpu, settings: Settings, agents: Agents) -> PlanetTiles | None:
    """Opens the baked planet and returns its tile source; None if the settings name no planet."""
    if settings.planet is None:
        return None
    from cml_engine.demo_game.bake.flying import PlanetTiles  # Zarr is an extra
    from cml_engine.demo_game.bake.planet import Planet

    planet = Planet(settings.planet)
    planet.open(agents.chain, settings.seed)
    return PlanetTiles(gpu, planet, agents)
