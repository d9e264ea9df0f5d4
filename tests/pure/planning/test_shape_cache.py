"""Tests of the cache of networks by input shape: eviction, waiting threads and lifetimes."""

import gc
import threading
import weakref

import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Fact, Graph
from cml_engine.runtime.session.compile_graph import Compiled, ShapeCache


class Program:
    """An empty stand-in for a backend's program."""


class Made:
    """A stand-in for a session; it stores the compiled network and the cache."""

    def __init__(self, compiled, cache):
        self.compiled, self.cache = compiled, cache


def graph(**shapes):
    facts = {name: Fact("scalar", shape) for name, shape in shapes.items()}
    return Graph("net", tuple(shapes), (), (), facts)


def compiled(graph):
    return Compiled(graph, graph, None, Program())


def cache_of(most):
    return ShapeCache(most, compiled, Made)


def asked(cache, size):
    """Returns what the cache has for an input x of length ``size``; it compiles a graph if
    necessary."""
    return cache.get({"x": (size,)}, lambda: graph(x=(size,), y=(2 * size,)))


def refuse():
    raise AssertionError("it was there")


def test_most_recent_shapes_stay_cached():
    cache = cache_of(2)
    programs = {n: weakref.ref(asked(cache, n).compiled.program) for n in (1, 2)}
    assert asked(cache, 1).compiled.program is programs[1]()
    asked(cache, 3)
    assert [programs[n]() is None for n in (1, 2)] == [False, True]


def test_living_session_of_a_shape_is_returned():
    cache = cache_of(0)
    one = asked(cache, 1)
    asked(cache, 2)
    assert asked(cache, 1) is one
    assert cache.get({"x": (1,), "y": (2,)}, refuse) is one


def test_first_session_is_found_but_not_retained():
    cache = cache_of(4)
    first = Made(compiled(graph(x=(1,), y=(2,))), cache)
    cache.add(first.compiled.source, first)
    assert asked(cache, 1) is first
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert asked(cache, 1) is not None


def test_the_cache_holds_no_reference_cycle():
    gc.disable()
    try:
        cache = cache_of(4)
        session = asked(cache, 1)
        program, gone = weakref.ref(session.compiled.program), weakref.ref(cache)
        del cache, session
        assert gone() is None and program() is None
    finally:
        gc.enable()


def in_threads(*works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def test_a_compilation_does_not_delay_another_shape():
    going, go_on, found = threading.Event(), threading.Event(), list[Made]()

    def slow(graph):
        if graph.facts["x"].shape == (9,):
            going.set()
            assert go_on.wait(20)
        return compiled(graph)

    cache = ShapeCache(4, slow, Made)
    one = asked(cache, 1)
    threads = in_threads(*[lambda: found.append(asked(cache, 9))] * 3)
    assert going.wait(20)
    assert asked(cache, 1) is one and asked(cache, 2) is not None and not found
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert len(found) == 3 and len(set(map(id, found))) == 1


def test_a_failed_compilation_is_retried():
    cache = cache_of(4)

    def fails():
        raise ShapeError("no such shape")

    for _ in range(2):
        with pytest.raises(ShapeError, match="no such shape"):
            cache.get({"x": (1,)}, fails)
    assert asked(cache, 1) is not None
