"""Tests that ``compare`` rejects wrong results of many kinds and accepts right ones."""

import numpy as np
import pytest

from cml_engine.cpu.compare import compare
from cml_engine.ops.declaration.spec import Tolerance

LOOSE = Tolerance(1e-5, 1e-6, "a test")
RIGHT = np.array([[1.0, -2.0], [0.0, 1e6]], np.float32)


def changed(index, value):
    wrong = RIGHT.copy()
    wrong[index] = value
    return wrong


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (changed((0, 1), -2.001), "at [0, 1] got -2.001"),
        (changed((0, 0), np.nan), "NaN in one only"),
        (changed((1, 1), np.inf), "infinity in one only"),
        (RIGHT.T.copy(), "differ"),
        (RIGHT[:1], "shape [1, 2], wanted [2, 2]"),
        (RIGHT.astype(np.int32), "type int32"),
        (changed((1, 0), 2e-6), "at [1, 0]"),
    ],
)
def test_wrong_answers_are_found(got, says):
    verdict = compare(got, RIGHT, LOOSE)
    assert not verdict.ok
    assert says in verdict.problem


WIDE = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


@pytest.mark.parametrize("at", [(0, 0), (1, 1), (2, 3)])
def test_one_value_within_its_tolerance_is_right_and_twice_that_is_wrong(at):
    """Each value's tolerance depends on that value alone: 1e-6 plus 1e-5 of its magnitude."""
    allowed = 1e-6 + 1e-5 * abs(float(WIDE[at]))
    for by, ok in ((0.5, True), (-0.5, True), (2.0, False), (-2.0, False)):
        got = WIDE.astype(np.float64)
        got[at] += by * allowed
        verdict = compare(got, WIDE.astype(np.float64), LOOSE)
        assert verdict.ok == ok and verdict.worst == pytest.approx(abs(by), rel=1e-6)


def test_an_additional_allowance_holds_only_at_its_elements():
    more = np.zeros_like(WIDE)
    more[1, 2] = 0.1
    got = WIDE.copy()
    got[1, 2] += 0.09
    assert compare(got, WIDE, LOOSE, more).ok
    assert not compare(got, WIDE, LOOSE).ok
    assert not compare(got.T, WIDE.T, LOOSE, more.reshape(4, 3)).ok


def test_integers_and_logicals_are_compared_exactly():
    assert not compare(np.array([1, 2], np.int32), np.array([1, 3], np.int32), LOOSE).ok
    assert not compare(np.array([True]), np.array([False]), LOOSE).ok
    assert compare(np.array([True]), np.array([True]), LOOSE).ok
