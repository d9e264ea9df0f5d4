"""Finds the results of a convolution that a GPU may compute as NaN instead of the right value.

Groups that are computed side by side have weights of 0 for each other's inputs, and a deconv
reads 0 past the end of its input. A value that is not finite then becomes NaN
(docs/design/nnef.md, "Special values").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cml_engine.ir.graph import Array, Attrs, Fact, Graph, Node
from cml_engine.ops.conv.cpu import conv_cpu, deconv_cpu
from cml_engine.ops.conv.shapes import ConvShape, conv_shape, deconv_shape


def may_be_nan(node: Node, graph: Graph, arrays: Sequence[Array]) -> Array | None:
    """Returns a mask, broadcastable to the result, of the elements that may be NaN on a GPU.

    Returns None if there are none, or the node is no convolution. ``arrays`` begin with the node's
    input and filter.
    """
    if node.op not in ("conv", "deconv"):
        return None
    x, filter = arrays[:2]
    facts = [Fact("scalar", array.shape) for array in (x, filter)]
    shape = (conv_shape if node.op == "conv" else deconv_shape)(node.attrs, *facts)
    apart = shape.group_in == shape.group_out == 1 and node.inputs[1] in graph.constants
    masks = []
    if shape.groups > 1 and not apart and not np.isfinite(x).all():
        masks.append(_by_windows(node, x, filter))
    if node.op == "deconv" and not np.isfinite(filter).all():
        masks.append(_by_channels(shape, filter))
    return np.asarray(masks[0] | masks[-1]) if masks else None


def _by_windows(node: Node, x: Array, filter: Array) -> Array:
    """Returns a mask of the results whose window has a non-finite value in any channel."""
    met = np.any(~np.isfinite(x), 1, keepdims=True).astype(np.float32)
    attrs = {**node.attrs, "groups": 1}
    if attrs.get("output_shape"):
        batch, _, *extents = attrs["output_shape"]
        attrs["output_shape"] = [batch, 1, *extents]
    ones = np.ones((1, 1, *filter.shape[2:]), np.float32)
    run = conv_cpu if node.op == "conv" else deconv_cpu
    return np.asarray(run(Attrs(attrs), met, ones, np.zeros((), np.float32)) > 0)


def _by_channels(shape: ConvShape, filter: Array) -> Array:
    """Returns a mask [1, channels, 1…] that is True for channels with a non-finite weight."""
    odd = ~np.isfinite(filter.reshape(shape.groups, shape.group_in, shape.group_out, -1))
    return np.asarray(odd.any((1, 3)).reshape(1, -1, *(1,) * len(shape.axes)))
