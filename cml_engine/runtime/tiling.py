"""Splits large pictures into overlapping tiles and runs a network on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from cml_engine.errors import InputError
from cml_engine.errors.arguments import (
    EXTENT,
    OVERLAP,
    check_callable,
    check_input_mapping,
    check_instance,
)
from cml_engine.ir.arrays import as_array
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Fact
from cml_engine.runtime.session import Session


@dataclass(frozen=True, slots=True)
class Span:
    """The extent of a tile along one axis of the picture.

    ``[first, end)`` is read, and the result is kept for ``[kept_first, kept_end)``.
    """

    first: int
    end: int
    kept_first: int
    kept_end: int


def spans(extent: int, tile: int, overlap: int, align: int = 1) -> list[Span]:
    """Returns the spans of overlapping tiles, all of one size, that cover an axis, in order.

    The first tile begins and the last one ends at the picture's own border, so borders are
    computed as without tiles. At every other end ``overlap`` pixels are discarded. Tiles begin
    at multiples of ``align``. If the axis is no longer than ``tile``, there is one tile.
    """
    EXTENT.check(tile, "tile")
    OVERLAP.check(overlap, "overlap")
    EXTENT.check(align, "align")
    for argument, value in (("the picture's extent", extent), ("tile", tile), ("overlap", overlap)):
        if value % align:
            raise InputError(f"{argument} {value}: wanted a multiple of align={align}")
    if extent <= tile:
        return [Span(0, extent, 0, extent)]
    step = tile - 2 * overlap
    if step < 1:
        raise InputError(
            f"tiles of {tile} with an overlap of {overlap} at each end keep nothing: the overlap "
            f"must be less than {tile // 2}"
        )
    tiles = []
    kept_first = 0
    while kept_first < extent:
        first = min(max(0, kept_first - overlap), extent - tile)
        end = first + tile
        kept_end = extent if end == extent else end - overlap
        tiles.append(Span(first, end, kept_first, kept_end))
        kept_first = kept_end
    return tiles


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: its span of rows and its span of columns."""

    rows: Span
    columns: Span


