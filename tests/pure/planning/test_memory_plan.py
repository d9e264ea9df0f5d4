"""Tests that tensors that are alive at the same time never overlap, and that the arena is small."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cml_engine.compiler.planning.memory import Lifetime, lower_bound, place, place_in_segments


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


def test_long_lived_tensors_leave_little_waste():
    """The arena of the demo's colour network is at most 2 % larger than the bound, in any tensor
    order.

    Some of its tensors live long. Each entry is (size in units of 16 bytes, first step, last step).
    """
    lives = [
        (2304, -1, 1), (2304, -1, 5), (9216, -1, 4), (1, -1, 2), (8836, 0, 16), (1156, 1, 6),
        (1156, 2, 8), (18496, 3, 23), (2312, 8, 9), (6348, 16, 17), (5808, 17, 18), (4800, 18, 19),
        (3888, 19, 20), (3468, 20, 21), (24576, 21, 22), (24576, 22, 25), (18496, 23, 24),
        (26136, 24, 25), (24576, 25, 26), (24576, 26, 27), (32768, 27, 28), (32768, 28, 29),
        (16384, 29, 30), (16384, 30, 31), (16384, 31, 32),
    ]  # fmt: skip
    tensors = [
        Lifetime(f"t{i}", 16 * size, first, last) for i, (size, first, last) in enumerate(lives)
    ]
    for seed in range(5):
        random.Random(seed).shuffle(tensors)
        _, memory = place(tensors, 32)
        assert memory.ratio <= 1.02


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
