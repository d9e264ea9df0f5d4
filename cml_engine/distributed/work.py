"""What is baked, as data: layers of cells, units of work, and what a worker must know to make one.

A **layer** is a grid of cells (tiles of one level; the inputs of a network), with some arrays that
have a value for every cell. A **unit** is one chunk of a layer: the cells that are made and written
at once. A :class:`Work` goes to every worker once; its :class:`Maker` makes units there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Protocol

from cml_engine.ir.graph import Array

#: the ``device`` of work whose results are equal bit by bit on all: integers
ANY_DEVICE = "any device: integers"
#: called with each node of a network and its results
Watch = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Cell:
    """What an array has in each cell: a value of ``shape``, whose axes are called ``dims``."""

    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Coordinate:
    """What is known of the cells before they are made, such as their numbers along an axis."""

    dims: tuple[str, ...]
    values: Array


@dataclass(frozen=True, order=True)
class Unit:
    """A chunk of a layer: what is made at once. ``at`` counts chunks."""

    layer: str
    at: tuple[int, ...]

    def __str__(self) -> str:
        place = ", ".join(map(str, self.at))
        return f"{self.layer} ({place})" if self.layer else f"({place})"


@dataclass(frozen=True)
class Layer:
    """A grid of ``cells`` with ``arrays``, stored in chunks of ``chunk`` cells. ``name`` is its
    group in the store, "" the store itself; ``dims`` are the names of the grid's axes, and
    ``coordinates`` say what the cells are."""

    name: str
    cells: tuple[int, ...]
    chunk: tuple[int, ...]
    dims: tuple[str, ...]
    arrays: Mapping[str, Cell]
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chunks(self) -> tuple[int, ...]:
        """How many chunks there are along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.cells, self.chunk, strict=True))

    @property
    def count(self) -> int:
        """How many units the layer has."""
        return prod(self.chunks)

    def units(self) -> Iterator[Unit]:
        """All of them, one after the other."""
        for at in product(*map(range, self.chunks)):
            yield Unit(self.name, at)

    def span(self, unit: Unit) -> tuple[slice, ...]:
        """The cells of a unit, along each axis."""
        places = zip(unit.at, self.chunk, self.cells, strict=True)
        return tuple(slice(i * size, min(n, (i + 1) * size)) for i, size, n in places)

    def extent(self, unit: Unit) -> tuple[int, ...]:
        """How many cells a unit has along each axis."""
        return tuple(s.stop - s.start for s in self.span(unit))

    def size(self, unit: Unit) -> int:
        """How many cells a unit has."""
        return prod(self.extent(unit))


@dataclass
class Made:
    """A unit's arrays, each of all its cells; and the cells that cannot be made, by name, with the
    reason. Their values are zeros. Arrays are written while the next unit is made: they are no
    longer the maker's."""

    arrays: dict[str, Array]
    aside: dict[str, str] = field(default_factory=dict)


class UnitClock(Protocol):
    """Who times what a worker does: ``with clock("upres") as watch:``. ``watch`` is for
    :meth:`cml_engine.Session.run` on the CPU: it times operators, where a trace is wanted."""

    def __call__(self, activity: str, /) -> AbstractContextManager[Watch | None]: ...


class Maker(Protocol):
    """What makes units in one process. ``device`` says on what: floats are equal bit by bit on
    equal devices only."""

    device: str

    def make(self, layer: Layer, unit: Unit, clock: UnitClock) -> Made:
        """All cells of a unit. :class:`cml_engine.InputError` where they can never be made; any
        other error is tried again."""
        ...

    def measure(self) -> Any:
        """Asked of one worker before the store is made: whatever its layers depend on."""
        ...


class Work(Protocol):
    """What goes to every worker, pickled. Equal ``key``: the same work, whose maker is kept."""

    @property
    def key(self) -> str: ...

    def open(self) -> Maker:
        """Once in a process: a session on its device."""
        ...
