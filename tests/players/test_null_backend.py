"""Tests of the C player on the backend without a device, which checks the rules of the table."""

from __future__ import annotations

import json
import subprocess

import pytest

from cml_engine.cooked import cook
from cml_engine.gpu.shaders import compilers
from tests.fixtures.cooked import chain, counter, small_model, turned
from tests.fixtures.graphs import Net, mobilenet_block
from tests.players.building import SANITIZED, build
from tests.players.playing import run_play

needs_compiler = pytest.mark.skipif(
    compilers.version() is None, reason="no HLSL compiler to cook with"
)


#: runs of a network in one run of the program
RUNS = 24


@pytest.fixture(scope="module")
def program():
    return build("null_rules.c", "-O1", *SANITIZED)


def products(are_chained):
    """Returns a network of four products, each of the one before or all of the input.

    No two have the same shape: products of one shape are one dispatch.
    """
    net, widths = Net(4, 16), (16, 20, 24, 28, 32)
    found = ["x"]
    for inner, columns in zip(widths, widths[1:], strict=False):
        of = found[-1] if are_chained else "x"
        weights = net.random(inner if are_chained else 16, columns)
        found.append(net.op("matmul", of, weights, transposeA=False, transposeB=False))
    return net.graph(found[-1]).with_(outputs=tuple(found[1:]))


NETWORKS = {
    "counter": counter,
    "chain": chain,
    "small": small_model,
    "depthwise": lambda: mobilenet_block().graph(),
    "products": lambda: products(are_chained=False),
}


@needs_compiler
@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("budget", ["0.002", "0.5", "1e9"])
@pytest.mark.parametrize("name", NETWORKS)
def test_player_keeps_the_rules_of_a_backend(program, name, budget, is_late, tmp_path):
    """The player breaks no rule in any slices, and a barrier stands only where it is needed.

    A frame begins with one, because earlier frames may still run. The program checks that each
    measured time is that of the frame's slices, also on a device that writes timestamps late.
    """
    file = tmp_path / "net.cml"
    file.write_bytes(cook(NETWORKS[name](), ["portable"], player=True, golden=False))
    found = played(program, file, budget, is_late)
    assert found["measured"] > 0 < found["dispatches"]
    assert found["needless"] <= found["frames"]


def played(program, file, budget, is_late=False):
    """Returns what the program counts, as it prints it in JSON."""
    words = [program, file, budget, str(int(is_late))]
    run = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@needs_compiler
def test_independent_dispatches_have_no_barrier_between_them(program, tmp_path):
    files = [tmp_path / "apart.cml", tmp_path / "chained.cml"]
    for file, are_chained in zip(files, (False, True), strict=True):
        model = products(are_chained)
        file.write_bytes(cook(model, ["portable"], player=True, golden=False))
    apart, chained = (played(program, file, "1e9") for file in files)
    assert apart["dispatches"] == chained["dispatches"] >= 4 * RUNS
    assert chained["barriers"] - apart["barriers"] >= 3 * RUNS


def test_null_backend_notices_every_broken_rule(program):
    run = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.split()[0]) > 30


@needs_compiler
def test_misuse_gives_an_error_that_names_it(tmp_path):
    """Wrong options, inputs, hosts and orders of calls are refused, and no memory is lost."""
    file = tmp_path / "turned.cml"
    file.write_bytes(cook(turned(), ["portable"], player=True, golden=False))
    run = run_play(build("misuse.c", "-O1", *SANITIZED), file)
    assert (run.returncode, run.stdout) == (0, "refused\n"), run.stderr


@needs_compiler
@pytest.mark.parametrize("calls", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_random_call_sequences_keep_the_rules(calls, tmp_path):
    """Random calls, also with stale handles or without memory, break no rule of a backend."""
    program = build("random_calls.c", *SANITIZED, device=True)
    file = tmp_path / "counter.cml"
    file.write_bytes(cook(counter(), ["portable"], player=True, golden=False))
    run = run_play(program, str(calls), "1", file, "null")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{calls} calls, ")
