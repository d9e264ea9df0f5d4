"""Choices between the kernels of a node, and tables of the variants to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2


@dataclass(frozen=True, slots=True)
class Choice:
    """A node's alternatives in lowering, and the one that was chosen.

    ``key`` is a text of everything that decides which is fastest (operator, window, channels,
    positions, layouts). It is equal for all nodes, of any model, that should choose alike.
    """

    node: str
    key: str
    options: tuple[str, ...]
    default: str
    chosen: str
    #: True if the caller chose it
    requested: bool = False

    @property
    def tuned(self) -> bool:
        """True if a tuning table decided differently than the engine's rules."""
        return self.chosen != self.default and not self.requested

    def __str__(self) -> str:
        default = f", by default {self.default}" if self.chosen != self.default else ""
        return f"{self.node:32s} {self.chosen}{default}, of {len(self.options)}  ({self.key})"


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """The name of a variant that was measured to be faster than ``over``, the default at that time.

    The measurement is ignored if the default has changed since; an empty ``over`` matches any
    default.
    """

    chosen: str
    over: str = ""


@dataclass(frozen=True, slots=True)
class VariantTable:
    """The variants that a device runs faster than the engine's defaults, by key of the choice."""

    picks: Mapping[str, TunedChoice] = field(default_factory=dict)

    @classmethod
    def forcing(cls, key: str, option: str) -> VariantTable:
        """Returns a table that chooses ``option`` for ``key``, whatever the default is."""
        return cls({key: TunedChoice(option)})

    def name_for(self, key: str, options: Sequence[str], default: str) -> str:
        """Returns the table's option for ``key``, or the default if it has no valid one.

        A valid option is one of ``options`` and was measured against the same default.
        """
        pick = self.picks.get(key)
        if pick is None or pick.chosen not in options or pick.over not in ("", default):
            return default
        return pick.chosen

    def __len__(self) -> int:
        return len(self.picks)


#: the engine's rules decide everything
NO_VARIANTS = VariantTable()


def about(count: int) -> int:
    """Rounds a count to the nearest half octave (…, 45, 64, 91, 128, …).

    Sizes with the same result choose the same variant.
    """
    return round(2 ** (round(2 * log2(max(count, 1))) / 2))
