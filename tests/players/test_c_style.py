"""Tests of the C player's sources: format, warnings, the header, visible names, other compilers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cml_engine as cml
from cml_engine.cooked.export import amalgamated
from tests.players.building import (
    INCLUDES,
    PLAYER,
    ROOT,
    STRICT,
    WARNINGS,
    need_gcc,
    player_library,
    run_compiler,
    sources,
    wgpu_folder,
)

HEADER = (PLAYER / "include" / "cml.h").read_text()
HEADERS = sorted((PLAYER / "include").glob("*.h"))
BACKEND = PLAYER / "backends" / "webgpu.c"


@pytest.mark.skipif(
    importlib.util.find_spec("clang_format") is None, reason="no clang-format (the extra `dev`)"
)
def test_the_sources_are_formatted():
    command = [sys.executable, "-m", "players.format", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sources_are_ascii():
    """MSVC reads sources in the code page of the system, in which UTF-8 may swallow a comment's
    end."""
    files = [file for file in PLAYER.rglob("*") if file.suffix in (".c", ".h", ".hpp")]
    assert files and [file.name for file in files if not file.read_bytes().isascii()] == []


def test_fast_math_is_refused():
    """With it the player would decide otherwise than the Python scheduler."""
    command = [need_gcc(), "-ffast-math", *INCLUDES, "-fsyntax-only", PLAYER / "src" / "costs.c"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode != 0 and "compile the player without -ffast-math" in done.stderr


def test_gcc_analyzer_finds_nothing(tmp_path):
    flags = ("-std=c99", "-O1", "-fanalyzer", "-Werror", "-c", *INCLUDES)
    where = f"-isystem{wgpu_folder()}"
    run_compiler(need_gcc(), *flags, where, *sources(device=True), cwd=tmp_path)
    if Path("/usr/include/vulkan").is_dir():
        # it loses track of lists when a driver's function is called; test_vulkan.py counts blocks
        unsure = "-Wno-analyzer-malloc-leak"
        file = PLAYER / "backends" / "vulkan.c"
        run_compiler(need_gcc(), *flags, unsure, file, cwd=tmp_path)


def test_the_header_has_the_version_of_the_package():
    found = re.findall(r"#define CML_VERSION_\w+ (\d+)", HEADER)
    assert ".".join(found) == cml.__version__
    assert f'#define CML_VERSION "{cml.__version__}"' in HEADER


def test_every_function_of_the_header_is_exported_and_defined():
    text = "".join(file.read_text() for file in HEADERS)
    declared = re.findall(r"^(\w.*?)\b(cml_\w+)\([^;]*\);", text, re.MULTILINE)
    functions = [(before, name) for before, name in declared if "typedef" not in before]
    assert len(functions) > 25
    assert all("CML_API" in before for before, _ in functions), functions
    code = "".join(file.read_text() for file in sources(device=True, vulkan=True))
    assert not [name for _, name in functions if not re.search(rf"\b{name}\([^;]*?\) {{", code)]


def test_player_exports_only_cml_symbols():
    """Every visible symbol of the player begins with ``cml_``, so a host may use all other
    names."""
    command = ["nm", "--defined-only", "--extern-only", player_library(("-O2",), device=True)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = re.findall(r"^[0-9a-f]+ \w (\w+)$", names, re.MULTILINE)
    assert len(symbols) > 50
    assert [name for name in symbols if not name.startswith("cml_")] == []


def test_the_sources_are_one_file_too(tmp_path):
    """The single C file that ``cml export --to c`` writes compiles with strict warnings and
    without any header of a GPU."""
    (tmp_path / "cml.c").write_text(amalgamated(PLAYER))
    where = f"-I{PLAYER / 'include'}"
    run_compiler(need_gcc(), *STRICT, where, "-fsyntax-only", tmp_path / "cml.c")


def test_only_the_backend_knows_webgpu():
    known = {file.name for file in (PLAYER / "src").iterdir() if "wgpu" in file.read_text().lower()}
    assert not known
    assert '#include "internal.h"' not in BACKEND.read_text()


def test_a_backend_fills_the_whole_table():
    """The backends fill every function of the table, except those that may be NULL."""
    header = (PLAYER / "include" / "cml_backend.h").read_text()
    table = header.split("struct cml_backend {")[1]
    names = re.findall(r"\(\*(\w+)\)", table.split("};")[0])
    assert 20 <= len(names) <= 26
    (shared,) = re.findall(r"#define CML_BACKEND_FUNCTIONS((?:.*\\\n)+.*)", header)
    assert re.findall(r"\.(\w+) = \1\b", shared) == [name for name in names if name != "barrier"]
    for file, has_barrier in (("null.c", True), ("vulkan.c", True), ("webgpu.c", False)):
        text = (PLAYER / "backends" / file).read_text()
        assert "{CML_BACKEND_FUNCTIONS" in text, file
        assert (".barrier = barrier" in text) == has_barrier, file


def test_dawn_build_needs_only_webgpu_h(tmp_path):
    """With ``CML_DAWN`` the player compiles without ``wgpu.h``; test_c_player.py runs that."""
    (tmp_path / "webgpu").mkdir()
    shutil.copyfile(wgpu_folder() / "webgpu.h", tmp_path / "webgpu/webgpu.h")
    hosts = [PLAYER / name for name in ("tools/play.c", "example/host.c", "example/scene.c")]
    flags = (*STRICT, "-DCML_DAWN", *INCLUDES, f"-isystem{tmp_path}", "-fsyntax-only")
    run_compiler(need_gcc(), *flags, *sources(device=True), *hosts)


@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="no ziglang (the extra `players`)"
)
@pytest.mark.parametrize("target", ["x86_64-windows-gnu", "aarch64-macos"])
def test_clang_compiles_the_player_for_every_system(target, tmp_path):
    (tmp_path / "cml.c").write_text(amalgamated(PLAYER))
    where = (*INCLUDES, f"-isystem{wgpu_folder()}", "-c", "-o", tmp_path / "made.o")
    zig, files = (sys.executable, "-m", "ziglang"), [tmp_path / "cml.c"]
    for name in ("vulkan", "vk_video"):  # without the other headers of this system
        if Path("/usr/include", name).is_dir():
            (tmp_path / name).symlink_to(Path("/usr/include", name))
    if (tmp_path / "vulkan").exists():
        where = (f"-isystem{tmp_path}", *where)
        files.append(PLAYER / "backends" / "vulkan.c")
    for file in (*files, BACKEND, PLAYER / "backends" / "null.c"):
        run_compiler(*zig, "cc", "-target", target, *STRICT, *where, file)
    for host in ("example/host.c", "tools/play.c"):
        run_compiler(*zig, "cc", "-target", target, *STRICT, *where, PLAYER / host)
    if "windows" in target:  # an engine's precompiled header defines `near`, `small` and others
        first = ("-include", "windows.h")
        run_compiler(*zig, "cc", "-target", target, *STRICT, *first, *where, files[0])
    wrapper = PLAYER.parents[1] / "tests/players/wrapper.cpp"
    run_compiler(*zig, "c++", "-target", target, "-std=c++17", *WARNINGS, *where, wrapper)
