"""Tests of the C player on Dawn instead of wgpu-native.

``CML_DAWN`` names a folder with ``include/webgpu/webgpu.h`` and optionally a library
``libwebgpu*.so``. Dawn refuses older versions of Mesa; ``VK_ICD_FILENAMES`` may name SwiftShader.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from tests.fixtures.cooked import small_inputs, small_model
from tests.players.building import INCLUDES, PLAYER, STRICT, need_gcc, run_compiler, sources
from tests.players.playing import play


@pytest.fixture(scope="module")
def dawn():
    folder = os.environ.get("CML_DAWN")
    if folder is None:
        pytest.skip("CML_DAWN names no folder with Dawn's include/webgpu/webgpu.h")
    return Path(folder)


@pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")
def test_player_on_dawn_agrees_with_the_session(dawn, tmp_path):
    library = next(dawn.rglob("libwebgpu*.so"), None)
    if library is None:
        pytest.skip("there is no library beside Dawn's header")
    program, file = tmp_path / "play", tmp_path / "small.cml"
    flags = (*STRICT, "-DCML_DAWN", *INCLUDES, f"-isystem{dawn / 'include'}")
    files = (PLAYER / "tools" / "play.c", *sources(device=True), library)
    linked = (f"-Wl,-rpath,{library.parent}", "-lm", "-o", program)
    run_compiler(need_gcc(), *flags, *files, *linked)
    file.write_bytes(cook(small_model(), ["portable", "software"], player=True))
    expected = cml.Session(small_model(), "cpu").run(small_inputs())
    kinds = {name: array.dtype for name, array in expected.items()}
    found = play(program, file, small_inputs(), kinds, "--budget", "2").outputs
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array.ravel(), rtol=2e-5, atol=2e-5)
