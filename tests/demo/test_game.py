"""Tests of the game without a window, such as a world that depends on the seed only."""

import math
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from shutil import copytree
from statistics import median
from types import SimpleNamespace
from unittest.mock import call

import numpy as np
import pytest
from PIL import Image

import cml_engine as cml
from cml_engine.demo_game import command
from cml_engine.demo_game.chain import MODELS
from cml_engine.demo_game.command import main
from cml_engine.demo_game.fitting import MachineFit
from cml_engine.demo_game.game import BOUNDING, REQUESTING, SELECTING, Settings
from cml_engine.demo_game.headless import HeadlessRun, Options, run
from cml_engine.demo_game.pieces import Pieces
from cml_engine.demo_game.render.pace import DrawingPace
from cml_engine.demo_game.render.quality import SOFTWARE
from cml_engine.demo_game.streaming import FADE_S
from cml_engine.demo_game.world.quadtree import Detail, Selection, list_needed
from cml_engine.demo_game.world.tile import TileId
from tests.fixtures.frames.turns import turns
from tests.fixtures.memory import held_bytes, wgpu_objects

pytestmark = pytest.mark.gpu

SMALL = replace(SOFTWARE, width=160, height=90)
#: two levels and five tiles around the camera; a second between frames, 70 m of flight
FEW = Settings(
    seed=7, frame_ms=1000.0, detail=Detail(finest=2, coarsest=3, split=1.0, view_m=300.0)
)
#: three levels and 21 tiles
NEAR = replace(FEW, detail=replace(FEW.detail, finest=1))
#: two levels and 30 tiles
FAR = replace(FEW, detail=replace(FEW.detail, view_m=1200.0))


@pytest.fixture
def start(gpu):
    """A function that begins a flight without a window; its flights are closed after the test."""
    flights = []

    def begin(settings=FEW, quality=SMALL, **options):
        flights.append(HeadlessRun(gpu, quality, settings, Options(clock="virtual", **options)))
        return flights[-1]

    yield begin
    for flight in flights:
        flight.close()


@pytest.fixture(scope="module")
def loaded(gpu):
    """A flight whose first view is complete; tests change its settings with ``monkeypatch``."""
    flight = HeadlessRun(gpu, SMALL, FEW, Options(clock="virtual"))
    flight.load()
    yield flight
    flight.close()


@pytest.fixture
def game(loaded):
    return loaded.game


def draw_frames(flight, count=1):
    """Draws frames at the start of the path; returns their samples."""
    return [flight._frame(flight.flight.pose(0.0)) for _ in range(count)]


def test_world_is_identical_for_any_budget_mode_and_rate(start):
    """Most tiles of the last view are made after loading, in the mode and budget under test."""
    worlds = set()
    for frames, options in (
        (40, {"budget_ms": 10.0}),
        (64, {"mode": "layer", "budget_ms": 50.0}),
        (32, {"mode": "unsliced"}),
    ):
        flight = start(replace(FEW, frame_ms=8000.0 / frames), frames=frames, **options)
        flight.load()
        loaded, end = flight.game.streaming.counts.finished, flight._pose(frames)
        flight.fly()
        flight._until_complete(end)
        assert flight.game.streaming.counts.finished >= loaded + 10
        worlds.add(flight.digests.world(flight.game.finest(end)))
    assert len(worlds) == 1, worlds


