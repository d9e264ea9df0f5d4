"""Tests of tensors that are views: parts of the memory of another tensor."""

from dataclasses import replace

import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.compiler.planning import arena
from cml_engine.compiler.planning.dispatches import lower_nodes
from cml_engine.compiler.planning.draft import Draft, PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.memory import (
    PartPlace,
    place_in_segments,
    resolve_view,
)
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.ir.graph import Node
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ir.limits import Limits
from cml_engine.testing import full_attrs
from tests.fixtures.graphs import BLOCKS, Net

ALIGNED = replace(Limits(), storage_offset_alignment=32)


def views_of(graph, alignment=32, layouts=None):
    limits = replace(Limits(), storage_offset_alignment=alignment)
    layouts = choose_layout(graph) if layouts is None else layouts
    draft = Draft(graph, limits, PlanOptions(), layouts=layouts)
    for stage in (arena.share_memory, lower_nodes, arena.find_lifetimes, arena.decide_views):
        draft = stage(draft)
    return draft.views


def steps(graph, **options):
    plan = lower(graph, ALIGNED, choose_layout(graph), PlanOptions(**options))
    return plan, [step.op for step in plan.steps]


def joined(*shape, axis, extra=0):
    """Returns a graph with a concat of exp(x) and neg(x), and ``extra`` other readers of exp(x)."""
    net = Net(*shape)
    a, b = net("exp(x)"), net("neg(x)")
    out = net(f"mean_reduce(concat({a}, {b}, axis={axis}), axes=[0])")
    readers = [net(f"abs({a})") for _ in range(extra)]
    return net.graph(out, *readers)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_concat_is_written_by_its_producers(extra):
    graph = joined(1, 8, 3, 4, axis=1, extra=extra)
    assert views_of(graph) == {"t0": PartPlace("t2", 0), "t1": PartPlace("t2", 96)}
    plan, ops = steps(graph)
    assert "concat" not in ops and "concat" in steps(graph, views=False)[1]
    a, b = (step.bindings[-1] for step in plan.steps[:2])
    (reader,) = (step for step in plan.steps if step.op == "mean_reduce")
    assert (a.offset, b.offset) == (reader.bindings[0].offset, a.offset + 4 * 96)


def test_concat_of_a_tensor_and_its_alias_copies_both():
    """Both parts are copied if a concat reads a tensor and a reshape of the same tensor.

    A tensor has one offset only. The third part of the concat is still written in place.
    """
    net = Net(1, 8, 3, 4)
    a = net("exp(x)")
    same = net(f"reshape(reshape({a}, shape=[8, 12]), shape=[1, 8, 3, 4])")
    out = net(f"mean_reduce(concat({same}, neg(x), {a}, axis=1), axes=[0])")
    _, ops = steps(net.graph(out))
    assert ops.count("concat") == 2  # neg writes its part itself


@pytest.mark.parametrize(
    ("graph", "alignment"),
    [
        (joined(2, 8, 3, 4, axis=1), 32),  # parts interleave
        (joined(1, 8, 3, 4, axis=2), 32),
        (joined(1, 8, 3, 4, axis=1), 256),  # the second part begins at byte 384: only it is copied
    ],
)
def test_unaligned_concat_parts_are_copied(graph, alignment):
    views = views_of(graph, alignment)
    assert set(views) == ({"t0"} if alignment == 256 else set())


def test_inputs_outputs_constants_and_doubles_are_copied():
    net = Net(1, 8, 4, 4)
    a, b = net("exp(x)"), net("neg(x)")
    whole_one = net(f"concat({a}, {a}, {b}, x, random(1, 8, 4, 4), axis=1)")
    graph = net.graph(f"abs({whole_one})", b)
    assert views_of(graph) == {}
    assert steps(graph)[1].count("concat") == 5


def test_nested_concat_parts_are_views_of_the_outer():
    net = Net(1, 8, 4, 4)
    inner = net("concat(exp(x), neg(x), axis=1)")
    outer = net(f"concat(abs(x), {inner}, axis=1)")
    views = views_of(net.graph(f"tanh({outer})"))
    assert resolve_view(views, "t1") == (outer, 256) and resolve_view(views, "t0") == (outer, 128)


def test_split_results_are_views_of_the_operand():
    net = Net(1, 8, 4, 4)
    a, b = net.split(net("exp(x)"), 1, [1, 3])
    graph = net.graph(f"neg({b})", f"abs({a})")
    assert views_of(graph) == {a: PartPlace("t0", 0), b: PartPlace("t0", 32)}
    assert "split" not in steps(graph)[1]


