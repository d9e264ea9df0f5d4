"""Random calls of every operator against its formula; Hypothesis looks for the smallest that fails.

`python -m tests.prove` does thousands of them and writes docs/operators.md.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import calls, naive, prove
from tests.calls import OPERATORS, SIGNATURES, Call, judge
from tests.formulas import Window, taps
from tests.generate import Numbers, random_call

SMALL = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Choices:
    """Hypothesis as the one who chooses."""

    def __init__(self, draw):
        self._draw = draw

    def integer(self, low, high):
        return self._draw(st.integers(low, high))


@st.composite
def calls_of(draw, op):
    return random_call(op, Choices(draw))


def check(call, folder, backend):
    right = call.answers()
    for fixed in (False, True):
        got = call.run(folder, backend, len(right), fixed=fixed)
        for a, b in zip(got, right, strict=True):
            verdict = judge(call.op, a, b)
            assert verdict.ok, f"{prove.shown(call)}: {verdict.problem}"


@pytest.mark.parametrize("op", OPERATORS)
def test_cpu(op, tmp_path):
    SMALL(given(call=calls_of(op))(lambda call: check(call, tmp_path, "cpu")))()


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPERATORS)
def test_gpu(op, tmp_path, gpu):
    """The same numbers in every run: what compiles new variants is bounded."""
    for seed in range(3):
        check(random_call(op, Numbers(seed)), tmp_path, gpu)


def test_every_declared_call_is_right_on_the_cpu(tmp_path):
    for op in OPERATORS:
        for call in calls.declared_calls(op):
            check(call, tmp_path, "cpu")


# ---------------------------------------------------------------- the means themselves


def test_the_formulas_windows_are_those_of_loops(rng):
    for border in ("constant", "replicate", "reflect", "reflect-even", "ignore"):
        for _ in range(20):
            x = rng.standard_normal(rng.integers(1, 6, 2))
            size, dilation = rng.integers(1, 4, 2).tolist(), rng.integers(1, 3, 2).tolist()
            stride = rng.integers(1, 3, 2).tolist()
            padding = [] if rng.random() < 0.5 else [(5, 4), (4, 6)]
            window = {"padding": padding, "stride": stride, "dilation": dilation}
            got = taps(x, Window(x.shape, size, **window), border)
            for index, values in naive.windows(x, size, border, **window):
                right = [np.nan if v is None else v for v in values]
                assert np.array_equal(got[index], right, equal_nan=True)


@pytest.mark.parametrize("op", OPERATORS)
def test_a_wrong_answer_is_noticed(op):
    """Of one value, by a thousandth: or, of a whole or logical one, by the least step."""
    for seed in range(50):
        call = random_call(op, Numbers(seed))
        right = call.answers()
        first = right[0]
        if first.size and np.isfinite(first).all():
            break
    wrong = np.array(first)
    at = np.unravel_index(np.abs(first).argmax(), first.shape)
    if first.dtype == np.bool_:
        wrong[at] = ~wrong[at]
    elif first.dtype == np.int32:
        wrong[at] += 1
    else:
        wrong[at] += 1e-3 * max(1, abs(wrong[at]))
    if op in calls.JUMPS:  # one value may be on the other side of a step, not three
        wrong = first + np.float32(1e-3)
        if first.size < 3:
            return
    assert judge(op, first, first).ok
    assert not judge(op, wrong, first).ok


def test_a_broken_formula_makes_the_proof_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(calls.FORMULAS, "relu", lambda x: [np.maximum(x, 0.01)])
    tally = prove.prove("relu", 3, "cpu", tmp_path)
    assert tally.wrong and "relu" in tally.wrong[0] and tally.worst > 1


def test_an_error_is_a_wrong_answer(tmp_path, monkeypatch):
    bad = Call("relu", (np.zeros(2, np.int32),))
    monkeypatch.setattr(prove, "calls_of", lambda op, count: [bad])
    assert "wants tensor<scalar>" in prove.prove("relu", 1, "cpu", tmp_path).wrong[0]


def test_the_document_is_of_these_operators():
    text = prove.DOCUMENT.read_text()
    assert ": 0 wrong answers." in text
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == list(SIGNATURES)
    cases = [int(line.split("|")[3]) for line in text.splitlines() if line.startswith("| `")]
    assert sum(cases) >= 3000 and min(cases) >= 20
