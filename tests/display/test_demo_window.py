"""Tests of the game in a real window with a simulated player, on the present display or on Xvfb."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """The name of a display from an Xvfb that this fixture starts.

    Skips the tests without Xvfb or packages.
    """
    for module in ("glfw", "imgui_bundle"):
        pytest.importorskip(module, reason=f"{module} is not installed (the extra 'game')")
    xvfb = shutil.which("Xvfb")
    if xvfb is None:
        pytest.skip("Xvfb is not installed (on Debian: apt-get install xvfb)")
    reading, writing = os.pipe()
    command = [xvfb, "-displayfd", str(writing), "-screen", "0", "800x600x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        number = pipe.readline().strip()
    if not number:
        pytest.skip("Xvfb does not start")
    yield f":{number}"
    server.terminate()
    server.wait()


def test_memory_growth_is_reported_but_fluctuation_is_not() -> None:
    pytest.importorskip("glfw", reason="glfw is not installed (the extra 'game')")
    from tests.display.window_session import Held, grew, growth

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
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.display.window_session"]
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
