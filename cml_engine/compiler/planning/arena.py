"""Gives the tensors of a draft memory: which of them share it, how long each needs it, and where it
lies in the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from cml_engine.compiler.plan import InputConversion
from cml_engine.compiler.planning.draft import (
    MIN_BYTES,
    Arena,
    Draft,
    Launch,
    PackedInput,
    Sharing,
)
from cml_engine.compiler.planning.memory import (
    Lifetime,
    PartPlace,
    Views,
    live_bytes,
    merge_lifetimes,
    place_in_segments,
    resolve_view,
)
from cml_engine.errors import DeviceError, InputError
from cml_engine.io.frame_gate import yield_to_frame
from cml_engine.ir.graph import Graph, Node, unused_name
from cml_engine.ir.layout import PLAIN, WHOLE, words
from cml_engine.ir.limits import Limits
from cml_engine.ir.reuse import boundaries
from cml_engine.ops.declaration.checks import fault
from cml_engine.ops.declaration.lowering import in_place_operand
from cml_engine.ops.declaration.registry import lookup

# -- sharing --------------------------------------------------------------------------------------


def share_memory(draft: Draft) -> Draft:
    """Returns the draft with the tensors that use the memory of others."""
    graph, options = draft.graph, draft.options
    if options.guard % draft.align:
        raise InputError(
            f"guard: wanted a multiple of {draft.align}, at which tensors lie on this device, got "
            f"{options.guard}"
        )
    alias, packed_inputs = _aliases_of(graph), dict[str, PackedInput]()
    if options.packed_inputs and not options.keep:
        packed_inputs = _find_packed_inputs(graph, draft.layouts, draft.limits)
        alias |= {name: packed.words for name, packed in packed_inputs.items()}
    in_place = {} if options.keep else _find_in_place(graph, draft.layouts, alias)
    return replace(draft, sharing=Sharing(alias, in_place, packed_inputs, _passed_on(graph, alias)))


def _aliases_of(graph: Graph) -> dict[str, str]:
    """Maps every result that shares another tensor's memory, such as a reshape's, to the tensor
    that owns it."""
    alias: dict[str, str] = {}
    for node in graph.nodes:
        spec = lookup(node.op)
        if spec.alias:
            facts = [graph.facts[name] for name in (node.inputs[0], node.outputs[0])]
            if (facts[0].size, facts[0].dtype) != (facts[1].size, facts[1].dtype):
                raise fault(spec, f"{node.title}: an alias of {facts[0]} cannot be {facts[1]}")
            source = node.inputs[0]
            alias[node.outputs[0]] = alias.get(source, source)
    return alias


def _find_in_place(
    graph: Graph, layouts: Mapping[str, str], alias: dict[str, str]
) -> dict[str, str]:
    """Maps the results that take the memory of an operand to that operand, as kernels allow it.

    The operand is an intermediate tensor of the same size and layout that nothing reads
    afterwards, in this run or in a later one. Adds the results to ``alias``.
    """

    def root(name: str) -> str:
        return alias.get(name, name)

    def stored_as(name: str) -> tuple[str, str, int]:
        fact, layout = graph.facts[name], layouts.get(name, PLAIN)
        return layout, fact.dtype, words(fact, layout)

    operand_of = dict[str, str]()
    last = {root(name): i for i, node in enumerate(graph.nodes) for name in node.reads}
    # what a later run needs is among the roots
    protected = set(map(root, [*graph.inputs, *graph.constants, *graph.roots]))
    for i, node in enumerate(graph.nodes):
        name, operand = node.outputs[0], in_place_operand(node)
        if operand is None or name in alias:
            continue
        owner = root(operand)
        read_once = [root(read) for read in node.reads].count(owner) == 1
        is_alike = stored_as(operand) == stored_as(owner) == stored_as(name)
        if read_once and is_alike and owner not in protected and last[owner] == i:
            operand_of[name] = operand
            alias |= {n: owner for n in graph.facts if root(n) == name}
            last[owner] = last.get(name, i)
            protected |= {owner} if name in protected else set()
    return operand_of


def _passed_on(graph: Graph, alias: Mapping[str, str]) -> dict[str, str]:
    """Returns the name of an intermediate tensor for each variable that is updated from a constant
    or another variable.

    The new value is copied there first, because a buffer cannot be copied within itself, and two
    variables may be swapped.
    """
    return {
        variable: unused_name(f"{variable}.next", graph.facts)
        for variable, value in graph.updates
        if alias.get(value, value) in graph.constants
    }


def _find_packed_inputs(
    graph: Graph, layouts: Mapping[str, str], limits: Limits
) -> dict[str, PackedInput]:
    """Returns the inputs that are converted to packed words during upload, by name, with their
    conversions.

    These inputs have no other reader. An input that is too large for one binding is left out.
    """
    max_bytes = limits.max_binding_bytes - limits.storage_offset_alignment
    packed = {}
    for node in graph.nodes:
        source, result = node.inputs[:1], node.outputs[0]
        if (
            not lookup(node.op).traits.quantizes_input
            or node.epilogues
            or layouts.get(result) not in WHOLE
        ):
            continue
        (name,) = source
        has_one_reader = graph.is_read_once(name) and name in graph.inputs
        if (
            has_one_reader
            and result not in graph.roots
            and 0 < graph.facts[name].nbytes <= max_bytes
        ):
            packed[name] = PackedInput(result, InputConversion.of(node.attrs))
    return packed


# -- lifetimes ------------------------------------------------------------------------------------


def find_lifetimes(draft: Draft) -> Draft:
    """Returns the draft with the size in bytes and the lifetime of every tensor in the arena, if
    none is a view.

    Retained tensors stay in memory between runs, so they live throughout a run.
    """
    graph, options, lowered = draft.graph, draft.options, draft.lowered
    last_step = len(lowered.dispatches)
    retained = set(retained_tensors(draft).values()) if options.retain else set[str]()
    used: dict[str, tuple[int, int]] = dict.fromkeys(map(draft.root, graph.inputs), (-1, -1))
    for node in graph.nodes:  # a result that no dispatch writes (zero extents) also needs a place
        for name in node.outputs:
            if name not in draft.sharing.alias and name not in lowered.unstored:
                used.setdefault(name, (last_step, -1))
    for step, (_, _, dispatch, _) in enumerate(lowered.dispatches):
        for name in dispatch.tensors:
            root = draft.root(name)
            if root not in graph.constants and root not in lowered.packed:
                first, last = used.get(root, (step, step))
                used[root] = (min(first, step), max(last, step))
    for root in map(draft.root, graph.roots):
        if root in used:
            used[root] = (used[root][0], last_step)
    used |= dict.fromkeys(draft.sharing.passed_on.values(), (last_step, last_step))
    items = []
    for name, (first, last) in used.items():
        size = max(draft.nbytes(name), MIN_BYTES) + 2 * options.guard
        throughout = options.keep or name in retained
        lifetime = (-1, last_step) if throughout else (first, max(first, last))
        items.append(Lifetime(name, size, *lifetime))
    return replace(draft, lifetimes=items)


def retained_tensors(draft: Draft) -> dict[str, str]:
    """Maps the tensors that stay in memory between runs to the tensors whose memory they use.

    They are the inputs, and the tensors that a later run may reuse. Constants are left out.
    """
    names = [*draft.graph.inputs, *boundaries(draft.graph)]
    return {n: draft.root(n) for n in names if draft.root(n) not in draft.graph.constants}


# -- views -----------------------------------------------------------------------------------------
# Finds tensors that share another one's memory: operands of concat and stack, and results of
# split, unstack and slice.
#
# If the parts are contiguous, a concat's producers write into its result and a split's readers
# read from its operand. Neither needs a dispatch, and no part has memory of its own. A view keeps
# the whole tensor alive as long as any part of it. A node's views are therefore only used if they
# do not raise the least memory that the network needs, including its kernels' scratch.


def decide_views(draft: Draft) -> Draft:
    """Returns the draft with the tensors that may lie in the memory of a whole tensor; none if
    views are off.

    A view begins at a multiple of the device's alignment.
    """
    options = draft.options
    if not options.views or options.keep or options.guard:
        return draft
    views: dict[str, PartPlace] = {}
    alive = _LiveBytes(draft.lifetimes)
    for node in draft.graph.nodes:
        yield_to_frame()
        candidates = {
            name: view
            for name, view in _parts(draft, node)
            if name not in views and 4 * view.offset % draft.align == 0
        }
        extended = views | candidates if candidates else views
        if candidates and alive.try_join(
            [(name, resolve_view(extended, name)[0]) for name in candidates]
        ):
            views = extended
    return replace(draft, views=views)


class _LiveBytes:
    """The sum of bytes alive at each step, updated while views are moved into their wholes."""

    def __init__(self, items: Sequence[Lifetime]) -> None:
        self._items = {item.name: item for item in items}
        self._bytes, self._begin = live_bytes(items)
        self._peak = self._bytes.max(initial=0)

    def _add(self, item: Lifetime, sign: int) -> None:
        self._bytes[item.first - self._begin : item.last + 1 - self._begin] += sign * item.nbytes

    def try_join(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Moves each part of ``pairs`` (part, whole) into its whole; returns False and moves
        none if the peak would grow."""
        before = {name: self._items[name] for pair in pairs for name in pair if name in self._items}
        after = dict(before)
        for part, root in pairs:
            if part in after and root in after:
                part_life, whole_life = after.pop(part), after[root]
                lives = min(part_life.first, whole_life.first), max(part_life.last, whole_life.last)
                after[root] = replace(whole_life, first=lives[0], last=lives[1])
        self._replace(before, after)
        if self._bytes.max(initial=0) > self._peak:
            self._replace(after, before)
            return False
        self._peak = self._bytes.max(initial=0)
        return True

    def _replace(self, before: Mapping[str, Lifetime], after: Mapping[str, Lifetime]) -> None:
        for item in before.values():
            self._add(item, -1)
            del self._items[item.name]
        for item in after.values():
            self._add(item, 1)
            self._items[item.name] = item


