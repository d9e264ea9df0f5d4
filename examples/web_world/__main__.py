"""``python -m examples.web_world FOLDER`` writes a page that flies over the demo game's world."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import cml_engine as cml
import demo_game.operators
from cml_engine.cooked import cook
from cml_engine.files.atomic_write import write_atomically

#: what a tile takes: where it lies, then the three agents
NETWORKS = ("terrain", "upres", "texture", "population")
_MODELS = Path(demo_game.operators.__file__).parents[1] / "models"
_HERE = Path(__file__).parent
_PLAYER = Path(__file__).parents[2] / "players" / "web"


def write_world(folder: Path, profiles: Sequence[str] = ("discrete", "portable")) -> None:
    """The page, the player and the cooked networks; any web server can serve them."""
    write_networks(folder, profiles)
    write_player(folder, "cml.js", "tiles.js")
    for name in ("index.html", "world.js"):
        write_atomically(folder / name, (_HERE / name).read_bytes())


def write_networks(folder: Path, profiles: Sequence[str]) -> None:
    """The cooked networks of a tile."""
    for name in NETWORKS:
        data = cook(cml.load(_MODELS / f"{name}.nnef"), profiles, player=True)
        write_atomically(folder / f"{name}.cml", data)


def write_player(folder: Path, *names: str) -> None:
    """Files of the player, and what makes tiles with it."""
    for name in names:
        source = _HERE if name == "tiles.js" else _PLAYER
        write_atomically(folder / name, (source / name).read_bytes())


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m examples.web_world", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write_world(folder)
    print(f"python -m http.server --directory {folder}, then http://localhost:8000")


if __name__ == "__main__":
    main()
