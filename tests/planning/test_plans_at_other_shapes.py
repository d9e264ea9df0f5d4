"""Tests of one network at several shapes: plans that share weights, and the cache of networks."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import Sibling, is_same, share_constants
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import load_families
from cml_engine.runtime.session.compile_graph import Compiled, ShapeCache
from tests.fixtures.graphs import Net, mobilenet_block, se_block, unet_block

load_families()


def wide(size):
    """Returns a graph of a Winograd conv, a grouped conv and a deconv, with epilogues."""
    net = Net(1, 16, size, size)
    h = net("prelu(conv(x, 16), random(1, 16))")
    h = net(f"add(conv({h}, 16, groups=4), x)")
    return net.graph(f"relu(deconv({h}, 8))")


def products(rows):
    """Returns a graph of two products with constant matrices, the second one transposed."""
    net = Net(1, rows, 64)
    h = net("matmul(x, random(1, 64, 48))")
    return net.graph(f"matmul({h}, random(1, 40, 48), transposeB=True)")


NETWORKS = {
    "mobilenet": lambda size: mobilenet_block(size).graph(),
    "unet": lambda size: unet_block(size).graph(),
    "squeeze": lambda size: se_block(size).graph(),
    "wide": wide,
    "products": products,
}
SOFTWARE, HARDWARE = Limits(software=True), Limits(subgroup_size=32)


def plan_of(graph, limits, storage, sibling=None):
    layouts = layouts_for(graph, "half" if storage == "half" else "float")
    return lower(graph, limits, layouts, sibling=sibling)


@pytest.mark.parametrize("storage", ["float", "half"])
@pytest.mark.parametrize("limits", [SOFTWARE, HARDWARE], ids=["software", "hardware"])
@pytest.mark.parametrize("name", NETWORKS)
def test_plan_at_another_shape_reuses_equal_packed_weights(name, limits, storage, monkeypatch):
    first = optimize(NETWORKS[name](8))
    sibling = Sibling(first, plan_of(first, limits, storage))
    for size in (12, 40):
        graph = share_constants(optimize(NETWORKS[name](size)), first)
        plan = plan_of(graph, limits, storage, sibling)
        assert plan.weights == sibling.plan.weights and plan.weights_bytes
        with monkeypatch.context() as patch:  # packs all weights again, for comparison
            patch.setattr(Sibling, "packed", lambda *_: {})
            packed = plan_of(graph, limits, storage, sibling)
        assert [s.bindings for s in plan.steps] == [s.bindings for s in packed.steps]
        assert plan.own.keys() == packed.own.keys()
        kept = [(s.path, s.defines) for s in plan.steps]
        if len(kept) == len(sibling.plan.steps):  # the same kernels share the same weights
            same = kept == [(s.path, s.defines) for s in sibling.plan.steps]
            assert not (same and plan.own)


def test_different_constants_of_one_name_are_not_shared():
    first = optimize(wide(8))
    sibling = Sibling(first, plan_of(first, SOFTWARE, "float"))
    graph = optimize(wide(8))
    name = next(n for n in graph.constants if graph.constants[n].ndim == 4)
    other = {**graph.constants, name: graph.constants[name] + 1}
    changed = share_constants(graph.with_(constants=other), first)
    assert [n for n in changed.constants if changed.constants[n] is not first.constants[n]] == [
        name
    ]
    plan = plan_of(changed, SOFTWARE, "float", sibling)
    assert plan.own and all(key.startswith(name) for key in plan.own)
    assert plan_of(share_constants(graph, first), SOFTWARE, "float", sibling).own == {}


def test_node_keeps_its_kernel_at_another_shape():
    first = optimize(wide(8))
    before = plan_of(first, SOFTWARE, "float")
    graph = share_constants(optimize(wide(64)), first)
    plan = plan_of(graph, SOFTWARE, "float", Sibling(first, before))
    alone = plan_of(graph, SOFTWARE, "float")
    assert [c.chosen for c in alone.choices] != [c.chosen for c in before.choices]
    for mine, theirs in zip(plan.choices, before.choices, strict=True):
        assert mine.chosen == (theirs.chosen if theirs.chosen in mine.options else mine.default)
    node = Node("conv", (), ("nowhere",))
    assert Sibling(first, before).chosen(node) == []


def test_array_equality_is_bitwise():
    zero = np.zeros((2, 3), np.float32)
    assert is_same(zero, zero.copy()) and is_same(zero[:, :2], zero[:, 1:].copy())
    nan = np.full(2, np.nan, np.float32)
    assert is_same(nan, nan.copy())
    for other in (-zero, zero.astype(np.int32), zero.reshape(3, 2), zero + 1, None):
        assert not is_same(zero, other)
    assert is_same(np.array(True), np.array(True)) and is_same(zero[:0], zero[:0].copy())


class Program:
    """An empty stand-in for a backend's program."""


