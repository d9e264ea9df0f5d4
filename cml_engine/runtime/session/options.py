"""How a network is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from cml_engine.compiler.optimize import NAMES
from cml_engine.compiler.planning.asked import Decide, checked
from cml_engine.compiler.planning.choose_storage import Storage
from cml_engine.compiler.planning.lower import PlanOptions
from cml_engine.errors import InputError
from cml_engine.errors.arguments import ARENA_LIMIT, an_object, flag, names, one_of, some_of


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """``without``: names of passes to leave out, ``"views"`` (``passes/views.py``) among them;
    ``storage``: ``"half"`` keeps a GPU's feature maps and the weights that meet them in 16 bits
    (docs/faster.md); arithmetic is in 32 bits in any case, and the CPU stores 32 bits too;
    ``tuned``: take the kernels that the device's table of variants has (docs/faster.md), where
    ``plan`` brings no table of its own; ``plan``: see :class:`PlanOptions`;
    ``keep``: tensors of the graph as it is written that no pass takes away, to be read after a run
    beside the outputs (:meth:`Session.tensor`, docs/see_inside.md);
    ``decide``: by tensor, what a GPU's plan takes instead of what tables and rules would,
    ``{"conv2": {"kernel": "winograd", "storage": "half"}}`` (docs/see_inside.md);
    ``arena_limit``: bytes that a GPU's activations may take: where they would take more, operators
    are computed in bands of rows, to the same bits (docs/faster.md)."""

    without: frozenset[str] = frozenset()
    blocked_layout: bool = True
    storage: Storage = "float"
    plan: PlanOptions = PlanOptions()
    tuned: bool = True
    keep: tuple[str, ...] = ()
    decide: Decide = field(default_factory=dict)
    arena_limit: int | None = None

    def __post_init__(self) -> None:
        some_of(NAMES, self.without, "passes to leave out")
        one_of(get_args(Storage), self.storage, "storage")
        flag(self.blocked_layout, "blocked_layout")
        flag(self.tuned, "tuned")
        an_object(PlanOptions, self.plan, "plan")
        names(self.keep, "keep")
        checked(self.decide)
        if self.arena_limit is not None:
            ARENA_LIMIT.check(self.arena_limit, "arena_limit")
        of_maps = any({"layout", "storage"} & set(kinds) for kinds in self.decide.values())
        if of_maps and not self.blocked_layout:
            raise InputError(
                "decide: layouts and storage are of feature maps in blocks of four channels: leave "
                "blocked_layout=False out"
            )
        if self.storage == "half" and not self.blocked_layout:
            raise InputError(
                "storage 'half' is of feature maps in blocks of four channels: leave "
                "blocked_layout=False out, or storage"
            )