class Tiles:
    """The tiles of one run: iterating yields them, :attr:`outputs` collects their results.

    ``session`` is the network at the shape of a tile. The first input of rank 4 determines the
    picture's rows and columns. Every input of rank 4 with the same rows and columns is cut; the
    other inputs are passed whole to every tile.
    """

    def __init__(
        self, session: Session, inputs: Mapping[str, Any], tile: int, overlap: int, align: int = 1
    ) -> None:
        self._inputs = {
            name: as_array(f"input '{name}'", value)
            for name, value in check_input_mapping(inputs).items()
        }
        if unknown := set(self._inputs) - set(session.inputs):
            raise InputError(
                f"unknown input '{min(unknown)}'; inputs are {', '.join(session.inputs)}"
            )
        wholes = [v.shape[2:] for v in self._inputs.values() if v.ndim == 4]
        if not wholes:
            raise InputError("no input can be cut into tiles: wanted one of shape [N, C, H, W]")
        height, width = self._size = wholes[0]
        self._cut = {n for n, v in self._inputs.items() if v.ndim == 4 and v.shape[2:] == wholes[0]}
        rows, columns = (spans(extent, tile, overlap, align) for extent in (height, width))
        self._tiles = [Tile(row, column) for row in rows for column in columns]
        self._read = (rows[0].end, columns[0].end)
        shapes = {
            name: (*value.shape[:2], *self._read)
            for name, value in self._inputs.items()
            if name in self._cut
        }
        same = all(session.inputs[name].shape == shape for name, shape in shapes.items())
        self.session = session if same else session.reshaped(shapes)
        self._ratios = {
            name: self._ratio(name, fact) for name, fact in self.session.outputs.items()
        }
        self.outputs = {name: self._canvas(name) for name in self._ratios}

    def __len__(self) -> int:
        return len(self._tiles)

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._tiles)

    def copy_inputs(self) -> None:
        """Copies the host's arrays, so that later changes to them have no effect."""
        self._inputs = {name: np.array(value) for name, value in self._inputs.items()}

    def inputs(self, tile: Tile) -> dict[str, Array]:
        """Returns the network's inputs for a tile, by name: its part of every input that is cut."""
        rows, columns = _read(tile.rows), _read(tile.columns)
        return {
            name: np.ascontiguousarray(value[..., rows, columns]) if name in self._cut else value
            for name, value in self._inputs.items()
        }

    def paste(self, tile: Tile, results: Mapping[str, Array]) -> None:
        """Copies the kept part of a tile's results into :attr:`outputs`."""
        for name, result in results.items():
            down, across = self._ratios[name]
            to_rows, of_rows = _kept_slices(name, tile.rows, down)
            to_columns, of_columns = _kept_slices(name, tile.columns, across)
            self.outputs[name][..., to_rows, to_columns] = result[..., of_rows, of_columns]

    def _ratio(self, name: str, fact: Fact) -> tuple[Fraction, Fraction]:
        """Returns an output's rows per row of the picture, and its columns per column.

        Raises :class:`InputError` if the output is not of rank 4.
        """
        if fact.rank != 4:
            raise InputError(
                f"output '{name}' is {fact}: tiles are put together of outputs [N, C, H, W] only"
            )
        ratios = (Fraction(out, read) for out, read in zip(fact.shape[2:], self._read, strict=True))
        down, across = ratios
        return down, across

    def _canvas(self, name: str) -> Array:
        fact = self.session.outputs[name]
        extents = [
            _whole_offset(name, extent * ratio)
            for extent, ratio in zip(self._size, self._ratios[name], strict=True)
        ]
        return np.zeros((*fact.shape[:2], *extents), NUMPY_DTYPE[fact.dtype])


def _read(span: Span) -> slice:
    return slice(span.first, span.end)


def _kept_slices(name: str, span: Span, ratio: Fraction) -> tuple[slice, slice]:
    """Returns slices of the kept range on one axis, in the whole output and in the tile's."""
    first, start, end = (
        _whole_offset(name, at * ratio) for at in (span.first, span.kept_first, span.kept_end)
    )
    return slice(start, end), slice(start - first, end - first)


def _whole_offset(name: str, at: Fraction) -> int:
    if at.denominator != 1:
        raise InputError(
            f"output '{name}': tiles would meet at row or column {at}. Set align= to the factor by "
            "which the network reduces its input"
        )
    return int(at)


def run_tiled(
    session: Session,
    inputs: Mapping[str, object],
    tile: int = 256,
    overlap: int = 16,
    *,
    align: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, Array]:
    """Returns the outputs for inputs ``[N, C, H, W]`` of any size, computed in tiles.

    Memory use is that of one tile of ``tile`` rows and columns. If the network's receptive field
    reaches no farther than ``overlap`` pixels, the result has no seams and equals that of a
    whole run.

    Parameters
    ----------
    session : a session of the network at any shape; :meth:`Session.reshaped` converts it.
    overlap : pixels at each end of a tile that are computed and discarded, except at the picture's
        own borders.
    align : tiles begin at multiples of this number: the factor by which a network with strides
        reduces its input. The picture, ``tile`` and ``overlap`` must be multiples of it too.
    progress : called with the number of finished tiles.

    Examples
    --------
    >>> outputs = cml.run_tiled(session, {"image": picture}, tile=8, overlap=2)
    >>> outputs["out"].shape
    (1, 4, 20, 30)
    """
    check_instance(Session, session, "session")
    check_callable(progress, "progress")
    tiles = Tiles(session, inputs, tile, overlap, align)
    for done, part in enumerate(tiles, 1):
        tiles.paste(part, tiles.session.run(tiles.inputs(part)))
        progress(done)
    return tiles.outputs
