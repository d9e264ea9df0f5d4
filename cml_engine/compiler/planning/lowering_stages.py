"""The stages that turn operators into joined dispatches, which planning runs more than once."""

from __future__ import annotations

from collections.abc import Callable

from cml_engine.compiler.planning.arena import share_memory
from cml_engine.compiler.planning.dispatches import lower_nodes
from cml_engine.compiler.planning.draft import Draft
from cml_engine.compiler.planning.operands import compute_operands
from cml_engine.compiler.planning.pointwise import chain_pointwise
from cml_engine.compiler.planning.shuffles import store_shuffles
from cml_engine.compiler.planning.sums import join_sums
from cml_engine.compiler.planning.transposes import store_transposed

#: the name of each stage, what it does to a draft, and what `cml report` says of it
LOWERING_STAGES: tuple[tuple[str, Callable[[Draft], Draft], str], ...] = (
    ("sharing", share_memory, "lets a result use the memory of an operand, as a reshape does"),
    ("dispatches", lower_nodes, "chooses kernels, and turns operators into dispatches"),
    ("shuffles", store_shuffles, "lets convolutions store what a pixel shuffle would move"),
    ("transposes", store_transposed, "lets products store what a later one would copy transposed"),
    ("operands", compute_operands, "lets a concat of windows compute what only it reads"),
    ("pointwise", chain_pointwise, "computes small convolutions of one tap in one dispatch"),
    ("sums", join_sums, "computes a sum of small convolutions in one dispatch"),
)


def lower_maps(draft: Draft) -> Draft:
    """Returns the draft with dispatches, by all stages but ``transposes``, which is for matrices.

    It is for those who compare how feature maps are computed.
    """
    for name, stage, _ in LOWERING_STAGES:
        if name != "transposes":
            draft = stage(draft)
    return draft
