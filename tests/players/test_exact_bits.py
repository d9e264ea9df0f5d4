"""Tests that random operators and hashes have the same bits in sessions and in cooked files."""

import numpy as np
import pytest

pytest.importorskip("onnx")

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from tests.fixtures.cooked import DEVICES
from tests.fixtures.onnx_models import load, model
from tests.players.building import build
from tests.players.deno import is_right, play_golden
from tests.players.playing import play, play_in_slices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with"),
]


@pytest.fixture(scope="module")
def graph():
    nodes = (
        "a = RandomNormalLike(x); b = RandomUniform(shape=[3, 7], low=-2.0, high=5.0, seed=3.0); "
        "c = RandomNormal(shape=[9, 999], mean=3.0, scale=0.1); d = Bernoulli(x)"
    )
    return load(model(nodes, "x: [4, 5]", "a, b, c, d"))


@pytest.fixture(scope="module")
def file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("cooked") / "random.cml"
    options = cml.CompileOptions(seed=12)
    path.write_bytes(cook(graph, DEVICES, options, golden=True))
    return path


def test_numbers_in_c_are_those_of_numpy(graph, file):
    inputs = {"x": np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)}
    wanted = cml.Session(graph, "cpu", cml.CompileOptions(seed=12)).run(inputs)
    found = play_in_slices(build("play.c", device=True), file, inputs, wanted, ("0.001", "1e9"))
    assert found.frames[0] > found.frames[1]
    assert found.same_slices and found.same_bits


def test_every_run_in_c_draws_new_numbers(graph, file):
    inputs = {"x": np.full((4, 5), 0.5, np.float32)}
    session = cml.Session(graph, "cpu", cml.CompileOptions(seed=12))
    program, seen = build("play.c", device=True), set()
    for runs in (1, 2, 3):
        wanted = session.run(inputs)
        kinds = {name: array.dtype for name, array in wanted.items()}
        outputs = play(program, file, inputs, kinds, "--runs", str(runs)).outputs
        for name, array in wanted.items():
            np.testing.assert_array_equal(outputs[name], array.ravel())
        seen.add(wanted["a"].tobytes())
    assert len(seen) == 3


def test_numbers_in_the_web_player_are_those_of_a_session(file):
    (found,) = play_golden([file])
    assert is_right(found) and found["error"] == 0


def test_seed_of_a_cooked_file_is_fixed(file, gpu):
    with pytest.raises(cml.InputError, match="its seed is part of the file"):
        cml.Session(cml.load_cooked(file), gpu, cml.CompileOptions(seed=3))


def test_hash_grid_in_c_and_in_the_web_player(tmp_path, rng):
    """A table of 5003 rows is read at the same rows, in any slices."""
    known = {"primes": np.array([1, 2654435761, 805459861]), "low": np.array(0xFFFFFFFF),
             "size": np.array(5003), "table": rng.random((5003, 2), np.float32)}  # fmt: skip
    nodes = (
        "m = Mul(x, primes); a, b, c = Split(m, axis=1, num_outputs=3); d = BitwiseXor(a, b); "
        "h = BitwiseXor(d, c); l = BitwiseAnd(h, low); i = Mod(l, size); y = Gather(table, i)"
    )
    graph = load(model(nodes, "x: int64[500, 3]", "y", known, 18))
    path = tmp_path / "hash.cml"
    path.write_bytes(cook(graph, DEVICES, golden=True))
    inputs = {"x": rng.integers(-(2**31), 2**31, (500, 3)).astype(np.int32)}
    wanted = cml.Session(graph, "cpu").run(inputs)
    found = play_in_slices(build("play.c", device=True), path, inputs, wanted, ("0.001", "1e9"))
    assert found.frames[0] > found.frames[1] and found.same_slices and found.same_bits
    (played,) = play_golden([path])
    assert is_right(played) and played["error"] == 0
