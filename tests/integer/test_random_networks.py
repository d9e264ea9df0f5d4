"""Tests that random integer networks are bit-identical on both backends.

`python -m tests.proofs.fuzz --integer --cases 2000` runs more of them.
"""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.ir.limits import Limits
from tests.proofs import fuzz

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
CASES = 20
#: operators between the input and a convolution or a matrix product
VIEWS = ("reshape(x, shape = [1, 64])", "squeeze(x, axes = [0])", "unsqueeze(x, axes = [1])",
         "transpose(x, axes = [0, 2, 3, 1])")  # fmt: skip
PROLOGUES = (
    "a = abs(x);", "a = neg(x);", "b = relu(x); a = add(x, b);", "b = neg(x); a = mul(b, b);",
    "b = abs(x); c = neg(x); a = sub(b, c);", "b = relu(x); a = max(b, 0.25);",
    "b = max(x, -0.5); c = add(b, b); a = tanh(c);", "b = div(1.0, x); a = clamp(b, -2.0, 2.0);",
)  # fmt: skip


@pytest.mark.parametrize("number", range(CASES))
def test_no_bit_differs(number, gpu, tmp_path, monkeypatch):
    """Both backends compute the same bits; every other network is planned as for a hardware GPU."""
    monkeypatch.setattr(gpu, "limits", Limits() if number % 2 else gpu.limits)
    assert fuzz.failures_of(0, number, 8, gpu, tmp_path, ("cpu", "gpu"), integer=True) == []


@pytest.mark.parametrize("number", range(CASES, CASES + 3))
def test_in_no_form_of_a_network(number, gpu, tmp_path):
    """All checks of ``tests.proofs.fuzz`` pass: from a file, cooked, in slices, in parts, tensor by
    tensor."""
    checks = tuple(fuzz.INTEGER_CHECKS)
    assert fuzz.failures_of(0, number, 6, gpu, tmp_path, checks, integer=True) == []


def quantized(lines):
    """Returns the quantized network of these NNEF statements, and a sample of its input."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((8, 64), np.float32)
    filters = rng.standard_normal((8, 4, 3, 3), np.float32)
    text = f"""version 1.0;
graph net(x) -> (y)
{{
x = external<scalar>(shape = [1, 4, 4, 4]);
rows = variable<scalar>(shape = [8, 64], label = 'rows');
filters = variable<scalar>(shape = [8, 4, 3, 3], label = 'filters');
{lines}
}}
"""
    graph = cml.load(cml.nnef.MemoryModel(text, {"rows": rows, "filters": filters}))
    samples = [{"x": rng.standard_normal((1, 4, 4, 4), np.float32)} for _ in range(8)]
    return cml.quantize(graph, samples, sixteen=[])[0], samples[0]


def check_alike(lines, gpu):
    graph, sample = quantized(lines)
    options = cml.CompileOptions(cpu="refuse")  # no kernel may refuse a node
    (expected,), (got,) = (
        cml.Session(graph, b, options).run(sample).values() for b in ("cpu", gpu)
    )
    assert len(np.unique(expected)) > 5
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_an_input(view, gpu):
    check_alike(f"r = {view}; m = reshape(r, shape = [1, 64]); y = linear(m, rows, 0.0);", gpu)


@pytest.mark.parametrize("lines", PROLOGUES)
def test_elementwise_operators_before_a_convolution(lines, gpu):
    check_alike(f"{lines} y = conv(a, filters, 0.0);", gpu)


@pytest.mark.parametrize("lines", ["y = copy(x);", "y = neg(x);", "y = relu(x);"])
def test_outputs_of_zero_have_no_sign(lines, gpu):
    """Outputs of zero are +0, also if the input is -0, on both backends and in any memory."""
    graph, sample = quantized(lines)
    zeros = {"x": np.where(sample["x"] > 0, np.float32(-0.0), np.float32(0.0))}
    for backend, keep in (("cpu", False), (gpu, False), (gpu, True)):
        options = cml.CompileOptions(plan=PlanOptions(keep=keep))
        (got,) = cml.Session(graph, backend, options).run(zeros).values()
        assert not got.view(np.uint32).any()


def test_random_cases_are_deterministic_and_distinct():
    drawn = [fuzz.drawn(0, number, 8, integer=True)[0] for number in range(24)]
    again = fuzz.drawn(0, 7, 8, integer=True)[0]
    assert str(again.graph.nodes) == str(drawn[7].graph.nodes)
    assert all(case.graph.integer for case in drawn)
    assert len({node.op for case in drawn for node in case.graph.nodes}) > 25
    assert sum(len(case.graph.inputs) > 1 for case in drawn) > 3
    assert sum(len(case.graph.outputs) > 1 for case in drawn) > 5
    assert {line["bits"] for case in drawn for line in case.graph.quantization.values()} >= {8, 16}