def test_changed_network_files_regenerate_the_world(start, tmp_path):
    model = tmp_path / "texture.nnef"
    copytree(MODELS / "texture.nnef", model)
    flown = start(replace(FEW, models=tmp_path, watch=True))
    messages = []
    flown.progress = messages.append
    for reloader in flown.game.watch._reloaders:
        reloader._every_s = 0.05
    game, graph = flown.game, model / "graph.nnef"
    text, pose = graph.read_text(encoding="utf-8"), flown.flight.pose(0.0)
    weights = min(model.glob("*.bias.dat"))
    as_trained = weights.read_bytes()

    def follow(changed, end, weight=b""):
        """Writes the network's files and runs frames until a message contains ``end``.

        Returns the hash of the complete world.
        """
        graph.write_text(changed, encoding="utf-8")
        weights.write_bytes(weight or as_trained)
        for _ in turns(300.0):
            flown._frame(pose)
            if any(end in line for line in messages):
                break
            assert len(game.finest(pose)) > 1 or game.streaming.drafts, "something is drawn"
        messages.clear()
        flown._until_complete(pose)
        assert not game.streaming.drafts
        return flown.digests.world(game.finest(pose))

    flown.load()
    before = flown.digests.world(game.finest(pose))
    other = as_trained[:-4] + as_trained[-8:-4]
    after = follow(text, "'texture.nnef' done", other)
    assert after != before
    broken = text.replace("clamp(t29", "clomp(t29")
    assert follow(broken, "'texture.nnef' failed: ", other) == after
    lower = text.replace("\ngraph", "\n\ngraph", 1)  # every line moves, so a new plan is made
    assert follow(lower, "'texture.nnef' done") == before


def test_stalled_run_reports_what_jobs_wait_for(start, monkeypatch):
    monkeypatch.setattr("cml_engine.demo_game.headless._PATIENCE_S", 0.25)
    monkeypatch.setattr("cml_engine.gpu.program.program.GpuProgram.prepare", lambda *_: None)
    flown = start()
    with pytest.raises(cml.CmlError, match=r"no tile and .* for 0.25 s: \d+ are") as stalled:
        flown.load()
    message = str(stalled.value)
    assert "terrain, queued: waits for its network to be ready: its first frame" in message
    assert "the last frame stopped at: preparing" in message and "preparation: " in message
    assert "upres" in message and "waits for the outputs of 'terrain'" in message


def test_loading_waits_as_long_as_kernels_are_built(start, monkeypatch):
    """A slow machine may take minutes for the kernels before its first tile."""
    monkeypatch.setattr("cml_engine.demo_game.headless._PATIENCE_S", 0.5)
    monkeypatch.setattr("cml_engine.gpu.program.program.GpuProgram.prepare", lambda *_: None)
    flown = start()
    built = iter(range(10**9))
    until = time.perf_counter() + 2.0
    monkeypatch.setattr(
        type(flown.gpu), "pipelines_built",
        property(lambda _: next(built) if time.perf_counter() < until else -1),
    )  # fmt: skip
    with pytest.raises(cml.CmlError, match="no kernel has come for 0.5 s"):
        flown.load()
    assert time.perf_counter() > until


def test_something_is_drawn_before_any_network_has_run(gpu, collector):
    """The first picture shows drafts only; after loading, no draft is left and its slots are
    free."""
    collector.reset_mock()
    flown = HeadlessRun(gpu, SMALL, NEAR, Options())
    try:
        while flown.first_picture == math.inf:
            flown._frame(flown._pose(0), draw=flown._picture_due)
        streaming = flown.game.streaming
        assert streaming.drafts and not streaming.shown and flown.first_ground == math.inf
        assert flown.game.draw_stats is not None and flown.game.draw_stats.tiles > 3
        flown.load()
        assert flown.first_picture < flown.first_ground < math.inf
        assert not streaming.drafts and not flown.game.loading
        pool = flown.game.renderer.tiles
        assert len(pool._free) == pool.slots - len(streaming.shown)
        # frozen objects: no frame waits for a full garbage collection
        assert [name for name, _, _ in collector.method_calls] == ["collect", "freeze"]
    finally:
        flown.close()
    assert collector.method_calls[-1] == call.unfreeze()


def test_view_with_too_few_slots_uses_coarser_tiles(start):
    flown = start(FAR, replace(SMALL, slots=20))
    eye = flown._pose(0).position
    assert len(list_needed(eye, FAR.seed, FAR.detail)) > 20
    flown.load()  # ends although not all tiles fit
    counts = flown.game.streaming.counts
    assert flown.game.complete and counts.finished <= 20
    assert len(flown.game.selection.draw) > 4


