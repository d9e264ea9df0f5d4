"""The layout of a baked planet in its store, and the reader of its tiles for the game."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.bake.region import Region, region_of
from cml_engine.demo_game.chain import INSTANCES, POPULATED_LEVELS, Chain, name_shown_tensors
from cml_engine.demo_game.reporting.digest import tile_digest
from cml_engine.demo_game.world.tile import FINE, TileId
from cml_engine.distributed import Cell, Coordinate, Layer, Store, Unit, graph_digest, manifest_of

#: arrays of a tile that a map shows
SEEN = ("height", "shading", "albedo")
KIND, LICENCE = "planet", "Apache-2.0"
_GAME = Path(__file__).resolve().parents[1]
#: source files that determine a tile besides the networks
_RULES = ("operators/**/*.py", "operators/**/*.hlsl*", "world/noise.py", "world/exact_noise.py",
          "world/grids.py", "world/tile.py", "chain.py")  # fmt: skip
#: number of cached units: the tiles of a unit are usually read one after the other
_UNITS_KEPT = 8
#: tensors that the store keeps as bytes, by their names in the store
_AS_BYTES = {"shading": "shading", "albedo": "texels"}
_BYTES = {"shading": "normal x, normal z, ambient occlusion, sunlight",
          "albedo": "red, green, blue (sRGB), roughness"}  # fmt: skip


def layers_of(region: Region, chain: Chain, block: int = 1) -> list[Layer]:
    """Returns a :class:`Layer` (a group of arrays) for each level, the coarsest first.

    Coarse tiles cover more land, so they are baked first. A task and a chunk have ``block``
    tiles along each side.
    """
    return [_layer(region, level, chain.texel_side, block) for level in reversed(region.levels)]


def _layer(region: Region, level: int, painted: int, block: int) -> Layer:
    rows, columns = region.rows(level)
    grid = ("row", "column")
    arrays = {
        "height": Cell((FINE, FINE), "float32", grid, {"units": "m"}),
        "shading": Cell((FINE, FINE, 4), "uint8", (*grid, "light"), {"bytes": _BYTES["shading"]}),
        "albedo": Cell((painted, painted, 4), "uint8", ("texel_row", "texel_column", "colour"),
                       {"bytes": _BYTES["albedo"]}),
        "density": Cell((3, FINE, FINE), "float32", ("kind", *grid),
                        {"kinds": "trees, bushes, rocks"}),
        "digest": Cell((32,), "uint8", ("digest_byte",),
                       {"comment": "SHA-256 of the tensors that the game shows"}),
    }  # fmt: skip
    if level < POPULATED_LEVELS:
        arrays["instances"] = Cell((1024, 4), "float32", ("instance", "value"))
        arrays["draw"] = Cell((4,), "int32", ("argument",))
    corner = TileId(level, columns.start, rows.start)
    return Layer(
        f"L{level}",
        (len(rows), len(columns)),
        (block, block),
        ("z", "x"),
        arrays,
        {
            "z": Coordinate(("z",), np.array(rows, np.int64)),
            "x": Coordinate(("x",), np.array(columns, np.int64)),
        },
        {
            "level": level,
            "metres_per_cell": corner.cell_m,
            "metres_per_tile": corner.span_m,
            "first_x": columns.start,
            "first_z": rows.start,
            "comment": "a row or column i of 64 is cell i - 4 of its tile's 56; texels are half a "
            "cell, from -4.25",
        },
    )


def tiles_of(layer: Layer, unit: Unit) -> list[list[TileId]]:
    """Returns the tiles of a unit of the layer as rows along x, in the order of z."""
    zs, xs = (range(span.start, span.stop) for span in layer.span(unit))
    at = layer.attributes
    first_x, first_z = at["first_x"], at["first_z"]
    return [[TileId(at["level"], first_x + x, first_z + z) for x in xs] for z in zs]


def place_of(region: Region, tile: TileId, block: int) -> tuple[Unit, tuple[int, int]]:
    """Returns the unit that contains a tile, and the tile's row and column in that unit."""
    rows, columns = region.rows(tile.level)
    z, x = tile.z - rows.start, tile.x - columns.start
    return Unit(f"L{tile.level}", (z // block, x // block)), (z % block, x % block)


def manifest(region: Region, chain: Chain, seed: int, block: int = 1) -> dict[str, Any]:
    """Returns the JSON manifest of a planet.

    It has all that the tiles' values and positions depend on, except the device.
    """
    return {
        "kind": KIND,
        "engine": cml.__version__,
        "world": "integer" if chain.exact else "float",
        "seed": seed,
        "region": region.text,
        "levels": f"{region.finest}:{region.coarsest}",
        "block": block,
        "rules": rules(),
        **{f"model {name}": digest for name, digest in models(chain).items()},
        "licence": LICENCE,
    }


def models(chain: Chain) -> dict[str, str]:
    """Returns the digest of each network of the chain by name."""
    return {name: graph_digest(graph) for name, graph in sorted(chain.graphs.items())}


@cache
def rules() -> str:
    """Returns a digest of the game's code that determines tiles besides the networks.

    Comments, docstrings and layout do not change it. The result is cached.
    """
    hasher = hashlib.sha256()
    for path in sorted(path for pattern in _RULES for path in _GAME.glob(pattern)):
        hasher.update(f"{path.relative_to(_GAME).as_posix()} {code_of(path)}\n".encode())
    return hasher.hexdigest()[:16]


def code_of(path: Path) -> str:
    """Returns the code of a Python or HLSL file as text, without comments, docstrings and layout.

    It is the same in every version of Python.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return repr(_syntax(ast.parse(text)))
    return " ".join(re.sub(r"//.*|/\*.*?\*/", " ", text).split())


def _syntax(node: object) -> object:
    """Returns a syntax tree as nested lists, without docstrings and empty fields."""
    if isinstance(node, list):
        return [_syntax(n) for n in node if not _is_docstring(n)]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, _syntax(value)) for name, value in ast.iter_fields(node)]
    return type(node).__name__, [field for field in fields if field[1] not in (None, [])]


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def to_cells(chain: Chain, tile: TileId, tensors: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays that the store keeps of a tile, from its ``tensors``.

    The digest of the tile is one of them. ``instances`` and ``draw`` exist only on levels with
    plants.
    """
    digest = tile_digest(chain, tile, tensors.__getitem__)
    cells = {
        "height": tensors["height"][0, 0],
        "shading": _bytes(tensors["shading"]),
        "albedo": _bytes(tensors["texels"]),
        "density": tensors["density"][0],
        "digest": np.frombuffer(bytes.fromhex(digest), np.uint8),
    }
    if tile.level < POPULATED_LEVELS:
        cells |= {"instances": tensors["instances"][0, 0], "draw": tensors["draw"][0]}
    return cells


def to_tensors(tile: TileId, cells: dict[str, Array]) -> dict[str, Array]:
    """Returns the tensors that the renderer shows of a tile, from the arrays of the store.

    It is the reverse of :func:`to_cells`.
    """
    tensors = {"height": cells["height"]}
    for name, tensor in _AS_BYTES.items():
        tensors[tensor] = np.ascontiguousarray(cells[name]).view(np.int32)[..., 0]
    if tile.level < POPULATED_LEVELS:
        tensors |= {name: cells[name] for name in INSTANCES}
    return {name: np.ascontiguousarray(tensors[name]) for name in name_shown_tensors(tile)}


def _bytes(packed: Array) -> Array:
    rgba = np.ascontiguousarray(packed[0, 0])
    return rgba.view(np.uint8).reshape(*rgba.shape, 4)


class Planet:
    """A baked part of the world in a Zarr store.

    :meth:`open` must be called before tiles are read.
    """

    def __init__(self, store: Path) -> None:
        self.place = store
        fields = self.manifest = manifest_of(str(store))
        if fields.get("kind") != KIND:
            raise cml.InputError(f"'{store}' is no planet: it has '{fields.get('kind')}' in it")
        self.seed = int(fields["seed"])
        self.device = str(fields["device"])
        self.region = region_of(fields["region"], fields["levels"])
        self.block = int(fields["block"])
        #: True: an integer world, whose tiles' digests cover integers and not the shown floats
        self.exact = fields.get("world") == "integer"
        #: read a unit, whole or only what a map shows; set by :meth:`open`
        self._read: Callable[[Unit], dict[str, Array] | None]
        self._read_seen: Callable[[Unit], dict[str, Array]]

    def open(self, chain: Chain, seed: int) -> None:
        """Opens the store for reading, after a check that the game would compute the same tiles.

        Raises :class:`cml.InputError` if the planet was baked with another seed, world, network
        or rule.
        """
        expected = manifest(self.region, chain, seed, self.block)
        for key, value in expected.items():
            if self.manifest.get(key) != value and key not in ("licence", "engine"):
                raise cml.InputError(
                    f"'{self.place}' does not fit this game: its '{key}' is "
                    f"{self.manifest.get(key)}, expected {value}. Bake it again, or fly over it "
                    "with the game and the options that baked it"
                )
        layers = layers_of(self.region, chain, self.block)
        store = Store(str(self.place), layers, writable=False)
        self._read = lru_cache(_UNITS_KEPT)(store.whole)
        self._read_seen = lru_cache(_UNITS_KEPT)(partial(store.read, names=SEEN))

    def has(self, tile: TileId) -> bool:
        """Returns True if the tile lies in the baked region."""
        return self.region.has(tile)

    def cells(self, tile: TileId) -> dict[str, Array] | None:
        """Returns the stored arrays of a tile by name.

        None if the tile was not baked or is damaged.
        """
        unit, index = place_of(self.region, tile, self.block)
        arrays = self._read(unit)
        return None if arrays is None else {name: value[index] for name, value in arrays.items()}

    def seen(self, tile: TileId) -> dict[str, Array]:
        """Returns the height, shading and albedo of a tile for a map.

        Zeros if the tile was not baked.
        """
        unit, at = place_of(self.region, tile, self.block)
        return {name: value[at] for name, value in self._read_seen(unit).items()}

    def tensors(self, tile: TileId) -> dict[str, Array] | None:
        """Returns the tensors that the renderer shows of a tile, and its digest.

        None if the tile is missing.
        """
        cells = self.cells(tile)
        if cells is None:
            return None
        return {**to_tensors(tile, cells), "digest": cells["digest"]}
