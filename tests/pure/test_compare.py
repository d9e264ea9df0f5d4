"""The comparator must fail on wrong answers: each of these is one."""

import numpy as np
import pytest

from cml_engine.ops.spec import EXACT, Tolerance
from cml_engine.report.compare import compare

LOOSE = Tolerance(1e-5, 1e-6, "a test")
RIGHT = np.array([[1.0, -2.0], [0.0, 1e6]], np.float32)


def changed(index, value):
    wrong = RIGHT.copy()
    wrong[index] = value
    return wrong


def test_equal_arrays_agree():
    verdict = compare(RIGHT, RIGHT.copy(), EXACT)
    assert verdict.ok and verdict.worst == 0


def test_rounding_within_the_tolerance_agrees():
    assert compare(RIGHT * np.float32(1 + 5e-6), RIGHT, LOOSE).ok


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


def test_the_sign_of_an_infinity_counts():
    verdict = compare(np.array([-np.inf]), np.array([np.inf]), LOOSE)
    assert not verdict.ok and "sign" in verdict.problem


def test_equal_nan_and_infinity_agree():
    odd = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert compare(odd, odd.copy(), EXACT).ok


def test_integers_and_logicals_are_compared_exactly():
    assert not compare(np.array([1, 2], np.int32), np.array([1, 3], np.int32), LOOSE).ok
    assert not compare(np.array([True]), np.array([False]), LOOSE).ok
    assert compare(np.array([True]), np.array([True]), LOOSE).ok


def test_an_error_may_go_by_the_largest_value_where_the_tolerance_says_so():
    wanted = np.array([100.0, 0.5], np.float32)
    got = np.array([100.0, 0.5005], np.float32)
    assert compare(got, wanted, Tolerance(0, 0, "sums", of_largest=1e-5)).ok
    assert not compare(got, wanted, Tolerance(0, 0, "sums", of_largest=4e-6)).ok
    assert not compare(got, wanted, LOOSE).ok


def test_exact_means_exact():
    assert not compare(
        np.array([np.nextafter(np.float32(1), 2)]), np.array([1.0], np.float32), EXACT
    ).ok
