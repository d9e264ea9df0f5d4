"""Replaces several dispatches by one that reads a packed constant of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.ir.graph import Array
from cml_engine.ops.declaration.split_bindings import SplitBinding


@dataclass(frozen=True, slots=True)
class Join:
    """A dispatch in the place of the last of ``members``, all of which it computes.

    Only the last result is stored. ``weights`` is the name of the constant ``packed``.
    """

    members: Sequence[Launch]
    launch: Launch
    weights: str
    packed: Array


def apply_joins(draft: Draft, joins: Sequence[Join]) -> Draft:
    """Returns the draft with joined dispatches, whose kernels are no longer choices."""
    if not joins:
        return draft
    lowered = draft.lowered
    packed, parts, unstored = dict(lowered.packed), dict(lowered.parts), set(lowered.unstored)
    launches, titles = list(lowered.dispatches), set[str]()
    for join in joins:
        packed.setdefault(join.weights, join.packed)
        nbytes = join.packed.nbytes
        parts[join.weights] = SplitBinding(1, nbytes, nbytes, draft.limits.max_binding_bytes)
        *inner, last = join.members
        unstored |= {node.outputs[0] for node, *_ in inner}
        titles |= {node.title for node, *_ in join.members}
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
    )
    return replace(draft, lowered=lowered)
