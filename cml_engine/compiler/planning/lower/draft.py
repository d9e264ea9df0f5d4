"""A plan in the making."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cml_engine.compiler.planning.entries import Entering
from cml_engine.compiler.planning.lower.options import PlanOptions
from cml_engine.compiler.planning.plan_memory import Lifetime
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import Choice
from cml_engine.ops.declaration.in_parts import InParts
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel

#: a dispatch, and its node, kernel and cost
Launch = tuple[Node, Kernel, Dispatch, Cost]


@dataclass(frozen=True, slots=True)
class LoweredNode:
    """A node, and what it added to a draft."""

    node: Node
    launches: list[Launch]
    scratch: dict[str, int]


@dataclass
class Draft:
    """A plan in the making: dispatches still name tensors, nothing has a place."""

    dispatches: list[Launch] = field(default_factory=list)
    packed: dict[str, Array] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)
    #: by variable: where a new value that lies in the weights waits until all were read
    passed_on: dict[str, str] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    #: how every tensor that is bound is
    parts: dict[str, InParts] = field(default_factory=dict)
    #: by title of an operator: its kernels, by name and themselves; those that it must have
    chosen: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    pinned: Mapping[str, list[tuple[str, Any]]] = field(default_factory=dict)
    #: by title of an operator: a key that operators share whose dispatches are alike, but for the
    #: names of tensors; and by key the first of these
    alike: Mapping[str, object] = field(default_factory=dict)
    lowered: dict[object, LoweredNode] = field(default_factory=dict)


@dataclass(frozen=True)
class Drafted:
    """A plan but for the places of its tensors: its draft, and what is to have a place in the
    arena, with the steps that need it."""

    graph: Graph
    limits: Limits
    layouts: dict[str, str]
    options: PlanOptions
    draft: Draft
    alias: Mapping[str, str]
    entries: Mapping[str, Entering]
    held: Mapping[str, str]
    items: list[Lifetime]
