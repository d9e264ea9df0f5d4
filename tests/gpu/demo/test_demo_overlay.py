"""Tests that the overlay draws all data, obeys the mouse and creates no GPU object in a frame."""

from __future__ import annotations

import numpy as np
import pytest
import wgpu

pytest.importorskip("imgui_bundle")

from imgui_bundle import imgui

from cml_engine import FrameReport, FrameScheduler
from cml_engine.tools.panel.drawing.ranking import details
from cml_engine.tools.panel.operators import OperatorTimes
from demo_game.agents import Agents
from demo_game.chain import load_chain
from demo_game.overlay import FrameView, Overlay
from demo_game.reporting.telemetry import Controls, FrameSample, Telemetry
from demo_game.world.tile import TileId
from scheduler.reports import SliceReport
from tests.fixtures.frames.host import creations
from tests.fixtures.memory import held_bytes

_FORMAT = "rgba8unorm"
_BACKGROUND = 100


def view_of(gpu, agents, telemetry: Telemetry, tiles: int = 0) -> FrameView:
    scheduler = FrameScheduler(gpu, telemetry.target_ms, 4.0)
    made = [agents.submit(scheduler, TileId(0, x, 0), 7, 1.0, 500.0) for x in range(tiles)]
    return FrameView(
        telemetry=telemetry,
        scheduler=scheduler,
        jobs=[job for tile in made for job in tile.jobs.values()],
        memory=gpu.memory,
        sessions=agents.sessions,
        adapter="an adapter",
        driver="a driver with 100 % of its name",
        limits=gpu.device.limits,
        notice="a notice",
    )


def add_frame(telemetry: Telemetry, number: int) -> None:
    late = number % 50 == 49
    telemetry.frames.append(
        FrameSample(
            number,
            31.0 + 0.01 * number if late else 16.0,
            2.0,
            7.0 + 0.01 * (number % 37),
            3.0,
            4.0,
            0.9,
            "rendering, 50 % too much" if late else "",
        )
    )
    telemetry.memory.append(10_000_000 + 1000 * number)


@pytest.fixture(scope="module")
def agents(gpu):
    return Agents(gpu, load_chain())


@pytest.fixture
def empty(gpu, agents) -> FrameView:
    return view_of(gpu, agents, Telemetry(1000 / 60))


@pytest.fixture
def full(gpu, agents, rng) -> FrameView:
    telemetry = Telemetry(1000 / 60)
    telemetry.operators = OperatorTimes(agents.sessions).operators
    for found in telemetry.operators.values():
        found.runs = float(rng.uniform(3, 90))
        found.total_ms = float(rng.lognormal(2, 2))
        found.predicted_ms = found.total_ms * float(rng.uniform(0.2, 4))
    for number in range(240):
        add_frame(telemetry, number)
    view = view_of(gpu, agents, telemetry, tiles=2)
    report = FrameReport(240, 0.0, 4.0, 3.5, "budget", measured_ms=3.0)
    for job in view.jobs:
        report.slices.append(
            SliceReport(job.number, 0, "conv", "conv 't'", 0, 5, 0.3, 0.2, job.name)
        )
    telemetry.last_report = report
    return view


class Screen:
    """A render target with an overlay."""

    def __init__(
        self, gpu, view: FrameView, width=1280, height=720, fmt=_FORMAT, scale=1.0, opened=True
    ) -> None:
        self.gpu, self.view, self.controls = gpu, view, Controls()
        self.format = fmt
        self.overlay = Overlay(gpu, fmt, width, height, scale=scale)
        if opened and width >= 1280 * scale:
            self.overlay.open("this frame", "operators", "jobs", "memory")
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.size = width, height
        usage = wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC
        self.target = self.gpu.device.create_texture(
            size=(width, height, 1), format=self.format, usage=usage
        )
        self.target_view = self.target.create_view()
        self.overlay.input({"type": "resize", "width": width, "height": height})

    def frames(self, count: int = 1) -> None:
        grey = (_BACKGROUND / 255,) * 3 + (1,)
        clear = {"view": self.target_view, "load_op": "clear", "store_op": "store"}
        for _ in range(count):
            encoder = self.gpu.device.create_command_encoder()
            encoder.begin_render_pass(color_attachments=[{**clear, "clear_value": grey}]).end()
            self.overlay.draw(encoder, self.target_view, self.view, self.controls, 1 / 60)
            self.gpu.queue.submit([encoder.finish()])

    def pixels(self) -> np.ndarray:
        width, height = self.size
        data = self.gpu.queue.read_texture(
            {"texture": self.target}, {"bytes_per_row": 4 * width}, (width, height, 1)
        )
        return np.frombuffer(data, np.uint8).reshape(height, width, 4)[..., :3]

    def click(self, at: tuple[float, float]) -> bool:
        """Clicks at a position and returns True if the overlay used the click."""
        x, y = at
        self.overlay.input({"type": "mouse_move", "x": x, "y": y})
        self.frames(2)
        button = {"type": "mouse_button", "x": x, "y": y, "button": "left"}
        taken = self.overlay.input({**button, "down": True})
        self.frames()
        self.overlay.input({**button, "down": False})
        self.frames(2)
        return taken


