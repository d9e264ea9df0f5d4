"""Options for lowering a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cml_engine.errors import InputError
from cml_engine.errors.arguments import (
    ARENA_BYTES,
    GUARD_BYTES,
    check_choice,
    check_flag,
    check_instance,
    check_text_mapping,
)
from cml_engine.ops.declaration.choice import NO_VARIANTS, VariantTable
from cml_engine.ops.declaration.split_bindings import COUNTS


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options for lowering a graph.

    - ``keep``: no tensor's memory is reused, so that all can be read after a run.
    - ``guard``: unused bytes before and after every tensor (tests fill them with a pattern).
    - ``stub``: an operator that is skipped; its results are undefined.
    - ``views``: parts of a tensor may share its memory (``planning/views.py``); not with ``keep``.
    - ``variants``: the kernels that are faster on the device than those of the engine's rules.
    - ``retain``: tensors that a later run may reuse stay in memory (``ir/reuse.py``).
    - ``kernels``: the kernels that the caller decides, by the first result of their operators.
    - ``parts``: the numbers of parts in which the caller wants tensors bound, by name.
    - ``packed_inputs``: inputs of an integer network that are stored packed are converted during
      upload (``planning/packed_inputs.py``); otherwise, and with ``keep``, a step converts them.
    - ``arena_limit``: the largest size of the arena in bytes; 0 is unlimited (``planning/bands/``).
    - ``bands``: the number of bands of the run that ends with a tensor, by the tensor's name.
    """

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
        check_flag(self.keep, "keep")
        check_flag(self.views, "views")
        check_flag(self.retain, "retain")
        check_flag(self.packed_inputs, "packed_inputs")
        GUARD_BYTES.check(self.guard, "guard")
        check_instance(str, self.stub, "stub")
        check_instance(VariantTable, self.variants, "variants")
        check_text_mapping(self.kernels, "kernels")
        for count in check_text_mapping(self.parts, "parts").values():
            check_choice(COUNTS, count, "parts")
        ARENA_BYTES.check(self.arena_limit, "arena_limit")
        check_text_mapping(self.bands, "bands")
        if self.keep and (self.arena_limit or self.bands):
            raise InputError("arena_limit: all tensors are kept whole: leave keep or that out")