def _is_view_copy(draft: Draft, launch: Launch, views: Views) -> bool:
    """Returns True if a dispatch only copies between a view and its whole, so that it is not
    needed."""
    node, _, dispatch, _ = launch
    parts_rule = lookup(node.op).traits.parts
    if parts_rule is None:
        return False
    source, target = draft.root(dispatch.tensors[0]), draft.root(dispatch.tensors[-1])
    part, parent = (source, target) if parts_rule.joined else (target, source)
    return part in views and views[part].parent == parent


def _parts(draft: Draft, node: Node) -> Iterator[tuple[str, PartPlace]]:
    parts_rule = lookup(node.op).traits.parts
    if parts_rule is None:
        return
    graph, layouts = draft.graph, draft.layouts
    parent = node.outputs[0] if parts_rule.joined else node.inputs[0]
    parts = node.inputs if parts_rule.joined else node.outputs
    layout = layouts.get(parent, PLAIN)
    if draft.root(parent) in graph.constants:
        return
    first_part = parts_rule.place(node.attrs, graph.facts[parent], layout)
    # parts are contiguous if all outer dimensions have extent 1; those of blocks of four channels
    # can only be contiguous along the channels
    if first_part is None or prod(graph.facts[parent].shape[: first_part[0]]) != 1:
        return
    if layout != PLAIN and first_part[0] != 1:
        return
    if layout != PLAIN and any(graph.facts[name].shape[1] % 4 for name in parts[:-1]):
        return  # some parts begin inside a block of four channels
    offset = first_part[1]
    fixed = {*graph.inputs, *graph.constants, *graph.roots, *draft.sharing.alias}
    # aliased tensors, inputs and outputs need memory of their own
    fixed.update(map(draft.root, (*graph.roots, *graph.inputs)))
    # one tensor cannot be two parts of the whole, under any alias
    owners = [draft.root(name) for name in parts]
    for name in parts:
        is_same_layout = layouts.get(name, PLAIN) == layout and owners.count(name) == 1
        if is_same_layout and name not in fixed and graph.facts[name].size:
            yield name, PartPlace(draft.root(parent), offset)
        offset += words(graph.facts[name], layout)


