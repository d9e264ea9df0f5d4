"""HLSL to SPIR-V: cached on disk, compiled once, and errors that show the line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cml_engine.errors import InputError, ShaderCompileError
from cml_engine.folders import cache_folder
from cml_engine.gpu import slang
from cml_engine.gpu.hlsl import compile_spirv, shader_key

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


def test_a_source_is_compiled_once(kernel, monkeypatch):
    code = compile_spirv(key_of(kernel))
    assert code[:4] == b"\x03\x02\x23\x07"
    monkeypatch.setattr(slang.Slang, "get", lambda: pytest.fail("compiled again"))
    assert compile_spirv(key_of(kernel)) == code


def test_everything_that_matters_is_in_the_key(kernel):
    def files():
        return len(list(cache_folder().glob("*.spv")))

    compile_spirv(key_of(kernel))
    compile_spirv(key_of(kernel, A=1))
    assert files() == 2
    (kernel.parent / "half.hlsli").write_text("#define FACTOR 0.25\n")
    compile_spirv(key_of(kernel))
    assert files() == 3
    kernel.write_text(GOOD + "// changed\n")
    compile_spirv(key_of(kernel))
    assert files() == 4


def test_errors_show_the_kernel_s_own_file_and_line(kernel):
    kernel.write_text(GOOD.replace("FACTOR * T0[i]", "missing * T0[i]"))
    with pytest.raises(ShaderCompileError) as caught:
        compile_spirv(key_of(kernel))
    assert "scale.hlsl:8" in str(caught.value) and "missing" in str(caught.value)


def test_a_missing_kernel_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.hlsl"):
        shader_key(tmp_path / "nowhere.hlsl", "", 1, {}, trusted=False)


def test_a_cache_that_cannot_be_written_is_no_error(kernel, monkeypatch):
    blocker = kernel.parent / "blocked"
    blocker.write_text("a file where a folder should be")
    monkeypatch.setenv("CML_CACHE_DIR", str(blocker))
    assert compile_spirv(key_of(kernel))


def test_a_second_process_compiles_nothing(tmp_path):
    """Run the same small model in two processes; the second must not even load the compiler."""
    script = """
import numpy as np, sys
import cml_engine as cml
from cml_engine.graph import Fact, Graph, Node, Attrs
from cml_engine.ops import load_families
load_families()
facts = {"x": Fact("scalar", (100,)), "y": Fact("scalar", (100,))}
graph = Graph("g", ("x",), ("y",), (Node("exp", ("x",), ("y",), Attrs()),), facts)
out = cml.Session(graph, "gpu").run({"x": np.zeros(100, np.float32)})
from cml_engine.gpu.slang import Slang
print("compiled" if Slang._instance else "cached", out["y"][0])
"""
    root = Path(__file__).parents[2]
    env = {**os.environ, "CML_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    said = [
        subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["compiled", "1.0"], ["cached", "1.0"]]
