"""Tests of elementwise operators against Python's mathematics, and of broadcasting."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cml_engine.ir.graph import Fact
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ops import load_families
from cml_engine.ops.common.shapes import collapse, left_view, plan_walk
from cml_engine.ops.elementwise.elementwise import erf

load_families()


def array(value):
    return np.array(value, np.bool_ if isinstance(value, bool) else np.float32)


# ---------------------------------------------------------------- walks


def blocked(array):
    """Returns the array's elements in the memory order of the layout c4, flat."""
    n, c, *spatial = array.shape
    return np.moveaxis(array.reshape(n, c // 4, 4, *spatial), 2, -1).ravel()


extents = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5)


@given(extents, st.data())
def test_a_walk_meets_every_element_in_order(shape, data):
    """The walk gives the operand's position of every result element, in order."""
    operand = [n if data.draw(st.booleans()) else 1 for n in shape]
    operand = operand[: data.draw(st.integers(0, len(shape)))]
    array = np.arange(np.prod(operand, dtype=int)).reshape(operand)
    wanted = np.broadcast_to(left_view(array, len(shape)), shape).ravel()
    facts = Fact("scalar", tuple(operand)), Fact("scalar", tuple(shape))
    steps = plan_walk([(facts[0], PLAIN)], facts[1], PLAIN)
    np.testing.assert_array_equal(array.ravel()[offsets(steps, 0)], wanted)


@pytest.mark.parametrize("layouts", list(itertools.product([PLAIN, C4], repeat=3)))
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (1, 4, 1), (1, 8, 2, 1, 3)])
def test_a_walk_over_blocked_layouts(shape, layouts):
    """For any layouts, the operands' walks visit the elements that match the result's walk."""
    full = np.arange(np.prod(shape)).reshape(shape)
    fact = Fact("scalar", shape)
    channel = Fact("scalar", (1, shape[1]))
    operands = [(fact, layouts[0]), (fact, layouts[1]), (channel, PLAIN)]
    steps = plan_walk(operands, fact, layouts[2])
    wanted = blocked(full) if layouts[2] == C4 else full.ravel()
    for k in (0, 1):
        words = blocked(full) if layouts[k] == C4 else full.ravel()
        np.testing.assert_array_equal(words[offsets(steps, k)], wanted)
    channels = np.broadcast_to(np.arange(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2)), shape)
    wanted = blocked(channels) if layouts[2] == C4 else channels.ravel()
    np.testing.assert_array_equal(offsets(steps, 2), wanted)


def offsets(steps, operand):
    grid = np.indices(steps.extents)
    return sum(
        s * i for s, i in zip(steps.strides[operand], grid, strict=True)
    ).ravel()  # fmt: skip


def test_dense_operands_collapse_to_one_run():
    assert collapse((2, 3, 4), [(12, 4, 1), (12, 4, 1)]).extents == (24,)
    assert collapse((2, 3, 4), [(12, 4, 1), (0, 1, 0)]).extents == (2, 3, 4)
    assert collapse((1, 3, 4), [(12, 4, 1), (0, 1, 0)]).extents == (3, 4)
    assert collapse((), [()]).extents == (1,)


def test_erf_of_large_arrays_equals_erf_of_elements(rng):
    """``erf`` of a large array equals ``erf`` of its elements, in any memory order."""
    large = rng.standard_normal((70, 300)).astype(np.float32)
    for x in (large, large.T, large[:0], large[0, 0]):
        wanted = [erf(value) for value in np.reshape(x, -1)[-300:]]
        got = erf(x)
        assert got.shape == x.shape
        np.testing.assert_array_equal(got.reshape(-1)[-300:], np.reshape(wanted, -1))
