"""Tests of the game in a real window with a simulated player, on the present display or on Xvfb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cml_engine.demo_game import command
from cml_engine.demo_game.surfaces import has_surfaces
from tests.fixtures.display import open_display
from tests.fixtures.frames.turns import turns

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """The name of a display from an Xvfb that this fixture starts.

    Skips the tests without Xvfb, packages, or a driver that can draw to its windows.
    """
    for module in ("glfw", "imgui_bundle"):
        pytest.importorskip(module, reason=f"{module} is not installed (the extra 'game')")
    with open_display() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", name)
        patch.delenv("WAYLAND_DISPLAY", raising=False)
        if not has_surfaces():
            pytest.skip("the Vulkan driver cannot draw to a window")
        yield name


def test_memory_growth_is_reported_but_fluctuation_is_not() -> None:
    pytest.importorskip("glfw", reason="glfw is not installed (the extra 'game')")
    from tests.demo.window_session import Held, grew, growth

    begin = [Held(30.0, 100.0, 10.0, 50), Held(61.0, 200.0, 30.0, 200)]
    assert growth(begin) == {}, "the first minute says nothing"
    assert grew(growth([*begin, Held(600.0, 210.0, 31.0, 190)])) == []
    assert grew(growth([*begin, Held(600.0, 300.0, 50.0, 400)])) == [
        "resident_mib", "gpu_mib", "objects",
    ]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.slow
def test_a_player_uses_the_window_and_closes_it(display: str, tmp_path: Path) -> None:
    env = {**os.environ, "DISPLAY": display, "PYTHONPATH": str(ROOT)}
    env.pop("WAYLAND_DISPLAY", None)
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.demo.window_session"]
    done = subprocess.run(
        [*command, "--seconds", "4", "--frames", "45", "--tiles", "6", "--size", "320x180"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr and "rror" not in done.stderr, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["acts"]) == 13 and report["closed"] and report["error"] == ""
    assert len(report["sizes"]) >= 3 and report["frames"] > 44 and report["tiles"] > 5
    if report["software"]:  # otherwise the time does not include the GPU
        # the whole of every frame, without the wait for the display; a minimised window draws none
        assert 0.8 * report["frames"] <= report["told"] <= report["frames"]
        assert 0 < report["told_ms"]["p50"] <= 1.1 * report["frame_ms"]["p50"]
    trace = json.loads((tmp_path / report["trace"]).read_text())
    assert any(e["ph"] == "X" for e in trace["traceEvents"])


DESTROY = """
import ctypes, sys
X = ctypes.CDLL("libX11.so.6")
X.XOpenDisplay.restype = ctypes.c_void_p
X.XDefaultRootWindow.restype = ctypes.c_ulong
display = ctypes.c_void_p(X.XOpenDisplay(None))
one, windows, count = ctypes.c_ulong(), ctypes.POINTER(ctypes.c_ulong)(), ctypes.c_uint()
root = ctypes.c_ulong(X.XDefaultRootWindow(display))
pointers = map(ctypes.byref, (one, one, windows, count))
X.XQueryTree(display, root, *pointers)
title = ctypes.c_char_p()
for window in map(ctypes.c_ulong, windows[: count.value]):
    X.XFetchName(display, window, ctypes.byref(title))
    if b"CML demo" in (title.value or b""):
        X.XDestroyWindow(display, window)
        X.XSync(display, 0)
        sys.exit(0)
sys.exit(1)
"""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 5])
def test_a_window_that_another_program_destroys_ends_in_one_line(
    display: str, tmp_path: Path, seconds: float
) -> None:
    env = {**os.environ, "DISPLAY": display, "PYTHONPATH": str(ROOT)}
    env.pop("WAYLAND_DISPLAY", None)
    command = [sys.executable, "-m", "demo_game", "--size", "320x180", "--seconds", "240"]
    pipe = subprocess.PIPE
    demo = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe, text=True)
    try:
        time.sleep(seconds)
        for _ in turns():
            done = subprocess.run([sys.executable, "-c", DESTROY], env=env, check=False)
            if done.returncode == 0:
                break
            time.sleep(0.5)
        _, errors = demo.communicate(timeout=60)
    finally:
        demo.kill()
    assert demo.returncode == 1
    said = [line for line in errors.splitlines() if not line.startswith("[demo]")]
    assert said[-1] == "error: another program has closed the window"
    assert "panicked" not in errors and "Traceback" not in errors


def test_a_driver_without_windows_flies_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    assert command.why_no_window() == "" or not has_surfaces()
    monkeypatch.setattr(command, "has_surfaces", lambda: False)
    assert command.why_no_window() == "the Vulkan driver cannot draw to a window"
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert command.why_no_window() == "no display"
