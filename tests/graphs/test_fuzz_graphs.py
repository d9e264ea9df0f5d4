"""Tests that random graphs agree on every backend, and that a pass's fault is found.

`python -m tests.proofs.fuzz --minutes 5` runs more cases.
"""

import importlib

import numpy as np
import pytest

from cml_engine.ir.limits import Limits
from tests.fixtures.fuzz_graphs import FuzzCase
from tests.fixtures.graphs import Net
from tests.proofs import fuzz

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = 24
#: the module; the package's function of that name shadows it
AFFINE = importlib.import_module("cml_engine.compiler.passes.fold_affine")


@pytest.mark.parametrize("number", range(CASES))
def test_random_graphs_agree_in_numpy(number, tmp_path):
    assert fuzz.failures_of(0, number, 12, None, tmp_path, fuzz.ON_CPU) == []


@pytest.mark.parametrize("number", range(6))
def test_random_graphs_agree_on_the_gpu(number, gpu, tmp_path, monkeypatch):
    """Every check of the fuzzer passes for small random graphs on the GPU.

    Every other graph is planned as for hardware. There are few cases, because each chain of
    operators compiles a kernel.
    """
    monkeypatch.setattr(gpu, "limits", Limits() if number % 2 else gpu.limits)
    assert fuzz.failures_of(0, number, 7, gpu, tmp_path, tuple(fuzz.CHECKS)) == []


# ---------------------------------------------------------------- it can fail


def small():
    """Returns a case with a convolution, a foldable normalization, and unfusable operators."""
    net = Net(1, 4, 5, 5)
    h = net("relu(batch_norm(conv(x, 4)))")
    net(f"tanh(transpose(sin({h}), axes=[0, 1, 3, 2]))")
    return FuzzCase(net.graph(), net.input())


def test_fuzzer_finds_and_reduces_a_wrong_pass(tmp_path, monkeypatch):
    case, right = small(), AFFINE._affine
    bench = fuzz.FuzzBench(case, frozenset({"views"}), None, tmp_path / "work")
    assert fuzz.problem_of("cpu", bench) == ""
    with monkeypatch.context() as patch:
        patch.setattr(AFFINE, "_affine", lambda m: (lambda s, t: (s, t + 1e-3))(*right(m)))
        problem = fuzz.problem_of("cpu", bench)
        assert "allowed" in problem
        failure = fuzz.Failure("cpu", problem, case, frozenset({"views"}))
        smaller = fuzz.minimized(failure, None, tmp_path / "work")
        assert {n.op for n in smaller.case.graph.nodes} == {"conv", "batch_normalization"}
        assert smaller.without == frozenset()


# ---------------------------------------------------------------- values that are not finite


def grouped(op, value):
    """Returns a case of two groups in a block of channels, with ``value`` in the first."""
    net = Net(1, 4, 5, 5)
    made = net.conv("x", 4, 1, groups=2) if op == "conv" else net.deconv("x", 4, groups=2)
    x = net.input()
    x["x"][0, 0, 2, 1] = value
    return FuzzCase(net.graph(made), x)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("op", ["conv", "deconv"])
def test_a_neighbouring_group_keeps_its_values(op, value, gpu, tmp_path):
    bench = fuzz.FuzzBench(grouped(op, value), frozenset(), gpu, tmp_path)
    assert [fuzz.problem_of(check, bench) for check in fuzz.CHECKS] == [""] * len(fuzz.CHECKS)


def test_non_finite_deconv_weights(gpu, tmp_path):
    """An infinite weight of a deconv reaches only the results that it has an input for."""
    net, w = Net(1, 2, 3, 3), np.ones((2, 4, 3, 3), np.float32)
    w[1, 2, 0, 0] = np.inf
    names = {"w": net.constant(w), "zero": net.constant(0.0)}
    graph = net.graph(net.op("deconv", "x", *names.values()))
    inputs = {**net.input(), names["w"]: w}
    zero = {names["zero"]: graph.constants[names["zero"]]}
    graph = graph.with_(inputs=tuple(inputs), constants=zero)
    bench = fuzz.FuzzBench(FuzzCase(graph, inputs), frozenset(), gpu, tmp_path)
    assert [fuzz.problem_of(check, bench) for check in fuzz.CHECKS] == [""] * len(fuzz.CHECKS)


# ---------------------------------------------------------------- accepted differences


RIGHT = np.float32([1.0, np.nan, np.inf, -np.inf, 0.0])


def compared(got):
    moved = [RIGHT + np.float32(by) for by in (1e-4, -1e-4)]
    right = fuzz.FuzzReference([{"y": RIGHT}], [{"y": fuzz._allowed(RIGHT, moved)}])
    return fuzz.difference([{"y": np.asarray(got)}], right)


@pytest.mark.parametrize(
    "got",
    [
        RIGHT + np.float32(1e-3),
        np.float32([1.0, 0.0, np.inf, -np.inf, 0.0]),
        np.float32([np.nan, np.nan, np.inf, -np.inf, 0.0]),
        np.float32([1.0, np.nan, -np.inf, -np.inf, 0.0]),
        np.float32([1.0, np.nan, np.inf, 3e38, 0.0]),
        np.zeros(5, np.float32),
        RIGHT[None],
        RIGHT[:1],
        RIGHT.astype(np.float64),
    ],
)
def test_large_differences_are_reported(got):
    assert compared(got)
