"""Passes words from Python to HLSL as defines that name them.

The words are stated once, where they are checked; no number stands for one.
"""

from __future__ import annotations

from collections.abc import Sequence

#: the define of a variant that naga reads as WGSL only: its SPIR-V reader lacks what that uses
WGSL_ONLY = "WGSL_ONLY"


def word(name: str, value: str) -> dict[str, int | str]:
    """``word("border", "reflect-even")`` is the define ``border_is_reflect_even``."""
    return {f"{name}_is_{_identifier(value)}": 1}


def numbers(words: Sequence[str]) -> dict[str, int | str]:
    """For words that a kernel is told when it runs: a define for each, its place among them."""
    return {_identifier(text).upper(): i for i, text in enumerate(words)}


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)
