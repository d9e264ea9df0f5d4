"""Imports attention, positions and recurrent attention, of ONNX and of models that ONNX Runtime has
optimised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cml_engine.formats.onnx.op_schemas import MICROSOFT, Attr, at_least, attribute, one_of, op
from cml_engine.formats.onnx.operators.matrix import matmul
from cml_engine.formats.onnx.values import (
    InvalidNode,
    Operand,
    Value,
    allocate,
    concat,
    expandable,
    unsupported_error,
    zeros,
)
from cml_engine.io.load_limits import current_budget

_NNEF = "matmul, mul, add, softmax"


@op("Attention", _NNEF)
def attention(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Value | None = None,
    *,
    is_causal: bool = False,
    kv_num_heads: int | None = at_least(1),
    q_num_heads: int | None = at_least(1),
    qk_matmul_output_mode: int = attribute(0, among=range(4)),
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    left_window_size: int = attribute(-1, since=25),
    right_window_size: int = attribute(-1, since=25),
) -> list[Value]:
    q = _split_heads(query, q_num_heads)
    k, v, n_past = _with_past(
        _split_heads(key, kv_num_heads), _split_heads(value, kv_num_heads), past_key, past_value
    )
    queries, keys = q.shape[2], k.shape[2]
    bias = None if mask is None else _extended_mask(mask, keys)
    offset: Operand = n_past
    if lengths is not None:
        lengths = lengths.reshape([lengths.shape[0], 1, 1, 1])
        offset = n_past or lengths - queries
    keys_after = 0 if is_causal else right_window_size
    bias = _add_window(bias, queries, keys, offset, left_window_size, keys_after)
    if lengths is not None:
        bias = _restricted(bias, _key_indices(keys).lt(lengths))
    y, logits, biased, weights = _attend(q, k, v, bias, scale, softcap)
    qk_output = [logits, logits, biased, weights][qk_matmul_output_mode]
    return [_join_heads(y) if query.rank == 3 else y, k, v, qk_output]


def _attend(
    q: Value, k: Value, v: Value, bias: Value | None, scale: float | None, cap: float = 0.0
) -> tuple[Value, Value, Value, Value]:
    """Adds an attention with the mask ``bias``.

    Returns the result, the logits without and with the mask, and the weights. The logits are
    products of queries and keys times ``scale``, by default one over the root of the heads' size.
    If ``cap`` is positive, a tanh limits them softly to -``cap`` to ``cap``.
    """
    k, v = (_repeat_heads(x, q.shape[1] // k.shape[1]) for x in (k, v))
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    logits = (q * float(scale)).matmul(k, transposeB=True)
    logits = logits if cap <= 0 else (logits * (1 / cap)).tanh() * cap
    biased = logits if bias is None else logits + expandable(bias, logits.shape, "the mask")
    weights = _masked_softmax(biased, bias)
    return weights.matmul(v), logits, biased, weights


def _split_heads(x: Value, heads: int | None) -> Value:
    """Splits [batch, length, heads * size] into [batch, heads, length, size].

    A tensor of four axes is returned unchanged.
    """
    if x.rank == 4:
        return x
    if x.rank != 3 or not heads or x.shape[2] % heads:
        raise InvalidNode(f"{x} of {heads} heads")
    batch, length, width = x.shape
    return x.reshape([batch, length, heads, width // heads]).transpose([0, 2, 1, 3])


def _join_heads(x: Value) -> Value:
    batch, heads, length, size = x.shape
    return x.transpose([0, 2, 1, 3]).reshape([batch, length, heads * size])


def _with_past(
    k: Value, v: Value, past_key: Value | None, past_value: Value | None
) -> tuple[Value, Value, int]:
    """Returns keys and values with past ones in front, and the number of past ones."""
    n_past = past_key.shape[2] if past_key is not None else 0
    if past_key is None or not n_past:
        return k, v, 0
    if past_value is None:
        raise InvalidNode("past keys without past values")
    return concat([past_key, k], 2), concat([past_value, v], 2), n_past


def _repeat_heads(x: Value, times: int) -> Value:
    """Adds operators that repeat every head of [batch, heads, length, size] ``times`` times.

    Several heads of queries then share keys and values. Returns the result.
    """
    if times == 1:
        return x
    batch, heads, length, size = x.shape
    repeated = x.unsqueeze([2]).expand([batch, heads, times, length, size])
    return repeated.reshape([batch, heads * times, length, size])


# -- masks: 0 where a query may attend to a key and minus infinity elsewhere ---------------------


def _key_indices(keys: int) -> Value:
    return Value.known(np.arange(keys).reshape(1, 1, 1, keys))


def _add_window(
    mask: Value | None, queries: int, keys: int, offset: Operand, before: int, after: int
) -> Value | None:
    """Returns a mask that also bounds how far from a query's place its keys may be.

    The place of query ``i`` is key ``i + offset``. A bound below 0 is none.
    """
    if max(before, after) < 0:
        return mask
    allocate([queries, keys])
    distance = Value.known(np.arange(keys)[None, :] - np.arange(queries)[:, None])
    limit = queries + keys  # a larger bound excludes nothing
    if after >= 0:
        mask = _restricted(mask, distance.le(offset + min(after, limit)))
    if before >= 0:
        mask = _restricted(mask, distance.ge(offset - min(before, limit)))
    return mask


def _extended_mask(mask: Value, keys: int) -> Value:
    """Returns a mask input as an addend, extended to ``keys`` keys.

    The added keys are masked out.
    """
    missing = keys - mask.shape[-1]
    if missing > 0:
        shape = [*mask.shape[:-1], missing]
        masked = np.zeros(shape, np.bool_) if mask.kind == "logical" else np.full(shape, -np.inf)
        mask = concat([mask, Value.known(masked.astype(mask.dtype))], mask.rank - 1)
    return _additive_mask(mask) if mask.kind == "logical" else mask.scalar()


def _restricted(mask: Value | None, allowed: Value) -> Value | None:
    """Returns a mask that also excludes the keys that are not ``allowed``."""
    return _sum_of_masks(mask, _additive_mask(allowed))


def _additive_mask(allowed: Value) -> Value:
    return allowed.select(0.0, -np.inf)


def _sum_of_masks(x: Value | None, y: Value | None) -> Value | None:
    if x is None or y is None:
        return x if y is None else y
    return x + y


def _masked_softmax(logits: Value, bias: Value | None) -> Value:
    """Adds a softmax of logits over the last axis; rows that are masked out entirely give 0.

    ``bias`` is the mask that the logits already contain. Returns the weights.
    """
    weights = logits.softmax(axes=[logits.rank - 1])
    if bias is None:
        return weights
    if bias.array is None:
        is_masked_out = bias.max_reduce(axes=[bias.rank - 1]).lt(float(np.finfo(np.float32).min))
        return is_masked_out.select(0.0, weights)
    is_masked_out_row = np.isneginf(bias.array.max(-1, keepdims=True))
    return (
        Value.known(is_masked_out_row).select(0.0, weights) if is_masked_out_row.any() else weights
    )


# -- of ONNX Runtime -----------------------------------------------------------------------------


@op("MultiHeadAttention", _NNEF, domain=MICROSOFT)
def multi_head_attention(
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    input_bias: Value | None = None,
    padding: Value | None = None,
    bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_length: Value | None = None,
    cache: Value | None = None,
    *,
    num_heads: int = at_least(1, required=True),
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: bool = False,
) -> list[Value]:
    """Imports MultiHeadAttention; returns its result and the keys and values, past ones first."""
    if past_length is not None or cache is not None or key is None or value is None:
        raise unsupported_error("packed queries, or past keys in a buffer of a fixed length")
    values = [query, key, value]
    if input_bias is not None:
        if any(x.rank != 3 for x in values):
            raise unsupported_error("a bias of keys that are in heads already")
        parts = input_bias.split(0, [x.shape[2] for x in values])
        values = [x + part for x, part in zip(values, parts, strict=True)]
    q, k, v = (_split_heads(x, num_heads) for x in values)
    k, v, n_past = _with_past(k, v, past_key, past_value)
    mask = _padding_mask(padding, q, k.shape[2], mask_filter_value)
    queries, keys = q.shape[2], k.shape[2]
    if unidirectional and queries > 1:
        if keys - n_past > queries:
            # ONNX Runtime shows the last query all keys, and the others too few by as many
            raise unsupported_error(
                f"unidirectional with {queries} queries and {keys - n_past} keys (give as many "
                "keys as queries and the others as past keys, or one query)"
            )
        mask = _add_window(mask, queries, keys, n_past, -1, 0)
    mask = _sum_of_masks(mask, bias)
    return [_join_heads(_attend(q, k, v, mask, scale or None)[0]), k, v]


def _padding_mask(mask: Value | None, q: Value, keys: int, masked_value: float) -> Value | None:
    """Returns an addend that masks out the padding among the keys of the queries ``q``, if any.

    The mask input is 0 at padding; or it gives the number of valid keys of each batch item, and
    perhaps the first valid key of each item behind that.
    """
    if mask is None:
        return None
    batch, _, queries, _ = q.shape
    if mask.rank == 1 and mask.shape not in ((batch,), (2 * batch,)):
        raise unsupported_error("a mask of several sequences in an item of the batch")
    if mask.rank == 1:
        end = mask.slice(0, 0, batch).reshape([batch, 1, 1, 1])
        is_padding = _key_indices(keys).ge(end)
        if mask.shape != (batch,):
            begin = mask.slice(0, batch, 2 * batch).reshape([batch, 1, 1, 1])
            is_padding = is_padding.or_(_key_indices(keys).lt(begin))
    elif mask.rank == 4:  # for the longest sequence: its last rows and first columns count
        is_padding = mask.take({2: range(keys - queries, keys), 3: range(keys)}).le(0)
    else:
        shape = [batch, 1, *([1] if mask.rank == 2 else []), *mask.shape[1:]]
        is_padding = mask.reshape(shape).le(0)
    return is_padding.select(masked_value, 0.0)


@op("Attention", _NNEF, domain=MICROSOFT)
def microsoft_attention(
    x: Value,
    weights: Value,
    input_bias: Value | None = None,
    padding: Value | None = None,
    past: Value | None = None,
    bias: Value | None = None,
    past_length: Value | None = None,
    *,
    do_rotary: bool = False,
    mask_filter_value: float = -10000.0,
    num_heads: int = at_least(1, required=True),
    past_present_share_buffer: bool = False,
    qkv_hidden_sizes: list[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: bool = False,
) -> list[Value]:
    """Imports ONNX Runtime's Attention, which projects its input to queries, keys and values.

    Returns its result and the keys and values, past ones first.
    """
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise unsupported_error("do_rotary, or past keys in a buffer of a fixed length")
    width = weights.shape[-1]
    sizes = qkv_hidden_sizes or [width // 3] * 3
    if x.rank != 3 or weights.rank != 2 or len(sizes) != 3 or sum(sizes) != width:
        raise InvalidNode(f"weights {weights} for {x} and the sizes {sizes}")
    projected = matmul(x, weights)
    projected = projected if input_bias is None else projected + input_bias
    q, k, v = (_split_heads(part, num_heads) for part in projected.split(2, sizes))
    pasts = [None, None] if past is None else [part.squeeze([0]) for part in past.split(0, [1, 1])]
    k, v, n_past = _with_past(k, v, *pasts)
    mask = _padding_mask(padding, q, k.shape[2], mask_filter_value)
    keys_after = 0 if unidirectional else -1
    mask = _add_window(mask, q.shape[2], k.shape[2], n_past, -1, keys_after)
    y = _join_heads(_attend(q, k, v, _sum_of_masks(mask, bias), scale or None)[0])
    has_pairs = k.shape == v.shape
    return [y, concat([k.unsqueeze([0]), v.unsqueeze([0])], 0)] if has_pairs else [y]


@op("GroupQueryAttention", _NNEF, domain=MICROSOFT)
def group_query_attention(
    query: Value,
    key: Value | None = None,
    value: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    seqlens_k: list[int] = attribute(required=True),
    total_length: Value | None = None,
    cosines: Value | None = None,
    sines: Value | None = None,
    positions: Value | None = None,
    bias: Value | None = None,
    sink: Value | None = None,
    key_scale: Value | None = None,
    value_scale: Value | None = None,
    *,
    do_rotary: bool = False,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int = at_least(1, required=True),
    local_window_size: int = -1,
    num_heads: int = at_least(1, required=True),
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    smooth_softmax: bool = False,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> list[Value]:
    """Imports GroupQueryAttention; returns its result and the keys and values, past ones first.

    All sequences of a batch must be as long as their keys.
    """
    if smooth_softmax or any(x is not None for x in (sink, key_scale, value_scale)):
        raise unsupported_error("smooth_softmax, a sink or a quantized cache")
    counts = [num_heads, kv_num_heads, kv_num_heads]
    if key is None or value is None:  # the query has all three
        size = query.shape[2] // sum(counts)
        values = query.split(2, [n * size for n in counts])
    else:
        values = [query, key, value]
    q, k, v = map(_split_heads, values, counts)
    length = query.shape[1]
    n_past = past_key.shape[2] if past_key is not None else 0
    total = n_past + length
    if any(n != total - 1 for n in seqlens_k):
        raise unsupported_error(f"seqlens_k other than {total - 1}, past and new keys less one,")
    if do_rotary:
        if positions is not None:
            raise unsupported_error("position_ids of its own")
        if cosines is None or sines is None:
            raise InvalidNode("do_rotary without cosines and sines")
        c, s = (x.slice(0, n_past, total).unsqueeze([0, 1]) for x in (cosines, sines))
        size = 2 * cosines.shape[1]
        q, k = (_rotate(x, c, s, size, rotary_interleaved) for x in (q, k))
    k, v, _ = _with_past(k, v, past_key, past_value)
    mask = _add_window(None, length, total, n_past, local_window_size - 1, 0)
    mask = _sum_of_masks(mask, bias)
    return [_join_heads(_attend(q, k, v, mask, scale or None, softcap)[0]), k, v]


# -- positions -----------------------------------------------------------------------------------

_ROTARY = "gather, split, mul, add, sub, concat"
_ROTATION: Mapping[str, Attr] = {
    "interleaved": Attr(bool, False),
    "num_heads": at_least(0, 0),
    "rotary_embedding_dim": at_least(0, 0),
}


@op("RotaryEmbedding", _ROTARY, attrs=_ROTATION)
def rotary_embedding(
    x: Value,
    cosines: Value,
    sines: Value,
    positions: Value | None = None,
    *,
    interleaved: bool,
    num_heads: int,
    rotary_embedding_dim: int,
) -> Value:
    heads, axis_of_heads = x, 1
    if x.rank == 3:
        batch, length, width = x.shape
        if not num_heads:
            raise InvalidNode("num_heads is missing")
        heads, axis_of_heads = x.reshape([batch, length, num_heads, width // num_heads]), 2
    c, s = (_cache(v, positions).unsqueeze([axis_of_heads]) for v in (cosines, sines))
    y = _rotate(heads, c, s, rotary_embedding_dim or heads.shape[3], interleaved)
    return y.reshape(x.shape)


@op("RotaryEmbedding", _ROTARY, domain=MICROSOFT, attrs=_ROTATION)
def microsoft_rotary_embedding(
    x: Value,
    positions: Value,
    cosines: Value,
    sines: Value,
    *,
    is_packed_batching: int = 0,
    scale: float = 1.0,
    **rotation: Any,
) -> Value:
    if positions.shape == (1,):
        raise unsupported_error("a single first position")
    if is_packed_batching or scale != 1.0:
        raise unsupported_error("is_packed_batching or a scale")
    return rotary_embedding(x, cosines, sines, positions, **rotation)


def _rotate(x: Value, c: Value, s: Value, size: int, interleaved: bool) -> Value:
    """Adds operators that apply a rotary embedding to the first ``size`` elements of every head.

    ``x`` is [batch, length, heads, head size] or [batch, heads, length, head size]; ``c`` and ``s``
    are the cosines and sines, which broadcast over the heads. Returns the result, of the shape of
    ``x``.
    """
    rotated, unrotated = x.slice(3, 0, size), x.slice(3, size, x.shape[3])
    if interleaved:
        a, b = (rotated.take({3: range(first, size, 2)}) for first in (0, 1))
    else:
        a, b = rotated.split(3, [size // 2, size // 2])
    real, imaginary = a * c - b * s, a * s + b * c
    if interleaved:
        rotated = real.stack(imaginary, axis=4).reshape([*x.shape[:3], size])
    else:
        rotated = concat([real, imaginary], 3)
    return concat([rotated, unrotated], 3)


def _cache(cache: Value, positions: Value | None) -> Value:
    """Returns the cosines or sines of a rotary embedding, [batch, length, half the size].

    They are the rows of ``cache`` at the positions, or all of it without positions.
    """
    cache = cache if positions is None else cache.gather(positions, axis=0)
    return cache.lift(3)


# -- recurrent attention -------------------------------------------------------------------------


@op("LinearAttention", "matmul, mul, add, exp")
def linear_attention(
    query: Value,
    key: Value,
    value: Value,
    past_state: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int = at_least(1, required=True),
    q_num_heads: int = at_least(1, required=True),
    scale: float = 0.0,
    update_rule: str = one_of("gated_delta", "gated", "delta", "linear"),
) -> list[Value]:
    heads, groups = kv_num_heads, q_num_heads
    q, k, v = _split_heads(query, groups), _split_heads(key, heads), _split_heads(value, heads)
    batch, _, length, size = k.shape
    current_budget().check_nodes(length, "the operator")
    is_gated, has_delta = "gated" in update_rule, "delta" in update_rule
    if (is_gated and decay is None) or (has_delta and beta is None):
        raise InvalidNode(f"update_rule '{update_rule}' without its decay or beta")
    gates = _split_heads(decay, heads).exp() if is_gated and decay is not None else None
    rates = _split_heads(beta, beta.shape[2]) if has_delta and beta is not None else None
    state = zeros((batch, heads, size, v.shape[3])) if past_state is None else past_state
    outputs = []
    for t in range(length):
        key_t, value_t = (x.slice(2, t, t + 1) for x in (k, v))
        if gates is not None:
            state = state * gates.slice(2, t, t + 1).transpose([0, 1, 3, 2])
        if rates is not None:
            value_t = (value_t - key_t.matmul(state)) * rates.slice(2, t, t + 1)
        state = state + key_t.matmul(value_t, transposeA=True)
        shared_state = _repeat_heads(state, groups // heads)
        outputs.append(q.slice(2, t, t + 1).matmul(shared_state))
    y = concat(outputs, 2) * float(scale or 1 / np.sqrt(size))
    return [_join_heads(y), state]


@op("CausalConvWithState", "concat, conv, silu")
def causal_conv(
    x: Value,
    weights: Value,
    bias: Value | None = None,
    past: Value | None = None,
    *,
    activation: str = one_of("none", "silu", "swish"),
) -> list[Value]:
    batch, channels, length = x.shape
    n_past = weights.shape[2] - 1
    padded = concat([zeros((batch, channels, n_past)) if past is None else past, x], 2)
    y = padded.conv(
        weights, 0.0 if bias is None else bias.unsqueeze([0]), padding=[(0, 0)], stride=[1],
        dilation=[1], groups=channels,
    )  # fmt: skip
    y = y if activation == "none" else y.silu()
    return [y, padded.slice(2, length, length + n_past)]
