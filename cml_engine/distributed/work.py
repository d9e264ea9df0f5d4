"""The data model of a bake: layers of cells, units of work, and the interfaces of a worker.

A **layer** is a grid of cells (the tiles of a level, or the inputs of a network) with arrays
that have a value for every cell. A **unit** is one chunk of a layer: the cells that are computed
and written together. A :class:`Work` is sent to every worker once; its :class:`UnitProducer`
computes units there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Protocol

from cml_engine.ir.graph import Array, Node

#: the ``device`` of integer work, whose results are bit-identical on all devices
ANY_DEVICE = "any device: integers"
#: seconds after which a task begins no further unit
LONGEST_S = 1.0
#: called with each node of a network and its results
Watch = Callable[[Node, Sequence[Array]], None]


@dataclass(frozen=True)
class Cell:
    """The schema of an array's value in one cell: its ``shape``, type and axis names ``dims``.

    Examples
    --------
    >>> Cell(shape=(64, 64), dtype="float32", dims=("row", "column")).shape
    (64, 64)
    """

    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Coordinate:
    """A coordinate array of a layer: values known in advance, such as positions along an axis.

    Examples
    --------
    >>> level = Coordinate(("z",), np.arange(8))
    """

    dims: tuple[str, ...]
    values: Array


@dataclass(frozen=True, order=True)
class Unit:
    """One chunk of cells of a layer, computed at once. ``at`` is the chunk's position in the grid.

    Examples
    --------
    >>> str(Unit("L0", (1, 2)))
    'L0 (1, 2)'
    """

    layer: str
    at: tuple[int, ...]

    def __str__(self) -> str:
        position = ", ".join(map(str, self.at))
        return f"{self.layer} ({position})" if self.layer else f"({position})"


@dataclass(frozen=True)
class Layer:
    """A grid of ``cells`` with ``arrays``, stored in chunks of ``chunk`` cells.

    ``name`` is the layer's group in the store; "" is the root. ``dims`` names the axes of the
    grid, and ``coordinates`` describe its cells.

    Examples
    --------
    >>> cells = {"height": Cell((64, 64), "float32", ("row", "column"))}
    >>> layer = Layer("L0", cells=(4, 4), chunk=(2, 2), dims=("z", "x"), arrays=cells)
    >>> layer.count
    4
    """

    name: str
    cells: tuple[int, ...]
    chunk: tuple[int, ...]
    dims: tuple[str, ...]
    arrays: Mapping[str, Cell]
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.cells, self.chunk, strict=True))

    @property
    def count(self) -> int:
        """The number of units (chunks) in the layer."""
        return prod(self.chunks)

    def units(self) -> Iterator[Unit]:
        """Yields all units in row-major order."""
        for at in product(*map(range, self.chunks)):
            yield Unit(self.name, at)

    def span(self, unit: Unit) -> tuple[slice, ...]:
        """Returns the slice of the unit's cells along each axis, cut off at the grid's end."""
        axes = zip(unit.at, self.chunk, self.cells, strict=True)
        return tuple(slice(i * size, min(n, (i + 1) * size)) for i, size, n in axes)

    def extent(self, unit: Unit) -> tuple[int, ...]:
        """Returns the number of the unit's cells along each axis, less at the grid's end."""
        return tuple(s.stop - s.start for s in self.span(unit))

    def size(self, unit: Unit) -> int:
        """Returns the number of cells in a unit."""
        return prod(self.extent(unit))


@dataclass(frozen=True)
class Batch:
    """A task: the units of layer ``layer`` at the positions ``at``, and whether to trace them.

    ``name`` is the run's name, by which a worker finds the work. Tasks take this class as their
    argument because Dask searches tuples and lists for futures.
    """

    name: str
    layer: str
    at: tuple[tuple[int, ...], ...]
    traced: bool


@dataclass
class UnitResult:
    """The arrays of a computed unit, and the names and reasons of cells that could not be computed.

    Each array covers all cells of the unit; cells that could not be computed are zeros. The
    arrays are written while the next unit is computed, so the producer must not change them.

    Examples
    --------
    >>> UnitResult({"height": np.zeros((2, 2, 64, 64))}, aside={"L0 (0, 1)": "no land"}).aside
    {'L0 (0, 1)': 'no land'}
    """

    arrays: dict[str, Array]
    aside: dict[str, str] = field(default_factory=dict)


class UnitClock(Protocol):
    """The interface of a timer of a worker's activities: ``with clock("upres") as watch:``.

    ``watch`` is passed to :meth:`cml_engine.Session.run` on the CPU and times operators. It is
    None if no trace is recorded.

    Examples
    --------
    >>> def make(layer: Layer, unit: Unit, clock: UnitClock) -> UnitResult:
    ...     with clock("noise"):
    ...         return UnitResult({"height": np.zeros((2, 2, 64, 64), np.float32)})
    """

    def __call__(self, activity: str, /) -> AbstractContextManager[Watch | None]: ...


class UnitProducer(Protocol):
    """The interface of an object that computes units in a worker process.

    ``device`` names the device of the computation. Floats are bit-identical only on equal devices.

    Examples
    --------
    >>> class Flat:
    ...     device = "cpu"
    ...     def make(self, layer, unit, clock):
    ...         return UnitResult({"height": np.zeros((2, 2, 64, 64), np.float32)})
    ...     def measure(self): return None
    """

    device: str

    def make(self, layer: Layer, unit: Unit, clock: UnitClock) -> UnitResult:
        """Computes and returns the arrays of all cells of a unit; ``clock`` times its activities.

        Raises :class:`cml_engine.InputError` if the unit can never be computed. A unit that
        fails with any other exception is retried.
        """
        ...

    def measure(self) -> object:
        """Returns measurements of any type, on which the plan of the store depends.

        It is called on one worker, before the store is created.
        """
        ...


class Work(Protocol):
    """The interface of what every worker gets, pickled: it opens the producer that computes units.

    Works with an equal ``key`` are the same: a worker reuses the producer that it opened.

    Examples
    --------
    >>> class FlatLand:
    ...     key = "flat land 1"
    ...     def open(self): return Flat()
    """

    @property
    def key(self) -> str: ...

    def open(self) -> UnitProducer:
        """Creates and returns the producer; called once per process."""
        ...
