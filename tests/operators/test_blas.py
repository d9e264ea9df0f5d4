"""Tests of matrix products cut into blocks for the engine's threads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cml_engine.demo_game.chain import MODELS
from cml_engine.formats.loading import load
from cml_engine.ops.common import blas
from cml_engine.ops.common.blas import multiply, numpy_blas
from cml_engine.runtime.session import Session, random_inputs
from tests.fixtures.pages import ROOT

MODEL = MODELS / "upres.nnef"

SHAPES = [
    ((3, 4), (4, 5)), ((700, 300), (300, 90)), ((64, 500), (500, 1200)), ((1, 4000), (4000, 1100)),
    ((36, 300, 64), (36, 64, 64)), ((1, 40, 64), (500, 64, 64)), ((5, 1 << 15), (1 << 15, 64)),
    ((2, 3, 90, 80), (1, 3, 80, 300)), ((0, 4), (4, 5)), ((4, 0), (0, 5)), ((2, 0, 4), (2, 4, 3)),
]  # fmt: skip


@pytest.fixture(params=["few", "many"])
def blocks(request, monkeypatch):
    """Runs the test with the default block size and with a small one that cuts every shape."""
    if request.param == "many":
        monkeypatch.setattr(blas, "_BLOCK", 1 << 12)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("given", ["out", "strided", "none"])
def test_a_product_in_blocks_is_the_product(blocks, rng, shapes, given):
    a, b = (rng.standard_normal(shape, np.float32) for shape in shapes)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    out = None
    if given == "out":
        out = np.full(expected.shape, np.nan, np.float32)
    elif given == "strided":
        a, b = np.asfortranarray(a), b[..., ::-1]
        expected = expected[..., ::-1]
        out = np.full((*expected.shape[:-1], expected.shape[-1] + 3), np.nan, np.float32)[..., 1:-2]
    found = multiply(a, b, out)
    assert out is None or found is out
    assert found.dtype == np.float32 and found.shape == expected.shape
    assert_allclose(found, expected, rtol=1e-4, atol=2e-3)


def test_the_number_of_threads_changes_no_bit(rng, monkeypatch):
    a = rng.standard_normal((300, 700), np.float32)
    b = rng.standard_normal((700, 900), np.float32)
    monkeypatch.setattr(blas, "_BLOCK", 1 << 16)
    found = []
    for cores in (1, 2, 7):
        monkeypatch.setattr(blas, "_cores", lambda cores=cores: cores)
        found.append(multiply(a, b))
    assert_array_equal(found[0], found[1])
    assert_array_equal(found[0], found[2])


def test_an_error_in_a_block_is_the_product_s():
    def fails():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        blas.share([lambda: None, fails, lambda: None])


def test_an_overflow_gives_infinity_without_a_warning():
    huge = np.full((1200, 1200), 1e30, np.float32)
    with np.errstate(all="ignore"):
        assert np.isinf(multiply(huge, huge)).all()


@pytest.fixture
def two_threads():
    """Gives BLAS two threads during the test, as in normal use; skips it with an unknown BLAS.

    The suite's processes have one BLAS thread each.
    """
    if not numpy_blas().lib_controllers:
        pytest.skip("NumPy has a BLAS that threadpoolctl does not know")
    with numpy_blas().limit(limits=2):
        yield


def threads():
    return numpy_blas().lib_controllers[0].get_num_threads()


def test_run_limits_blas_to_one_thread_and_restores_it(two_threads, monkeypatch):
    """A session's run limits BLAS to one thread, and restores the caller's two threads afterwards.

    Idle BLAS threads would otherwise spin beside busy processes.
    """
    seen, shared = [], blas.share

    def watched(blocks):
        shared([lambda block=block: (block(), seen.append(threads())) for block in blocks])

    monkeypatch.setattr(blas, "share", watched)
    session = Session(load(MODEL), "cpu")
    session.program.run(random_inputs(session.inputs), lambda *_: seen.append(threads()))
    assert len(seen) > 10 and set(seen) == {1} and threads() == 2


def test_blas_is_found_through_a_symbolic_link(tmp_path):
    """BLAS in an environment behind a symbolic link has as many threads, and so equal results."""
    if not numpy_blas().lib_controllers:
        pytest.skip("NumPy has a BLAS that threadpoolctl does not know")
    link = tmp_path / "packages"
    link.symlink_to(Path(np.__file__).parents[1])
    code = "from cml_engine.ops.common.blas import numpy_blas as b; print(len(b().lib_controllers))"
    listed = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": f"{link}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert listed.stdout.split() == ["1"]