@pytest.fixture
def widgets(monkeypatch) -> dict[str, tuple[float, float]]:
    """Returns the last drawn position of every widget by its label."""
    places: dict[str, tuple[float, float]] = {}

    def watched(original):
        def widget(label, *args):
            result = original(label, *args)
            low, high = imgui.get_item_rect_min(), imgui.get_item_rect_max()
            # near the left end, the position of a checkbox's box
            places[label] = low.x + 8, 0.5 * (low.y + high.y)
            return result

        return widget

    for kind in (
        "checkbox",
        "selectable",
        "collapsing_header",
        "button",
        "radio_button",
        "slider_float",
        "combo",
    ):
        monkeypatch.setattr(imgui, kind, watched(getattr(imgui, kind)))
    return places


@pytest.mark.parametrize("size", [(320, 180), (576, 324), (640, 360), (1280, 720), (1920, 1080)])
@pytest.mark.parametrize("what", ["empty", "full"])
def test_it_draws_at_its_sides_and_leaves_the_middle(gpu, request, size, what):
    screen = Screen(gpu, request.getfixturevalue(what), *size)
    screen.frames(3)
    drawn = (screen.pixels() != _BACKGROUND).any(axis=2)
    middle = round(0.55 * size[0])
    assert drawn[20:40, :middle].mean() > 0.3
    assert drawn[8:20, middle + 60 :].mean() > 0.2
    assert not drawn[:, middle + 5 : middle + 15].any()


@pytest.mark.parametrize("size", [(640, 360), (960, 540), (1280, 720), (1920, 1080)])
@pytest.mark.parametrize("welcome", [True, False])
def test_at_first_four_fifths_are_the_games(gpu, full, size, welcome):
    screen = Screen(gpu, full, *size, opened=False)
    screen.controls.welcome = welcome
    screen.frames(4)
    drawn = (screen.pixels() != _BACKGROUND).any(axis=2).mean()
    assert 0.02 < drawn <= 0.2 and screen.overlay.covered == pytest.approx(drawn, abs=0.02)


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (40, 20)])
def test_a_window_of_nearly_nothing(gpu, full, size):
    screen = Screen(gpu, full, *size, opened=False)
    for screen.controls.welcome in (True, False):
        screen.frames(2)
    screen.resize(640, 360)
    screen.frames(3)
    assert 0.02 < screen.overlay.covered < 0.2


def test_the_welcome_has_the_button_that_hitches(gpu, full, widgets):
    screen = Screen(gpu, full, 640, 360)
    screen.controls.welcome = True
    screen.frames(3)
    assert screen.click(widgets["make it hitch"]) and screen.controls.mode == "unsliced"
    assert screen.click(widgets["slices again"]) and screen.controls.mode == "sliced"
    assert screen.click(widgets["close"]) and not screen.controls.welcome
    screen.frames(2)
    assert screen.overlay.covered < 0.2


def test_all_panels_opened_in_a_small_window(gpu, full, widgets):
    screen = Screen(gpu, full, 640, 360)
    screen.frames(2)
    for title in ("operators", "this frame", "memory", "jobs", "controls"):
        assert screen.click(widgets[title])
    assert "scripted camera" in widgets
    assert len(screen.overlay.ranking.lines) > 20


def test_twice_the_pixels_are_the_same_layout(gpu, full):
    fine, coarse = Screen(gpu, full, 1280, 720, scale=2.0), Screen(gpu, full, 640, 360)
    for screen in (fine, coarse):
        screen.frames(2)
    drawn = [(screen.pixels() != _BACKGROUND).any(axis=2) for screen in (fine, coarse)]
    assert (drawn[0][::2, ::2] == drawn[1]).mean() > 0.99


def test_a_target_that_converts_to_srgb_looks_the_same(gpu, empty):
    plain, converting = Screen(gpu, empty), Screen(gpu, empty, fmt="rgba8unorm-srgb")
    for screen in (plain, converting):
        screen.frames(3)
    # a pixel of an opaque panel title, without blending
    apart = plain.pixels()[24, 300].astype(int) - converting.pixels()[24, 300]
    assert np.abs(apart).max() <= 2


def test_a_window_that_grows_is_laid_out_again(gpu, full):
    screen = Screen(gpu, full, 640, 360)
    screen.frames(2)
    screen.resize(1280, 720)
    screen.frames(3)
    other = Screen(gpu, full, 1280, 720, opened=False)
    other.frames(3)
    same = (screen.pixels() == other.pixels()).all(axis=2)
    assert same.mean() > 0.97  # the displayed cost differs


def test_clicks_change_the_controls(gpu, full, widgets):
    screen = Screen(gpu, full)
    screen.frames(2)
    assert screen.click(widgets["scripted camera"]) and screen.controls.scripted
    assert screen.click(widgets["texture"]) and screen.controls.paused == {"texture"}
    assert screen.click(widgets["texture"]) and screen.controls.paused == set()
    assert screen.click(widgets["record a trace"]) and screen.controls.recording
    assert screen.click(widgets["budget: what the renderer spares"])
    assert screen.controls.budget_ms == pytest.approx(4.0)
    assert screen.click(widgets["##budget"])  # at the slider's left end
    assert screen.controls.budget_ms is not None and screen.controls.budget_ms < 1.0
    assert screen.click(widgets["budget: what the renderer spares"])
    assert screen.controls.budget_ms is None


