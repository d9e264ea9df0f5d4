"""Tests that functions keep their accuracy where a compiler computes as with real numbers.

Metal's compiler may add up constants and cancel terms, and wgpu does not forbid it. The file of the
functions is compiled as C++ by a compiler that does so too.
"""

import ctypes

import numpy as np
import pytest

from cml_engine.ops.declaration.registry import lookup
from tests.fixtures.pages import ROOT
from tests.players.building import need_gcc, run_compiler

#: what HLSL has and C++ has not
HOST = """
#include <cmath>
#include <cstdint>
#include <cstring>
typedef uint32_t uint;
extern uint cml_end;
template <class To, class From> static To bits_of(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
template <class T> static T select(bool c, T a, T b) { return c ? a : b; }
static uint asuint(float x) { return bits_of<uint>(x); }
static int asint(float x) { return bits_of<int>(x); }
static float asfloat(uint x) { return bits_of<float>(x); }
static float frac(float x) { return x - floorf(x); }
#define abs fabsf
#define exp expf
#define exp2 exp2f
#define floor floorf
#define inout
#define log logf
#define log2 log2f
#define mad fmaf
#define sqrt sqrtf
#include "pointwise.hlsli"
#define EACH(name) extern "C" void each_##name(float *x, int n) { \\
    for (int i = 0; i < n; i++) { x[i] = cml_##name(x[i]); } }
"""
RANGES = {
    "sin": (-3000, 3000), "cos": (-3000, 3000), "tan": (-1.5, 1.5), "asin": (-1, 1),
    "acos": (-1, 1), "atan": (-50, 50), "sinh": (-10, 10), "cosh": (-10, 10), "tanh": (-9, 9),
    "asinh": (-1e-3, 1e-3), "acosh": (1, 1.001), "atanh": (-1e-3, 1e-3), "softplus": (-15, -5),
    "erf": (-4, 4), "sigmoid": (-20, 20), "round": (-5, 5),
}  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """The functions, compiled with the freedom of real numbers."""
    compiler, folder = need_gcc("g++"), tmp_path_factory.mktemp("fast_math")
    text = HOST + "".join(f"EACH({name})\n" for name in RANGES)
    (folder / "functions.cpp").write_text(text)
    (folder / "host.cpp").write_text("unsigned cml_end = 5;\n")  # not known to the other file
    run_compiler(
        compiler, "-O2", "-ffast-math", "-fsingle-precision-constant", "-fPIC", "-c",
        f"-I{ROOT / 'shaders_hlsl/include'}", "functions.cpp", cwd=folder,
    )  # fmt: skip
    # linked without fast math, which would make this process flush denormals
    objects = ("functions.o", "host.cpp", "-fPIC", "-shared", "-o", "functions.so")
    run_compiler(compiler, *objects, cwd=folder)
    return ctypes.CDLL(str(folder / "functions.so"))


@pytest.mark.parametrize("name", RANGES)
def test_accuracy_survives_a_compiler_that_reorders(functions, name):
    x = np.linspace(*RANGES[name], 100_001, dtype=np.float32)
    found, spec = x.copy(), lookup(name)
    getattr(functions, f"each_{name}")(found.ctypes.data_as(ctypes.c_void_p), len(found))
    right = spec.cpu(None, x.astype(np.float64))
    # tiny results by their digits: a cancelled term is lost in the absolute tolerance
    atol = 1e-9 if name in ("asinh", "atanh", "softplus") else spec.tolerance.atol
    np.testing.assert_allclose(found, right, rtol=spec.tolerance.rtol, atol=atol)
