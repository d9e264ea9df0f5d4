"""Tests of a game's own operators on the GPU, which must work like the engine's.

They cover names, types, passes, groupshared memory, control flow and the examples.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.errors import DeviceError, ShaderCompileError
from cml_engine.gpu.device import PipelineCache
from cml_engine.gpu.shaders.dump import dump_kernel
from cml_engine.gpu.shaders.hlsl import compile_spirv, printing, step_keys
from cml_engine.io.data_folders import cache_folder
from cml_engine.ir.layout import C4H
from cml_engine.ops import load_file
from cml_engine.ops.declaration import lowering
from cml_engine.ops.declaration.split_bindings import declaration
from cml_engine.runtime.node_check import check_nodes
from cml_engine.testing import Case, check
from cml_engine.tools.report.validation import Validation
from tests.fixtures.graphs import Net
from tests.fixtures.operators import declare, load_expression

ROOT = Path(__file__).resolve().parents[2]
CROSS = ROOT / "examples/cross_product"
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_operators")]


# ---------------------------------------------------------------- control flow, against NumPy


#: the steps from a number to 1 that subtract the lowest bit or halve
BITS = np.float32([n.bit_length() + n.bit_count() - 2 for n in range(1024)])
FLOWS = {
    "continue": (
        "float s = 0; for (uint k = 0; k < 10; ++k) { if (k % 3 == 0) { continue; } "
        "s += k * x[thread]; } y[thread] = s;",
        lambda attrs, x: 27 * x,
    ),
    "do_continue": (
        "float s = x[thread]; uint k = 0; do { s += 1; ++k; if (k == 3) { continue; } "
        "if (k > 6) { break; } } while (k < 9); y[thread] = s;",
        lambda attrs, x: x + 7,
    ),
    "nested": (
        "float s = 0; for (uint j = 0; j < 4; ++j) { bool any = false; "
        "for (uint k = 0; k < 9; ++k) { if (k > j) { continue; } if (s > 7) { break; } "
        "any = true; s += 1; } if (!any) { break; } } y[thread] = s + x[thread];",
        lambda attrs, x: 8 + x,
    ),
    "return": (
        "for (uint k = 0; k < 9; ++k) { if (k > 8 * x[thread]) { y[thread] = k; return; } } "
        "y[thread] = -1;",
        lambda attrs, x: np.where(x < 0, 0, np.floor(8 * x) + 1),
    ),
    "while": (
        "uint n = 1 + uint(100 * abs(x[thread])); uint c = 0; while (n > 1 && c < 50) "
        "{ n = (n & 1) != 0 ? n - 1 : n / 2; ++c; } y[thread] = c;",
        lambda attrs, x: BITS[1 + (100 * abs(x)).astype(int)],
    ),
    "switch": (
        "float s = 0; for (uint k = 0; k < 10; ++k) { switch (k % 3) { case 0: s += 1; break; "
        "case 1: if (k > 5) { break; } s += 10; break; default: s += x[thread]; break; } } "
        "y[thread] = s;",
        lambda attrs, x: 24 + 3 * x,
    ),
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("trusted", [False, True])
def test_kernel_branches_and_loops_compile_correctly(flow, trusted, gpu):
    body, cpu = FLOWS[flow]
    declare(
        f"void kernel(uint thread) {{ {body} }}",
        cpu=cpu,
        kernel={"trusted": trusted},
        cases=[Case(((300,),))],
        tolerance=ops.Tolerance(1e-6, 1e-5, "sums of ten"),
    )
    check("own", gpu)


# ---------------------------------------------------------------- features of kernels


def session_of(gpu):
    """Returns a session of the operator ``own`` of 300 numbers."""
    return cml.Session(Net(300).graph("own(x)"), gpu)


def test_types_attributes_and_several_results(gpu):
    declare(
        """
        void kernel(uint thread) {
            chosen[thread] = mask[thread] != 0 ? values[thread] : fallback(thread % fallback_count);
            if (twice) { chosen[thread] *= 2; }
            where[thread] = int(values_coord(thread, 1));
        }
        """,
        "fragment choose(values: tensor<integer>, mask: tensor<logical>, fallback: integer[], "
        "twice: logical = false) -> (chosen: tensor<integer>, where: tensor<integer>)",
        infer=lambda attrs, values, mask: [values, values],
        cpu=lambda a, v, m: [
            (1 + a.twice) * np.where(m, v, np.resize(a.fallback, v.size).reshape(v.shape)),
            np.broadcast_to(np.arange(v.shape[1], dtype=np.int32)[:, None], v.shape),
        ],
        cases=[
            Case(
                (
                    np.arange(2 * 3 * 50, dtype=np.int32).reshape(2, 3, 50),
                    np.arange(300).reshape(2, 3, 50) % 7 < 3,
                ),
                {"fallback": [-1, -2, -3], "twice": twice},
            )
            for twice in (False, True)
        ],
        tolerance=ops.Tolerance(0, 0, "integers"),
    )
    assert check("choose", gpu).worst == 0


def test_lists_of_tensors_and_texts(gpu):
    declare(
        """
        void kernel(uint thread) {
            float sum = 0;
            for (uint k = 0; k < parts_count; ++k) { sum += parts_load(k, thread); }
        #ifdef how_is_mean
            sum /= parts_count;
        #endif
            y[thread] = sum + parts0[thread];
        }
        """,
        "fragment blend(parts: tensor<scalar>[], how: string = 'sum') -> (y: tensor<scalar>)",
        cpu=lambda a, *p: p[0] + sum(p) / (len(p) if a.how == "mean" else 1),
        cases=[
            Case(((30,), (30,))),
            Case(((30,), (30,), (30,)), {"how": "mean"}),
            Case(((30,),), {"how": "mean"}),
        ],
        tolerance=ops.Tolerance(1e-6, 1e-6, "three sums"),
    )
    check("blend", gpu)


def test_kernels_beyond_wgsl_use_spirv(gpu):
    counter = """
    groupshared uint hits;
    void kernel(uint group, uint lane) {
        if (lane == 0) { hits = 0; }
        GroupMemoryBarrierWithGroupSync();
        uint i = group * GROUP + lane;
        if (i < x_size && x[i] > 0) { InterlockedAdd(hits, 1u); }
        GroupMemoryBarrierWithGroupSync();
        if (i < x_size) { LOOP y[i] = hits; }
    }
    """
    declare(counter.replace("LOOP", ""))
    x = np.where(np.arange(300) % 3 == 0, 1, -1).astype(np.float32)
    expected = [(x[i // 64 * 64 : i // 64 * 64 + 64] > 0).sum() for i in range(300)]
    assert session_of(gpu).run({"x": x})["t0"].tolist() == expected
    ops.unregister("own")
    loop = "for (uint k = 0; k < 4; ++k) { if (k == lane) { continue; } y[i] += 1; }"
    declare(counter.replace("LOOP", loop))
    with pytest.raises(ShaderCompileError, match="InterlockedAdd(.|\n)*without"):
        session_of(gpu)


def test_game_kernels_are_checked_unless_trusted(gpu):
    source = "void kernel(uint thread) { y[thread] = x[thread + 100000000u]; }"
    declare(source)
    session = session_of(gpu)
    assert not session.plan.steps[0].trusted
    assert np.isfinite(session.run({"x": np.ones(300, np.float32)})["t0"]).all()


# ---------------------------------------------------------------- errors


def test_compile_error_of_inline_source_shows_the_python_line(gpu):
    source = """