def popping(start, fade_s, monkeypatch):
    """Returns the largest change of a block of pixels between two frames, on a scale of 255.

    Tiles arrive meanwhile, fade in over ``fade_s`` seconds, and the camera stands still.
    """
    monkeypatch.setattr("cml_engine.demo_game.streaming.FADE_S", fade_s)
    # makes the picture and the work of a frame independent of its duration
    monkeypatch.setattr(DrawingPace, "add_time", lambda pace, ms: None)
    run = Pieces.run
    monkeypatch.setattr(Pieces, "run", lambda pieces, *_, **__: run(pieces, math.inf))
    flown = start(replace(FAR, frame_ms=1000 / 60))
    flown.game.streaming.draft = lambda *_: None
    flown.game.controls.mode = "unsliced"
    last_s, before, worst = 0.0, None, 0.0
    while not flown.game.complete or flown._seconds < last_s + 2 * FADE_S:
        draw_frames(flown)
        if flown.game.streaming.making:
            last_s = flown._seconds
        if flown.game.covered:
            picture = blocks(flown)
            worst = max(worst, 0.0 if before is None else float(np.abs(picture - before).max()))
            before = picture
    return worst


def blocks(flown):
    """Returns the mean colour of each square of 10 x 10 pixels in the picture: (rows, columns,
    3)."""
    pixels = flown.pixels()
    height, width, _ = pixels.shape
    return pixels.reshape(height // 10, 10, width // 10, 10, 3).mean((1, 3))


def test_tiles_do_not_pop_up(start, monkeypatch):
    gradual, sudden = popping(start, FADE_S, monkeypatch), popping(start, 1e-6, monkeypatch)
    assert gradual < 10.0 and gradual < 0.5 * sudden, (gradual, sudden)


def test_a_long_flight_leaves_no_object_and_no_memory_behind(gpu, start):
    """Pools grow until a flight needs no more than an earlier one; a leak grows in every flight."""
    flown = start(replace(FEW, seed=9), frames=25)
    flown.load()
    flown.options = replace(flown.options, mode="unsliced")
    states = []
    for _ in range(8):
        flown.fly()
        counts = flown.game.streaming.counts
        states.append((held_bytes(gpu), wgpu_objects(), counts.finished))
        before, now = [(0, 0, 0), *states][-2:]
        grown_bytes, new_objects, new_tiles = np.subtract(now, before)
        if new_tiles and grown_bytes <= 32 << 10 and new_objects <= 20:  # pending readbacks
            break
    else:
        pytest.fail(f"bytes, objects and tiles after each flight: {states}")


def test_software_driver_gives_networks_the_rest_of_the_frame(gpu, start, monkeypatch):
    if not gpu.limits.software:
        pytest.skip("a GPU's picture is not waited for")
    flown = start(replace(FEW, frame_ms=50.0))
    flown.load()
    scheduler, wait = flown.game.scheduler, gpu.wait
    flown.game.controls.mode = "sliced"

    def budget_ms(slow_s):
        """Returns the networks' budget in a frame whose picture takes ``slow_s`` longer."""
        monkeypatch.setattr(gpu, "wait", lambda: (time.sleep(slow_s), wait()))
        draw_frames(flown)
        return scheduler.last_report.budget_ms

    assert any(budget_ms(0.0) > 5.0 for _ in turns())
    assert budget_ms(0.045) <= 5.0
    late = [budget_ms(0.06) for _ in range(12)]
    assert sum(late) <= 14 * scheduler.budget.least_ms, "guaranteed work and nothing more"


def test_hardware_gpu_frame_is_one_submit_without_waits(gpu, start, loaded):
    """Ten frames on a hardware GPU make ten submits and never wait; the world stays the same.

    A software driver may stand in for the GPU.
    """
    flown = start()
    game, pose, calls = flown.game, flown.flight.pose(0.0), Counter()
    game._on_cpu = False
    flown.load()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((gpu.queue, "submit"), (gpu, "wait")):
            patch.setattr(owner, name, partial(_counted, calls, name, getattr(owner, name)))
        for _ in range(10):
            game.frame(flown.view, pose, flown._seconds)
    gpu.wait()
    assert calls == {"submit": 10}
    loaded.game.renew()  # another test may have left it without a selection
    loaded.load()
    worlds = [flight.digests.world(flight.game.finest(pose)) for flight in (flown, loaded)]
    assert worlds[0] == worlds[1]


def _counted(calls, name, function, *args):
    calls[name] += 1
    return function(*args)


def test_while_tiles_are_waited_for_the_picture_is_less_work(loaded, game, monkeypatch):
    """Drawing gets 45 % of the frame instead of 70 % while many tiles are missing and networks
    run."""
    shares = []
    many = {TileId(0, x, 0): 1.0 for x in range(9)}
    monkeypatch.setattr(game, "_request_tiles", lambda *_: ())
    for inference, expected in ((True, {}), (True, many), (False, many), (True, {})):
        monkeypatch.setattr(game, "inference", inference)
        monkeypatch.setattr(game, "_select", lambda *_, expected=expected: Selection([], expected))
        game.renew()
        draw_frames(loaded)
        shares.append(game.pace.most_ms / FEW.frame_ms)
    assert shares == pytest.approx([0.7, 0.45, 0.7, 0.7])


def test_picture_and_tiles_fit_a_slow_machine_while_it_loads(start, monkeypatch):
    """The first game measures and shrinks its target and world; the next one begins with both."""
    quality = replace(SMALL, width=320, height=180)
    fit = MachineFit(quality, NEAR.detail, frame_ms=1000 / 60, least_ms=1.0)
    settings, messages = replace(NEAR, fit=fit), []
    slow = start(settings, quality)
    slow.progress = messages.append
    measured, costs = slow.game._measure_picture, slow.game.agents.costs_by_level
    monkeypatch.setattr(
        slow.game, "_measure_picture", lambda *a: (measured(*a), 25.0 * a[2] * a[2])[1]
    )
    monkeypatch.setattr(
        slow.game.agents, "costs_by_level", lambda ms: dict.fromkeys(costs(ms), 400.0)
    )
    slow.load()
    assert slow.quality.width == 160 and slow.target.size[:2] == (160, 90)
    assert slow.pixels().shape == (90, 160, 3) and slow.pixels().std() > 1
    assert fit.max_tiles == 16 and len(slow.game.streaming.shown) <= 21
    (said,) = [line for line in messages if "fitted to this machine" in line]
    assert "25.0 of 16.7 ms" in said and "at most 16 tiles" in said
    again = start(settings, quality)
    monkeypatch.setattr(again.game, "_measure_picture", lambda *_: pytest.fail("it is known"))
    again.load()
    assert again.target.size[:2] == (160, 90) and again.game.max_tiles == 16
    assert set(again.game.finest(again._pose(0))) == set(slow.game.finest(slow._pose(0)))


@pytest.mark.parametrize("on_cpu", [True, False])
def test_tile_memory_is_released_after_its_copies_are_submitted(gpu, start, on_cpu):
    """A tile's memory, which other tiles may reuse, is released only after its copies are
    submitted."""
    if on_cpu and not gpu.limits.software:
        pytest.skip("a GPU's picture is not waited for")
    flown = start()
    events = []
    flown.game._on_cpu = on_cpu
    streaming, submit = flown.game.streaming, gpu.queue.submit
    collect, hand_over = streaming.collect, streaming.hand_over
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu.queue, "submit", lambda work: events.append("submit") or submit(work))
        patch.setattr(
            streaming, "collect", lambda *a: events.extend(n := ["copy"] * collect(*a)) or len(n)
        )
        patch.setattr(streaming, "hand_over", lambda made: events.append("back") or hand_over(made))
        flown.load()
    waiting, submitted, back = 0, 0, 0
    for event in events:
        if event == "copy":
            waiting += 1
        elif event == "submit":
            submitted, waiting = submitted + waiting, 0
        else:
            back += 1
            assert back <= submitted
    assert back == submitted > 3 and not waiting


