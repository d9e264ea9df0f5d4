"""Replaces several dispatches by one that reads a packed constant of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import Array
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ops.declaration.split_bindings import SplitBinding


@dataclass(frozen=True, slots=True)
class Join:
    """A dispatch in the place of the last of ``members``, all of which it computes.

    Only the last result is stored. ``weights`` is the name of the constant that ``pack`` returns.
    ``saved`` are the modelled seconds by which it is faster.
    """

    members: Sequence[Launch]
    launch: Launch
    weights: str
    pack: Callable[[], Array]
    saved: float


def can_join(draft: Draft) -> bool:
    """Returns True if dispatches of the plan may be joined: it is one of floats for hardware, and
    no result within is to be kept."""
    return not (draft.limits.software or draft.options.keep or draft.graph.words)


def single_launches(draft: Draft) -> list[Launch]:
    """Returns the dispatches of the nodes that have one each."""
    launches = draft.lowered.dispatches
    counts = Counter(node.title for node, *_ in launches)
    return [launch for launch in launches if counts[launch.node.title] == 1]


def is_plain_conv(draft: Draft, launch: Launch) -> bool:
    """Returns True for the dispatch of a convolution that a joined one may compute: its filter and
    bias are constant, its maps plain or in blocks of floats, and no caller chose its kernel."""
    node, dispatch = launch.node, launch.dispatch
    if node.op != "conv" or node.outputs[0] in draft.options.decided("kernel"):
        return False
    # a joined dispatch reads the input where its last convolution stands
    if draft.is_split(dispatch.tensors) or dispatch.live or draft.is_overwritten(node.inputs[0]):
        return False
    filter, bias = map(draft.graph.constant, node.inputs[1:])
    if filter is None or bias is None or weight_blocks(filter) is not None:
        return False
    return {draft.layout(node.inputs[0]), draft.layout(node.outputs[0])} <= {PLAIN, C4}


def is_internal(draft: Draft, preserved: Collection[str], name: str) -> bool:
    """Returns True if one node alone reads a tensor, and it need not be stored for others.

    ``preserved`` are those of :func:`preserved_roots`.
    """
    is_own = draft.root(name) == name and name not in preserved
    return is_own and draft.graph.is_read_once(name)


def apply_joins(draft: Draft, joins: Sequence[Join]) -> Draft:
    """Returns the draft with joined dispatches, whose kernels are no longer choices."""
    if not joins:
        return draft
    lowered = draft.lowered
    packed, parts, unstored = dict(lowered.packed), dict(lowered.parts), set(lowered.unstored)
    launches, titles = list(lowered.dispatches), set[str]()
    joined = list(lowered.joined)
    for join in joins:
        if join.weights not in packed:  # the plan without bands may have
            packed[join.weights] = join.pack()
        nbytes = packed[join.weights].nbytes
        parts[join.weights] = SplitBinding(1, nbytes, nbytes, draft.limits.max_binding_bytes)
        *inner, last = join.members
        unstored |= {node.outputs[0] for node, *_ in inner}
        titles |= {node.title for node, *_ in join.members}
        names = (name for node, *_ in join.members for name in node.tensors)
        joined.append((frozenset(names), join.saved))
        launches = [join.launch if launch is last else launch for launch in launches]
        launches = [launch for launch in launches if not any(launch is x for x in inner)]
    choices = [choice for choice in lowered.choices if choice.node not in titles]
    lowered = replace(
        lowered,
        dispatches=launches,
        packed=packed,
        parts=parts,
        unstored=unstored,
        choices=choices,
        joined=joined,
    )
    return replace(draft, lowered=lowered)
