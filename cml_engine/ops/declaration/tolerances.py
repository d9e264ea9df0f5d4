"""Tolerances of a game's operators: the default, and the line that declares a wider one.

The default follows from the functions that the operator's code calls, because drivers may round
these differently than NumPy does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil, floor, log10

from cml_engine.ops.declaration.spec import ROUNDING, Tolerance

_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_TRIGONOMETRIC = frozenset("sin cos sincos tan asin acos atan atan2".split())
_EXPONENTIAL = frozenset("exp exp2 log log2 log10 pow sinh cosh tanh".split())
#: the prefix of the engine's accurate functions in ``pointwise.hlsli``
_ACCURATE = "cml_"

_OF_TRIGONOMETRIC = Tolerance(
    5e-4, 5e-4, "Vulkan allows sin and cos an error of 2^-11; cml_sin of pointwise.hlsli has 1e-8"
)
_OF_EXPONENTIAL = Tolerance(
    2e-5, 2e-5, "Vulkan allows exp an error of 3 + 2|x| units in the last place, and pow more"
)
#: the largest tolerance that is suggested: a larger difference is not one of rounding
_MOST = 1e-2


def called_functions(hlsl: str) -> set[str]:
    """Returns the names that HLSL text without comments calls."""
    return set(_CALL.findall(hlsl))


def tolerance_of_calls(functions: Iterable[str]) -> Tolerance:
    """Returns the default tolerance of HLSL code that calls these functions."""
    names = set(functions)
    if names & _TRIGONOMETRIC:
        return _OF_TRIGONOMETRIC
    if names & _EXPONENTIAL or any(name.startswith(_ACCURATE) for name in names):
        return _OF_EXPONENTIAL
    return ROUNDING


def sum_of(tolerances: Iterable[Tolerance]) -> Tolerance:
    """Returns the tolerance of several operators one after another.

    Absolute and relative tolerances are added; ``of_largest`` is the largest of theirs.
    """
    parts = list(tolerances)
    return Tolerance(
        sum(t.rtol for t in parts),
        sum(t.atol for t in parts),
        "; ".join(dict.fromkeys(t.why for t in parts if t.why)),
        max(t.of_largest for t in parts),
    )


def wider_tolerance(tolerance: Tolerance, worst: float) -> float | None:
    """Returns the number to declare for an operator whose error is ``worst`` times its tolerance.

    It has one digit and a margin of two. None if that is no difference of rounding.
    """
    needed = 2 * worst * max(tolerance.rtol, tolerance.atol)
    if not 0 < needed <= _MOST:
        return None
    step = 10.0 ** floor(log10(needed))
    return float(f"{ceil(needed / step) * step:.0e}")
