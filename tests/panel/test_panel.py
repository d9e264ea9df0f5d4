"""Tests of the panel in a host's imgui: it shows the networks' costs, and its sliders work."""

import numpy as np
import pytest

pytest.importorskip("imgui_bundle")

from imgui_bundle import imgui

import cml_engine as cml
from cml_engine.panel import Panel, PanelSection
from cml_engine.panel.frames import OperatorTimes
from tests.fixtures.frames.turns import turns
from tests.fixtures.models import SCALED

pytestmark = pytest.mark.gpu


def load(text=SCALED):
    strength = cml.Slider("scaled.y", 0.0, 4.0, "how much")
    return cml.load(cml.nnef.MemoryModel(text), sliders={"strength": strength})


@pytest.fixture
def session(gpu):
    return cml.Session(load(), gpu)


@pytest.fixture
def panel(host, session, screen):
    return Panel(host.scheduler, {"net": session})


@pytest.fixture
def screen():
    context = imgui.create_context()
    imgui.set_current_context(context)
    io = imgui.get_io()
    io.set_ini_filename("")
    io.display_size = 800, 600
    io.backend_flags |= imgui.BackendFlags_.renderer_has_textures.value
    yield io
    imgui.destroy_context(context)


def drawn(panel, count=2):
    for _ in range(count):
        imgui.new_frame()
        panel.draw()
        imgui.render()
    return imgui.get_draw_data().total_vtx_count


def watched(host, panel):
    """Runs one frame of the host and passes its reports to the panel."""
    before = len(host.measured)
    host.frame()
    panel.watch(host.reports[-1], host.measured[before:])


def test_operator_times_are_sums_of_slice_times(gpu, host, session, panel):
    empty = drawn(panel)
    job = host.submit(session, {"x": np.ones((1, 2, 3, 5))})
    for _ in turns():
        watched(host, panel)
        if job.ended and panel_times(panel):
            break
    if not gpu.has_timestamps:
        pytest.skip("the device has no timestamps")
    spent = [part.measured_ms for r in host.measured for part in r.slices if part.measured_ms]
    assert sum(panel_times(panel)) == pytest.approx(sum(spent)) and spent
    assert all(part.name == "net" for r in host.reports for part in r.slices)
    panel.section("operators").refresh(panel._view(), 0.0)
    assert drawn(panel) > empty


def panel_times(panel):
    return [o.total_ms for o in panel.log.operators.values() if o.total_ms > 0]


def test_a_moved_slider_is_an_input_of_the_next_job(host, session, panel, screen, monkeypatch):
    places = {}
    original = imgui.slider_float

    def slider(label, *args):
        result = original(label, *args)
        low, high = imgui.get_item_rect_min(), imgui.get_item_rect_max()
        places[label] = low.x, high.x, 0.5 * (low.y + high.y)
        return result

    monkeypatch.setattr(imgui, "slider_float", slider)
    assert panel.values("net") == {"strength": 2.0}
    drawn(panel, 3)
    left, _, y = places["##strength of net"]
    for down in (False, True, True, False):
        screen.add_mouse_pos_event(left + 3, y)
        screen.add_mouse_button_event(0, down)
        drawn(panel)
    assert panel.values("net") == {"strength": 0.0}
    job = host.submit(session, {"x": np.ones((1, 2, 3, 5)), **panel.values("net")})
    assert (host.finish(job)[0] == 0.25).all()


