"""The value that planning passes from stage to stage, and the options that it begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from cml_engine.compiler.plan import BandedOperators, InputConversion, Memory, Plan
from cml_engine.compiler.planning.memory import Lifetime, Views
from cml_engine.errors import CmlError, InputError
from cml_engine.errors.arguments import (
    ARENA_BYTES,
    GUARD_BYTES,
    check_flag,
    check_instance,
)
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ir.layout import PLAIN, words
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import NO_VARIANTS, Choice, VariantTable
from cml_engine.ops.declaration.spec import Cost, Dispatch, Kernel
from cml_engine.ops.declaration.split_bindings import SplitBinding

#: the sizes of bindings are multiples of this, so that vector loads stay inside and consecutive
#: copies begin at offsets that a device can map
MIN_BYTES = 16
#: the storage of blocked feature maps and of the weights used with them
Storage = Literal["float", "half"]
#: the caller's decisions: by kind (``"kernel"``, ``"layout"``, …), the option of each tensor of the
#: optimized graph; a kernel is listed by the first result of its operator
Overrides = Mapping[str, Mapping[str, str]]
NO_OVERRIDES: Overrides = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options for lowering a graph.

    - ``keep``: no tensor's memory is reused, so that all can be read after a run.
    - ``guard``: unused bytes before and after every tensor (tests fill them with a pattern).
    - ``stub``: an operator that is skipped; its results are undefined.
    - ``views``: parts of a tensor may share its memory (``planning/arena.py``); not with ``keep``.
    - ``variants``: the kernels that are faster on the device than those of the engine's rules.
    - ``retain``: tensors that a later run may reuse stay in memory (``ir/reuse.py``).
    - ``packed_inputs``: inputs of an integer network that are stored packed are converted during
      upload (``planning/arena.py``); otherwise, and with ``keep``, a step converts them.
    - ``arena_limit``: the largest size of the arena in bytes; 0 is unlimited (``planning/bands/``).
    - ``overrides``: the caller's decisions (``planning/decisions.py``).

    Examples
    --------
    >>> options = cml.CompileOptions(plan=PlanOptions(keep=True))
    """

    keep: bool = False
    guard: int = 0
    stub: str = ""
    views: bool = True
    variants: VariantTable = NO_VARIANTS
    retain: bool = False
    packed_inputs: bool = True
    arena_limit: int = 0
    overrides: Overrides = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_flag(self.keep, "keep")
        check_flag(self.views, "views")
        check_flag(self.retain, "retain")
        check_flag(self.packed_inputs, "packed_inputs")
        GUARD_BYTES.check(self.guard, "guard")
        check_instance(str, self.stub, "stub")
        check_instance(VariantTable, self.variants, "variants")
        ARENA_BYTES.check(self.arena_limit, "arena_limit")
        check_instance(dict, self.overrides, "overrides")
        if self.keep and (self.arena_limit or self.decided("bands")):
            raise InputError("arena_limit: all tensors are kept whole: leave keep or that out")

    def decided(self, kind: str) -> Mapping[str, str]:
        """Returns the caller's decisions of one kind, by tensor."""
        return self.overrides.get(kind, {})


# -- sibling --------------------------------------------------------------------------------------

_NOTHING: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True)
class Sibling:
    """The first plan of a network, and the optimized graph that it was made from.

    A plan of the network at other shapes uses the same kernel for a node if that is valid, also
    after the kernel's file has changed. It can then share the packed weights, which are on the
    device already.
    """

    graph: Graph
    plan: Plan

    @cached_property
    def _chosen(self) -> dict[str, list[str]]:
        by_node: dict[str, list[str]] = {}
        for choice in self.plan.choices:
            by_node.setdefault(choice.node, []).append(choice.chosen)
        return by_node

    def chosen(self, node: Node) -> list[str]:
        """Returns the names of the kernels that the first plan chose for the node, in the order
        of the choices."""
        return list(self._chosen.get(node.title, ()))

    def packed(self, node: Node, graph: Graph) -> Mapping[str, Array]:
        """Returns the packed weights of the first plan by name, if the node can use them.

        Otherwise the mapping is empty: a constant that the node reads in ``graph`` is not the same
        array in the first graph.
        """
        read = [name for name in node.reads if name in graph.constants]
        are_shared = all(graph.constants[n] is self.graph.constants.get(n) for n in read)
        return self._packed if are_shared else _NOTHING

    @cached_property
    def kernel_texts(self) -> dict[str, str]:
        """The HLSL of a game's kernels by path, as the first plan read them."""
        return {str(step.path): step.inline for step in self.plan.steps if step.inline}

    @cached_property
    def _packed(self) -> dict[str, Array]:
        return {name: array for name, (_, array) in self.plan.weights.items()}

    def has_equal(self, name: str, array: Array) -> bool:
        """Returns True if the first plan has an equal array under this name in its weights,
        which are on the device."""
        entry = self.plan.weights.get(name)
        return entry is not None and is_same(array, entry[1])