# -- places ----------------------------------------------------------------------------------------


def place_arena(draft: Draft) -> Draft:
    """Returns the draft with a place in the arena for every tensor, and the dispatches to run.

    Parts lie in the whole, and the dispatches that would copy them are left out, unless that
    makes the arena larger.
    """
    items, views, max_bytes = draft.lifetimes, draft.views, draft.limits.max_buffer_bytes
    offsets, memory = place_in_segments(items, draft.align, max_bytes)
    if views:
        merged = merge_lifetimes(items, views)
        with_views, smaller = place_in_segments(merged, draft.align, max_bytes)
        within = smaller.segment == memory.segment or smaller.peak <= max_bytes
        if within and smaller.peak <= memory.peak:
            offsets, memory = with_views, smaller
        else:
            views = {}
    placed = {name: offset + draft.options.guard for name, offset in offsets.items()}
    for name in views:
        root, words_before = resolve_view(views, name)
        placed[name] = placed[root] + 4 * words_before
    dispatches = [d for d in draft.lowered.dispatches if not _is_view_copy(draft, d, views)]
    return replace(draft, arena=Arena(placed, memory, dispatches))


def check_sizes(draft: Draft) -> None:
    """Raises :class:`DeviceError` if a tensor is larger than the largest buffer of the device."""
    largest = max(draft.lifetimes, key=lambda item: item.nbytes, default=None)
    if largest is not None and largest.nbytes > draft.max_bytes:
        raise DeviceError(
            f"tensor '{largest.name}' of '{draft.graph.name}' takes {largest.nbytes} bytes, this "
            f"device allows buffers of {draft.limits.max_buffer_bytes}. Run the network on tiles "
            "of its input (cml.run_tiled, cml run --tile), use a smaller input, or another device."
        )
