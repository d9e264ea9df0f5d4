"""Assumed speeds of a device before anything was measured on it.

``defaults/*.json`` beside this file describe one kind of device each: FLOPs and bytes per
millisecond, the cost of a dispatch, factors of some kernels, and the source of the numbers. The
first file whose ``devices`` (a regular expression) matches the device's name is used; ``words`` is
a simpler form of that, for cooked files. Measurements on the device itself always replace them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from cml_engine.compiler.plan import StepCost
from cml_engine.io.json_files import JsonObject, finite

#: the least value of a divisor
_LEAST = 1e-9
_DEFAULTS = Path(__file__).with_name("defaults")


@dataclass(frozen=True, slots=True)
class FirstGuess:
    """The assumed speed of a device as a roofline: FLOPs and bytes per ms, and a dispatch's cost.

    Work takes the longer of the times of its FLOPs and its bytes, plus ``launch_ms``.
    ``kernels`` has factors on that time, by the name of a kernel (``winograd``) or of one
    variant (``winograd-50be9931``, the second word of a step's key). The default values describe
    a slow integrated GPU, so that the first frames stay short.
    """

    flops_per_ms: float = 2e7
    bytes_per_ms: float = 4e6
    launch_ms: float = 0.004
    kernels: Mapping[str, float] = field(default_factory=dict)
    source: str = "a slow integrated GPU is assumed"

    @classmethod
    def for_device(cls, name: str) -> FirstGuess:
        """Returns the shipped guess whose pattern matches the device's name, or the default."""
        for pattern, _, guess in _shipped():
            if re.search(pattern, name, re.IGNORECASE):
                return guess
        return cls()

    @classmethod
    def shipped_by_words(cls) -> list[tuple[str, FirstGuess]]:
        """Returns all shipped guesses, each after its words of device names, joined by ``|``.

        The last one has the default values, with "" as its words. docs/cooked.md says which
        guess a player uses.
        """
        return [*((words, guess) for _, words, guess in _shipped()), ("", cls())]

    @classmethod
    def from_json(cls, data: JsonObject) -> FirstGuess:
        """Returns the guess in a shipped file's JSON or in the result of :meth:`to_json`.

        Raises ``ValueError`` if numbers are missing or invalid.
        """
        try:
            return cls(
                finite(data["flops_per_ms"], _LEAST),
                finite(data["bytes_per_ms"], _LEAST),
                finite(data["launch_ms"], 0),
                {key: finite(value, _LEAST) for key, value in data["kernels"].items()},
                str(data["source"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a device's first guess: {error!r}") from error

    def to_json(self) -> JsonObject:
        """Returns the guess as a JSON object, for :meth:`from_json`."""
        return asdict(self)

    def work_ms(self, step: StepCost, count: int) -> float:
        """Returns the guessed ms of ``count`` workgroups of the step, without the launch."""
        work = max(step.flops / self.flops_per_ms, step.nbytes / self.bytes_per_ms)
        return count * work * self._factor(step.key)

    def _factor(self, key: str) -> float:
        variant = key.partition(" ")[2].partition(" ")[0]
        known = self.kernels.get(variant)
        return known if known is not None else self.kernels.get(variant.rpartition("-")[0], 1.0)


@cache
def _shipped() -> list[tuple[str, str, FirstGuess]]:
    """Returns the name pattern, the words and the guess of each shipped file, by file name."""
    found = []
    for path in sorted(_DEFAULTS.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        guess = FirstGuess.from_json(data)
        found.append((str(data["devices"]), str(data["words"]), guess))
    return found
