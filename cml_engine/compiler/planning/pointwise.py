"""Computes convolutions of one tap, one after the other, in one dispatch.

Small maps take less time than a launch of 3 µs. A workgroup has all channels of some positions in
groupshared memory, so the next convolution needs no other workgroup. On hardware alone: a software
driver launches for less, and its kernels multiply faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from cml_engine.compiler.planning.draft import Draft, Launch
from cml_engine.compiler.planning.joins import (
    Join,
    apply_joins,
    can_join,
    is_internal,
    is_plain_conv,
    single_launches,
)
from cml_engine.compiler.planning.shuffles import preserved_roots
from cml_engine.ir.graph import Graph, Node
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ops.conv.kernels.conv_chain import (
    KERNEL,
    MOST_CHANNELS,
    Layer,
    fits,
    groups_of,
    is_possible,
    launch_chain,
    pack_layers,
    waves_of,
)
from cml_engine.ops.conv.shapes import ConvShape, conv_shape
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.registry import formula_of, is_builtin
from cml_engine.ops.declaration.spec import Cost, Defines

#: a larger map fills a card with tiles of more positions, which multiply faster
_MOST_GROUPS = 512


def chain_pointwise(draft: Draft) -> Draft:
    """Returns the draft with runs of small convolutions of one tap as one dispatch each; on
    hardware alone."""
    has_room = draft.limits.max_group_threads >= KERNEL.group_shape[0]
    if not can_join(draft) or not has_room or not is_builtin("conv"):
        return draft
    joins = []
    for run in _runs(draft):
        layers = [_layer(draft.graph, node) for node, *_ in run]
        batch, _, *spatial = draft.graph.facts[run[-1][0].outputs[0]].shape
        waves = waves_of(batch, prod(spatial), draft.limits)
        filters = [name for node, *_ in run for name in node.inputs[1:]]
        name = "+".join([*filters, f"chain{waves}"])
        pack = partial(pack_layers, layers, waves)
        saved = (len(run) - 1) * hardware_table(draft.limits).launch
        joins.append(Join(run, _joined(draft, run, layers, waves, name), name, pack, saved))
    return apply_joins(draft, joins)


def _joined(
    draft: Draft, run: Sequence[Launch], layers: Sequence[Layer], waves: int, weights: str
) -> Launch:
    """Returns the dispatch that computes a run with these packed filters."""
    (_, _, first, before), (node, _, last, after) = run[0], run[-1]
    source, target = first.tensors[0], last.tensors[-1]
    shuffle = {k: v for k, v in last.defines.items() if k in ("SHUFFLE_Y", "SHUFFLE_X")}
    defines: Defines = {
        "PLAIN": int(draft.layout(source) == PLAIN),
        "OUT_C4": int(draft.layout(node.outputs[0]) == C4),
        **shuffle,
    }
    shape = draft.graph.facts[node.outputs[0]].shape
    dispatch = launch_chain(layers, waves, shape, (source, weights, target), defines)
    cost = Cost(sum(launch.cost.flops for launch in run), before.read, after.written)
    return Launch(node, KERNEL, dispatch, cost)


# -- runs ------------------------------------------------------------------------------------------


def _runs(draft: Draft) -> list[list[Launch]]:
    """Returns the dispatches of convolutions of one tap of which each reads the one before, and
    nothing else does."""
    preserved = preserved_roots(draft)
    runs: dict[str, list[Launch]] = {}  # by the result of the last dispatch
    for launch in single_launches(draft):
        node = launch.node
        if not _is_pointwise(draft, launch):
            continue
        source = node.inputs[0]
        run = [launch]
        if source in runs and is_internal(draft, preserved, source):
            run = [*runs[source], launch]
            if fits([_layer(draft.graph, member[0]) for member in run]):
                del runs[source]
            else:
                run = [launch]
        runs[node.outputs[0]] = run
    return [run for run in runs.values() if len(run) > 1]


def _is_pointwise(draft: Draft, launch: Launch) -> bool:
    """Returns True for the dispatch of a small convolution of one constant tap of floats."""
    graph, node = draft.graph, launch.node
    if not launch.path.startswith("conv/") or not is_plain_conv(draft, launch):
        return False
    if node.inputs[0] != launch.dispatch.tensors[0]:
        return False
    values = {name: graph.constant(name) for name in node.reads}
    shape = conv_shape(node.attrs, *graph.facts_of(node.inputs))
    return _is_small(shape) and all(is_possible(e, values) for e in node.epilogues)


def _is_small(shape: ConvShape) -> bool:
    is_single = shape.taps == shape.groups == 1 and all(axis.trivial for axis in shape.axes)
    has_blocks = 0 < shape.in_channels <= MOST_CHANNELS and shape.in_channels % 4 == 0
    groups = groups_of(shape.batch, prod(shape.wide))
    few_rows = 0 < shape.out_channels <= 2 * MOST_CHANNELS
    return is_single and has_blocks and few_rows and 0 < groups <= _MOST_GROUPS


def _layer(graph: Graph, node: Node) -> Layer:
    filter, bias = (graph.constants[name] for name in node.inputs[1:])
    rows = filter.shape[0]
    steps = []
    for epilogue in node.epilogues:
        formula = formula_of(epilogue.op)
        assert formula is not None  # epilogues have formulas
        operands = [float(graph.constants[name].reshape(())) for name in epilogue.inputs]
        steps.append((epilogue, formula.values(epilogue.attrs), operands))
    biases = np.broadcast_to(bias.reshape(-1), (rows,))
    return Layer(filter.reshape(rows, -1), biases, tuple(steps))
