"""Runs the networks without a GPU: tiles with NumPy, their times, and a map of them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.flight import find_start
from cml_engine.demo_game.reporting.digest import tile_digest, world_hash
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.world.overhead import SIDE, overhead
from cml_engine.demo_game.world.tile import TileId
from cml_engine.io import write_atomically

#: tiles along a side of the square, and their level, on which a kilometre is a few tiles
_SIDE, _LEVEL = 4, 1


def run(seed: int, models: Path | None, picture: Path, integer: bool = False) -> dict[str, Any]:
    """Computes a square of tiles at the flight's start with NumPy; writes a map to ``picture``.

    Returns the times and a hash of the tiles.
    """
    chain, seconds_by_session = load_chain(models, integer=integer), defaultdict[str, float](float)

    @contextmanager
    def clock(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds_by_session[name] += time.perf_counter() - start

    maker, digests = TileMaker(chain, "cpu"), {}
    span = TileId(_LEVEL, 0, 0).span_m
    west, north = (int(at // span) - _SIDE // 2 for at in find_start(seed))
    tiles = [TileId(_LEVEL, west + x, north + z) for z in range(_SIDE) for x in range(_SIDE)]
    pixels = np.zeros((_SIDE * SIDE, _SIDE * SIDE, 3), np.uint8)
    start = time.perf_counter()
    for number, tile in enumerate(tiles):
        tensors = maker.make(tile, seed, clock)
        digests[tile] = tile_digest(chain, tile, tensors.__getitem__)
        y, x = number // _SIDE * SIDE, number % _SIDE * SIDE
        shading, texels = (tensors[key].view(np.uint8).reshape(*tensors[key].shape[2:], 4)
                           for key in ("shading", "texels"))  # fmt: skip
        pixels[y : y + SIDE, x : x + SIDE] = overhead(tensors["height"][0, 0], shading, texels)
    seconds = time.perf_counter() - start
    write_atomically(picture, lambda file: Image.fromarray(pixels).save(file, "PNG"))
    return {
        "device": maker.device,
        "seed": seed,
        "tiles": len(tiles),
        "seconds": round(seconds, 2),
        "tiles_per_s": round(len(tiles) / seconds, 2),
        "ms_per_tile": {
            name: round(1e3 * s / len(tiles), 3) for name, s in seconds_by_session.items()
        },
        "world": world_hash(chain, seed, digests),
    }
