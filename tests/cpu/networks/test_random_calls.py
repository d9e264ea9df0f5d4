"""Tests random calls of every operator against the operator's formula.

`python -m tests.prove` runs thousands of them and writes docs/operators.md.
"""

import numpy as np
import pytest

from cml_engine.ops import is_registered, lookup
from cml_engine.tools.testing import full_attrs
from tests import prove
from tests.generate import random_call, samples
from tests.reference import calls
from tests.reference.calls import OPERATORS, SIGNATURES, SampleCall


def check(call, folder, backend, either=(False, True)):
    """Asserts that the call's results on the backend match its formula.

    It runs once for each value in ``either``: with True the operands are constants.
    """
    count = len(call.answers())
    for fixed in either:
        for verdict in call.verdicts(call.run(folder, backend, count, fixed=fixed)):
            assert verdict.ok, f"{prove.shown(call)}: {verdict.problem}"


@pytest.mark.parametrize("op", OPERATORS)
def test_cpu(op, tmp_path):
    for seed in range(12 + 2 * len(samples(op))):
        call = random_call(op, seed)
        check(call, tmp_path, "cpu", [seed % 2 == 1])
        if is_registered(op):  # sessions call faster functions than the definition
            found = lookup(op).cpu(full_attrs(op, call.attrs), *call.arrays)
            results = found if isinstance(found, list | tuple) else [found]
            assert all(verdict.ok for verdict in call.verdicts(results)), prove.shown(call)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPERATORS)
def test_gpu(op, tmp_path, gpu):
    """Two random calls of every operator match its formula on the GPU.

    The numbers are the same in every run, which bounds the number of compiled kernels.
    """
    for seed in range(2):
        check(random_call(op, seed), tmp_path, gpu, [seed == 1])


def test_every_declared_call_is_right_on_the_cpu(tmp_path):
    for op in OPERATORS:
        for number, call in enumerate(calls.declared_calls(op)):
            check(call, tmp_path, "cpu", [number % 2 == 1])


# ---------------------------------------------------------------- the means themselves


@pytest.mark.parametrize("op", OPERATORS)
def test_wrong_results_fail_the_verdict(op):
    """The verdict fails if one value is off by a thousandth, or by the type's smallest step.

    It also fails for a wrong rank or type, for zeros, and for a NaN.
    """
    for seed in range(50):
        call = random_call(op, seed)
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
    assert all(v.ok for v in call.verdicts(right))
    bad = [wrong, first[None], first.astype(np.complex64)]
    if first.any():
        bad.append(np.zeros_like(first))
    if first.dtype.kind == "f":
        bad.append(np.where(np.arange(first.size).reshape(first.shape) == 0, np.nan, first))
    for other in bad:
        assert not all(v.ok for v in call.verdicts([other, *right[1:]]))


STEP = np.float32(0.1)
AT_STEPS = {
    "mod": ((np.float32([0.3, 0.25]), STEP), {}, ([0.0, 0.05], [0.1, 0.05]), [0.0, 0.15]),
    "zero_point_linear_quantize": (
        (np.float32([0.25, 0.27]), np.int32(0), STEP),
        {"bits": 8, "signed": True, "symmetric": False},
        ([0.2, 0.3], [0.3, 0.3]), [0.3, 0.2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", AT_STEPS)
def test_either_side_of_a_discontinuity_is_accepted(op):
    arrays, attrs, right, wrong = AT_STEPS[op]
    call = SampleCall(op, tuple(np.asarray(a) for a in arrays), attrs)
    for values in right:
        assert all(v.ok for v in call.verdicts([np.float32(values)]))
    between, there = np.mean([side[0] for side in right]), right[0][1]
    for values in (wrong, [between, there], [np.nan, there]):
        assert not all(v.ok for v in call.verdicts([np.float32(values)]))


def test_the_document_is_of_these_operators():
    text = prove.DOCUMENT.read_text()
    assert ": 0 wrong answers." in text
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == list(SIGNATURES)
    cases = [int(line.split("|")[-4]) for line in text.splitlines() if line.startswith("| `")]
    assert sum(cases) >= 3000 and min(cases) >= 20
