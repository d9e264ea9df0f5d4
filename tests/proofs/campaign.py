"""Runs the cases of a long check and counts their outcomes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

#: the outcome of a case with a fault
FAILS = "FAILS"
#: an outcome of a case, such as ``FAILS`` or ``agree``, and its description
Outcome = tuple[str, str]


def run_cases(cases: Iterable[Iterable[Outcome]], minutes: float = math.inf) -> int:
    """Runs cases until the time is up; prints the failures as they come, then the counts.

    A case runs when its outcomes are iterated. Returns the exit code, 1 if a case failed.
    """
    end, number, counts = time.monotonic() + 60 * minutes, 0, Counter[str]()
    for outcomes in cases:
        number += 1
        for word, said in outcomes:
            counts[word] += 1
            if word == FAILS:
                print(f"{FAILS}: {said}", flush=True)
        if time.monotonic() > end:
            break
    print(f"{number} cases: {', '.join(f'{count} {word}' for word, count in counts.most_common())}")
    return int(counts[FAILS] > 0)