def share_constants(graph: Graph, first: Graph) -> Graph:
    """Returns the graph with constants replaced by the equal arrays of the same name in
    ``first``."""
    constants = {
        name: first.constants[name] if is_same(array, first.constants.get(name)) else array
        for name, array in graph.constants.items()
    }
    return graph.with_(constants=constants)


def is_same(a: Array, b: Array | None) -> bool:
    """Returns True if two arrays have the same type, shape and bits."""
    if a is b:
        return True
    if b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    a_bytes, b_bytes = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(a_bytes, b_bytes))


# -- draft ----------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """A dispatch, and its node, the node's kernel, and the cost."""

    node: Node
    kernel: Kernel
    dispatch: Dispatch
    cost: Cost

    @property
    def path(self) -> str:
        """The path of the kernel that runs: the dispatch's own, or else the node's."""
        return str((self.dispatch.kernel or self.kernel).path)


#: the names and values of the kernels chosen for operators, by title
Chosen = Mapping[str, list[tuple[str, object]]]


@dataclass(frozen=True, slots=True)
class PackedInput:
    """The name of the tensor of words that is stored in place of an input, and the conversion to
    it."""

    words: str
    conversion: InputConversion


@dataclass(frozen=True, slots=True)
class Sharing:
    """The tensors that use the memory of others.

    ``alias`` maps each of them to the owner of the memory. ``in_place`` maps the results that take
    the memory of an operand to that operand. ``packed_inputs`` are the inputs that are converted
    during upload. ``passed_on`` has, by variable, the intermediate tensor for a new value that is
    in the weights.
    """

    alias: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, str] = field(default_factory=dict)
    packed_inputs: Mapping[str, PackedInput] = field(default_factory=dict)
    passed_on: Mapping[str, str] = field(default_factory=dict)


#: the tensors that a dispatch in the place of several reads or writes for them, and the modelled
#: seconds that it saves
JoinedTensors = tuple[frozenset[str], float]


