"""Tests that hosts that render with OpenGL show the network's output in a texture."""

import importlib.util

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cml_engine as cml
from examples.plain_loop import cartoon
from tests.fixtures.frames.turns import turns
from tests.fixtures.pages import ROOT, example

pytestmark = pytest.mark.gpu


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


def run_page(tmp_path, monkeypatch, host):
    """Runs the code of docs/in_your_engine.md for a host unchanged; returns its variables by
    name."""
    folder = tmp_path / "cartoon.nnef"
    folder.mkdir()
    (folder / "graph.nnef").write_text(cartoon.CARTOON, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    page = {"image": cartoon.image(1.0), "width": cartoon.WIDTH, "height": cartoon.HEIGHT}
    for words in ("from examples", f"import {host}"):
        exec(example("docs/in_your_engine.md", words), page)
    return page


def until_shown(frame):
    return next(picture for _ in turns() if (picture := frame()) is not None)


def expected(image):
    return cml.Session(cartoon.load(), "cpu").run({"image": image})["picture"]


@needs("moderngl")
def test_documented_moderngl_host_shows_the_network_output(tmp_path, monkeypatch):
    import moderngl

    try:
        moderngl.create_context(standalone=True, backend="egl").release()
    except Exception as error:
        pytest.skip(f"no OpenGL without a display here: {error}")
    page = run_page(tmp_path, monkeypatch, "moderngl")
    picture = until_shown(page["moderngl_frame"])
    seen = np.frombuffer(page["texture"].read(), np.float32)
    rows = seen.reshape(cartoon.HEIGHT, cartoon.WIDTH, 3)[::-1]
    assert_array_equal(rows.transpose(2, 0, 1), picture[0])
    assert_allclose(picture, expected(page["image"]), atol=0.17)  # edges may differ by a tone
    assert np.mean(np.abs(picture - expected(page["image"]))) < 1e-3
    page["context"].release()


@needs("pyglet")
def test_documented_pyglet_host_shows_the_network_output(tmp_path, monkeypatch):
    import pyglet

    pyglet.options.headless = True
    try:
        window = pyglet.window.Window(64, 64)
    except Exception as error:
        pytest.skip(f"no OpenGL without a display here: {error}")
    page = run_page(tmp_path, monkeypatch, "pyglet")
    picture = until_shown(page["pyglet_frame"])
    texels = page["picture_texture"].get_image_data().get_data("RGB", 3 * cartoon.WIDTH)
    seen = np.frombuffer(texels, np.uint8).reshape(cartoon.HEIGHT, cartoon.WIDTH, 3)[::-1]
    wanted_texels = 255 * np.clip(picture[0], 0, 1).transpose(1, 2, 0)
    assert_allclose(seen, wanted_texels, atol=0.51)
    window.close()


@needs("panda3d")
def test_panda3d_shows_the_network_output(tmp_path):
    """A Panda3D program shows the network's output and writes a screenshot.

    Panda3D keeps global state, so the program runs in a process of its own.
    """
    import subprocess
    import sys

    shot = tmp_path / "shot.png"
    command = [sys.executable, "-c", _PANDA, str(shot)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "one result: 144 KB" in done.stdout and shot.is_file()


_PANDA = """
import sys
from pathlib import Path
import numpy as np
from examples.panda3d_host.__main__ import Game
from examples.plain_loop import cartoon
from tests.fixtures.frames.turns import turns
from tests.fixtures.pages import ROOT, example
import cml_engine as cml

game = Game(offscreen=True, budget_ms=5.0)
first = np.array(0)
for _ in turns():
    game.frame()
    if game.shown is not None:
        break
game.scene.draw()
texels = np.frombuffer(game.scene.texture.get_ram_image(), np.uint8)
texels = texels.reshape(cartoon.HEIGHT, cartoon.WIDTH, 3)[::-1, :, ::-1]
assert np.abs(texels - 255 * np.clip(game.shown[0], 0, 1).transpose(1, 2, 0)).max() <= 0.51
game.scene.save(Path(sys.argv[1]))
print(game.cost())
"""
