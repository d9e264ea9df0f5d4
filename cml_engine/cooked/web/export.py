"""Writes a folder that any web server can serve: a cooked network, the player and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cml_engine.cooked import DeviceGuess, cook
from cml_engine.errors import InputError
from cml_engine.io.folders import bundled_folder
from cml_engine.io.output_folder import OutputFolder, check_new_folder
from cml_engine.ir.graph import Graph

#: profiles for browsers; plans for a CPU driver would add another copy of the weights
_PROFILES = ("discrete", "portable")
#: the player's files that the page needs, by their exported names
_FILES = {
    "index.html": "page.html",
    "page.css": "page.css",
    **{name: name for name in ("page.js", "cml.js", "check.js", "picture.js", "scene.js")},
}


@dataclass(frozen=True, slots=True)
class Picture:
    """The names of the input that takes a picture and of the output that is a picture."""

    input: str
    output: str


def picture_of(graph: Graph) -> Picture | None:
    """Returns the input and the first output of a network that maps one picture to another, else
    None.

    The network has one input, ``[1, 3, H, W]``; the output is of the same size or enlarged by a
    whole factor.
    """
    if len(graph.inputs) != 1:
        return None
    (taken,) = graph.inputs
    found = [name for name in graph.outputs if _is_enlarged(graph, taken, name)]
    return Picture(taken, found[0]) if found else None


def _is_enlarged(graph: Graph, taken: str, given: str) -> bool:
    small, large = graph.facts[taken], graph.facts[given]
    if small.dtype != "scalar" or large.dtype != "scalar":
        return False
    if len(small.shape) != 4 or small.shape[:2] != (1, 3) or large.shape[:2] != (1, 3):
        return False
    high, wide = (b / a for a, b in zip(small.shape[2:], large.shape[2:], strict=True))
    return high == wide and high >= 1 and high == int(high)


def export_web(
    graph: Graph,
    folder: Path,
    *,
    half: bool = False,
    guesses: Sequence[DeviceGuess] = (),
    overwrite: bool = False,
) -> list[str]:
    """Writes a web page that runs a network into a folder, and returns the names of the files.

    The page needs no other files and no network access; any web server can serve the folder.
    Raises :class:`InputError` if the folder has files and ``overwrite`` is False.
    """
    player = player_folder()
    check_new_folder(folder, overwrite)
    data = cook(graph, _PROFILES, half=half, player=True, guesses=guesses)
    picture = picture_of(graph)
    model = {
        "name": graph.name,
        "file": "net.cml",
        "picture": picture is not None,
        **(asdict(picture) if picture else {}),
    }
    made = OutputFolder(folder, "model.json", overwrite=overwrite)
    for name, source in _FILES.items():
        made.write(name, (player / source).read_bytes())
    made.write("net.cml", data)
    made.write_manifest(model)
    return [*_FILES, "net.cml", "model.json"]


def player_folder() -> Path:
    """Returns the folder of the JavaScript player; raises :class:`InputError` if it is missing."""
    folder = bundled_folder("cooked/web/player", "players/web")
    if not (folder / "cml.js").is_file():
        raise InputError(f"the JavaScript player is not installed: wanted '{folder}'")
    return folder