@pytest.mark.parametrize(
    ("attrs", "layout", "offset"),
    [
        ("axes=[1], begin=[2], end=[6], stride=[1]", PLAIN, 32),
        ("axes=[1], begin=[5], end=[0], stride=[1]", PLAIN, 80),
        ("axes=[1, 2], begin=[2, 0], end=[3, 4], stride=[1, 1]", PLAIN, 32),
        # a single element, whose stride does not matter
        ("axes=[1], begin=[4], end=[5], stride=[2]", PLAIN, 64),
        ("axes=[1], begin=[0], end=[8], stride=[2]", PLAIN, None),
        ("axes=[1, 2], begin=[2, 1], end=[6, 3], stride=[1, 1]", PLAIN, None),
        ("axes=[2], begin=[0], end=[2], stride=[1]", PLAIN, None),
        ("axes=[1], begin=[4], end=[8], stride=[1]", C4, 64),
        ("axes=[1], begin=[3], end=[7], stride=[1]", C4, None),
    ],
)
def test_contiguous_slice_is_a_view(attrs, layout, offset):
    net = Net(1, 8, 4, 4)
    h = net("exp(x)")
    part = net(f"slice({h}, {attrs})")
    graph, layouts = net.graph(f"neg({part})"), dict.fromkeys((h, part), layout)
    assert views_of(graph, layouts=layouts) == (
        {} if offset is None else {part: PartPlace(h, offset)}
    )


def test_stacked_and_unstacked_rows_are_parts():
    net = Net(16, 8)
    a, b = net("exp(x)"), net("neg(x)")
    rows = net(f"stack({a}, {b}, axis=0)")
    graph = net.graph(f"tanh({rows})")
    assert views_of(graph) == {a: PartPlace(rows, 0), b: PartPlace(rows, 128)}
    assert "stack" not in steps(graph)[1]
    net = Net(16, 8)
    rows = net("stack(exp(x), neg(x), axis=1)")
    assert views_of(net.graph(f"tanh({rows})")) == {}
    net = Net(2, 8, 4)
    h = net("exp(x)")
    node = Node("unstack", (h,), ("a", "b"), full_attrs("unstack", {"axis": 0}))
    net.facts |= zip(node.outputs, infer_node(node, net.facts), strict=True)
    net.nodes.append(node)
    graph = net.graph("sub(b, a)")
    assert views_of(graph) == {"a": PartPlace(h, 0), "b": PartPlace(h, 32)}
    assert "unstack" not in steps(graph)[1]


def test_views_that_extend_lifetimes_are_not_used():
    """A small part of a large tensor that is read much later does not become a view.

    The view would keep the large tensor alive.
    """
    net = Net(1, 64, 8, 8)
    small, large = net.split(net("exp(x)"), 1, [1, 15])
    h = net(f"conv({large}, random(256, 60, 1, 1), random())")
    h = net(f"conv({h}, random(256, 256, 1, 1), random())")
    h = net(f"conv({h}, random(4, 256, 1, 1), random())")
    graph = net.graph(f"add({h}, {small})")
    assert views_of(graph) == {}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("size", [(), (64, 32)])
def test_views_never_make_the_arena_larger(block, size):
    """Views never enlarge the arena or its lower bound, and the arena is within 5 % of the bound.

    Wide networks are tested too, because their convs use scratch tensors.
    """
    net = BLOCKS[block](*size)
    graph = optimize(net.graph())
    (one, _), (other, _) = steps(graph), steps(graph, views=False)
    assert one.memory.peak <= other.memory.peak
    assert one.memory.bound <= other.memory.bound
    assert one.memory.ratio <= 1.05
    assert len(one.steps) < len(other.steps) or block != "dense"


def test_views_that_enlarge_the_arena_are_dropped(monkeypatch):
    """Views that enlarge the arena are dropped, even if they do not raise the bound of its size."""
    graph = joined(1, 8, 3, 4, axis=1)
    sizes = iter([1000, 2000])

    def place_worse(items, alignment, most):
        offsets, memory = place_in_segments(items, alignment, most)
        return offsets, replace(memory, peak=next(sizes))

    monkeypatch.setattr(arena, "place_in_segments", place_worse)
    plan, ops = steps(graph)
    assert plan.memory.peak == 1000 and "concat" in ops


def test_a_plan_that_keeps_all_tensors_has_no_views():
    graph = joined(1, 8, 3, 4, axis=1)
    plan, ops = steps(graph, keep=True)
    places = sorted((p.binding.offset, p.binding.end) for p in plan.tensors.values())
    assert "concat" in ops
    assert all(a[1] <= b[0] for a, b in zip(places, places[1:], strict=False))