void kernel(uint thread) {
    y[thread] = nowhere_to_be_found;
}
"""
    line = Path(__file__).read_text().split("= nowhere_to_be_found;")[0].count("\n") + 1
    spec = declare(source)
    ops.unregister("own")
    cml.register(spec, __file__)
    with pytest.raises(ShaderCompileError, match=f"test_custom_ops.py:{line}"):
        session_of(gpu)


@pytest.mark.parametrize(
    "call, file",
    [
        ("cml_sin(x[i])", "pointwise.hlsli"),
        ("cml_pow(x[i], 2.0)", "pointwise.hlsli"),
        ("float(cml_divide(i, 3u, 1u))", "divide.hlsli"),
        ("cml_nowhere(x[i])", ""),
    ],
)
def test_a_function_without_its_include_names_the_file(call, file, gpu):
    declare(f"void kernel(uint i) {{ y[i] = {call}; }}")
    with pytest.raises(ShaderCompileError) as refused:
        session_of(gpu)
    message = str(refused.value)
    assert "undefined identifier 'cml_" in message
    assert [*re.findall(r'#include "(\S+)"', message)] == ([file] if file else [])
    assert not re.search(r"^\s*--'", message, re.MULTILINE)


@pytest.mark.parametrize("kernel", [
    cml.Kernel(source="void kernel(uint thread) { y[thread] = 0; x[thread] = 1; }"),
    cml.Kernel(source="void kernel(uint i) { x[i] += 1; y[i] = x[i]; }", in_place="x"),
    cml.Kernel(
        source="void kernel(uint thread) { x[thread] = sums[thread] = 0; }",
        lower=lambda op: [
            op.launch(1, reads={"x": op.in_names[0]}, writes={"sums": op.out_names[0]})
        ],
    ),
])  # fmt: skip
def test_kernel_that_assigns_to_an_input_does_not_compile(kernel, gpu):
    declare(kernel=kernel)
    with pytest.raises(ShaderCompileError, match="l-value"):
        session_of(gpu)


def test_kernel_refused_by_wgpu_gives_a_message(gpu):
    declare("void kernel(uint thread) { double d = x[thread]; y[thread] = float(d * d); }")
    with pytest.raises(ShaderCompileError, match="double"):
        session_of(gpu)


def test_a_kernel_with_a_resource_of_its_own_is_refused_with_the_remedy(gpu):
    declare("Texture2D t; void kernel(uint i) { y[i] = x[i] + t.Load(int3(0, 0, 0)).x; }")
    with pytest.raises(DeviceError, match="binds its operator's tensors only"):
        session_of(gpu)


def test_the_suite_validates_spirv(gpu):
    """A condition of one lane must not choose between vectors, though llvmpipe and naga take it."""
    declare("void kernel(uint i) { y[i] = select(x[i] > 0, float2(1, 2), x[0]).x; }")
    (variant,) = step_keys(session_of(gpu).plan)
    with pytest.raises(ShaderCompileError, match="Validation of generated SPIR-V failed"):
        compile_spirv(variant)


def test_operator_with_an_oversized_workgroup_is_refused_or_runs_on_the_cpu(gpu, set_limits):
    set_limits(max_group_threads=256)
    kernel = cml.Kernel(source="void kernel(uint thread) { y[thread] = x[thread]; }", group=512)
    declare(kernel=kernel)
    with pytest.raises(DeviceError, match="wants workgroups of 512"):
        session_of(gpu)
    ops.unregister("own")
    declare(kernel=kernel, cpu=lambda attrs, x: x)
    assert session_of(gpu).plan.steps[0].cpu_part


# ---------------------------------------------------------------- the checks can fail


WRONG = {
    "values": ("y[thread] = x[thread] + 0.001;", "differ"),
    "input": ("y[thread] = x[thread]; x[thread] = 0;", "wrote to its input 'x0'"),
    "outside": (
        "y[thread] = x[thread]; if (thread == 0) { y[y_size + 3] = 1; }",
        "outside its tensors",
    ),
    "unwritten": (
        "if (thread % 10 != 0) { y[thread] = x[thread]; }",
        "100 of 1000 values were not written",
    ),
    "partition": ("y[thread] = x[thread] + 1e-7 * (cml_first == 0);", "partition"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_check_detects_faulty_kernels(fault, gpu, monkeypatch):
    body, says = WRONG[fault]
    if fault == "input":  # only the engine's own kernels could write there
        monkeypatch.setattr(lowering, "declaration", lambda *of: declaration(*of[:-1], True))
    declare(
        f"void kernel(uint thread) {{ {body} }}",
        cpu=lambda attrs, x: x,
        cases=[Case(((1000,),))],
    )
    with pytest.raises(AssertionError, match=f"own, case .*{says}"):
        check("own", gpu)


# ---------------------------------------------------------------- tolerances


SINE = "sin(6.0 * x) + lerp(x, 0.5, 0.3)"
#: functions that drivers round in their own way, and NumPy's
ROUNDED = {
    SINE: lambda x: np.sin(np.float32(6) * x) + (x + np.float32(0.3) * (np.float32(0.5) - x)),
    "cos(x) * tan(x)": lambda x: np.cos(x) * np.tan(x),
    "asin(0.3 * x) + atan2(x, 2.0)": lambda x: (
        np.arcsin(np.float32(0.3) * x) + np.arctan2(x, np.float32(2))
    ),
    "exp(3.0 * x)": lambda x: np.exp(np.float32(3) * x),
    "pow(abs(x) + 0.1, 2.3)": lambda x: (np.abs(x) + np.float32(0.1)) ** np.float32(2.3),
    "log2(abs(x) + 1e-3) + tanh(x)": lambda x: np.log2(np.abs(x) + np.float32(1e-3)) + np.tanh(x),
    "x * x + 0.25": lambda x: x * x + np.float32(0.25),
}


def rounded(form, text, cpu, **more):
    """Registers the operator ``own`` of an HLSL expression of x, in a kernel or by itself."""
    code, operand = {"expression": text}, "x"
    if form == "kernel":
        source = f"// not sin(x)\nvoid kernel(uint i) {{ float x = a[i]; y[i] = {text}; }}"
        code, operand = {"kernel": cml.Kernel(source=source), "infer": ops.same_as(0)}, "a"
    signature = f"fragment own({operand}: tensor<scalar>) -> (y: tensor<scalar>);"
    cases = [Case(((5, 7, 11),))]
    given = {"cpu": lambda attrs, x: cpu(x), "cases": cases, "signature": signature}
    return cml.register(cml.OpSpec("own", **given, **code, **more))


@pytest.mark.parametrize("text", ROUNDED)
@pytest.mark.parametrize("form", ["kernel", "expression"])
def test_the_default_tolerance_fits_the_functions_that_are_called(form, text, gpu):
    spec = rounded(form, text, ROUNDED[text])
    assert check("own", gpu).worst < 1
    is_plain = not re.search(r"[a-z]\w+\(", text)
    assert (spec.allowed_error.rtol <= 1e-6) == is_plain


@pytest.mark.parametrize("form", ["kernel", "expression"])
def test_a_tolerance_that_is_too_small_shows_the_one_to_declare(form, gpu, rng):
    rounded(form, SINE, ROUNDED[SINE], tolerance=1e-9)
    with pytest.raises(AssertionError) as failed:
        check("own", gpu)
    graph = load_expression("own(x)", 1, 3, 8, 8)
    inputs = {"x": rng.standard_normal((1, 3, 8, 8), np.float32)}
    report = Validation.of(gpu.name, check_nodes(optimize(graph), gpu, inputs))
    assert not report.ok
    advice = re.compile(r"declare tolerance=(\S+) in the cml.OpSpec of 'own'")
    (of_nodes,) = map(float, advice.findall(str(report)))
    (of_cases,) = map(float, advice.findall(str(failed.value)))
    assert 0.5 <= of_nodes / of_cases <= 2  # they see other inputs
    ops.unregister("own")
    rounded(form, SINE, ROUNDED[SINE], tolerance=of_nodes)
    assert Validation.of(gpu.name, check_nodes(optimize(graph), gpu, inputs)).ok


def test_a_wrong_result_gets_no_advice_about_tolerances(gpu):
    rounded("kernel", SINE, lambda x: np.sin(x), tolerance=ops.Tolerance(1e-4, 1e-4))
    with pytest.raises(AssertionError) as failed:
        check("own", gpu)
    assert "declare tolerance" not in str(failed.value)


# ---------------------------------------------------------------- examples and compounds


def test_the_cross_product_is_one_kernel_or_twelve_with_one_result(gpu, rng):
    composed = cml.load(CROSS / "cross_product.nnef")
    assert sorted(n.op for n in composed.nodes) == sorted(
        ["split"] * 2 + ["mul"] * 6 + ["sub"] * 3 + ["concat"]
    )
    load_file(CROSS / "cross.py")
    custom = cml.load(CROSS / "cross_product.nnef")
    assert [n.op for n in custom.nodes] == ["cross"]
    inputs = {n: rng.standard_normal((1, 3, 32, 32), np.float32) for n in "ab"}
    expected = np.cross(inputs["a"], inputs["b"], axis=1)
    for graph in (composed, custom):
        for backend in (gpu, "cpu"):
            got = cml.Session(graph, backend).run(inputs)["c"]
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    check("cross", gpu)


#: words of Slang's that no other HLSL compiler takes
SLANG = re.compile(
    r"__subscript|__init|__target_switch|spirv_asm|\bextension\b|\bAtomic<|ForceUnroll"
)


def test_translation_for_d3d_is_plain_hlsl(gpu, tmp_path):
    source = 'void kernel(uint i) { y[i] = 2 * x[i]; CML_PRINT("x", x[i]); }'
    declare(source, kernel={"layouts": "same", "half": "each"})
    net = Net(1, 8, 5, 5)
    (key,) = step_keys(lower(net.graph("own(x)"), gpu.limits, {"x": C4H, "t0": C4H}))
    own = dump_kernel(printing(key), tmp_path)
    plain = own.with_suffix(".d3d.hlsl").read_text()
    assert SLANG.search(own.read_text()) and not SLANG.search(plain)
    assert "void main(" in plain


def test_kernels_are_dumped_with_their_translations(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu, "dump_kernels", tmp_path / "kernels")
    monkeypatch.setattr(gpu, "_pipelines", PipelineCache())
    declare(
        '#include "pointwise.hlsli"\nvoid kernel(uint thread) { y[thread] = cml_sin(x[thread]); }'
    )
    session_of(gpu)
    (hlsl,) = [p for p in (tmp_path / "kernels").glob("*.hlsl") if "d3d" not in p.name]
    text = hlsl.read_text()
    assert "#include" not in text and "cml_sin" in text and "RWStructuredBuffer<float> x" in text
    assert hlsl.with_suffix(".spv").read_bytes()[:4] == b"\x03\x02\x23\x07"
    for suffix, part in ((".spvasm", "OpFunction"), (".wgsl", "fn "), (".metal", "metal_stdlib"),
                         (".d3d.hlsl", "cbuffer"), (".glsl", "#version")):  # fmt: skip
        assert part in hlsl.with_suffix(suffix).read_text(), suffix
    assert hlsl.stem in (tmp_path / "kernels/kernels.txt").read_text()
    kinds = {b'"kind": "wgsl"' in file.read_bytes() for file in cache_folder().rglob("*.shader")}
    assert kinds == {True, False}
