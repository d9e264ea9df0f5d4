"""Tests of C and C++ hosts: the archive by CMake and pkg-config, and ``cml export --to c``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(__file__).with_name("hosts") / "twice.nnef"
IMAGE = np.arange(3 * 16 * 16, dtype=np.float32).reshape(1, 3, 16, 16) / 768
OUTSIDE = """
cmake_minimum_required(VERSION 3.16)
project(game C)
{player}
add_executable(game host.c)
target_link_libraries(game PRIVATE cml::player)
if(NOT TARGET cml::player OR TARGET play OR TARGET check)
  message(FATAL_ERROR "wanted cml::player and no general names")
endif()
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs a command, asserts that it succeeds, and returns its standard output."""
    env = {**os.environ, "NODEVICE_SELECT": "1", **(env or {})}  # a Mesa layer needs a desktop
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def find(name: str, extra: str) -> Path:
    """Returns the path of a program in this environment or on the system.

    Skips the test without it.
    """
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed ({extra})")
    return Path(found)


@pytest.fixture
def cmake(tmp_path):
    """A function that configures and builds a CMake project, and returns the build's folder."""
    program = find("cmake", "the extra `players`")
    find("cc", "a C compiler")

    def build(source: Path, *options: str) -> Path:
        folder = tmp_path / f"build-{len(list(tmp_path.glob('build-*')))}"
        run(program, "-S", source, "-B", folder, *options, cwd=tmp_path)
        run(program, "--build", folder, "--parallel", "2", cwd=tmp_path)
        return folder

    return build


