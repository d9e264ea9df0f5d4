"""The tiles of a matrix product that a workgroup computes, and the choice of a tile."""

from __future__ import annotations

from dataclasses import dataclass

from cml_engine.ir.limits import Limits


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """The tile of a workgroup: ``rows`` x ``cols`` sums per thread, and ``group`` threads.

    The threads form a rectangle that is ``lanes`` wide.
    """

    rows: int
    cols: int
    group: int
    lanes: int
    #: GFLOPS measured on llvmpipe; on a GPU an estimate from reads per multiply-add, 1 = best
    speed: float

    @property
    def height(self) -> int:
        return self.rows * (self.group // self.lanes)

    @property
    def width(self) -> int:
        return self.cols * self.lanes

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols} by {self.group // self.lanes}x{self.lanes}"


#: 128 sums stay in vector registers and the first cache of a CPU, but leave a GPU without threads
_SOFTWARE_TILES = (
    MatmulTile(16, 8, 32, 8, 27),
    MatmulTile(8, 8, 32, 8, 18),
    MatmulTile(4, 8, 32, 8, 16),
    MatmulTile(1, 8, 32, 32, 6),
)
#: rows and columns of the tiles whose lanes pass rows of A to each other, and their GFLOPS
_SHARING = ((16, 8, 28), (16, 4, 25), (8, 4, 20))
#: the same of a single row, which each lane reads for itself
_ROW = MatmulTile(1, 8, 32, 32, 2)
_GPU_TILES = (
    MatmulTile(8, 8, 64, 8, 1.0),
    MatmulTile(4, 8, 64, 8, 0.7),
    MatmulTile(4, 4, 64, 16, 0.5),
    MatmulTile(1, 4, 64, 64, 0.25),
)
#: a GPU with fewer workgroups than this stands partly idle
_BUSY_GROUPS = 128


def tiles_for(limits: Limits) -> tuple[MatmulTile, ...]:
    """Returns the tiles that the tuner should try on a device with these limits."""
    if shares_rows(limits):
        lanes = limits.subgroup_size
        sharing = (MatmulTile(rows, cols, lanes, lanes, speed) for rows, cols, speed in _SHARING)
        return (*sharing, _ROW)
    return _SOFTWARE_TILES if limits.software else _GPU_TILES


def shares_rows(limits: Limits) -> bool:
    """Returns True on a software driver with at least eight lanes.

    Eight lanes then load the rows of A together, because every load costs as much as some twenty
    products.
    """
    return limits.software and limits.subgroup_size >= 8


def choose_tile(rows: int, columns: int, batch: int, limits: Limits) -> MatmulTile:
    """Returns the tile with the least expected time.

    It counts the results past the edges that are computed in vain, the tile's speed, and on a GPU
    whether there are enough workgroups.
    """

    def time(tile: MatmulTile) -> float:
        groups = batch * -(-rows // tile.height) * -(-columns // tile.width)
        groups = groups if limits.software else max(groups, _BUSY_GROUPS)
        return groups * tile.rows * tile.cols / tile.speed

    return min(tiles_for(limits), key=time)
