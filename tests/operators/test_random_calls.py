"""Tests random calls of every operator on the CPU against the operator's formula.

`python -m tests.proofs.operator_calls` runs thousands of them on both backends and writes
docs/operators.md.
"""

import re

import numpy as np
import pytest

from cml_engine.ops.declaration.registry import is_registered, lookup
from cml_engine.testing import full_attrs
from tests.proofs import operator_calls
from tests.proofs.random_calls import random_call, samples
from tests.reference import calls
from tests.reference.calls import OPERATORS, SIGNATURES, SampleCall


def check_definition(call):
    """Asserts that the operator's NumPy function matches its formula.

    Sessions call faster functions than that.
    """
    found = lookup(call.op).cpu(full_attrs(call.op, call.attrs), *call.arrays)
    results = found if isinstance(found, list | tuple) else [found]
    assert all(verdict.ok for verdict in call.verdicts(results)), operator_calls.shown(call)


@pytest.mark.parametrize("op", OPERATORS)
def test_cpu(op, tmp_path):
    """Random calls match the formula as models, all declared ones by the operator's function."""
    for seed in range(12 + len(samples(op))):
        call = random_call(op, seed)
        # every second time the operands but the first are constants
        found = call.run(tmp_path, "cpu", len(call.answers), fixed=seed % 2 == 1)
        for verdict in call.verdicts(found):
            assert verdict.ok, f"{operator_calls.shown(call)}: {verdict.problem}"
        if is_registered(op):
            check_definition(call)
    for call in calls.declared_calls(op):
        check_definition(call)


# ---------------------------------------------------------------- the means themselves


@pytest.mark.parametrize("op", OPERATORS)
def test_wrong_results_fail_the_verdict(op):
    """The verdict fails if one value is off by a thousandth, or by the type's smallest step.

    It also fails for a wrong rank or type, for zeros, and for a NaN.
    """
    for seed in range(50):
        call = random_call(op, seed)
        right = call.answers
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
    text = operator_calls.DOCUMENT.read_text()
    assert ": 0 wrong answers." in text
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == list(SIGNATURES)
    totals = [int(count) for count in re.findall(r"(\d+) calls on", text)]
    (fewest,) = re.findall(r"at least (\d+) of each operator", text)
    assert len(totals) == 2 and min(totals) >= 3000 and int(fewest) >= 20
