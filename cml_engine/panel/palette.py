"""The panel's colours: tuples of red, green, blue, alpha from 0 to 1 (sRGB)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ACCENT",
    "ACTIVE",
    "BAD",
    "Colour",
    "DIM",
    "FAINT",
    "GOOD",
    "GROUND",
    "HOVERED",
    "LANES",
    "NETWORKS",
    "OTHER_NETWORK",
    "RAISED",
    "TEXT",
    "TITLE",
    "WARN",
    "WELL",
    "faded",
    "network_colour",
]

#: red, green, blue, alpha
Colour = tuple[float, float, float, float]


def _hex(text: str, alpha: float = 1.0) -> Colour:
    red, green, blue = (int(text[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue, alpha


TEXT = _hex("d8dee6")
DIM = _hex("8d98a6")
GROUND = _hex("10151c")
#: a panel's title, and clickable widgets
TITLE = _hex("222c39")
RAISED = _hex("2a3543")
HOVERED = _hex("364557")
ACTIVE = _hex("43566c")
FAINT = _hex("2a333f", 0.7)
ACCENT = _hex("7fb2d9")
GOOD = _hex("7fc28f")
WARN = _hex("e3b565")
BAD = _hex("e2685f")

#: the background of graphs and bars
WELL = _hex("131920")

#: colours by lane of the frame graph
LANES = {
    "render": _hex("7b86b8"),
    "inference": _hex("4db6a4"),
    "other": _hex("4b5563"),
    "free": _hex("2c3643"),
    "over": BAD,
}
#: one colour for each of the first networks, wherever it appears
NETWORKS = tuple(_hex(c) for c in ("5ea9e6", "e5a553", "84c76f", "b28be0", "e07fa6", "6fc7c0"))
OTHER_NETWORK = _hex("99a3af")


def network_colour(name: str, networks: Iterable[str]) -> Colour:
    """Returns the colour of a network by its position in ``networks``, or grey if it is not there.

    Examples
    --------
    >>> network_colour("upres", ["upres", "trees"]) == NETWORKS[0]
    True
    """
    return dict(zip(networks, NETWORKS, strict=False)).get(name, OTHER_NETWORK)


def faded(colour: Colour, alpha: float) -> Colour:
    """Returns the colour with its alpha replaced.

    Examples
    --------
    >>> faded((1.0, 0.5, 0.0, 1.0), 0.25)
    (1.0, 0.5, 0.0, 0.25)
    """
    return *colour[:3], alpha
