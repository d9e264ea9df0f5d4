"""A large picture through a network, tile by tile, as one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cml_engine.ranges import an_object
from cml_engine.session import Session
from cml_engine.tiling.tiles import Tiles

Array = np.ndarray[Any, Any]


def run_tiled(
    session: Session,
    inputs: Mapping[str, Any],
    tile: int = 256,
    overlap: int = 16,
    *,
    align: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, Array]:
    """Outputs by name for inputs ``[N, C, H, W]`` of any size, in tiles of ``tile`` rows and
    columns, so that memory is a tile's. Where a network looks no farther than ``overlap`` there are
    no seams: the result is that of a whole run.

    Parameters
    ----------
    session : of the network at any shape; :meth:`Session.reshaped` gives it at the tiles'.
    overlap : pixels at each end of a tile that are computed and thrown away, but not at the
        picture's own ends.
    align : tiles begin at multiples of it: what a network with strides makes smaller by. The
        picture, ``tile`` and ``overlap`` must be multiples of it too.
    progress : is called with the number of tiles that are done.
    """
    an_object(Session, session, "session")
    tiles = Tiles(session, inputs, tile, overlap, align)
    for done, part in enumerate(tiles, 1):
        tiles.paste(part, tiles.session.run(tiles.inputs(part)))
        progress(done)
    return tiles.outputs