@pytest.mark.parametrize(("frame_ms", "most_pieces"), [(1e4, 3), (0.01, 1)])
def test_deferrable_work_runs_in_spare_frame_time(loaded, game, monkeypatch, frame_ms, most_pieces):
    """Tiles are selected in the rest of a frame; without any, one piece of work at a time.

    The scheduler learns in every frame.
    """
    done, pieces, explained = Counter(), [], []
    monkeypatch.setattr(game, "settings", replace(FEW, frame_ms=frame_ms))
    game.renew()
    loaded._until_complete(loaded.flight.pose(0.0))
    for owner, name in ((game, "_publish"), (game.scheduler, "end_frame")):
        monkeypatch.setattr(owner, name, partial(_counted, done, name, getattr(owner, name)))
    for _ in range(28):
        (sample,) = draw_frames(loaded)
        pieces.append(len({SELECTING, BOUNDING, REQUESTING} & sample.parts.keys()))
        explained.append(sum(sample.parts.values()) / sample.frame_ms)
    # another program may take the core between two looks at a clock
    assert median(explained) > 0.95
    assert 1 <= done["_publish"] <= 4 and 27 <= done["end_frame"] <= 28
    assert max(pieces) <= most_pieces


def test_software_driver_takes_few_timestamps(gpu, loaded, game, monkeypatch):
    """On a software driver 2 to 3 of 33 frames have timestamps, and all have a render time.

    Timestamps make a frame longer; the wait for a picture gives the time of the other frames.
    """
    if not gpu.limits.software:
        pytest.skip("a GPU's picture is timed")
    stamps, writes = [], game.timer.writes
    monkeypatch.setattr(game.timer, "writes", lambda n: stamps.append(writes(n)) or stamps[-1])
    samples = draw_frames(loaded, 33)
    timed = sum(stamp is not None for stamp in stamps)
    assert len(stamps) >= 33 and 2 <= timed * 33 / len(stamps) <= 3
    assert all(s.render_ms and s.render_ms < s.frame_ms for s in samples)


