"""Tests of compiling HLSL to SPIR-V: the disk cache, a single compilation, errors that show the
line."""

import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from cml_engine.errors import DeviceError, InputError, ShaderCompileError
from cml_engine.gpu.shaders import compilers, slang
from cml_engine.gpu.shaders.hlsl import compile_spirv, for_naga, shader_key
from cml_engine.io.data_folders import cache_folder
from tests.fixtures.pages import ROOT

pytestmark = pytest.mark.gpu

GOOD = """\
#include "half.hlsli"
[numthreads(64, 1, 1)]
void main(uint3 gid : SV_GroupID, uint lane : SV_GroupIndex)
{
    uint group = CML_GROUP(gid);
    if (group >= cml_end) return;
    uint i = group * 64 + lane;
    if (i < n) T1[i] = FACTOR * T0[i];
}
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "half.hlsli").write_text("#define FACTOR 0.5\n")
    path = tmp_path / "scale.hlsl"
    path.write_text(GOOD)
    return path


def key_of(path, **defines):
    return shader_key(path, "n:u", 2, defines, trusted=False)


@pytest.fixture
def compiled(monkeypatch):
    """A list to which the path of every compiled source is appended."""
    paths = []

    def record(request):
        paths.append(request.path)
        return compile(request)

    compile = compilers.compile
    monkeypatch.setattr(compilers, "compile", record)
    return paths


def test_shader_key_covers_everything_that_changes_code(kernel, compiled):
    def times():
        compile_spirv(key_of(kernel))
        return len(compiled)

    assert times() == times() == 1
    compile_spirv(key_of(kernel, A=1))
    assert times() == 2
    (kernel.parent / "half.hlsli").write_text("#define FACTOR 0.25\n")
    assert times() == 3
    kernel.write_text(GOOD + "// changed\n")
    assert times() == 4


@pytest.mark.parametrize("include", ["#include <half.hlsli>", '/* it */ # include "half.hlsli"'])
def test_includes_of_every_spelling_are_tracked(kernel, compiled, include):
    kernel.write_text(GOOD.replace('#include "half.hlsli"', include))
    before = compile_spirv(key_of(kernel))
    (kernel.parent / "half.hlsli").write_text("#define FACTOR 0.25\n")
    assert compile_spirv(key_of(kernel)) != before
    assert len(compiled) == 2


def test_include_of_a_macro_is_refused(kernel):
    """An ``#include`` of a macro raises a ``ShaderCompileError`` that names both files.

    The cache would not notice changes of the included file.
    """
    text = '#define FILE "half.hlsli"\n#include FILE'
    kernel.write_text(GOOD.replace('#include "half.hlsli"', text))
    with pytest.raises(ShaderCompileError, match=r"scale\.hlsl reads .*half\.hlsli.*#include"):
        compile_spirv(key_of(kernel))


# ------------------------------------------------------------------ damage


def damage(content):
    line, _, code = content.partition(b"\n")
    return {
        "cut in the code": content[:-8],
        "foreign": b"\x7fELF" + bytes(200),
        "a changed word": content[:-40] + bytes(4) + content[-36:],
        "another kind": line.replace(b'"spirv"', b'"wgsl"') + b"\n" + code,
        "another format": line.replace(b'"format": 1', b'"format": 99') + b"\n" + code,
        "nested deep": b"[" * 4000 + b"\n" + code,
        "no object": b"7\n" + code,
    }


@pytest.mark.parametrize("kind", damage(b"\n"))
def test_damaged_cache_entry_is_recompiled(kernel, compiled, kind):
    code = compile_spirv(key_of(kernel))
    (entry,) = cache_folder().rglob("*.shader")
    content = entry.read_bytes()
    entry.write_bytes(damage(content)[kind])
    assert compile_spirv(key_of(kernel)) == code
    assert len(compiled) == 2
    assert entry.read_bytes() == content


def test_cache_entry_of_another_compiler_is_recompiled(kernel, compiled, monkeypatch):
    compile_spirv(key_of(kernel))
    monkeypatch.setattr(compilers, "version", lambda: "slangpy-99.0")
    for _ in range(2):
        compile_spirv(key_of(kernel))
    assert len(compiled) == 2


def test_without_a_compiler_a_warm_cache_is_enough(kernel, monkeypatch):
    code = compile_spirv(key_of(kernel))
    monkeypatch.setattr(compilers, "version", lambda: None)
    monkeypatch.setattr(compilers, "library", missing)
    assert compile_spirv(key_of(kernel)) == code


def test_missing_compiler_names_the_kernel_and_the_package(kernel, monkeypatch):
    monkeypatch.setattr(compilers, "_PACKAGE", "no_such_compiler")
    monkeypatch.setattr(compilers, "_pool", lambda: compilers.CompilerPool(1))
    compilers.library.cache_clear()
    with pytest.raises(DeviceError, match=r"no HLSL compiler.*the cache does not have"):
        compile_spirv(key_of(kernel))
    compilers.library.cache_clear()


@pytest.mark.parametrize(
    ("system", "processor", "exists"),
    [
        ("linux", "x86_64", True), ("win32", "AMD64", True), ("darwin", "arm64", True),
        ("linux", "aarch64", False), ("win32", "ARM64", False), ("darwin", "x86_64", False),
    ],
)  # fmt: skip
def test_platforms_without_a_compiler_say_to_cook_elsewhere(
    kernel, monkeypatch, system, processor, exists
):
    """The message fits the requirement of the package: where it installs none, none can be."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    conditions = [text.partition(";")[2] for text in extra["optional-dependencies"]["compiler"]]
    values = {"sys_platform": system, "platform_machine": processor}
    assert sum(eval(condition, {}, values) for condition in conditions) == exists
    monkeypatch.setattr(compilers, "_PACKAGE", "no_such_compiler")
    monkeypatch.setattr(compilers, "_pool", lambda: compilers.CompilerPool(1))
    monkeypatch.setattr(compilers.sys, "platform", system)
    monkeypatch.setattr(compilers.platform, "machine", lambda: processor)
    compilers.library.cache_clear()
    with pytest.raises(DeviceError) as error:
        compile_spirv(key_of(kernel))
    compilers.library.cache_clear()
    way_out = 'pip install "cml-engine[compiler]"' if exists else "cook the network elsewhere (cml"
    assert way_out in error.value.message
    assert (f"this platform ({system}, {processor})" in error.value.message) != exists


