"""A cache of one network compiled at several shapes of its inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from cml_engine.compiler.plan import Plan
from cml_engine.ir.graph import Graph, Shapes
from cml_engine.ops.declaration.spec import OpSpec

P = TypeVar("P")
S = TypeVar("S")
Key = tuple[tuple[str, tuple[int, ...]], ...]
#: the most requested shapes for which the full shapes are remembered
_MAX_REQUESTS = 1024


@dataclass(frozen=True)
class Compiled(Generic[P]):
    """A network compiled by a backend at one shape of its inputs.

    ``source`` is the original graph, ``graph`` the optimized one; ``program`` is the backend's.
    """

    source: Graph
    graph: Graph
    plan: Plan | None
    program: P
    #: its operators as registered at the time of planning
    specs: Mapping[str, OpSpec] = field(default_factory=dict)


class ShapeCache(Generic[P, S]):
    """The sessions of a network by the shapes of its inputs.

    The cache keeps the ``most`` recently used compiled networks. It holds sessions weakly, so the
    resources of a session are released with it. Threads that request one shape at the same time get
    one session; threads that request another shape do not wait for it.
    """

    def __init__(
        self,
        most: int,
        compile: Callable[[Graph], Compiled[P]],
        session: Callable[[Compiled[P], ShapeCache[P, S]], S],
    ) -> None:
        self._most = most
        self._compile, self._session = compile, session
        self._lock = Lock()
        self._recent: OrderedDict[Key, Compiled[P]] = OrderedDict()
        self._alive: WeakValueDictionary[Key, S] = WeakValueDictionary()
        self._compiling: dict[Key, Future[S]] = {}
        #: the shapes of all inputs by the requested shapes
        self._full: dict[Key, Key] = {}

    def add(self, graph: Graph, session: S) -> None:
        """Adds a session that the cache did not make, for the input shapes of ``graph``."""
        self._alive[key_of_inputs(graph)] = session

    def get(self, shapes: Shapes, load: Callable[[], Graph]) -> S:
        """Returns the session for these input shapes; compiles the graph that ``load`` returns if
        there is none.

        Waits if another thread compiles the same shapes.
        """
        asked = key_of(shapes)
        mine: Future[S] = Future()
        with self._lock:
            found = self._find(self._full.get(asked, asked))
            if found is not None:
                return found
            making = self._compiling.setdefault(asked, mine)
        if making is mine:
            try:
                mine.set_result(self._compile_missing(asked, load()))
            except BaseException as error:
                mine.set_exception(error)
            finally:
                with self._lock:
                    del self._compiling[asked]
        return making.result()

    def _compile_missing(self, asked: Key, graph: Graph) -> S:
        key = key_of_inputs(graph)
        with self._lock:
            if len(self._full) >= _MAX_REQUESTS:
                self._full.clear()
            self._full[asked] = key
            found = self._find(key)
        if found is not None:
            return found
        compiled = self._compile(graph)
        with self._lock:
            self._recent[key] = compiled
            while len(self._recent) > self._most:
                self._recent.popitem(last=False)
            return self._alive.setdefault(key, self._session(compiled, self))

    def _find(self, key: Key) -> S | None:
        """Returns the live session of a key, or a new one of the cached compiled network; None
        if neither exists."""
        compiled = self._recent.get(key)
        if compiled is not None:
            self._recent.move_to_end(key)
        session = self._alive.get(key)
        if session is None and compiled is not None:
            session = self._alive[key] = self._session(compiled, self)
        return session


def key_of(shapes: Shapes) -> Key:
    """Returns the cache key of input shapes: (name, shape) pairs sorted by name."""
    return tuple(sorted(shapes.items()))


def key_of_inputs(graph: Graph) -> Key:
    """Returns the cache key of a graph: the names and shapes of its inputs, sorted by name."""
    return key_of({name: graph.facts[name].shape for name in graph.inputs})
