"""The networks that compute a tile, and the connections from outputs to inputs between them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import cml_engine as cml
from cml_engine.demo_game import operators  # registers the game's own operators
from cml_engine.demo_game.cooking import cooked_set
from cml_engine.demo_game.world.tile import PAINTED, TileId

MODELS = Path(__file__).with_name("models")
#: the integer world's networks, as far as they differ from the float world's
INTEGER = MODELS / "integer"
#: trained networks, which ``--models`` may replace
TRAINED = ("upres", "texture", "population")
_LAND = dict.fromkeys(("moisture", "grain", "cell"), "terrain")
#: for each session: its inputs' names, and the session whose output of that name each input takes
_SOURCES: Mapping[str, Mapping[str, str]] = {
    "terrain": {},
    "upres": {"coarse": "terrain", "detail": "terrain", "cell": "terrain"},
    "surface": {"heights": "upres", "cell": "terrain"},
    "texture": {"heights": "upres", **_LAND},
    "paint": {"albedo": "texture"},
    "population": {"heights": "upres", **_LAND},
    "scatter": {"density": "population", "height": "surface"},
}
_WORDS = dict.fromkeys(("slopes", "features"), "ground")
#: the same for the integer world, which computes a tile in integers
_EXACT_SOURCES: Mapping[str, Mapping[str, str]] = {
    "terrain": {},
    "upres": dict.fromkeys(("around", "above", "size", "detail"), "terrain"),
    "ground": {"coarse": "terrain", "residual": "upres"},
    "surface": {"heights": "ground", "cell": "ground"},
    "texture": _WORDS,
    "paint": {"albedo": "texture"},
    "population": _WORDS,
    "scatter": {"density": "population", "ground": "ground"},
}
#: the sessions that read the tile's number
READS_TILE = ("terrain", "ground", "scatter")
#: number of fine levels with plants; on coarser ones they would be smaller than a pixel
POPULATED_LEVELS = 2
_PLANTS = ("population", "scatter")
#: sessions with operators of the game's own, and the folder of these operators' kernels
OWN_OPERATORS = ("terrain", "ground", "surface", "paint", "scatter")
KERNELS = Path(operators.__file__).parent
#: tensors of a tile that the renderer keeps, and the sessions that compute them
TEXELS = {"height": "surface", "shading": "surface", "texels": "paint"}
INSTANCES = {"instances": "scatter", "draw": "scatter"}
#: integer tensors of a tile of the integer world, from which the renderer's tensors are computed
_LAND_WORDS = {"ground": "ground", "texels": "paint"}
_PLANT_WORDS = {"density": "population", "plants": "scatter", "draw": "scatter"}
#: sessions that compute only tensors for drawing, in floats
DRAWN = ("surface",)
#: all tensors that are read back of a tile, and the sessions that compute them
READ = {**TEXELS, **INSTANCES, **_LAND_WORDS, **_PLANT_WORDS}
#: factor by which ``--texture-upres`` enlarges the colours
ENLARGED = 4
#: the game's own models that replace others when ``--texture-upres`` is used, by session
_FINE = {"colours": "colours", "paint": "paint_fine"}


@dataclass(frozen=True)
class OutputOf:
    """A reference to an output tensor of a session, both by name."""

    session: str
    tensor: str


@dataclass(frozen=True, eq=False)
class Chain:
    """The networks of a tile by session: graphs, sources of their inputs, and model folders.

    Each session in ``sources`` comes after all sessions whose outputs it takes.
    """

    graphs: Mapping[str, cml.Graph]
    sources: Mapping[str, Mapping[str, OutputOf]]
    folders: Mapping[str, Path] = field(default_factory=dict)
    #: True: the networks make the integer world
    exact: bool = False

    def sessions_for(self, tile: TileId) -> tuple[str, ...]:
        """Returns the names of the sessions that a tile needs, in execution order.

        Tiles of coarse levels have no plants and need fewer sessions.
        """
        bare = _PLANTS if tile.level >= POPULATED_LEVELS else ()
        return tuple(name for name in self.sources if name not in bare)

    def list_digest_tensors(self, tile: TileId) -> tuple[str, ...]:
        """Returns the names of the tensors that a tile's digest covers.

        They are the shown tensors or, in the integer world, the integers that those are computed
        from.
        """
        if not self.exact:
            return name_shown_tensors(tile)
        return (*_LAND_WORDS, *(_PLANT_WORDS if tile.level < POPULATED_LEVELS else ()))

    @property
    def texel_side(self) -> int:
        """The number of texels along a side of a tile's colour texture."""
        return self.graphs["paint"].facts["texels"].shape[-1]


def name_shown_tensors(tile: TileId) -> tuple[str, ...]:
    """Returns the names of the tensors that the renderer shows of a tile.

    No plants on coarse levels.
    """
    return (*TEXELS, *(INSTANCES if tile.level < POPULATED_LEVELS else ()))


