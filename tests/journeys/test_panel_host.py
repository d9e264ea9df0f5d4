"""Tests of the panel in a host of one's own, by the programs that the installed pages print."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.gpu
WITHOUT_WINDOW = Path(__file__).with_name("hosts") / "without_window.py"


def write_program(environment, folder, words):
    """Writes the program of the page ``in_your_engine`` that has the words, and its network."""
    page = environment.run("cml", "docs", "in_your_engine", cwd=folder).stdout
    programs = map(dedent, re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (program,) = (text for text in programs if "import Panel" in text and words in text)
    (folder / "host.py").write_text(program)
    environment.run("cml", "example", cwd=folder)
    return folder / "host.py"


def is_panel(picture):
    """Returns True if a picture of 800x600 has a panel with texts at its left and nothing below."""
    with Image.open(picture) as image:
        pixels = np.asarray(image)
    top, bottom = pixels[:200, :600, :3], pixels[500:, :, :3]
    return (top > 180).any(axis=2).sum() > 500 and np.ptp(bottom) < 20


def test_a_panel_without_a_window(game_environment, tmp_path):
    host = write_program(game_environment, tmp_path, "ImguiWgpuBackend")
    game_environment.run("python", host, cwd=tmp_path)
    assert is_panel(tmp_path / "panel.png")


def test_a_panel_in_a_window_on_wgpu(game_environment, tmp_path):
    check_canvas(game_environment, tmp_path, "get_wgpu_context")


def test_a_panel_in_pygfx(pygfx_environment, tmp_path):
    check_canvas(pygfx_environment, tmp_path, "import pygfx")


def check_canvas(environment, folder, words):
    host = write_program(environment, folder, words)
    environment.run("python", WITHOUT_WINDOW, host, "panel.png", cwd=folder)
    assert is_panel(folder / "panel.png")