def test_choosing_a_mode(gpu, full, widgets):
    screen = Screen(gpu, full)
    screen.frames(2)
    x, y = widgets["##mode"]
    line = imgui.get_text_line_height_with_spacing()
    screen.click((x + 20, y))
    screen.click((x + 20, y + 3.3 * line))
    assert screen.controls.mode == "unsliced"
    assert screen.controls.policy == "least_laxity"


def test_a_budget_can_be_typed(gpu, full, widgets):
    screen = Screen(gpu, full)
    screen.controls.budget_ms = 2.0
    screen.frames(2)
    screen.overlay.input({"type": "key", "key": "Control", "down": True})
    screen.click(widgets["##budget"])
    screen.overlay.input({"type": "key", "key": "Control", "down": False})
    screen.frames()
    for character in "7.5":
        assert screen.overlay.input({"type": "char", "text": character})
        screen.frames()
    for down in (True, False):
        assert screen.overlay.input({"type": "key", "key": "Enter", "down": down})
        screen.frames()
    assert screen.controls.budget_ms == pytest.approx(7.5)
    screen.frames()
    assert not screen.overlay.input({"type": "key", "key": "w", "down": True})


def test_the_middle_of_the_screen_is_the_game_s(gpu, full):
    screen = Screen(gpu, full)
    screen.frames(2)
    before = vars(screen.controls).copy()
    assert not screen.click((760.0, 400.0))
    assert not screen.overlay.input({"type": "key", "key": "w", "down": True})
    assert not screen.overlay.input({"type": "char", "text": "w"})
    screen.overlay.input({"type": "scroll", "dx": 0.0, "dy": 1.0})
    screen.frames()
    assert vars(screen.controls) == before


def test_every_heading_of_the_ranking_sorts(gpu, full, widgets):
    screen = Screen(gpu, full)
    screen.frames(2)
    ranking = screen.overlay.ranking
    first = widgets[f"##{ranking.lines[0].key}"]
    seen, orders = set(), set()
    for x in range(30, 540, 24):
        screen.click((x, first[1] - 17))
        seen.add(ranking.column)
        orders.add(tuple(line.key for line in ranking.lines))
    assert seen == set(range(8))
    assert len(orders) >= 8


def test_a_selected_row_shows_its_line_of_the_model(gpu, full, widgets):
    screen = Screen(gpu, full)
    screen.frames(2)
    ranking = screen.overlay.ranking
    key = next(line.key for line in ranking.lines if line.network == "upres")
    ranking.selected = key
    screen.frames(2)
    said = " ".join(text for text, _ in details(full, key))
    step = full.sessions["upres"].plan.steps[key[1]]
    assert " ".join(step.source.text.split()) in said
    assert f"{step.groups} workgroup" in said and "graph.nnef" in said
    other = next(line.key for line in ranking.lines if line.key != key)
    shown = widgets[f"##{other}"]
    screen.click(shown)
    assert ranking.selected == other
    screen.click(shown)
    assert ranking.selected is None


def test_last_seconds_show_only_what_ran_then(gpu, full, widgets):
    screen = Screen(gpu, full)
    screen.frames(2)
    screen.click(widgets["last 5 s"])
    assert screen.overlay.ranking.lines == []
    key = "upres", 0
    full.telemetry.operators[key].total_ms += 5.0
    full.telemetry.operators[key].runs += 1.0
    screen.frames(30)
    assert [line.key for line in screen.overlay.ranking.lines] == [key]


def test_nothing_is_created_in_a_frame(gpu, full, monkeypatch):
    screen = Screen(gpu, full)
    number = 240

    def play(count: int) -> None:
        nonlocal number
        for _ in range(count):
            add_frame(full.telemetry, number)
            full.telemetry.operators["upres", 0].total_ms += 0.5
            number += 1
            screen.frames(1)

    play(120)
    made = creations(gpu, monkeypatch)
    held = held_bytes(gpu)
    play(60)
    assert made == []
    assert gpu.memory.held_bytes == held


def test_its_pass_is_timed(gpu, full):
    if not gpu.has_timestamps:
        pytest.skip("the device has no timestamps")
    screen, timer = Screen(gpu, full), gpu.frame_timer(["overlay"])
    times = []
    for _ in range(8):
        encoder = gpu.device.create_command_encoder()
        writes = timer.writes("overlay")
        screen.overlay.draw(
            encoder, screen.target_view, full, screen.controls, 1 / 60, timestamp_writes=writes
        )
        timer.resolve(encoder)
        gpu.queue.submit([encoder.finish()])
        gpu.wait()
        times += [passes["overlay"] for _, passes in timer.end_frame()]
    assert times and all(ms > 0 for ms in times)