@dataclass(frozen=True, slots=True)
class Lowered:
    """The dispatches of all nodes, which name their tensors, and what the kernels need.

    Only the stage that creates it fills it. ``scratch`` has the size in 32-bit words of each tensor
    that the graph does not have, ``packed`` the packed weights, ``parts`` the parts in which each
    bound tensor is bound. ``cpu_parts`` has the nodes that the CPU computes together, by the first
    result of the first of them. ``unstored`` are the results that need no memory on the device.
    ``joined`` has an element for each dispatch in the place of several.
    """

    dispatches: list[Launch] = field(default_factory=list)
    scratch: dict[str, int] = field(default_factory=dict)
    packed: dict[str, Array] = field(default_factory=dict)
    parts: dict[str, SplitBinding] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    chosen: dict[str, list[tuple[str, object]]] = field(default_factory=dict)
    cpu_parts: dict[str, list[Node]] = field(default_factory=dict)
    unstored: set[str] = field(default_factory=set)
    joined: list[JoinedTensors] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Arena:
    """The byte offset of every tensor in the arena, its size, and the dispatches to run."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=lambda: Memory(0, 0))
    dispatches: Sequence[Launch] = ()


@dataclass(frozen=True, slots=True)
class Bands:
    """The bands of rows in which a graph was rewritten; empty for a graph without bands.

    ``kernels`` are those that operators must use. Operators with equal ``keys`` (by title) have
    equal dispatches, except for the names of tensors. ``joins`` are the tensors joined from bands.
    ``titles`` maps the title of an operator that computes one band to that of the whole operator.
    """

    kernels: Chosen = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)
    joins: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[BandedOperators, ...] = ()


@dataclass(frozen=True, slots=True)
class Constants:
    """The places of the constants, by name with their space, byte offset and value, and the bytes
    of each space: ``"weights"`` is shared with plans at other shapes, ``"own"`` is not."""

    places: Mapping[str, tuple[str, int, Array]] = field(default_factory=dict)
    nbytes: Mapping[str, int] = field(default_factory=dict)

    def of_space(self, space: str) -> dict[str, tuple[int, Array]]:
        """Returns the byte offsets and the values of the constants in one space, by name."""
        return {n: (at, array) for n, (s, at, array) in self.places.items() if s == space}


@dataclass(frozen=True)
class Draft:
    """A plan under construction: what was requested, and what each stage of planning added.

    Every stage returns a new draft. A field after ``refusals`` is empty until its stage has run.
    ``refusals`` has the reasons why kernels refused nodes that the CPU computes, by first result.
    ``arithmetic`` is ``"half"`` if products may be of 16 bits where the model says so.
    """

    graph: Graph
    limits: Limits
    options: PlanOptions
    storage: Storage = "float"
    arithmetic: Storage = "float"
    sibling: Sibling | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    sharing: Sharing = field(default_factory=Sharing)
    lowered: Lowered = field(default_factory=Lowered)
    lifetimes: Sequence[Lifetime] = ()
    views: Views = field(default_factory=dict)
    arena: Arena = field(default_factory=Arena)
    bands: Bands = field(default_factory=Bands)
    constants: Constants = field(default_factory=Constants)
    plan: Plan | None = None

    @property
    def align(self) -> int:
        """The alignment of tensors in bytes."""
        return self.limits.storage_offset_alignment

    @property
    def max_bytes(self) -> int:
        """The size of the largest tensor that a buffer of the device can hold."""
        return self.limits.max_buffer_bytes // self.align * self.align

    def root(self, name: str) -> str:
        """Returns the tensor that owns the memory of tensor ``name``, if no tensor is a view."""
        return self.sharing.alias.get(name, name)

    def is_overwritten(self, name: str) -> bool:
        """Returns True if a result takes the memory of a tensor after its last reader."""
        root = self.root(name)
        return any(self.root(result) == root for result in self.sharing.in_place)

    def layout(self, name: str) -> str:
        return self.layouts.get(name, PLAIN)

    def is_split(self, names: Iterable[str]) -> bool:
        """Returns True if one of the tensors is too large to be bound at once."""
        return any(self.lowered.parts[name].count > 1 for name in names)

    def nbytes(self, name: str) -> int:
        """Returns the bytes of a tensor in its layout, or of a scratch tensor."""
        scratch = self.lowered.scratch.get(name)
        if scratch is not None:
            return 4 * scratch
        return 4 * words(self.graph.facts[name], self.layout(name))

    @property
    def figures(self) -> dict[str, int]:
        """The numbers that describe the plan so far, by what they count."""
        dispatches = self.arena.dispatches or self.lowered.dispatches
        return {
            "operators": len(self.graph.nodes),
            "tensors not plain": len(self.layouts),
            "tensors in another's memory": len(self.sharing.alias),
            "dispatches": len(dispatches),
            "tensors in the arena": len(self.lifetimes),
            "views": len(self.views),
            "arena bytes": self.arena.memory.peak,
            "weight bytes": sum(self.constants.nbytes.values()),
            "steps": len(self.plan.steps) if self.plan else 0,
        }


class NodesRefused(Exception):
    """The device cannot compute some nodes; ``errors`` has the reasons by first result."""

    def __init__(self, errors: Mapping[str, CmlError]) -> None:
        super().__init__(*errors.values())
        self.errors = errors

    @property
    def first(self) -> CmlError:
        return next(iter(self.errors.values()))