def missing():
    raise DeviceError("no compiler")


# ------------------------------------------------------------------ compilers


def test_the_compiler_finds_the_libraries_of_its_folder_on_windows(tmp_path, monkeypatch):
    """Only this folder's libraries optimize: without them no kernel compiles."""
    searched = []
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr(os, "add_dll_directory", searched.append, raising=False)
    with pytest.raises(OSError, match="slang-compiler"):
        slang.Slang(str(tmp_path / "slang-compiler.dll"))
    assert searched == [str(tmp_path)]


def arguments_of(path):
    chosen = ["-profile", "cs_6_2", "-entry", "main", "-target", "spirv"]
    return [*compilers.OPTIONS, *chosen, str(path)]


PLAIN = "RWStructuredBuffer<float> T0; [numthreads(1, 1, 1)] void main() { T0[0] = 1.0; }"


@pytest.fixture(scope="module")
def here():
    """A compiler in this process; the tests share it because each one takes 150 MB."""
    return compilers._local_compiler()


@pytest.fixture
def pool(tmp_path, here, monkeypatch):
    monkeypatch.setattr(compilers, "_local_compiler", lambda: here)
    (tmp_path / "plain.hlsl").write_text(PLAIN)
    (tmp_path / "wrong.hlsl").write_text(PLAIN.replace("T0[0]", "T1[0]"))
    made = compilers.CompilerPool(2)
    yield made
    made.close()


def test_compiler_process_gives_identical_code(pool, tmp_path):
    here, beside = pool._take(), pool._take()
    assert (type(here), type(beside)) == (slang.Slang, compilers._Process)
    path = tmp_path / "plain.hlsl"
    code, files = beside.compile(arguments_of(path))
    assert (code, files) == here.compile(arguments_of(path))
    assert [Path(file).name for file in files] == ["plain.hlsl"]
    for compiler in (here, beside):
        with pytest.raises(slang.SlangError, match="T1"):
            compiler.compile(arguments_of(tmp_path / "wrong.hlsl"))


