"""``python -m examples.web_world FOLDER`` writes a page that flies over the demo game's world.

With ``?integer=1`` the page shows the integer world, which is identical on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.demo_game.chain import READ, READS_TILE, Chain, load_chain
from cml_engine.demo_game.world.tile import TileId
from cml_engine.io import write_atomically
from examples.command import run_command

#: the layers of a tile that are drawn, and the session that outputs each
_SHOWN = {"heights": "upres", "albedo": "texture", "density": "population"}
#: the same for the integer world, where upres outputs only an offset to the land
_EXACT_SHOWN = {**_SHOWN, "heights": "ground"}
#: classes of devices with a browser, with a GPU or without one
PROFILES = ("discrete", "portable", "software-portable")
_HERE = Path(__file__).parent
_INSTALLED = Path(cml.__file__).parent / "cooked/players/web"
_PLAYER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "players/web"


def write_world(folder: Path, profiles: Sequence[str] = PROFILES) -> None:
    """Writes the page, the player and the cooked networks of both worlds to ``folder``.

    Any web server can serve the folder.
    """
    write_networks(folder, profiles)
    write_networks(folder / "integer", profiles, integer=True)
    write_player(folder, "cml.js", "core.js", "tiles.js")
    for name in ("index.html", "world.js"):
        write_atomically(folder / name, (_HERE / name).read_bytes())
    print_address(folder)


def write_networks(folder: Path, profiles: Sequence[str], integer: bool = False) -> None:
    """Writes the cooked networks of a tile to ``folder``, and ``chain.json``, which connects them.

    With ``integer`` these are the networks of the integer world.
    """
    chain = load_chain(integer=integer)
    outputs = _EXACT_SHOWN if integer else _SHOWN
    digested = (
        [(READ[name], name) for name in chain.list_digest_tensors(TileId(0, 0, 0))]
        if integer
        else []
    )
    sessions = _needed(chain, {*outputs.values(), *(session for session, _ in digested)})
    for name in sessions:
        data = cook(chain.graphs[name], profiles, player=True, browser=True)
        write_atomically(folder / f"{name}.cml", data)
    manifest = {
        "sources": {
            name: {t: asdict(o) for t, o in chain.sources[name].items()} for name in sessions
        },
        "readsTile": [name for name in sessions if name in READS_TILE],
        "shown": outputs,
        "digested": [{"session": session, "tensor": tensor} for session, tensor in digested],
    }
    write_atomically(folder / "chain.json", json.dumps(manifest, indent=1))


def _needed(chain: Chain, sessions: set[str]) -> list[str]:
    """Returns these ``sessions`` and all sessions that they read, in the chain's order."""
    for name in reversed(list(chain.sources)):
        if name in sessions:
            sessions = sessions | {source.session for source in chain.sources[name].values()}
    return [name for name in chain.sources if name in sessions]


def write_player(folder: Path, *names: str) -> None:
    """Copies files of the web player, and the example's ``tiles.js``, to ``folder``.

    Raises :class:`cml_engine.InputError` if the player is not built.
    """
    if not (_PLAYER / "core.js").is_file():
        raise cml.InputError(
            f"the web player is not built: '{_PLAYER / 'core.js'}' is missing. In a checkout "
            "`python -m players.build` makes it, with the package ziglang (the extra `players`)"
        )
    for name in names:
        source = _HERE if name == "tiles.js" else _PLAYER
        write_atomically(folder / name, (source / name).read_bytes())


def print_address(folder: Path) -> None:
    """Prints the command that serves a folder, and the address of its page."""
    print(f"python -m http.server --bind 127.0.0.1 --directory {quote(folder.as_posix())}")
    print("and then http://localhost:8000")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page, the player and the networks to the folder named in ``argv``."""
    parser = argparse.ArgumentParser(prog="python -m examples.web_world", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    return run_command(lambda: write_world(folder))


if __name__ == "__main__":
    sys.exit(main())
