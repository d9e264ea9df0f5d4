"""Tests that the overlay draws all data, obeys the mouse and creates no GPU object in a frame."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("imgui_bundle")

from imgui_bundle import imgui

from cml_engine import FrameReport, FrameScheduler
from cml_engine.demo_game.agents import Agents
from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.game import Controls
from cml_engine.demo_game.overlay.overlay import Overlay
from cml_engine.demo_game.world.tile import TileId
from cml_engine.panel import FrameLog, FrameSample, drawing, palette
from cml_engine.panel.drawing import SECTIONS
from cml_engine.panel.drawing import ranking as drawn_ranking
from cml_engine.panel.drawing import widgets as drawn_widgets
from cml_engine.panel.drawing.ranking import details
from cml_engine.scheduler.reports import SliceReport
from tests.fixtures.frames.host import creations
from tests.fixtures.frames.turns import turns
from tests.fixtures.memory import held_bytes
from tests.fixtures.texels import begin_clear, render_target, submitted, texels_of

pytestmark = pytest.mark.gpu

_BACKGROUND = 100
SIZES = [(480, 320), (640, 360), (960, 540), (1280, 720), (1920, 1080)]
TITLES = (*(section.title for section in SECTIONS), "controls")


def game_of(gpu, agents, tiles: int = 0) -> SimpleNamespace:
    """Returns a stand-in for a game with the attributes that the overlay shows, and jobs of
    ``tiles``."""
    log = FrameLog(1000 / 60, agents.sessions)
    scheduler = FrameScheduler(gpu, log.target_ms, 4.0)
    for x in range(tiles):
        agents.submit(scheduler, TileId(0, x, 0), 7, 1.0, 500.0)
    notice = "software: 100 % of the tiles are there, 12 being made, 3 cancelled"
    return SimpleNamespace(
        gpu=gpu, scheduler=scheduler, agents=agents, log=log, controls=Controls(), notice=notice,
        loading=False,
    )  # fmt: skip


def add_frame(log: FrameLog, number: int) -> None:
    frame_ms, reason = 16.0, ""
    if number % 50 == 49:
        frame_ms, reason = 131.0 + 0.01 * number, "inference over budget"
    render_ms = 7.0 + 0.01 * (number % 37)
    log.frames.append(FrameSample(number, frame_ms, 2.0, render_ms, 3.0, 4.0, 0.9, reason))


@pytest.fixture(scope="module")
def agents(gpu):
    return Agents(gpu, load_chain())


@pytest.fixture
def empty(gpu, agents) -> SimpleNamespace:
    return game_of(gpu, agents)


@pytest.fixture
def full(gpu, agents, rng) -> SimpleNamespace:
    game = game_of(gpu, agents, tiles=2)
    for times in game.log.operators.values():
        times.runs = float(rng.uniform(3, 90))
        ms = float(rng.lognormal(2, 2)) / times.runs
        times.timed.append((ms, ms * float(rng.uniform(0.2, 4))))
    report = FrameReport(240, 0.0, 4.0, 3.5, "budget", measured_ms=3.0)
    for job in game.scheduler.jobs:
        report.slices.append(
            SliceReport(job.number, 0, "conv", "conv 't'", 0, 5, 0.3, 0.2, job.name)
        )
    game.log.begin(report)
    game.log.frames.clear()
    for number in range(240):
        add_frame(game.log, number)
    return game


class Screen:
    """A render target with an overlay on a stand-in for a game."""

    def __init__(
        self, gpu, game, width=1280, height=720, name="rgba8unorm", scale=1.0, panels=None
    ) -> None:
        self.gpu, self.controls, self.format = gpu, game.controls, name
        self.overlay = Overlay(game, name, width, height, scale=scale, panels=panels)
        self.resize(width, height)

    @property
    def ranking(self):
        return self.overlay.panel.section("operators")

    def resize(self, width: int, height: int) -> None:
        self.target, self.view = render_target(self.gpu.device, width, height, self.format)
        self.overlay.resize(width, height)

    def frames(self, count: int = 1, dt_s: float = 0.1) -> None:
        grey = (_BACKGROUND / 255,) * 3 + (1,)
        for _ in range(count):
            with submitted(self.gpu) as encoder:
                begin_clear(encoder, self.view, grey).end()
                self.overlay.draw(encoder, self.view, dt_s)

    def pixels(self) -> np.ndarray:
        return texels_of(self.gpu.device, self.target)[..., :3]

    def click(self, at: tuple[float, float]) -> bool:
        """Clicks at a position and returns True if the overlay used the click."""
        x, y = at
        self.event("pointer_move", x=x, y=y)
        self.frames(2)
        taken = self.event("pointer_down", x=x, y=y, button=1)
        self.frames()
        self.event("pointer_up", x=x, y=y, button=1)
        self.frames(2)
        return taken

    def event(self, kind: str, **fields) -> bool:
        return self.overlay.input({"event_type": kind, **fields})


@pytest.fixture
def show(gpu, full):
    """A function that shows the overlay of a full log for two frames and returns its screen."""

    def shown(*size, **options):
        screen = Screen(gpu, full, *size, **options)
        screen.frames(2)
        return screen

    return shown


@pytest.fixture
def widgets(monkeypatch) -> dict[str, tuple[float, float]]:
    """A dictionary from every drawn widget's label to its last position (x, y), updated when
    drawn."""
    places: dict[str, tuple[float, float]] = {}

    def watched(original):
        def widget(label, *args):
            result = original(label, *args)
            low, high = imgui.get_item_rect_min(), imgui.get_item_rect_max()
            # near the left end, the position of a checkbox's box
            places[label] = low.x + 8, 0.5 * (low.y + high.y)
            return result

        return widget

    kinds = "checkbox selectable collapsing_header button radio_button slider_float combo"
    for kind in kinds.split():
        monkeypatch.setattr(imgui, kind, watched(getattr(imgui, kind)))
    return places


@pytest.fixture
def misfits(monkeypatch) -> list[str]:
    """A list to which each text that does not fit into its place is appended when it is drawn."""
    messages: list[str] = []
    wraps = 0

    def fits(text: str, width: float, room: float) -> None:
        if not wraps and width > room + 1.0:
            messages.append(f"{text!r} is {width:.0f} wide in {room:.0f}")

    def watched(module, name, place, extra_em=0.0):
        original = getattr(module, name)

        def widget(*args, **options):
            text = str(args[place]).split("##")[0]
            width = imgui.calc_text_size(text).x + extra_em * imgui.get_font_size()
            if text:
                fits(text, width, imgui.get_content_region_avail().x)
            return original(*args, **options)

        monkeypatch.setattr(module, name, widget)

    def wrapping(name, change):
        original = getattr(imgui, name)

        def changed(*args):
            nonlocal wraps
            wraps += change
            return original(*args)

        monkeypatch.setattr(imgui, name, changed)

    def label(x, y, text, colour):
        left, width = imgui.get_window_pos().x, imgui.get_window_size().x
        fits(text, x - left + imgui.calc_text_size(text).x, width)
        fits(text, left, x)
        original_label(x, y, text, colour)

    original_label = drawn_widgets.label
    monkeypatch.setattr(drawn_widgets, "label", label)
    wrapping("push_text_wrap_pos", 1)
    wrapping("pop_text_wrap_pos", -1)
    watched(imgui, "text_colored", 1)
    watched(imgui, "text", 0)
    watched(imgui, "text_unformatted", 0)
    watched(imgui, "table_header", 0, 0.65)
    for name in ("checkbox", "radio_button", "collapsing_header"):
        watched(imgui, name, 0, 1.5)
    return messages


def apart(one, other) -> bool:
    x, y, width, height = one
    left, top, wide, high = other
    return x + width <= left or left + wide <= x or y + height <= top or top + high <= y


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("panels", [None, TITLES])
@pytest.mark.parametrize("welcome", [True, False])
def test_windows_do_not_overlap_and_texts_fit(gpu, full, misfits, size, panels, welcome):
    screen = Screen(gpu, full, *size, panels=panels)
    screen.controls.welcome = welcome
    screen.frames(4)
    if panels is None and size in (SIZES[1], SIZES[-1]):
        opened = {section.title for section in screen.overlay.panel._open}
        assert opened >= {"frames", "operators"} and len(screen.ranking.rows) > 20
        drawn = (screen.pixels() != _BACKGROUND).any(axis=2).mean()
        assert drawn == pytest.approx(screen.overlay.covered, abs=0.02)
        assert drawn < (0.55 if welcome else 0.4), "most of the picture is the game's"
    windows = screen.overlay.rectangles
    assert set(windows) == {"left", "right"} | ({"welcome"} if welcome else set())
    for x, y, width, height in windows.values():
        assert x >= 0 and y >= 0 and x + width <= size[0] and y + height <= size[1]
    for name, window in windows.items():
        for other, place in windows.items():
            assert name == other or apart(window, place), (name, other)
    assert misfits == []


def test_only_requested_panels_are_open(show):
    screen = show(panels=("jobs", "memory"))
    assert {section.title for section in screen.overlay.panel._open} == {"jobs", "memory"}


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (40, 20), (320, 180)])
def test_overlay_works_in_a_tiny_window(gpu, full, size):
    screen = Screen(gpu, full, *size)
    for screen.controls.welcome in (True, False):
        screen.frames(2)
    screen.resize(640, 360)
    screen.frames(3)
    assert 0.02 < screen.overlay.covered < 0.4


def test_resizing_keeps_open_sections(show, widgets):
    screen = show(1280, 720)
    assert screen.click(widgets["memory"]) and screen.click(widgets["frames"])
    before = set(screen.overlay.panel._open)
    for size in ((640, 360), (1920, 1080), (1280, 720)):
        screen.resize(*size)
        screen.frames(3)
        assert screen.overlay.panel._open == before


def test_an_empty_log_is_drawn(gpu, empty, misfits):
    screen = Screen(gpu, empty, panels=TITLES)
    screen.frames(3)
    assert screen.overlay.covered > 0.1 and misfits == []


def test_welcome_window_has_the_unsliced_button(show, widgets):
    screen = show(640, 360)
    screen.controls.welcome = True
    screen.frames(3)
    assert screen.click(widgets["make it hitch"]) and screen.controls.mode == "unsliced"
    assert screen.click(widgets["slices again"]) and screen.controls.mode == "sliced"
    assert screen.click(widgets["close"]) and not screen.controls.welcome


def test_doubled_pixel_scale_keeps_the_layout(show):
    screens = show(1280, 720, scale=2.0), show(640, 360)
    drawn = [(screen.pixels() != _BACKGROUND).any(axis=2) for screen in screens]
    assert (drawn[0][::2, ::2] == drawn[1]).mean() > 0.99


def test_srgb_target_shows_equal_colours(gpu, empty):
    plain, converting = Screen(gpu, empty), Screen(gpu, empty, name="rgba8unorm-srgb")
    for screen in (plain, converting):
        screen.frames(3)
    for x, y, width, height in plain.overlay.rectangles.values():
        window = np.s_[int(y) : int(y + height), int(x) : int(x + width)]
        assert np.array_equal(plain.pixels()[window], converting.pixels()[window])


def test_clicks_change_the_controls(show, widgets):
    screen = show(1920, 1080, panels=("operators", "controls"))
    assert screen.click(widgets["scripted camera"]) and screen.controls.scripted
    assert screen.click(widgets["texture"]) and screen.controls.paused == {"texture"}
    assert screen.click(widgets["texture"]) and screen.controls.paused == set()
    assert screen.click(widgets["record a trace"]) and screen.controls.recording
    assert screen.click(widgets["budget: the time that rendering leaves"])
    assert screen.controls.budget_ms == pytest.approx(4.0)
    assert screen.click(widgets["##budget"])  # at the slider's left end
    assert screen.controls.budget_ms is not None and screen.controls.budget_ms < 1.0
    assert screen.click(widgets["budget: the time that rendering leaves"])
    assert screen.controls.budget_ms is None
    x, y = widgets["##mode"]
    screen.click((x + 20, y))
    screen.click((x + 20, y + 3.3 * imgui.get_text_line_height_with_spacing()))
    assert (screen.controls.mode, screen.controls.policy) == ("unsliced", "least_laxity")


def test_a_budget_can_be_typed(show, widgets):
    screen = show(1920, 1080, panels=("operators", "controls"))
    screen.controls.budget_ms = 2.0
    screen.frames(2)
    screen.event("key_down", key="Control")
    screen.click(widgets["##budget"])
    screen.event("key_up", key="Control")
    screen.frames()
    for character in "7.5":
        assert screen.event("char", data=character)
        screen.frames()
    for kind in ("key_down", "key_up"):
        assert screen.event(kind, key="Enter")
        screen.frames()
    assert screen.controls.budget_ms == pytest.approx(7.5)
    screen.frames()
    assert not screen.event("key_down", key="w")


def test_clicks_in_the_middle_reach_the_game(show):
    screen = show()
    before = vars(screen.controls).copy()
    assert not screen.click((760.0, 400.0))
    assert not screen.event("key_down", key="w")
    assert not screen.event("char", data="w")
    screen.event("wheel", dx=0, dy=-100)
    screen.frames()
    assert vars(screen.controls) == before


def test_every_heading_of_the_ranking_sorts(show, widgets):
    screen = show(1920, 1080)
    ranking = screen.ranking
    first = widgets[f"##{ranking.rows[0].key}"]
    seen, orders = set(), set()
    left, _, width, _ = screen.overlay.rectangles["right"]
    for x in range(round(left) + 24, round(left + width) - 24, 24):
        screen.click((x, first[1] - 17))
        seen.add(ranking.sorted_by)
        orders.add(tuple(row.key for row in ranking.rows))
    assert len(seen) == 8
    assert len(orders) >= 8


def test_a_selected_row_shows_its_line_of_the_model(show, full, widgets):
    screen = show()
    ranking = screen.ranking
    key = next(row.key for row in ranking.rows if row.network == "upres")
    ranking.selected = key
    screen.frames(2)
    said = " ".join(text for text, _ in details(screen.overlay.panel._view(), key))
    step = full.agents.sessions["upres"].plan.steps[key[1]]
    assert " ".join(step.source.text.split()) in said
    assert f"{step.groups} workgroup" in said and "graph.nnef" in said
    other = next(row.key for row in ranking.rows if row.key != key)
    position = widgets[f"##{other}"]
    screen.click(position)
    assert ranking.selected == other
    screen.click(position)
    assert ranking.selected is None


def test_last_seconds_show_only_recent_operators(show, full, widgets):
    screen = show()
    screen.click(widgets["last 5 s"])
    assert screen.ranking.rows == []
    key = "upres", 0
    full.log.operators[key].runs += 1.0
    for _ in turns():  # rows are counted again after a quarter of a second
        screen.frames()
        if screen.ranking.rows:
            break
    assert [row.key for row in screen.ranking.rows] == [key]


@pytest.fixture
def said(monkeypatch) -> dict[str, tuple]:
    """A dictionary from every text that sections have drawn in lines to its colour."""
    texts: dict[str, tuple] = {}
    original = drawn_widgets.text

    def text(content, colour):
        texts[content] = colour
        original(content, colour)

    monkeypatch.setattr(drawn_widgets, "text", text)
    monkeypatch.setattr(drawing, "text", text)  # for sections of a game's own
    return texts


def test_windows_are_built_twelve_times_a_second_and_after_an_input(show, full, monkeypatch):
    screen, built = show(), []
    screen.frames(8)
    original = imgui.new_frame
    monkeypatch.setattr(imgui, "new_frame", lambda: (built.append(1), original()))
    pictures = set()
    for number in range(240, 300):
        add_frame(full.log, number)
        screen.frames(1, dt_s=1 / 60)
        pictures.add(screen.pixels().tobytes())
    assert 11 <= len(built) <= 13
    assert 2 <= len(pictures) <= 13  # the graph moves
    screen.frames(1, dt_s=0.0)
    before = len(built)
    screen.event("pointer_move", x=60.0, y=24.0)  # over a heading, which lights up
    screen.frames(1, dt_s=0.0)
    assert len(built) == before + 1 and screen.pixels().tobytes() not in pictures


def test_no_frame_computes_data_and_builds_or_draws_windows(show, full, monkeypatch):
    """Texts of the ranking are made for the rows that are seen, not for all operators."""
    screen = show(panels=("frames", "this frame", "operators"))
    screen.frames(20, dt_s=1 / 60)
    log, lines = [], []
    for section in screen.overlay.panel.sections:
        monkeypatch.setattr(section, "refresh", noted(section.refresh, log, section.title))
    monkeypatch.setattr(imgui, "new_frame", noted(imgui.new_frame, log, "built"))
    backend = screen.overlay._backend
    monkeypatch.setattr(backend, "draw", noted(backend.draw, log, "drawn"))
    of = drawn_ranking.RankLine.of
    monkeypatch.setattr(drawn_ranking.RankLine, "of", noted(of, lines, "line"))
    seen = set()
    for number in range(240, 100_000):
        add_frame(full.log, number)
        screen.frames(1, dt_s=1 / 60)
        assert len(log) <= 1 and len(lines) <= 20, log
        seen.update(log)
        log.clear()
        lines.clear()
        if seen == {"frames", "this frame", "operators", "built", "drawn"}:
            break
    assert len(seen) == 5 and len(screen.ranking.rows) > 60


def noted(function, log, name):
    """Returns a function that also appends a name to a log."""

    def with_note(*args, **options):
        log.append(name)
        return function(*args, **options)

    return with_note


def test_the_overlay_draws_little_and_shows_what_it_takes(show, full, said):
    screen = show(panels=("frames", "this frame", "operators"))
    screen.frames(8)
    data = imgui.get_draw_data()
    assert data.total_idx_count / 3 < 3000
    assert len(screen.overlay._backend._rectangles) == 2
    pixels = screen.pixels()
    for x, y, width, height in screen.overlay.rectangles.values():  # square and opaque
        for corner in ((x, y), (x + width - 1, y), (x, y + height - 1), (x + width - 1, y + 1)):
            assert (pixels[int(corner[1]), int(corner[0])] < 40).all()
    lines: list[str] = []
    for _ in turns():  # numbers change after a quarter of a second
        screen.frames()
        lines = [text for text in said if text.startswith("this overlay: ")]
        if lines:
            break
    assert " ms CPU" in lines[0] and lines[0].endswith(" %")


@pytest.mark.parametrize("size", [(640, 360), (1920, 1080)])
def test_the_last_trace_is_named_with_its_folder(gpu, full, said, misfits, size):
    full.controls.trace_path = Path("out/demo-20260101-120000.trace.json")
    Screen(gpu, full, *size, panels=("controls",)).frames(4)
    (text,) = (text for text in said if text.startswith("last: "))
    assert text.startswith("last: out/demo") and text.endswith(".trace.json") and misfits == []


def test_a_tooltip_over_the_game_is_drawn_and_removed(show, widgets):
    screen = show(1280, 720)

    def drawn():
        return (screen.pixels() != _BACKGROUND).any(axis=2)

    def windows():
        mask = np.zeros((720, 1280), bool)
        for x, y, width, height in screen.overlay.rectangles.values():
            mask[round(y) : round(y + height), round(x) : round(x + width)] = True
        return mask

    screen.frames(8)
    keys = [f"##{row.key}" for row in screen.ranking.rows]
    # the lowest whole row, whose tooltip is partly below its window; the table clips the one after
    x, y = sorted((widgets[key] for key in keys if key in widgets), key=lambda place: place[1])[-2]
    for _ in turns():  # a tooltip waits until the mouse has rested
        screen.event("pointer_move", x=x, y=y)
        screen.frames()
        if (drawn() & ~windows()).sum() > 1000:
            break
    screen.event("pointer_move", x=640.0, y=700.0)
    screen.frames(4)
    assert (drawn() == windows()).all()


def test_the_reason_of_a_late_frame_is_a_line_of_its_own(show, said):
    show()
    texts = [text for text in said if text.startswith("last late frame: ")]
    assert texts == ["last late frame: 133 ms, inference over budget"]
    assert said[texts[0]] == palette.TEXT


def test_the_activity_that_made_a_frame_late_has_its_time(show, said, full, monkeypatch):
    late = next(sample for sample in reversed(full.log.frames) if sample.cause)
    monkeypatch.setattr(late, "cause", "selecting tiles")
    monkeypatch.setattr(late, "parts", {"the picture": 70.0, "selecting tiles": 63.4})
    show()
    assert "last late frame: 133 ms, selecting tiles 63 ms" in said


@pytest.mark.parametrize("size", SIZES)
def test_operators_have_names_of_their_own(gpu, full, monkeypatch, size):
    steps = {key: time for key, time in full.log.operators.items() if key[0] == "upres"}
    for (_, step), time in steps.items():
        time.title = f"conv 'encoder.details.layers.{step}.conv'"
    screen = Screen(gpu, full, *size, panels=("operators",))
    screen.frames(8)
    names = [row.name for row in screen.ranking.rows]
    assert len(set(names)) == len(names)
    assert any(name.endswith(" 2/3") for name in names)
    drawn = {key: name for key, (_, name) in screen.ranking._names.items()}
    assert len({(key[0], name) for key, name in drawn.items()}) == len(drawn)
    for (network, step), name in drawn.items():
        assert network != "upres" or f"{step}.conv'" in name


def test_a_row_tells_operator_shape_and_line_under_the_mouse(show, widgets, monkeypatch):
    screen, shown = show(), []
    row = screen.ranking.rows[1]
    monkeypatch.setattr(imgui, "set_tooltip", shown.append)
    x, y = widgets[f"##{row.key}"]
    for _ in turns():  # a tooltip waits until the mouse has rested
        screen.event("pointer_move", x=x + 20, y=y)
        screen.frames()
        if shown:
            break
    operator = screen.overlay.panel.log.operators[row.key]
    session = screen.overlay._game.agents.sessions[operator.network]
    node = next(node for node in session.graph.nodes if node.title == operator.title)
    assert operator.title in shown[0] and "graph.nnef:" in shown[0]
    assert str(list(session.graph.facts[node.outputs[0]].shape)) in shown[0]


def test_every_heading_explains_itself(show, monkeypatch):
    hints = []
    monkeypatch.setattr(imgui, "set_item_tooltip", hints.append)
    show(1920, 1080)
    assert len(set(hints)) >= 8 and all(hint.endswith(".") for hint in hints)


def test_nothing_is_created_in_a_frame(gpu, full, monkeypatch):
    screen = Screen(gpu, full)
    number = 240

    def play(count: int) -> None:
        nonlocal number
        for _ in range(count):
            add_frame(full.log, number)
            full.log.operators["upres", 0].runs += 0.5
            number += 1
            screen.frames(1)

    play(120)
    created = creations(gpu, monkeypatch)
    held = held_bytes(gpu)
    play(60)
    assert created == []
    assert gpu.memory.held_bytes == held