def test_pool_continues_after_a_compiler_process_dies(pool, tmp_path):
    here, beside = pool._take(), pool._take()
    beside._process.kill()
    beside._process.wait()
    pool._give(here)
    pool._give(beside)
    code, _ = pool.compile(arguments_of(tmp_path / "plain.hlsl"))
    assert code[:4] == b"\x03\x02\x23\x07"


def test_unreferenced_compiler_is_destroyed(monkeypatch):
    library = MagicMock()
    monkeypatch.setattr(slang.ctypes, "CDLL", lambda _: library)
    compiler = slang.Slang("")
    library.spDestroySession.assert_not_called()
    session = compiler._session
    del compiler
    library.spDestroySession.assert_called_once_with(session)


class Fake:
    """A stand-in for a compiler that takes 10 ms; each of its first calls raises one of
    ``errors``."""

    def __init__(self, errors=()):
        self.errors = errors

    def compile(self, arguments):
        time.sleep(0.01)  # other threads arrive meanwhile
        if self.errors:
            raise self.errors.pop()
        return b"code", []


@pytest.mark.parametrize("why", [KeyboardInterrupt, EOFError])
def test_interrupted_compiler_is_replaced(monkeypatch, why):
    """After a compiler was interrupted or has ended, the pool compiles with a single new one.

    A ``KeyboardInterrupt`` is raised to the caller.
    """
    pool, errors = compilers.CompilerPool(2), [why]
    monkeypatch.setattr(compilers, "_local_compiler", lambda: Fake(errors))
    if why is KeyboardInterrupt:
        with pytest.raises(why):
            pool.compile([])
    assert pool.compile([]) == (b"code", [])
    assert pool._count == len(pool._idle) == 1


def test_unloadable_compiler_error_states_next_step(monkeypatch):
    monkeypatch.setattr(compilers, "library", lambda: __file__)
    pool = compilers.CompilerPool(1)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"cannot be loaded: .*test_hlsl.*pip install"):
            pool.compile([])


def test_concurrent_sources_use_both_compilers(pool, tmp_path):
    path = tmp_path / "plain.hlsl"
    with ThreadPoolExecutor(4) as threads:
        codes = list(threads.map(lambda _: pool.compile(arguments_of(path))[0], range(12)))
    assert len(set(codes)) == 1
    assert len(pool._processes) == 1


# ------------------------------------------------------------------ messages


def test_a_missing_kernel_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.hlsl"):
        shader_key(tmp_path / "nowhere.hlsl", "", 1, {}, trusted=False)


def test_unwritable_cache_is_no_error(kernel, monkeypatch):
    blocker = kernel.parent / "blocked"
    blocker.write_text("a file where a folder should be")
    monkeypatch.setenv("CML_CACHE_DIR", str(blocker))
    assert compile_spirv(key_of(kernel))


def test_a_second_process_compiles_nothing(tmp_path):
    """A second process with the same model compiles nothing and does not load the compiler."""
    script = """
import numpy as np, sys
import cml_engine as cml
from cml_engine.ir.graph import Fact, Graph, Node, Attrs
from cml_engine.ops.declaration.registry import load_families
load_families()
facts = {"x": Fact("scalar", (100,)), "y": Fact("scalar", (100,))}
graph = Graph("g", ("x",), ("y",), (Node("exp", ("x",), ("y",), Attrs()),), facts)
out = cml.Session(graph, "gpu").run({"x": np.zeros(100, np.float32)})
from cml_engine.gpu.shaders import compilers
print("compiled" if compilers._pool()._count else "cached", out["y"][0])
"""
    root = Path(__file__).parents[2]
    env = {**os.environ, "CML_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    printed = [
        subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert printed == [["compiled", "1.0"], ["cached", "1.0"]]


def test_lanes_have_no_sign_for_naga():
    wgsl = "enable subgroups;\nx = subgroupShuffle(T1[w + min(a, u32(5))], i32(0)); y = f(1, 2);"
    assert for_naga(wgsl) == (
        "\nx = subgroupShuffle(T1[w + min(a, u32(5))], u32(i32(0))); y = f(1, 2);"
    )
    assert for_naga(for_naga(wgsl)) == for_naga(wgsl)
    assert for_naga("subgroupShuffle(no end") == "subgroupShuffle(no end"