class SessionStub:
    """A stand-in for a session; it stores the compiled network and the cache."""

    def __init__(self, compiled, cache):
        self.compiled, self.cache = compiled, cache


def graph(**shapes):
    facts = {name: Fact("scalar", shape) for name, shape in shapes.items()}
    return Graph("net", tuple(shapes), (), (), facts)


def compiled(graph):
    return Compiled(graph, graph, None, Program())


def cache_of(capacity):
    return ShapeCache(capacity, compiled, SessionStub)


def session_for(cache, size):
    """Returns the cached session for an input x of length ``size``; compiles a graph if
    necessary."""
    return cache.get({"x": (size,)}, lambda: graph(x=(size,), y=(2 * size,)))


def refuse():
    raise AssertionError("it was there")


def test_most_recent_shapes_stay_cached():
    cache = cache_of(2)
    programs = {n: weakref.ref(session_for(cache, n).compiled.program) for n in (1, 2)}
    assert session_for(cache, 1).compiled.program is programs[1]()
    session_for(cache, 3)
    assert [programs[n]() is None for n in (1, 2)] == [False, True]


def test_living_session_of_a_shape_is_returned():
    cache = cache_of(0)
    one = session_for(cache, 1)
    session_for(cache, 2)
    assert session_for(cache, 1) is one
    assert cache.get({"x": (1,), "y": (2,)}, refuse) is one


def test_first_session_is_found_but_not_retained():
    cache = cache_of(4)
    first = SessionStub(compiled(graph(x=(1,), y=(2,))), cache)
    cache.add(first.compiled.source, first)
    assert session_for(cache, 1) is first
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert session_for(cache, 1) is not None


def test_the_cache_holds_no_reference_cycle():
    gc.disable()
    try:
        cache = cache_of(4)
        session = session_for(cache, 1)
        program, gone = weakref.ref(session.compiled.program), weakref.ref(cache)
        del cache, session
        assert gone() is None and program() is None
    finally:
        gc.enable()


def test_a_compilation_does_not_delay_another_shape():
    started, resume = threading.Event(), threading.Event()

    def slow(graph):
        if graph.facts["x"].shape == (9,):
            started.set()
            assert resume.wait(20)
        return compiled(graph)

    cache = ShapeCache(4, slow, SessionStub)
    one = session_for(cache, 1)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(session_for, cache, 9) for _ in range(3)]
        assert started.wait(20)
        assert session_for(cache, 1) is one and session_for(cache, 2) is not None
        assert not any(future.done() for future in futures)
        resume.set()
        assert len({id(future.result(20)) for future in futures}) == 1


def test_a_failed_compilation_is_retried():
    cache = cache_of(4)

    def fails():
        raise ShapeError("no such shape")

    for _ in range(2):
        with pytest.raises(ShapeError, match="no such shape"):
            cache.get({"x": (1,)}, fails)
    assert session_for(cache, 1) is not None
