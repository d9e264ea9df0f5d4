"""Tests of ``CML_PRINT`` in kernels: its lines, and that it changes nothing in normal builds."""

import logging

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.errors import ShaderCompileError
from cml_engine.gpu.gpu import Gpu
from cml_engine.gpu.shaders.hlsl import (
    compile_spirv,
    print_labels,
    printing,
    resolved_source,
    shader_key,
)
from tests.fixtures.frames.host import Host, run_net
from tests.fixtures.operators import declare

pytestmark = pytest.mark.gpu

SIGNATURE = "fragment shown(x: tensor<scalar>, rounds: integer) -> (y: tensor<scalar>)"
SOURCE = """
void show(uint i) { CML_PRINT("x", x[i]); /* CML_PRINT(i, 3) */ }
void kernel(uint thread) {
    for (int i = 0; i < rounds; ++i) {
        if (i == 1) { continue; }
        show(thread);
        if (thread == 70) {
            CML_PRINT("round", i);
            CML_PRINT("place", uint2(thread, x_coord(thread, 3)));
            CML_PRINT("where", bool3(x[thread] > 0.0, true, false));
        }
    }
    y[thread] = sin(x[thread]) * 3.0 + x[thread];
}
"""
WHERE = "net shown 'y' (<memory>/graph.nnef:2:5)"
SHAPE = (1, 3, 7, 11)
X = np.random.default_rng(0).standard_normal(SHAPE, np.float32)


@pytest.fixture(autouse=True)
def _operator(own_operators):
    declare(SOURCE, SIGNATURE)


@pytest.fixture(scope="module")
def debug(gpu):
    return Gpu(device=gpu.device, debug_kernels=True)


def session_of(gpu, rounds=1):
    text = (
        f"version 1.0; graph net(x) -> (y) {{ x = external(shape = {list(SHAPE)});\n"
        f"y = shown(x, rounds = {rounds}); }}"
    )
    return cml.Session(cml.load(cml.nnef.MemoryModel(text)), gpu)


def lines_of(rounds):
    """Returns the expected lines of the kernel in order, for ``rounds`` rounds of its loop."""
    lines = []
    for i, value in enumerate(X.ravel()):
        place = f"  workgroup {i // 64} thread {i % 64}"
        for k in (k for k in range(rounds) if k != 1):
            lines.append(f"x = {value!s}{place}")
            if i == 70:
                lines.append(f"round = {k}{place}")
                lines.append(f"place = (70, {70 % 11}){place}")
                lines.append(f"where = ({str(value > 0).lower()}, true, false){place}")
    return [f"{WHERE} {line}" for line in lines]


def test_run_prints_lines_of_its_kernels(gpu, debug, capsys):
    plain = run_net(session_of(gpu), X)
    assert capsys.readouterr().err == ""
    for rounds in (1, 200):  # of 200 rounds only the first lines are shown
        session = session_of(debug, rounds)
        for _ in range(2):
            assert run_net(session, X).tobytes() == plain.tobytes()
            expected = lines_of(rounds)
            printed = expected[:1024]
            if more := len(expected) - len(printed):
                printed.append(f"{WHERE} and {more:,} more".replace(",", " "))
            assert capsys.readouterr().err.splitlines() == printed
    session.run({"x": X}, watch=lambda node, results: None)
    assert len(capsys.readouterr().err.splitlines()) == 1025


def test_jobs_warn_that_prints_are_not_shown(debug, caplog, capsys):
    session, host = session_of(debug), Host(debug, budget_ms=20.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            host.run(session, {"x": X})
    assert [r.getMessage() for r in caplog.records if "print" in r.getMessage()] == [
        "'net': what kernels print is shown of Session.run only"
    ]
    assert "workgroup" not in capsys.readouterr().err
    session.run({"x": X})
    assert capsys.readouterr().err.splitlines() == lines_of(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "CML_PRINT(thread, 1.0);",
            r":3: wanted CML_PRINT\(\"label\", value\).*`CML_PRINT\(thread",
        ),
        ('S s; s.a = 1; CML_PRINT("s", s);', "CML_PRINT takes a float, an int"),
    ],
)
def test_unprintable_values_are_refused(debug, call, message):
    ops.unregister("shown")
    source = f"struct S {{ float a; }};\nvoid kernel(uint thread) {{\n{call} y[thread] = 0; }}"
    declare(source, SIGNATURE)
    with pytest.raises(ShaderCompileError, match=message) as error:
        session_of(debug)
    assert "candidate" not in str(error.value)


MAINS = [
    "CML_MAIN { CML_EACH_THREAD(i, n) ",
    "[numthreads(GROUP, 1, 1)]\nvoid main(uint3 gid : SV_GroupID, uint3 tid : SV_GroupThreadID) {\n"
    "    uint i = CML_GROUP(gid) * GROUP + tid.x; if (i >= n) { return; } ",
]


def key_of(folder, text):
    file = folder / "own.hlsl"
    file.write_text(text)
    return shader_key(file, "n:u", 2, {"GROUP": 64}, trusted=True)


@pytest.mark.parametrize("main", MAINS)
def test_engine_kernels_and_includes_can_print(tmp_path, main):
    """Kernels and their includes can print, and a normal build of them has the code without prints.

    A kernel without prints is the same in all builds.
    """
    silent = key_of(tmp_path, f"{main} T1[i] = 2 * T0[i]; }}")
    assert printing(silent) == silent
    assert "CML_PRINT" not in resolved_source(silent)
    code = compile_spirv(silent)
    (tmp_path / "twice.hlsli").write_text(
        'float twice(float v) { CML_PRINT("v", v); return 2 * v; }'
    )
    body = 'CML_PRINT("own", i); T1[i] = twice(T0[i]); }'
    key = key_of(tmp_path, f'#include "twice.hlsli"\n{main} {body}')
    assert print_labels(printing(key)) == ["v", "own"]
    assert (printing(key).tensors, key.tensors) == (3, 2)
    assert compile_spirv(key) == code
    assert len(compile_spirv(printing(key))) > len(code)
