"""Tests that tensors that are alive at the same time never overlap, and that the arena is small."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cml_engine import load
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.lower import lower
from cml_engine.compiler.planning.memory import Lifetime, lower_bound, place, place_in_segments
from cml_engine.ir.limits import Limits
from demo_game.chain import MODELS


@st.composite
def items(draw):
    count = draw(st.integers(1, 25))
    made = []
    for i in range(count):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 10))
        made.append(Lifetime(f"t{i}", draw(st.integers(0, 5000)), first, last))
    return made


@settings(max_examples=60, deadline=None)
@given(items(), st.sampled_from([1, 32, 256]))
def test_living_tensors_never_overlap(tensors, alignment):
    offsets, memory = place(tensors, alignment)
    for i, a in enumerate(tensors):
        assert offsets[a.name] % alignment == 0
        assert offsets[a.name] + a.nbytes <= memory.peak
        for b in tensors[:i]:
            both = max(a.first, b.first) <= min(a.last, b.last)
            assert a.overlaps(b) == both
            if both and a.nbytes and b.nbytes:
                apart = (
                    offsets[a.name] + a.nbytes <= offsets[b.name]
                    or offsets[b.name] + b.nbytes <= offsets[a.name]
                )
                assert apart, f"{a} and {b} overlap"
    assert memory.peak >= memory.bound


def test_lower_bound_is_the_fullest_step():
    tensors = [Lifetime("a", 100, 0, 2), Lifetime("b", 50, 1, 1), Lifetime("c", 70, 3, 4)]
    assert lower_bound(tensors) == 150


@pytest.mark.parametrize("name", ["upres", "texture", "population"])
def test_the_arena_of_a_network_has_little_waste(name):
    """The arena of a demo network is at most 2 % larger than the bound."""
    graph = optimize(load(MODELS / f"{name}.nnef"))
    plan = lower(graph, Limits(software=True), choose_layout(graph))
    assert plan.memory.ratio <= 1.02


@settings(max_examples=60, deadline=None)
@given(items(), st.integers(5120, 20000))
def test_an_arena_of_several_buffers_has_no_tensor_in_two(tensors, most):
    offsets, memory = place_in_segments(tensors, 256, most)
    assert memory.segment == (0 if memory.peak <= most else most // 256 * 256)
    for i, a in enumerate(tensors):
        start, end = offsets[a.name], offsets[a.name] + a.nbytes
        assert start % 256 == 0 and end <= memory.peak
        if memory.segment:
            assert start // memory.segment == max(start, end - 1) // memory.segment
        for b in tensors[:i]:
            apart = end <= offsets[b.name] or offsets[b.name] + b.nbytes <= start
            assert apart or not a.overlaps(b)