@pytest.fixture
def player(dist, tmp_path):
    """The folder of the unpacked archive of the C player."""
    (archive,) = dist.glob("cml-player-c-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    return tmp_path / archive.name.removesuffix(".tar.gz")


@pytest.fixture
def wgpu(environment):
    """The folder of wgpu-native that comes with ``pip install cml-engine``."""
    return environment.site / "wgpu" / "resources"


@pytest.fixture
def outside(player, tmp_path):
    """A function that writes a CMake project of a game outside the player, and returns its folder.

    The project has the example's host, and ``player_line`` in its CMakeLists.txt.
    """

    def write(player_line: str) -> Path:
        folder = tmp_path / "game"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(OUTSIDE.format(player=player_line))
        for name in ("host.c", "common.h", "gpu.h"):
            shutil.copyfile(player / "example" / name, folder / name)
        return folder

    return write


def play(program: Path, network: Path, folder: Path, **env: str) -> np.ndarray:
    """Runs the network in the C host on ``IMAGE``; returns its output as a flat float32 array."""
    IMAGE.tofile(folder / "image.bin")
    output = run(program, network, "image=image.bin", "2", cwd=folder, env=env)
    assert output.startswith("done in ")
    return np.fromfile(folder / "large.bin", np.float32)


@pytest.fixture
def expected(environment, cooked, tmp_path):
    """The output that ``cml run`` computes from the same cooked file and image, flattened."""
    np.save(tmp_path / "image.npy", IMAGE)
    words = ("cml", "run", cooked, "--trusted", "-i", "image=image.npy", "-o", "large=large.npy")
    environment.run(*words, cwd=tmp_path)
    return np.load(tmp_path / "large.npy").ravel()


def test_a_project_finds_the_installed_player(
    player, wgpu, cmake, outside, cooked, expected, tmp_path
):
    where = f"-DCML_WGPU_DIR={wgpu}"
    built = cmake(player, where, f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'prefix'}")
    run(find("cmake", ""), "--install", built, cwd=tmp_path)
    shutil.rmtree(built)
    game = outside("find_package(cml 0.1 REQUIRED)")
    made = cmake(game, f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}", where)
    assert_allclose(play(made / "game", cooked, game), expected, rtol=1e-5)

    (config,) = (tmp_path / "prefix").rglob("cml.pc")
    env = {"PKG_CONFIG_PATH": str(config.parent)}
    words = find("pkg-config", "the system's packages"), "--cflags", "--libs", "cml"
    flags = run(*words, cwd=game, env=env).split()
    library = next(wgpu.glob("libwgpu_native*"))
    run("cc", "host.c", f"-I{wgpu}", *flags, library, "-lm", "-o", "by_hand", cwd=game)


def test_a_project_builds_the_player_as_a_part_of_it(
    player, wgpu, cmake, outside, cooked, expected
):
    game = outside(f'add_subdirectory("{player}" cml)')
    made = cmake(game, f"-DCML_WGPU_DIR={wgpu}", "-DBUILD_SHARED_LIBS=ON")
    assert_allclose(play(made / "game", cooked, game), expected, rtol=1e-5)


def test_an_engine_with_another_api_needs_no_webgpu(player, cmake, cooked, tmp_path):
    """A game builds the player without webgpu.h and plays a network on a table of its own.

    Its table is that of the null backend, which checks the player's calls.
    """
    folder = tmp_path / "game"
    folder.mkdir()
    shutil.copyfile(ROOT / "tests/players/null_rules.c", folder / "host.c")
    text = OUTSIDE.format(player=f'add_subdirectory("{player}" cml)')
    (folder / "CMakeLists.txt").write_text(text)
    made = cmake(folder, "-DCML_WEBGPU=OFF")
    told = json.loads(run(made / "game", cooked, "0.5", "0", cwd=folder))
    assert told["dispatches"] > 0


def test_a_host_of_vulkan_plays_without_webgpu(player, cmake, cooked, expected):
    """The player builds with its Vulkan backend alone, and the example's host gives the output."""
    if not Path("/usr/include/vulkan").is_dir():
        pytest.skip("libvulkan-dev is not installed")
    made = cmake(player, "-DCML_VULKAN=ON", "-DCML_WEBGPU=OFF")
    assert_allclose(play(made / "cml_vulkan_host", cooked, made), expected, rtol=1e-5)


def test_an_installed_player_has_the_target_of_vulkan(player, cmake, tmp_path):
    if not Path("/usr/include/vulkan").is_dir():
        pytest.skip("libvulkan-dev is not installed")
    made = cmake(player, "-DCML_VULKAN=ON", "-DCML_WEBGPU=OFF", "-DCML_EXAMPLES=OFF")
    run(find("cmake", ""), "--install", made, "--prefix", tmp_path / "installed", cwd=tmp_path)
    host = tmp_path / "host"
    host.mkdir()
    (host / "host.c").write_text('#include "cml_vulkan.h"\nint main(void) { return CML_OK; }\n')
    (host / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(host C)\n"
        "find_package(cml REQUIRED)\nadd_executable(game host.c)\n"
        "target_link_libraries(game PRIVATE cml::vulkan)\n"
    )
    game = cmake(host, f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}") / "game"
    run(game, cwd=host)


def test_an_exported_host_compiles_with_one_line(compiler_environment, expected, tmp_path):
    find("cc", "a C compiler")
    done = compiler_environment.run("cml", "export", MODEL, "out", "--to", "c", cwd=tmp_path)
    folder = tmp_path / "out"
    (line,) = re.findall(r"^ *(WGPU=.*)$", done.stdout, re.MULTILINE)
    assert line in (folder / "README.txt").read_text()
    assert str(compiler_environment.site) in line
    run("sh", "-c", line, cwd=folder)
    found = play(folder / "host", folder / "net.cml", folder)
    assert_allclose(found, expected, rtol=1e-5)
    for arguments, message in {
        (): "usage: host",
        ("no net.cml",): "cannot read 'no net.cml'",
    }.items():
        refused = subprocess.run([folder / "host", *arguments], capture_output=True, text=True)
        assert refused.returncode == 2 and message in refused.stderr
    done = compiler_environment.run(
        "cml", "export", MODEL, "out", "--to", "c", cwd=tmp_path, check=False
    )
    assert done.returncode == 2 and "not empty" in done.stderr
