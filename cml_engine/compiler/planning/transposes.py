"""Lets products of matrices store what a later product would copy transposed.

A tile reads neighbouring columns of its right matrix, so attention's keys are copied transposed
before the product with the queries. On hardware that copy is a dispatch of 3 µs and more. The
projection that computes the keys can store them so at once, by other addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.compiler.planning.shuffles import preserved_roots, without_tensors
from cml_engine.ops.declaration.registry import is_builtin

_COPY, _PRODUCT = "movement/strided_copy.hlsl", "matmul/matmul.hlsl"
#: the defines of a kernel that can store a result transposed, and those of one that cannot
_DEFINES, _OTHERS = {"AHEAD", "ONE_LAUNCH"}, {"JOIN_HEADS", "FLIPPED"}


def store_transposed(draft: Draft) -> Draft:
    """Returns the draft without the transposing copies of matrices that only a product reads, if
    other products compute these; on hardware alone."""
    if draft.limits.software or draft.options.keep or not is_builtin("matmul"):
        return draft
    launches, moved, fixed = draft.lowered.dispatches, set[str](), preserved_roots(draft)
    for launch in draft.lowered.dispatches:
        source = draft.root(launch.dispatch.tensors[0]) if _is_transposing(draft, launch) else None
        if source is None or source in fixed:
            continue
        if (changed := _without_copy(draft, launches, launch, source)) is not None:
            launches = changed
            moved.add(source)
    return without_tensors(draft, launches, moved)


def _is_transposing(draft: Draft, launch: Launch) -> bool:
    """Returns True if a dispatch copies the right matrix of a product transposed."""
    node, dispatch = launch.node, launch.dispatch
    if node.op not in ("matmul", "matmul_heads") or not node.attrs["transposeB"]:
        return False
    if launch.path != _COPY:
        return False
    matrix, facts = node.inputs[1], draft.graph.facts
    # a reshape between may change the leading axes
    is_same = facts[matrix].shape[-2:] == facts[draft.root(matrix)].shape[-2:]
    return dispatch.tensors[0] == matrix and is_same and not draft.is_split(dispatch.tensors)


def _without_copy(
    draft: Draft, launches: Sequence[Launch], copy: Launch, source: str
) -> list[Launch] | None:
    """Returns the dispatches with the one that computes ``source`` storing the result of the copy
    at once; None if that is not possible."""
    using = [launch for launch in launches if source in map(draft.root, launch.dispatch.tensors)]
    writers = [launch for launch in using if launch is not copy]
    if len(writers) != 1:
        return None
    (writer,) = writers
    dispatch, names = writer.dispatch, writer.dispatch.defines.keys()
    if writer.path != _PRODUCT or not names >= _DEFINES or names & _OTHERS:
        return None
    first = len(dispatch.tensors) - dispatch.writes
    operands, results = dispatch.tensors[:first], list(dispatch.tensors[first:])
    if source not in results or source in map(draft.root, operands):
        return None
    part = results.index(source)
    results[part] = copy.dispatch.tensors[1]
    defines = {**dispatch.defines, "FLIPPED": part}
    stored = replace(dispatch, tensors=(*operands, *results), defines=defines)
    changed = writer._replace(dispatch=stored)
    return [changed if launch is writer else launch for launch in launches if launch is not copy]
