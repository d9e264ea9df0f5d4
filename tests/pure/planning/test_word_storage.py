"""Tests of the number of bits in which integer networks store feature maps and filters."""

import numpy as np
import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.plan import Binding, TensorPlace
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.lower import lower
from cml_engine.errors import InputError
from cml_engine.gpu.memory.tensors import from_words, to_words
from cml_engine.ir.graph import Fact
from cml_engine.ir.layout import C4I8, C4I16, C4U8, C4U16, STORED, WHOLE, whole_layout, words
from cml_engine.ir.limits import Limits
from tests.fixtures.integer.networks import IntegerNet, line


def chain(*hows, weights=8):
    """Returns a graph of 1x1 convs of eight channels, one for each quantization in ``hows``.

    The filters have ``weights`` bits.
    """
    net, rng = IntegerNet(), np.random.default_rng(0)
    t = net.input("x", (1, 8, 6, 6), 0.25)
    zero = net.weight("zero", 0.0, None)
    for i, how in enumerate(hows):
        most = 127 if weights == 8 else 400
        w = net.weight(f"w{i}", rng.integers(-most, most + 1, (8, 8, 1, 1)), 0.01, weights)
        t = net.op("conv", t, w, zero, padding=[(0, 0)] * 2, to=line(0.5, **how))
    return net.graph(t)


@pytest.mark.parametrize("layout", WHOLE)
def test_packed_integers_round_trip(layout):
    ends = np.iinfo(STORED[layout])
    fact = Fact("scalar", (2, 5, 3, 2))
    given = (
        np.linspace(ends.min, ends.max, fact.size).round().astype(np.float32).reshape(fact.shape)
    )
    place = TensorPlace(Binding("x", "arena", 0, 4 * words(fact, layout)), fact, layout)
    stored = to_words(given, place)
    assert stored.nbytes == 4 * words(fact, layout) == 2 * 8 * 3 * 2 * ends.bits // 8
    np.testing.assert_array_equal(from_words(stored.tobytes(), place), given)
    assert whole_layout(ends.min, ends.max) == layout
    assert whole_layout(ends.min, ends.max + 1) != layout


def test_integer_maps_are_stored_in_the_fewest_bits():
    hows = [{}, {"signed": False}, {"bits": 16}, {"bits": 16, "signed": False}, {}]
    layouts = layouts_for(optimize(chain(*hows)))
    given, *made = layouts.values()
    assert given == C4I8  # packed in the arena; the host reads and writes plain floats
    assert made == [C4I8, C4U8, C4I16, C4U16]


@pytest.mark.parametrize(("weights", "share"), [(8, 4), (16, 2)])
def test_integer_filters_are_stored_in_the_fewest_bits(weights, share):
    graph = optimize(chain({}, weights=weights))
    plan = lower(graph, Limits(), layouts_for(graph))
    packed = {name: array for name, (_, array) in plan.weights.items() if name.startswith("w0")}
    assert [array.nbytes * share for array in packed.values()] == [4 * 8 * 8]


def test_parts_of_any_channels_are_joined_in_blocks():
    net, rng = IntegerNet(), np.random.default_rng(3)
    parts = [net.input(f"x{c}", (1, c, 4, 4), 0.25) for c in (1, 6, 2)]
    w = net.weight("w", rng.integers(-9, 9, (4, 9, 1, 1)), 0.01)
    t = net.op("concat", *parts, axis=1)
    y = net.op("conv", t, w, net.weight("b", 0.0, None), padding=[(0, 0)] * 2, to=line(0.5))
    graph = optimize(net.graph(y))
    layouts = layouts_for(graph)
    assert list(layouts.values()) == [C4I8] * 4
    plan = lower(graph, Limits(storage_offset_alignment=16), layouts)
    assert [step.op for step in plan.steps] == ["concat"] * 3 + ["conv"]  # no part is a view
    assert plan.memory.peak == 4 * 16 * (1 + 2 + 1) + 4 * 16 * 3


def test_the_arena_is_a_quarter():
    graph = optimize(chain({}, {}, {}, {}))
    whole = graph.with_(words={})
    kept = PlanOptions(keep=True)
    sizes = []
    for g in (graph, whole):
        plan = lower(g, Limits(), layouts_for(g), kept)
        sizes.append(sum(plan.places[f"t{i}"].binding.nbytes for i in range(3)))
    assert sizes[0] * 4 == sizes[1]


@pytest.mark.parametrize("rounded", [False, True])
def test_a_pixel_shuffle_is_one_operator_of_packed_maps(rounded):
    """Reshape, transpose and reshape become a pixel shuffle of packed maps, unless the transpose
    rounds."""
    net, rng = IntegerNet(), np.random.default_rng(1)
    t = net.input("x", (1, 3, 6, 6), 0.25)
    zero = net.weight("zero", 0.0, None)
    wide = net.weight("wide", rng.integers(-9, 9, (16, 3, 1, 1)), 0.01)
    t = net.op("conv", t, wide, zero, to=line(0.5), padding=[(0, 0)] * 2)
    t = net.op("reshape", t, shape=[1, 4, 2, 2, 6, 6])
    t = net.op("transpose", t, axes=[0, 1, 4, 2, 5, 3], to=line(0.125) if rounded else None)
    t = net.op("reshape", t, shape=[1, 4, 12, 12])
    last = net.weight("last", rng.integers(-9, 9, (4, 4, 1, 1)), 0.01)
    t = net.op("conv", t, last, zero, to=line(0.5), padding=[(0, 0)] * 2)
    graph = optimize(net.graph(t))
    assert ("pixel_shuffle" in {node.op for node in graph.nodes}) is not rounded
    if not rounded:
        assert list(layouts_for(graph).values()) == [C4I8] * 3


def test_integer_tensors_have_no_storage_override():
    graph = optimize(chain({}, {}))
    with pytest.raises(InputError, match="'t0' is of an integer network"):
        layouts_for(graph, overrides={"t0": "half"})
