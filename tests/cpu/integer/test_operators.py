"""Tests that integer operators on the CPU equal Python's integers, for any shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cml_engine as cml
from cml_engine.errors import RangeError
from tests.fixtures.integer.calls import CALLS


@pytest.mark.parametrize("family", CALLS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_bit_differs(family, seed):
    try:
        call = CALLS[family](np.random.default_rng(seed))
        session = cml.Session(call.graph, "cpu")
    except RangeError:
        return  # some scales are too fine for their operands
    words = call.words(session.run(call.inputs))
    np.testing.assert_array_equal(words, call.wanted)
