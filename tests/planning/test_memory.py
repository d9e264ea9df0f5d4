"""Tests of free lists, memory statistics, memory maps and arenas, without a GPU."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cml_engine import load
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.memory import Lifetime, place_in_segments
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.demo_game.chain import MODELS
from cml_engine.errors import InputError
from cml_engine.ir.limits import Limits
from cml_engine.ir.memory import (
    FreeList,
    HeapStats,
    Holding,
    Ledger,
    MemoryStats,
    exhausted_message,
    leak_report,
    texel_block,
    texture_bytes,
)

#: (bytes, alignment) to allocate, or the index of an allocation to free
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 400), st.sampled_from([1, 4, 16, 32, 256])),
        st.integers(0, 30),
    ),
    max_size=60,
)
HEAP = 2048


def free_ranges(ranges):
    return ranges._free


def check(ranges, taken):
    """Asserts that a free list has exactly the ``taken`` ranges and that all its totals are right.

    Taken and free ranges cover the heap without gaps, overlaps or adjacent free ranges.
    """
    assert dict(ranges.taken) == taken
    pieces = [(*r, "taken") for r in ranges.taken] + [(*r, "free") for r in free_ranges(ranges)]
    end, last = 0, ""
    for offset, nbytes, kind in sorted(pieces):
        assert offset == end and nbytes > 0
        assert (kind, last) != ("free", "free"), "neighbours were not joined"
        end, last = offset + nbytes, kind
    assert end == ranges.nbytes
    assert ranges.free_bytes == sum(n for _, n in free_ranges(ranges))
    assert ranges.largest_free == max((n for _, n in free_ranges(ranges)), default=0)
    assert ranges.empty == (not taken)


def fits(ranges, nbytes, alignment):
    return any(-(-s // alignment) * alignment + nbytes <= s + n for s, n in free_ranges(ranges))


@given(ACTIONS)
@settings(max_examples=150, deadline=None)
def test_no_sequence_of_calls_breaks_a_free_list(actions):
    ranges, taken = FreeList(HEAP), {}
    for action in actions:
        if isinstance(action, int):
            if taken:
                offset = sorted(taken)[action % len(taken)]
                ranges.free(offset)
                del taken[offset]
        else:
            nbytes, alignment = action
            possible = fits(ranges, nbytes, alignment)
            offset = ranges.allocate(nbytes, alignment)
            assert (offset is not None) == possible, "it finds a place exactly if there is one"
            if offset is not None:
                assert offset % alignment == 0
                taken[offset] = nbytes
        check(ranges, taken)
    for offset in list(taken):
        ranges.free(offset)
    assert ranges.allocate(HEAP) == 0, "when all is freed, all of it can be had in one piece"


def test_smallest_fitting_range_is_allocated():
    ranges = FreeList(1000)
    offsets = [ranges.allocate(n) for n in (100, 10, 40, 10, 200, 10)]
    for index in (0, 2, 4):
        ranges.free(offsets[index])
    assert ranges.allocate(35) == offsets[2]
    assert ranges.allocate(150) == offsets[4]
    assert ranges.allocate(90) == offsets[0]


@pytest.mark.parametrize("offset", [0, 8, 64])
def test_freeing_an_unallocated_range_raises(offset):
    ranges = FreeList(64)
    taken = ranges.allocate(16)
    ranges.free(taken)
    with pytest.raises(ValueError, match="nothing is allocated"):
        ranges.free(offset)


@pytest.mark.parametrize("nbytes, alignment", [(0, 1), (-4, 1), (4, 0)])
def test_invalid_sizes_and_alignments_are_refused(nbytes, alignment):
    with pytest.raises(ValueError, match="at least 1"):
        FreeList(64).allocate(nbytes, alignment)


ENTRIES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["weights", "render"]), st.integers(0, 99))
)


@given(ENTRIES)
def test_books_balance(entries):
    ledger, peak = Ledger(), 0
    for owner, category, nbytes in entries:
        ledger.add(owner, category, nbytes)
        peak = max(peak, ledger.held)
    assert ledger.held == sum(n for *_, n in entries) == ledger.peak
    assert sum(h.count for h in ledger.holdings().values()) == len(entries)
    for owner, category, nbytes in entries:
        ledger.remove(owner, category, nbytes)
    assert ledger.held == 0 and ledger.holdings() == {} and ledger.peak == peak


def some_stats(budget=64 << 20):
    heap = HeapStats("weights", 8 << 20, 3 << 20, 4 << 20, ((0, 2 << 20), (3 << 20, 1 << 20)))
    holdings = {
        ("renderer", "render"): Holding(40 << 20, 7),
        ("upres", "weights"): Holding(3 << 20, 2),
        ("upres", "activations"): Holding(12 << 20, 1),
    }
    return MemoryStats(55 << 20, 60 << 20, 58 << 20, budget, holdings, (heap,), 1)


def test_statistics_count_fragmentation_and_print():
    stats = some_stats()
    assert stats.fragmentation == pytest.approx(0.2)
    assert stats.largest_free == 4 << 20
    lines = str(stats).splitlines()
    assert lines[1].split() == ["owner", "weights", "activations", "render", "total"]
    assert lines[2].split()[0] == "renderer", "the largest comes first"
    assert lines[3].split()[-2:] == ["15.00", "MiB"]
    bar = lines[4].split("|")[1]
    assert bar == "#" * 12 + "." * 6 + "#" * 6 + "." * 24
    data = json.loads(json.dumps(stats.to_json()))
    assert data["owners"]["upres"] == {"weights": 3 << 20, "activations": 12 << 20}


def test_exhaustion_message_lists_owners_and_next_step():
    message = exhausted_message(8 << 20, "texture agent", "weights", some_stats())
    assert "'texture agent' wanted 8.00 MiB for weights" in message
    assert "budget 64.00 MiB, of which 4.00 MiB free" in message
    assert "renderer" in message and "40.00 MiB" in message and "shared:NAME" in message
    assert "budget" not in exhausted_message(1, "a", "weights", some_stats(None)).splitlines()[0]


def test_leaks_are_listed_by_owner():
    assert leak_report({}) == ""
    assert leak_report(some_stats().holdings).splitlines()[0] == "renderer: 7 x render, 40.00 MiB"


@pytest.mark.parametrize(
    "text",
    ["r8unorm 1x1 1", "rg16float 1x1 4", "rgba8unorm-srgb 1x1 4", "bgra8unorm 1x1 4",
     "rgba32float 1x1 16", "rgb10a2unorm 1x1 4", "depth32float-stencil8 1x1 8",
     "depth24plus 1x1 4", "bc1-rgba-unorm 4x4 8", "bc7-rgba-unorm 4x4 16",
     "eac-rg11unorm 4x4 16", "etc2-rgb8unorm 4x4 8", "astc-8x5-unorm 8x5 16"],
)  # fmt: skip
def test_texel_sizes(text):
    name, block, nbytes = text.split()
    assert texel_block(name) == (*map(int, block.split("x")), int(nbytes))


def test_unknown_formats_are_refused():
    for name in ("rgb8unorm", "r8", "nonsense"):
        with pytest.raises(InputError, match="unknown texture format"):
            texel_block(name)


@pytest.mark.parametrize(
    "size, options, texels",
    [
        ((64, 32), {}, 64 * 32),
        ((64, 32, 6), {}, 64 * 32 * 6),
        ({"width": 16, "height": 8, "depth_or_array_layers": 2}, {}, 256),
        ((4, 4), {"mips": 3}, 16 + 4 + 1),
        ((4, 4, 2), {"mips": 3}, 2 * (16 + 4 + 1)),
        ((4, 4, 4), {"mips": 3, "dimension": "3d"}, 64 + 8 + 1),
        ((10, 10), {"samples": 4}, 400),
        ([100], {"dimension": "1d"}, 100),
    ],
)
def test_texture_sizes(size, options, texels):
    assert texture_bytes(size, "rgba8unorm", **options) == 4 * texels


def test_a_compressed_texture_has_whole_blocks():
    assert texture_bytes((10, 10), "bc7-rgba-unorm") == 3 * 3 * 16
    assert texture_bytes((8, 8), "bc1-rgba-unorm", mips=4) == (4 + 1 + 1 + 1) * 8


@st.composite
def items(draw):
    count = draw(st.integers(1, 25))
    lifetimes = []
    for i in range(count):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 10))
        lifetimes.append(Lifetime(f"t{i}", draw(st.integers(0, 5000)), first, last))
    return lifetimes


@settings(max_examples=120, deadline=None)
@given(items(), st.sampled_from([1, 32, 256]), st.integers(5120, 20000) | st.just(1 << 40))
def test_living_tensors_never_overlap(tensors, alignment, buffer_bytes):
    """No two living tensors overlap, and none lies in two buffers of an arena of several."""
    offsets, memory = place_in_segments(tensors, alignment, buffer_bytes)
    assert memory.peak >= memory.bound
    segment = buffer_bytes // alignment * alignment
    assert memory.segment == (0 if memory.peak <= buffer_bytes else segment)
    for i, a in enumerate(tensors):
        start, end = offsets[a.name], offsets[a.name] + a.nbytes
        assert start % alignment == 0 and end <= memory.peak
        if memory.segment:
            assert start // segment == max(start, end - 1) // segment
        for b in tensors[:i]:
            both = max(a.first, b.first) <= min(a.last, b.last)
            assert a.overlaps(b) == both
            if both and a.nbytes and b.nbytes:
                apart = end <= offsets[b.name] or offsets[b.name] + b.nbytes <= start
                assert apart, f"{a} and {b} overlap"


@pytest.mark.parametrize("name", ["upres", "texture", "population"])
def test_the_arena_of_a_network_has_little_waste(name):
    """The arena of a demo network is at most 2 % larger than the bound."""
    graph = optimize(load(MODELS / f"{name}.nnef"))
    plan = lower(graph, Limits(software=True), choose_layout(graph))
    assert plan.memory.ratio <= 1.02
