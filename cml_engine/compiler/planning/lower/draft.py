"""Data of plans under construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.packed_inputs import PackedInput
from cml_engine.compiler.planning.plan_memory import Lifetime
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import Choice
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel
from cml_engine.ops.declaration.split_bindings import SplitBinding

#: a dispatch, and its node, kernel and cost
Launch = tuple[Node, Kernel, Dispatch, Cost]


@dataclass(frozen=True, slots=True)
class LoweredNode:
    """A node, and the dispatches and scratch tensors that it added to a draft.

    ``scratch`` has the size of each scratch tensor in 32-bit words.
    """

    node: Node
    launches: list[Launch]
    scratch: dict[str, int]


@dataclass
class Draft:
    """A plan under construction: its dispatches name their tensors, which have no place in memory
    yet.

    ``packed`` has the packed weights by name, ``scratch`` the size of each scratch tensor in
    32-bit words.
    """

    dispatches: list[Launch] = field(default_factory=list)
    packed: dict[str, Array] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)
    #: by variable: the intermediate tensor for a new value that is in the weights
    passed_on: dict[str, str] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    #: the parts in which each bound tensor is bound
    parts: dict[str, SplitBinding] = field(default_factory=dict)
    #: the names and values of each operator's chosen kernels, and of those it must use, by title
    chosen: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    pinned: Mapping[str, list[tuple[str, Any]]] = field(default_factory=dict)
    #: a key by operator title: operators with equal keys have equal dispatches, except for the
    #: names of tensors; and the first operator lowered for each key
    alike: Mapping[str, object] = field(default_factory=dict)
    lowered: dict[object, LoweredNode] = field(default_factory=dict)


@dataclass(frozen=True)
class CompleteDraft:
    """A draft with all dispatches of a graph, and the lifetimes of the tensors that need a place in
    the arena.

    ``alias`` maps tensors to those whose memory they share. ``entries`` has the inputs that are
    converted during upload.
    """

    graph: Graph
    limits: Limits
    layouts: dict[str, str]
    options: PlanOptions
    draft: Draft
    alias: Mapping[str, str]
    entries: Mapping[str, PackedInput]
    retained: Mapping[str, str]
    items: list[Lifetime]
