"""Times several works in interleaved rounds, so that other load affects all equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from cml_engine.testing import time_interleaved

K = TypeVar("K", bound=Hashable)
#: a function that runs a work once and returns milliseconds
Turn = Callable[[], float]


def in_turns(works: Mapping[K, Turn], rounds: int) -> dict[K, list[float]]:
    """Runs every work once per round; returns each work's milliseconds in every round.

    A warm-up round before the others is not counted.
    """
    times = time_interleaved(rounds, *works.values())
    return {name: [row[i] for row in times] for i, name in enumerate(works)}


def elapsed(run: Callable[[], object]) -> Turn:
    """Returns a function that calls ``run`` and returns the elapsed wall-clock milliseconds."""

    def turn() -> float:
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    return turn


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the time of ``a`` relative to ``b``: the median of the ratios of each round."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))
