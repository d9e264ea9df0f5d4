"""Tests of the C player on Windows: compiled by mingw-w64, run by Wine, compared with this system.

The tests skip where one of both is not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cml_engine.cooked import cook
from cml_engine.cooked.export import amalgamated
from cml_engine.gpu.shaders import compilers
from tests.fixtures.cooked import DEVICES, chain, counter, small_inputs, small_model, turned
from tests.players.building import (
    HERE,
    INCLUDES,
    PLAYER,
    STRICT,
    WARNINGS,
    build,
    need_gcc,
    run_compiler,
    sources,
    wgpu_folder,
)
from tests.players.replay_lines import replayed
from tests.players.test_replay import random_run
from tests.scheduler.test_record import recorded_run

MINGW = "x86_64-w64-mingw32"
needs_compiler = pytest.mark.skipif(
    compilers.version() is None, reason="no HLSL compiler to cook with"
)


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """A function that returns the command of a Windows program, which runs in a prefix of its
    own."""
    found = shutil.which("wine")
    if found is None:
        pytest.skip("wine is not installed: no program for Windows can run")
    environment = {
        "WINEPREFIX": str(tmp_path_factory.mktemp("wine")),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",  # no question whether to install Mono and Gecko
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        subprocess.run([found, "wineboot", "-i"], capture_output=True, timeout=600)
        yield lambda program, *words: [found, str(program), *map(str, words)]


@pytest.fixture(scope="module")
def windows_build(tmp_path_factory):
    """A function that builds a program for Windows from one source and the player."""
    compiler, folder = need_gcc(f"{MINGW}-gcc"), tmp_path_factory.mktemp("windows")
    flags = (*STRICT, "-O1", *INCLUDES)
    run_compiler(compiler, *flags, "-c", *sources(device=False), cwd=folder)

    def make(source: str) -> Path:
        program = folder / f"{Path(source).stem}.exe"
        if not program.exists():
            objects = sorted(folder.glob("*.o"))
            run_compiler(compiler, *flags, HERE / source, *objects, "-o", program)
        return program

    return make


def output_of(command, **options):
    """Returns the exit code and the outputs of a program, with the ends of lines of Linux."""
    done = subprocess.run(list(map(str, command)), capture_output=True, timeout=600, **options)
    return done.returncode, *(text.replace(b"\r\n", b"\n") for text in (done.stdout, done.stderr))


def link_vulkan(folder):
    """Links Vulkan's headers into a folder, without the other headers of this system; returns
    False if there are none."""
    for name in ("vulkan", "vk_video"):
        if Path("/usr/include", name).is_dir():
            (folder / name).symlink_to(Path("/usr/include", name))
    return (folder / "vulkan").is_dir()


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cooked")
    models = {"counter": counter(), "chain": chain(), "small": small_model(), "turned": turned()}
    for name, graph in models.items():
        (folder / f"{name}.cml").write_bytes(cook(graph, DEVICES, player=True))
    return folder


@pytest.mark.parametrize("words", [(), ("-include", "windows.h")], ids=["plain", "windows.h"])
def test_all_of_the_player_compiles(words, tmp_path):
    """The player compiles without a warning, also after the macros of windows.h, which an
    engine's precompiled header may include."""
    where, hosts = [f"-isystem{wgpu_folder()}"], ["tools/play.c", "example/host.c"]
    has_vulkan = link_vulkan(tmp_path)
    (tmp_path / "cml.c").write_text(amalgamated(PLAYER))
    backends = ["null.c", "webgpu.c", *(["vulkan.c"] if has_vulkan else [])]
    flags = ("-fsyntax-only", *words, *INCLUDES, *where, f"-isystem{tmp_path}")
    gcc = (need_gcc(f"{MINGW}-gcc"), *STRICT, *flags)
    run_compiler(*gcc, tmp_path / "cml.c", *(PLAYER / "backends" / name for name in backends))
    run_compiler(*gcc, *(PLAYER / name for name in (*hosts, "example/scene.c")))
    if has_vulkan:
        run_compiler(*gcc, "-DCML_VULKAN", *(PLAYER / name for name in hosts))
    cpp = need_gcc(f"{MINGW}-g++")
    run_compiler(cpp, "-std=c++17", *WARNINGS, *flags, HERE / "wrapper.cpp")


@needs_compiler
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("null_rules.c", ()),
        *(("null_rules.c", (name, "0.002", late)) for name in ("chain", "small") for late in "01"),
        ("misuse.c", ("turned",)),
        ("check.c", ("--values", "small")),
        ("check.c", ("--flip", "counter")),
    ],
)
def test_programs_print_the_same_as_on_linux(source, words, windows_build, wine, networks):
    files = [networks / f"{word}.cml" for word in words]
    words = [file if file.exists() else file.stem for file in files]
    expected = output_of([build(source, "-O2"), *words])
    assert expected[0] == 0 and expected[1]
    assert output_of(wine(windows_build(source), *words)) == expected


@pytest.mark.parametrize("seed", [None, 4, 7])
def test_recordings_replay_to_equal_slices(seed, windows_build, wine):
    recording = recorded_run() if seed is None else random_run(seed)
    assert replayed(wine(windows_build("replay.c")), recording) == recording.decisions


@needs_compiler
@pytest.mark.gpu
def test_vulkan_gives_the_bits_of_linux(wine, networks, tmp_path):
    """The host on Vulkan writes the same bits in Wine, whose driver is that of this system."""
    if not link_vulkan(tmp_path) or shutil.which("xvfb-run") is None:
        pytest.skip("libvulkan-dev or xvfb, without which Wine has no Vulkan, is not installed")
    host = build("host.c", "-O2", vulkan=True)  # skips without a loader
    loader = Path(os.environ["WINEPREFIX"], "drive_c/windows/system32/vulkan-1.dll")
    words = ("-DCML_VULKAN", "-O2", *INCLUDES, f"-isystem{tmp_path}")
    program = tmp_path / "host.exe"
    files = (*sources(device=False, vulkan=True), PLAYER / "example/host.c", loader)
    run_compiler(need_gcc(f"{MINGW}-gcc"), *STRICT, *words, *files, "-o", program)
    small_inputs()["image"].tofile(tmp_path / "image.in")
    environment = {**os.environ, "NODEVICE_SELECT": "1"}
    found = []
    for command in ([host], ["xvfb-run", "-a", *wine(program)]):
        folder = tmp_path / f"run{len(found)}"
        folder.mkdir()
        told = output_of(
            [*command, networks / "small.cml", "image=../image.in", "0.3"],
            cwd=folder,
            env=environment,
        )
        assert told[0] == 0, told
        found.append({f.name: np.fromfile(f, np.uint32).tolist() for f in folder.glob("*.bin")})
    assert found[0] == found[1] and set(found[0]) == {"scaled.bin", "sums.bin"}
