"""Tests of ``examples/vulkan_host``: copied, built and run as its README.md says, under Xvfb."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from tests.fixtures.display import Windows, open_display
from tests.integer.test_agents import SWIFTSHADER
from tests.players.test_vulkan import LAYER

HERE = Path(__file__).parent
TITLE = "vulkan_host"
#: seconds that the game may take on a busy machine
SECONDS = 300


def need(program: str, package: str) -> str:
    """Returns the path of a program, of this environment or the system's; else skips the test."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    found = shutil.which(program, path=path)
    if found is None:
        pytest.skip(f"{program} is not installed (on Debian: apt-get install {package})")
    return found


@pytest.fixture(scope="session")
def built(compiler_environment, dist, once):
    """The folder in which the commands of README.md have built the game and cooked its network."""
    need("c++", "g++")
    need("glslangValidator", "glslang-tools")
    for header in ("vulkan/vulkan.h", "GLFW/glfw3.h"):
        if not Path("/usr/include", header).exists():
            pytest.skip(f"{header} is not installed (on Debian: libvulkan-dev, libglfw3-dev)")
    cmake = need("cmake", "cmake")

    def make(folder: Path) -> None:
        (archive,) = dist.glob("cml-player-c-*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        compiler_environment.run("cml", "example", "vulkan_host", cwd=folder)
        text = (folder / "examples/vulkan_host/README.md").read_text()
        (commands,) = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        *commands, last = commands.splitlines()
        assert last == "build/vulkan_host enlarge.cml"
        for command in commands:
            words = command.split()
            if words[0] == "cmake":
                words[0] = cmake
            if "-S" in words:
                words.append(f"-DCML_PLAYER={folder / archive.name.removesuffix('.tar.gz')}")
            compiler_environment.run(*words, cwd=folder)

    return once("vulkan-host", make)


@pytest.fixture(scope="module")
def display():
    with open_display(1280, 800) as name:
        yield name


@dataclass
class Host:
    """Runs the game on a display, with the validation layers if they are installed."""

    folder: Path
    display: str

    def start(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        env = {**os.environ, "DISPLAY": self.display, "NODEVICE_SELECT": "1", **variables}
        # newer versions of GLFW complain without it
        env.setdefault("XDG_RUNTIME_DIR", str(self.folder))
        env.pop("WAYLAND_DISPLAY", None)
        command = [self.folder / "build/vulkan_host", *words, *["--validate"] * LAYER.exists()]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            list(map(str, command)), cwd=self.folder, env=env, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: object, code: int = 0, **variables: str) -> tuple[str, str]:
        """Runs the game to its end; returns its output and what it reports."""
        with self.start(*words, **variables) as game:
            try:
                output, errors = game.communicate(timeout=SECONDS)
            finally:
                game.kill()
        assert game.returncode == code, output + errors
        assert "validation:" not in errors
        return output, errors


@pytest.fixture
def host(built, display):
    return Host(built, display)


def check_picture(picture):
    """Compares the halves of a screenshot: what the network takes, and its result."""
    assert picture.shape == (712, 1024, 3)
    small, large = picture[0:512:4, 0:512:4], picture[0:512:2, 512:1024:2]
    assert small.std((0, 1)).min() > 20, "a picture of one colour would show nothing"
    image = small.astype(np.float32).transpose(2, 0, 1)[None] / 255
    model = Path(__file__).parents[2] / "examples/models/enlarge.onnx"
    session = cml.Session(cml.load(model, shapes={"image": image.shape}), "cpu")
    (expected,) = session.run({"image": image}).values()
    expected = 255 * expected[0].transpose(1, 2, 0).clip(0, 1)
    off = np.abs(large - expected)
    plain = np.abs(large - small.repeat(2, 0).repeat(2, 1).astype(np.float32))
    assert off.mean() < 0.6 and off.max() < 8, "the screen's picture has 8 bits, the network's 32"
    assert plain.mean() > 2, "an enlarged picture differs from one with larger texels"


#: variables of the environment, and milliseconds of a frame: SwiftShader is slow
DRIVERS = {"default": ({}, 4)}
if SWIFTSHADER:
    DRIVERS["SwiftShader"] = ({"VK_ICD_FILENAMES": str(SWIFTSHADER[0])}, 100)


@pytest.mark.gpu
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_window_shows_the_network_result(host, driver, tmp_path):
    """After a number of frames the window shows the scene, its enlarged picture and a panel."""
    variables, budget_ms = DRIVERS[driver]
    words = "--frames", 60, "--still", 1.5, "--screenshot", tmp_path / "seen.ppm"
    output, errors = host.run("enlarge.cml", *words, "--budget", budget_ms, **variables)
    frames, results = map(int, re.findall(r"\d+", output))
    assert frames >= 60 and results >= 1 and errors == ""
    picture = read_ppm(tmp_path / "seen.ppm")
    check_picture(picture)
    panel = picture[512:]
    assert (panel > 200).all(-1).sum() > 1000, "white letters"
    assert (panel == (0x4A, 0xA3, 0xFF)).all(-1).sum() > 2000, "blue bars"


@pytest.mark.gpu
def test_the_game_follows_its_window_until_it_is_closed(host):
    """Resizing, also to a sliver, renews the swapchain; the closed window ends the game."""
    with host.start("enlarge.cml") as game, Windows(host.display) as windows:
        try:
            until = time.monotonic() + SECONDS
            while (window := windows.find(TITLE)) is None:
                assert time.monotonic() < until and game.poll() is None, game.communicate()
                time.sleep(0.1)
            for size in ((300, 250), (1200, 40), (1, 1), (640, 480)):
                windows.resize(window, *size)
                time.sleep(0.5)
                assert game.poll() is None, game.communicate()
            windows.close(window)
            output, errors = game.communicate(timeout=SECONDS)
        finally:
            game.kill()
    assert game.returncode == 0 and errors == ""
    assert re.fullmatch(r"\d+ frames, \d+ results\n", output)


@pytest.mark.gpu
def test_a_lost_device_ends_the_game_with_a_sentence(host, tmp_path):
    library = tmp_path / "lost.so"
    source = HERE / "hosts/lost_device.c"
    command = [need("cc", "gcc"), "-shared", "-fPIC", str(source), "-ldl", "-o", str(library)]
    subprocess.run(command, check=True)
    _, errors = host.run("enlarge.cml", code=1, LD_PRELOAD=str(library))
    assert errors.startswith("The graphics device is lost") and errors.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("words", "text"),
    {
        ("enlarge.cml", "--memory", 1): "CML_ERROR_MEMORY: ",
        ("enlarge.cml", "--memory", 32): "no memory is left",
        ("none.cml",): "Cannot read 'none.cml'.",
        ("enlarge.onnx",): "CML_ERROR_CORRUPT: ",
        ("enlarge.cml", "--budget", "no"): "usage: vulkan_host",
        ("enlarge.cml", "--frames", 1, "--screenshot", "no/seen.ppm"): "Cannot write 'no/seen.ppm'",
    }.items(),
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_problems_end_the_game_with_a_sentence(words, text, host):
    _, errors = host.run(*words, code=1)
    assert text in errors


@pytest.mark.gpu
def test_without_a_display_the_game_says_so(host):
    _, errors = Host(host.folder, ":none").run("enlarge.cml", code=1)
    assert errors.startswith("No window can be opened: ")


def read_ppm(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image)
