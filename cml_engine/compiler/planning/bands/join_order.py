"""Orders the copies that join the bands of a tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from cml_engine.ir.graph import Node
from cml_engine.ops.declaration.spec import Dispatch

#: a dispatch with its node, its kernel and its cost
L = TypeVar("L", bound=tuple[Node, Any, Dispatch, Any])


def move_joins_early(
    launches: Sequence[L], joins: Collection[str], alias: Mapping[str, str]
) -> list[L]:
    """Returns the dispatches with each copy of a part into a tensor of ``joins`` moved directly
    after the dispatch that computes the part.

    Other tensors can then use the memory of the part. ``alias`` maps tensors to those whose
    memory they share.
    """
    copies: dict[str, list[L]] = {}
    rest: list[L] = []
    for launch in launches:
        part = launch[2].tensors[0]
        if launch[0].outputs[0] in joins:
            copies.setdefault(alias.get(part, part), []).append(launch)
        else:
            rest.append(launch)
    last = {name: i for i, launch in enumerate(rest) for name in _written(launch[2])}
    ordered = [launch for name, found in copies.items() if name not in last for launch in found]
    for i, launch in enumerate(rest):
        ordered.append(launch)
        for name in dict.fromkeys(_written(launch[2])):
            if last[name] == i:
                ordered += copies.get(name, [])
    return ordered


def _written(dispatch: Dispatch) -> tuple[str, ...]:
    return dispatch.tensors[len(dispatch.tensors) - dispatch.writes :]
