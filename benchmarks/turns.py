"""Things that are measured in turns: what else the machine does befalls all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
#: what takes one turn, and gives milliseconds
Turn = Callable[[], float]


def in_turns(works: Mapping[K, Turn], rounds: int) -> dict[K, list[float]]:
    """Milliseconds of every work in every round; one round before them warms up."""
    found: list[dict[K, float]] = [
        {name: turn() for name, turn in works.items()} for _ in range(rounds + 1)
    ]
    return {name: [times[name] for times in found[1:]] for name in works}


def elapsed(run: Callable[[], object]) -> Turn:
    """A turn that is timed by the clock on the wall."""

    def turn() -> float:
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    return turn


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """How many times as long ``a`` takes: the median of the rounds' ratios."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))