# --- the window, on an offscreen canvas, which needs no display


@pytest.fixture
def open_window(gpu):
    """A function that opens the game's window; it is closed after the test."""
    pytest.importorskip("imgui_bundle")
    from rendercanvas.offscreen import OffscreenRenderCanvas

    from cml_engine.demo_game.window import GameWindow

    windows = []

    def opened(quality=SMALL, settings=FEW):
        canvas = OffscreenRenderCanvas(size=(quality.width, quality.height))
        windows.append(GameWindow(canvas, gpu, quality, settings, scripted=True))
        return windows[-1]

    yield opened
    for window in windows:
        window.close()


@pytest.fixture
def window(open_window):
    return open_window()


def test_the_window_becomes_as_small_as_the_machine_needs(open_window, monkeypatch):
    quality = replace(SMALL, width=320, height=180)
    fit = MachineFit(quality, FEW.detail, frame_ms=1000 / 60, least_ms=1.0)
    window = open_window(quality, replace(FEW, fit=fit))
    monkeypatch.setattr(window.game, "_measure_picture", lambda *a: 25.0 * a[2] * a[2])
    for _ in turns():
        window.canvas.draw()
        assert window.failed is None
        if fit.picture_ms is not None:
            break
    for _ in range(3):
        window.canvas.draw()
    assert window.canvas.get_logical_size() == (160, 90)
    assert (window.game.renderer.width, window.game.renderer.height) == (160, 90)
    window.canvas.set_logical_size(200, 100)  # the player's choice stays
    window.canvas.draw()
    window.canvas.draw()
    assert window.canvas.get_logical_size() == (200, 100) and window.failed is None


