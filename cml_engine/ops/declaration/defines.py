"""Passes enumerated strings from Python to HLSL as named defines.

The strings are declared once, where they are checked, and never appear as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

#: the define of a variant that naga reads as WGSL only: its SPIR-V reader lacks what that uses
WGSL_ONLY = "WGSL_ONLY"


def word(name: str, value: str) -> dict[str, int | str]:
    """Returns a define for a string: ``word("border", "constant")`` is ``border_is_constant``.

    Its value is 1; hyphens become underscores.
    """
    return {f"{name}_is_{_identifier(value)}": 1}


def numbers(words: Sequence[str]) -> dict[str, int | str]:
    """Returns a define for each string, in capitals, with its index as the value.

    For kernels that receive the string as a number at run time.
    """
    return {_identifier(text).upper(): i for i, text in enumerate(words)}


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)
