"""Integer operators on the CPU match Python's integers exactly, for any shapes and words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cml_engine as cml
from cml_engine.errors import RangeError
from tests.fixtures.integer import networks
from tests.fixtures.integer.calls import CALLS


@pytest.mark.parametrize("family", CALLS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_bit_differs(family: str, seed: int) -> None:
    try:
        call = CALLS[family](np.random.default_rng(seed))
        session = cml.Session(call.graph, "cpu")
    except RangeError:
        return  # some scales are too fine for their operands
    words = call.words(session.run(call.inputs))
    np.testing.assert_array_equal(words, call.wanted)


def test_most_calls_can_be_proven() -> None:
    """Ensures that the test above runs enough cases."""
    refused = 0
    for make in CALLS.values():
        for seed in range(20):
            try:
                cml.Session(make(np.random.default_rng(seed)).graph, "cpu")
            except RangeError:
                refused += 1
    assert refused < 20


def test_another_rounding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if the reference rounds halves to even."""

    def to_even(total: int, ratio: networks.Fraction, low: int, high: int) -> int:
        return min(max(round(total * ratio), low), high)

    monkeypatch.setattr(networks, "one_word", to_even)
    differing = 0
    for seed in range(40):
        call = CALLS["window"](np.random.default_rng(seed))
        try:
            words = call.words(cml.Session(call.graph, "cpu").run(call.inputs))
        except RangeError:
            continue
        differing += not np.array_equal(words, call.wanted)
    assert differing > 3
