"""Tests of ``erf`` in NumPy, which is computed in blocks."""

import numpy as np

from cml_engine.ops.elementwise.elementwise import erf


def test_erf_of_large_arrays_equals_erf_of_elements(rng):
    """``erf`` of a large array equals ``erf`` of its elements, in any memory order."""
    large = rng.standard_normal((70, 300), np.float32)
    for x in (large, large.T, large[:0], large[0, 0]):
        wanted = [erf(value) for value in np.reshape(x, -1)[-300:]]
        got = erf(x)
        assert got.shape == x.shape
        np.testing.assert_array_equal(got.reshape(-1)[-300:], np.reshape(wanted, -1))