CONTROLS = {
    "on": cml.Slider("lit.condition"),
    "mode": cml.Slider("scaled.y", choices={"off": 0.0, "half": 0.5, "full": 2.0}),
    "tint": cml.Slider("tinted.y", 0.0, 4.0),
    "lift": cml.Slider("y.y", -1.0, 1.0),
}
CONTROLLED = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 2, 3, 5]);
    lit = select(true, x, 0.0);
    scaled = mul(lit, 2.0);
    tinted = mul(scaled, [[1.0, 3.0]]);
    y = add(tinted, 0.25);
}
"""


def test_each_type_of_slider_has_its_widget_and_tells_its_moves(gpu, host, screen, monkeypatch):
    graph = cml.load(cml.nnef.MemoryModel(CONTROLLED), sliders=CONTROLS)
    told = []
    sessions = {"net": cml.Session(graph, gpu)}
    panel = Panel(host.scheduler, sessions, on_change=lambda *what: told.append(what))
    drawn(panel, 3)
    moves = {
        "checkbox": lambda label, value: (True, not value),
        "combo": lambda label, chosen, words: (True, words.index("half")),
        "slider_float": lambda label, value, *_: (
            (True, 4.0) if label.endswith("net1") else (False, value)
        ),
    }
    for name, move in moves.items():
        monkeypatch.setattr(imgui, name, move)
    drawn(panel, 1)
    moved = {"on": False, "mode": 0.5, "tint": (1.0, 4.0)}
    assert panel.values("net") == {**moved, "lift": 0.25}
    assert told == [("net", "on", False), ("net", "mode", 0.5), ("net", "tint", (1.0, 4.0))]


def test_replaced_network_resets_operator_times(host, session):
    times = OperatorTimes({"net": session})
    host.run(session, {"x": np.ones((1, 2, 3, 5))})
    (report,) = [r for r in host.reports if r.slices]
    for part in report.slices:
        part.measured_ms = 1.0
    times.add(report)
    assert sum(o.total_ms for o in times.operators.values()) == len(report.slices)
    session.replace(load(SCALED.replace("add(scaled, 0.25)", "exp(scaled)")))
    session.take_replacement()
    report.slices[0].title = "what the old network did"  # its time may arrive later
    times.add(report)
    assert [o.total_ms for o in times.operators.values()] == [0.0] * len(session.plan.steps)


def test_wrong_calls_of_a_panel_are_errors(host, session, monkeypatch):
    panel = Panel(host.scheduler, {"net": session})
    # another test of the process may have left a context
    monkeypatch.setattr(imgui, "get_current_context", lambda: None)
    for draw in (panel.draw, panel.draw_widgets):
        with pytest.raises(cml.InputError, match="no context of Dear ImGui"):
            draw()
    with pytest.raises(cml.InputError, match=r"the FrameReport of scheduler.encode\(\)"):
        panel.watch([], None)


def test_a_session_on_the_cpu_is_refused(host):
    with pytest.raises(cml.InputError, match="session 'net' runs on the CPU"):
        Panel(host.scheduler, {"net": cml.Session(load(), "cpu")})


@pytest.mark.parametrize("size", [(480, 320), (640, 360), (960, 540), (1280, 720), (1920, 1080)])
def test_open_panel_fits_into_the_window(panel, screen, size):
    screen.display_size = size
    drawn(panel, 4)
    assert {section.title for section in panel._open} >= {"frames", "operators", "sliders"}
    imgui.new_frame()
    panel.draw()
    imgui.begin("networks")
    place, taken = imgui.get_window_pos(), imgui.get_window_size()
    scrolls = imgui.get_scroll_max_x(), imgui.get_scroll_max_y()
    imgui.end()
    imgui.render()
    assert place.x + taken.x <= size[0] and place.y + taken.y <= size[1]
    assert scrolls == (0.0, 0.0), "nothing is cut off"


def test_custom_section_opens_by_its_title(host, session, screen):
    class Counter(PanelSection):
        title = "counter"
        drawn = 0

        def draw(self, view, layout):
            self.drawn += 1

    counter = Counter()
    panel = Panel(host.scheduler, {"net": session}, sections=[counter])
    drawn(panel)
    assert counter.drawn == 0
    panel.open("counter", "jobs")
    drawn(panel)
    assert counter.drawn == 2 and {s.title for s in panel._open} == {"counter", "jobs"}
    with pytest.raises(cml.InputError, match="no panel 'fps': choose from frames, operators, .*co"):
        panel.open("fps")


def test_host_passes_count_as_rendering(host, panel):
    for number in range(3):
        host.frame()
        panel.watch(host.reports[-1], [], [(number, {"scene": 6.0, "overlay": 0.5})])
    times = [(s.render_ms, s.overlay_ms) for s in panel.log.frames]
    assert times == [(6.0, 0.5)] * 3
    assert all(sample.frame_ms > 0 for sample in list(panel.log.frames)[:-1])
