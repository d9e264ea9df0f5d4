"""Folds batch normalization and per-channel constant sums and products into the weights.

``s (W x + b) + t`` is ``(s W) x + (s b + t)``: one operator with the same number of weights. The
new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from cml_engine.compiler.passes.rules import Match, Rule, rewrite_custom
from cml_engine.ir.block_weights import weight_blocks
from cml_engine.ir.graph import Array, Graph, Node
from cml_engine.ops.declaration.registry import lookup, registered


def fold_affine(graph: Graph) -> Graph:
    """Returns the graph with per-channel affine operators folded into conv, deconv and linear."""
    linear = [spec.name for spec in registered().values() if spec.traits.scaled_weights]
    rules = [
        Rule(f"{outer} into {inner}", (inner, outer), _fold, operands)
        for inner in linear
        for outer, operands in _OPERANDS.items()
    ]
    return rewrite_custom(graph, rules)


def _fold(match: Match) -> Node | None:
    inner, outer = match.nodes
    result = match.fact(outer.outputs[0])
    weights, bias = (match.constant(name) for name in inner.inputs[1:3])
    if weights is None or bias is None or match.fact(inner.outputs[0]) != result or not result.size:
        return None
    factors = _affine(match)
    if factors is None:
        return None
    channels = result.shape[1]
    scale, shift = (np.broadcast_to(f.reshape(-1), (channels,)) for f in factors)
    scaled_weights = lookup(inner.op).traits.scaled_weights
    assert scaled_weights is not None  # the rules match only operators that have it
    with np.errstate(all="ignore"):
        facts = [match.fact(name) for name in inner.inputs]
        blocks = weight_blocks(weights)
        if blocks is None:
            folded_weights = scaled_weights(inner.attrs, facts, weights, scale).astype(np.float32)
        else:  # the same codes with other scales
            ones = np.ones(weights.shape)
            folded_weights = blocks.scaled(scaled_weights(inner.attrs, facts, ones, scale))
        folded_bias = (bias.reshape(-1).astype(np.float64) * scale + shift).astype(np.float32)
    if not (np.isfinite(folded_weights).all() and np.isfinite(folded_bias).all()):
        return None
    names = (
        match.add_constant("folded_filter", folded_weights),
        match.add_constant("folded_bias", folded_bias.reshape(1, channels)),
    )
    return match.node(inner.op, (inner.inputs[0], *names), inner.attrs)


def _affine(match: Match) -> tuple[Array, Array] | None:
    """Returns ``(s, t)`` if the match's last node computes ``s x + t`` with constants, else None.

    Both are float64, with one value or one per channel.
    """
    node = match.last
    operands = [_per_channel(match, n) for i, n in enumerate(node.inputs) if i != match.position]
    values = [value for value in operands if value is not None]
    if len(values) != len(operands):
        return None
    one, zero = np.ones(1), np.zeros(1)
    with np.errstate(all="ignore"):
        if node.op == "batch_normalization":
            mean, variance, offset, scale = values
            slope = scale / np.sqrt(variance + float(node.attrs["epsilon"]))
            return slope, offset - slope * mean
        if node.op == "mul":
            return values[0], zero
        if node.op == "div":
            return 1 / values[0], zero
        if node.op == "add":
            return one, values[0]
        return (one, -values[0]) if match.position == 0 else (-one, values[0])


def _per_channel(match: Match, name: str) -> Array | None:
    """Returns a constant's values as a flat float64 array with one value or one per channel.

    Returns None if the tensor is no constant or has another shape.
    """
    value = match.constant(name)
    result = match.fact(match.last.outputs[0])
    if value is None or value.ndim > result.rank:
        return None
    channels = value.ndim >= 2 and value.shape[1] == result.shape[1] == value.size
    return value.astype(np.float64).reshape(-1) if value.size == 1 or channels else None


_OPERANDS = {"batch_normalization": (0,), "div": (0,), "mul": (0, 1), "add": (0, 1), "sub": (0, 1)}