def test_frame_times_include_hitches_but_not_pauses(window, monkeypatch):
    now_s = window._started
    monkeypatch.setattr(
        "cml_engine.demo_game.window.time", SimpleNamespace(perf_counter=lambda: now_s)
    )
    for interval_s in (0.1, 0.1, 0.25, 0.1, 100.0, 0.1):
        now_s += interval_s
        window.canvas.draw()
    assert window.failed is None
    times = [sample.frame_ms for sample in window.game.log.frames]
    assert times[:3] == pytest.approx([100.0, 250.0, 100.0])
    assert times[3] < 50_000.0, "the pause"


# --- the command line


def test_invalid_arguments_give_messages_without_traceback(capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main(["--headless", "--size", "wide"])
    assert stopped.value.code == 2 and "wanted WxH such as 640x360" in capsys.readouterr().err
    folder = tmp_path / "upres.nnef"
    folder.mkdir()
    (folder / "graph.nnef").write_text(
        "version 1.0; graph g(image) -> (heights) { image = external<scalar>(shape = [1, 3]); "
        "heights = relu(image); }"
    )
    assert main(["--headless", "--frames", "1", "--models", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "upres.nnef: wanted the inputs cell, coarse, detail, got image" in message
    assert main(["--headless", "--models", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_help_lists_the_keys_and_starts_nothing(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    printed = capsys.readouterr()
    assert stopped.value.code == 0 and printed.err == ""
    for key in ("W A S D", "E, Q", "Shift", "right mouse button", "F1"):
        assert f"  {key} " in printed.out


@pytest.mark.parametrize(
    "missing, options",
    [("glfw", []), ("imgui_bundle", []), ("imgui_bundle", ["--headless", "--overlay"])],
)
def test_missing_extra_is_reported_with_install_command(missing, options, capsys, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":99")
    # with a driver that cannot draw to windows the game would fly without one
    monkeypatch.setattr(command, "has_surfaces", lambda: True)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(options) == 2
    message = capsys.readouterr().err
    assert f"with {missing} (" in message and 'pip install "cml-engine[game]", or ' in message


def jpeg(path):
    with Image.open(path) as image:
        assert image.format == "JPEG"
        return np.asarray(image).astype(int)


def test_screenshot_has_the_overlay_and_its_own_quality(gpu, start, tmp_path, monkeypatch):
    pytest.importorskip("imgui_bundle")
    qualities, pixels = [], HeadlessRun.pixels

    def record(flown):
        qualities.append(flown.game.renderer.quality.name)
        return pixels(flown)

    monkeypatch.setattr(HeadlessRun, "pixels", record)
    size = replace(SMALL, width=640, height=360)
    still = replace(size, name="low", mesh_step=2), FEW
    flown = start(FEW, size, frames=1, panels=())
    flown.load()
    for name, panels in (("plain", ()), ("panels", None)):
        flown.options = replace(flown.options, panels=panels)
        flown.open_overlay()
        flown.screenshot(tmp_path / f"{name}.jpg")
    run(gpu, size, FEW, replace(flown.options, still=still), screenshot=tmp_path / "still.jpg")
    plain, panels, finer = (jpeg(tmp_path / f"{n}.jpg") for n in ("plain", "panels", "still"))
    changed = np.abs(panels - plain).max(axis=2) > 40
    height, width = changed.shape
    assert changed[:20, : width // 4].mean() > 0.3, "the panels"
    assert changed[-20:].mean() < 0.1, "the land below them"
    assert np.abs(finer - panels)[height // 2 :].mean() < 40, "the same land"
    assert qualities == ["software", "software", "low"]


def test_unknown_panel_lists_the_panels(capsys):
    pytest.importorskip("imgui_bundle")
    assert main(["--headless", "--panels", "frames,fps"]) == 2
    message = capsys.readouterr().err
    assert "no panel 'fps': choose from frames, operators, " in message and "controls" in message
