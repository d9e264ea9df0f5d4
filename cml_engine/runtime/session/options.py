"""The compile options of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from cml_engine.compiler.optimize import NAMES
from cml_engine.compiler.planning.decisions import Decisions, check_decisions
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.layouts import Storage
from cml_engine.errors import InputError
from cml_engine.errors.arguments import (
    ARENA_LIMIT,
    check_choice,
    check_choices,
    check_flag,
    check_instance,
    check_name_list,
)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options with which a session compiles its network.

    Parameters
    ----------
    without : names of passes to leave out; ``"views"`` (``planning/memory.py``) is one of them.
    blocked_layout : store feature maps on a GPU in blocks of four channels.
    storage : ``"half"`` stores a GPU's feature maps, and the weights that are applied to them, in
        16 bits (docs/faster.md). Arithmetic is always in 32 bits, and the CPU stores 32 bits.
    plan : see :class:`PlanOptions`.
    tuned : use the kernels of the device's table of variants (docs/faster.md), unless ``plan`` has
        its own table.
    keep : tensors of the graph as written that no pass may remove. They can be read after a run
        like the outputs (:meth:`Session.tensor`, docs/see_inside.md).
    decide : by tensor, choices for a GPU's plan that override tables and rules, such as
        ``{"conv2": {"kernel": "winograd", "storage": "half"}}`` (docs/see_inside.md).
    arena_limit : the most bytes of a GPU's activations. Above the limit, operators are computed in
        bands of rows, with bit-identical results (docs/faster.md).

    Examples
    --------
    >>> options = cml.CompileOptions(keep=("c",), without=frozenset({"fuse"}))
    >>> session = cml.Session(graph, "cpu", options)
    """

    without: frozenset[str] = frozenset()
    blocked_layout: bool = True
    storage: Storage = "float"
    plan: PlanOptions = PlanOptions()
    tuned: bool = True
    keep: tuple[str, ...] = ()
    decide: Decisions = field(default_factory=dict)
    arena_limit: int | None = None

    def __post_init__(self) -> None:
        check_choices(NAMES, self.without, "passes to leave out")
        check_choice(get_args(Storage), self.storage, "storage")
        check_flag(self.blocked_layout, "blocked_layout")
        check_flag(self.tuned, "tuned")
        check_instance(PlanOptions, self.plan, "plan")
        check_name_list(self.keep, "keep")
        check_decisions(self.decide)
        if self.arena_limit is not None:
            ARENA_LIMIT.check(self.arena_limit, "arena_limit")
        of_maps = any({"layout", "storage"} & set(kinds) for kinds in self.decide.values())
        if of_maps and not self.blocked_layout:
            raise InputError(
                "decide: layouts and storage apply to feature maps in blocks of four channels: "
                "leave blocked_layout=False out"
            )
        if self.storage == "half" and not self.blocked_layout:
            raise InputError(
                "storage 'half' applies to feature maps in blocks of four channels: leave "
                "blocked_layout=False out, or storage"
            )