def load_chain(
    models: Path | None = None,
    enlarge: Path | None = None,
    cooked: bool = False,
    integer: bool = False,
) -> Chain:
    """Loads the game's networks and returns them as a checked :class:`Chain`.

    ``models`` is a folder whose trained networks replace the game's own. ``enlarge`` is a
    network that makes colours four times as fine: [1, 3, 128, 128] in, [1, 3, 512, 512] out.
    With ``cooked`` the game's own networks are loaded from cooked files if those are up to date.
    ``integer`` selects the networks of the world that is the same on every machine.

    Raises :class:`cml.CmlError` if a network is missing or does not fit the others.
    """
    if models is not None and not any((models / f"{name}.nnef").exists() for name in TRAINED):
        names = " or ".join(f"{name}.nnef" for name in TRAINED)
        raise cml.InputError(f"--models '{models}': wanted {names} in that folder, found none")
    if integer and enlarge is not None:
        raise cml.InputError("--texture-upres is a network of floats: leave it out, or --integer")
    sources = {
        name: {tensor: OutputOf(session, tensor) for tensor, session in producers.items()}
        for name, producers in (_EXACT_SOURCES if integer else _SOURCES).items()
    }
    graphs = {}
    folders = {name: _folder(name, integer) for name in sources}
    cooked_folder = cooked_set() if cooked and not integer else None
    for name in sources:
        replacement = models / f"{name}.nnef" if models and name in TRAINED else None
        if replacement and replacement.exists():
            graphs[name], folders[name] = cml.load(replacement), replacement
        else:
            graphs[name] = _load_own(folders[name], cooked_folder)
    if enlarge is not None:
        graphs, sources = _add_upscaler(graphs, sources, enlarge, cooked_folder)
        fine = {name: MODELS / f"{model}.nnef" for name, model in _FINE.items()}
        folders = {**folders, **fine, "enlarge": enlarge}
    chain = Chain(graphs, sources, folders, integer)
    _check_kinds(chain)
    _check(chain)
    return chain


def _folder(name: str, integer: bool) -> Path:
    exact = INTEGER / f"{name}.nnef"
    return exact if integer and exact.exists() else MODELS / f"{name}.nnef"


def _check_kinds(chain: Chain) -> None:
    """Raises an error if a trained network is an integer one in a float world, or the reverse."""
    for name in TRAINED:
        if bool(chain.graphs[name].integer) == chain.exact:
            continue
        if chain.exact:
            raise cml.ModelError(
                f"'{chain.folders[name]}' is a network of floats, which --integer cannot have: "
                "make an integer one of it (demo_game/training/integer.py), or leave --integer out"
            )
        raise cml.ModelError(f"'{chain.folders[name]}' is an integer network: add --integer")


def _load_own(folder: Path, cooked: Path | None) -> cml.Graph:
    """Loads one of the game's own networks, cooked if the folder ``cooked`` has a usable file."""
    if cooked is not None:
        with suppress(cml.CmlError):
            return cml.load_cooked(cooked / f"{folder.stem}.cml", trusted=True)
    return cml.load(folder)


def _add_upscaler(
    graphs: dict[str, cml.Graph],
    sources: dict[str, dict[str, OutputOf]],
    enlarge: Path,
    cooked: Path | None,
) -> tuple[dict[str, cml.Graph], dict[str, dict[str, OutputOf]]]:
    network = cml.load(enlarge)
    expected = [(1, 3, PAINTED, PAINTED), (1, 3, ENLARGED * PAINTED, ENLARGED * PAINTED)]
    ends = [*network.inputs, *network.outputs]
    if [network.facts[name].shape for name in ends] != expected:
        actual = ", ".join(f"{name} {network.facts[name]}" for name in ends)
        raise cml.ModelError(
            f"'{enlarge}': wanted one input {list(expected[0])} and one output "
            f"{list(expected[1])}, got {actual}"
        )
    input_name, output_name = ends
    paint = sources.pop("paint")
    sources |= {
        "colours": {"albedo": OutputOf("texture", "albedo")},
        "enlarge": {input_name: OutputOf("colours", "colours")},
        "paint": {**paint, "enlarged": OutputOf("enlarge", output_name)},
    }
    fine = {name: _load_own(MODELS / f"{model}.nnef", cooked) for name, model in _FINE.items()}
    return {**graphs, **fine, "enlarge": network}, sources


def _check(chain: Chain) -> None:
    """Raises an error unless every input has a producer with the same type and shape."""
    for name, input_sources in chain.sources.items():
        graph = chain.graphs[name]
        expected = {*input_sources, *(["tile"] if name in READS_TILE else [])}
        if set(graph.inputs) != expected:
            raise cml.ModelError(
                f"{name}.nnef: wanted the inputs {', '.join(sorted(expected))}, "
                f"got {', '.join(sorted(graph.inputs))} ('cml docs demo_game' has the table)"
            )
        for tensor, source in input_sources.items():
            producer = chain.graphs[source.session]
            if source.tensor not in producer.outputs:
                raise cml.ModelError(
                    f"{source.session}.nnef: wanted an output '{source.tensor}' for {name}.nnef, "
                    f"got {', '.join(producer.outputs)}"
                )
            produced, consumed = producer.facts[source.tensor], graph.facts[tensor]
            if produced != consumed:
                raise cml.ModelError(
                    f"{name}.nnef: wanted '{tensor}' as {consumed}, "
                    f"but {source.session}.nnef gives {produced}"
                )
