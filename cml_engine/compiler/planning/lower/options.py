"""Options for lowering a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cml_engine.errors import InputError
from cml_engine.errors.arguments import ARENA_BYTES, GUARD_BYTES, an_object, flag, one_of, texts
from cml_engine.ops.declaration.choice import NO_VARIANTS, VariantTable
from cml_engine.ops.declaration.in_parts import COUNTS


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """``keep``: no tensor's memory is reused, so that all can be read after a run.
    ``guard``: unused bytes before and after every tensor (tests fill them with a pattern).
    ``stub``: an operator that does nothing; its results are whatever the memory holds.
    ``views``: parts of a tensor may lie in it (``passes/views.py``); not where all are kept.
    ``variants``: the kernels that are faster on the device than those of the engine's rules.
    ``retain``: what a run may leave as it was outlives it (``planning/reuse.py``).
    ``kernels``: those that the caller decides, by the first result of their operators.
    ``parts``: in how many the caller wants tensors bound, by name.
    ``packed_inputs``: who gives an input of an integer network makes words of it where these lie
    packed (``planning/entries.py``); else, and where all are kept, a step does.
    ``arena_limit``: bytes that the arena may take; 0 is any number (``planning/bands/``).
    ``bands``: in how many of them what ends with a tensor is computed, by its name."""

    keep: bool = False
    guard: int = 0
    stub: str = ""
    views: bool = True
    variants: VariantTable = NO_VARIANTS
    retain: bool = False
    kernels: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    packed_inputs: bool = True
    arena_limit: int = 0
    bands: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        flag(self.keep, "keep")
        flag(self.views, "views")
        flag(self.retain, "retain")
        flag(self.packed_inputs, "packed_inputs")
        GUARD_BYTES.check(self.guard, "guard")
        an_object(str, self.stub, "stub")
        an_object(VariantTable, self.variants, "variants")
        texts(self.kernels, "kernels")
        for count in texts(self.parts, "parts").values():
            one_of(COUNTS, count, "parts")
        ARENA_BYTES.check(self.arena_limit, "arena_limit")
        texts(self.bands, "bands")
        if self.keep and (self.arena_limit or self.bands):
            raise InputError("arena_limit: all tensors are kept whole: leave keep or that out")
