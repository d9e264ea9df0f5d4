"""Imports the attention operators of models that ONNX Runtime has optimised."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.attributes import at_least, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MICROSOFT, op
from cml_engine.formats.onnx.operators.attention import (
    NNEF,
    add_mask,
    compare_values,
    join_heads,
    masked_softmax,
    repeat_heads,
    rotate,
    scores,
    split_heads,
    window_mask,
)
from cml_engine.formats.onnx.values import Value

_MULTI = {
    "num_heads": required(at_least(1)),
    "mask_filter_value": -10000.0,
    "scale": 0.0,
    "unidirectional": 0,
}


@op("MultiHeadAttention", nnef=NNEF, inputs=10, domain=MICROSOFT, attrs=_MULTI)
def multi_head_attention(call: OnnxCall) -> list[Value | None]:
    """Imports MultiHeadAttention; returns its result and the keys and values, with past ones first.

    Its inputs are query, key, value, bias, key_padding_mask, attention_bias, past_key and
    past_value.
    """
    if call.has(8) or call.has(9) or not (call.has(1) and call.has(2)):
        raise call.unsupported_error("packed queries, or past keys in a buffer of a fixed length")
    q, k, v = _with_bias(call)
    past = call[6].shape[2] if call.has(6) else 0
    if past:
        k, v = call.concat([call[6], k], 2), call.concat([call[7], v], 2)
    bias = _padding(call, k.shape[2]) if call.has(4) else None
    if call.attr("unidirectional"):
        bias = add_mask(call, bias, _position_mask(call, q, k, past, "le", 0))
    bias = add_mask(call, bias, call[5]) if call.has(5) else bias
    scale = call.attr("scale") or 1 / np.sqrt(q.shape[3])
    return [join_heads(call, _attend(call, q, k, v, bias, scale, 0.0)), k, v]


def _with_bias(call: OnnxCall) -> list[Value]:
    """Returns queries, keys and values as [batch, heads, length, size], with their biases added."""
    values = [call[i] for i in range(3)]
    if call.has(3):
        if any(value.rank != 3 for value in values):
            raise call.unsupported_error("a bias of keys that are in heads already")
        parts = call.split(call[3], 0, [value.shape[2] for value in values])
        values = [call.zip("add", v, part) for v, part in zip(values, parts, strict=True)]
    return [split_heads(call, value, call.attr("num_heads")) for value in values]


def _padding(call: OnnxCall, keys: int) -> Value:
    """Returns an addend that masks out the padding among the keys.

    The mask input is 0 at padding, or gives the number of valid keys of each batch item.
    """
    mask, filtered = call[4], call.attr("mask_filter_value")
    batch = call[0].shape[0]
    if mask.rank == 1 and mask.shape != (batch,):
        raise call.unsupported_error("a mask of first and last keys")
    if mask.rank == 1:
        places = Value.known(np.arange(keys).reshape(1, 1, 1, keys))
        none = compare_values(call, "ge", places, call.reshape(mask, [batch, 1, 1, 1]))
    else:
        shape = [batch, 1, *([1] if mask.rank == 2 else []), *mask.shape[1:]]
        none = compare_values(call, "le", call.reshape(mask, shape), Value.known(np.array(0)))
    if none.array is not None:
        return Value.known(np.where(none.array, filtered, 0).astype(np.float32))
    return call.op("select", none, filtered, 0.0)


_GROUPED = {
    "do_rotary": 0,
    "k_quant_type": "NONE",
    "kv_cache_bit_width": 0,
    "kv_num_heads": required(at_least(1)),
    "local_window_size": -1,
    "num_heads": required(at_least(1)),
    "qk_output": 0,
    "rotary_interleaved": 0,
    "scale": 0.0,
    "smooth_softmax": 0,
    "softcap": 0.0,
    "v_quant_type": "NONE",
}


@op("GroupQueryAttention", nnef=NNEF, inputs=14, domain=MICROSOFT, attrs=_GROUPED)
def group_query_attention(call: OnnxCall) -> list[Value | None]:
    """Imports GroupQueryAttention.

    Returns its result and the keys and values, with past ones first.

    Its inputs are query, key, value, past_key, past_value, seqlens_k, total_sequence_length,
    cos_cache, sin_cache, position_ids and attention_bias. All sequences of a batch must be as
    long as their keys.
    """
    if call.attr("smooth_softmax") or any(call.has(i) for i in range(11, 14)):
        raise call.unsupported_error("smooth_softmax, a sink or a quantized cache")
    heads, groups = call.attr("num_heads"), call.attr("kv_num_heads")
    q, k, v = _unpack_heads(call, heads, groups)
    past = call[3].shape[2] if call.has(3) else 0
    total = past + q.shape[1]
    if any(n != total - 1 for n in call.ints(5, "seqlens_k")):
        raise call.unsupported_error(
            f"seqlens_k other than {total - 1}, past and new keys less one,"
        )
    if call.attr("do_rotary"):
        q, k = (_rotate(call, x, past) for x in (q, k))
    q, k, v = (call.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
    if past:
        k, v = call.concat([call[3], k], 2), call.concat([call[4], v], 2)
    bias = _position_mask(call, q, k, past, "le", 0)
    if call.attr("local_window_size") > 0:
        window = _position_mask(call, q, k, past, "ge", 1 - call.attr("local_window_size"))
        bias = add_mask(call, bias, window)
    bias = add_mask(call, bias, call[10]) if call.has(10) else bias
    keys, values = (repeat_heads(call, x, heads // groups) for x in (k, v))
    scale = call.attr("scale") or 1 / np.sqrt(q.shape[3])
    y = _attend(call, q, keys, values, bias, scale, call.attr("softcap"))
    return [join_heads(call, y), k, v]


def _unpack_heads(call: OnnxCall, heads: int, groups: int) -> list[Value]:
    """Returns queries, keys and values as [batch, length, heads, size]; one tensor may hold all."""
    batch, length, width = call[0].shape
    counts = [heads, groups, groups]
    if call.has(1):
        values = [call[i] for i in range(3)]
    else:
        size = width // sum(counts)
        values = call.split(call[0], 2, [n * size for n in counts])
    return [
        call.reshape(x, [batch, length, n, x.shape[2] // n])
        for x, n in zip(values, counts, strict=True)
    ]


def _rotate(call: OnnxCall, x: Value, past: int) -> Value:
    if call.has(9):
        raise call.unsupported_error("position_ids of its own")
    length = x.shape[1]
    c, s = (call.unsqueeze(call.slice(call[i], 0, past, past + length), [0, 2]) for i in (7, 8))
    size = 2 * call[7].shape[1]
    return rotate(call, x, c, s, size, bool(call.attr("rotary_interleaved")))


def _position_mask(
    call: OnnxCall, q: Value, k: Value, past: int, comparison: str, bound: int
) -> Value:
    """Returns the additive mask of :func:`window_mask` for queries that follow ``past`` keys."""
    ahead = np.arange(k.shape[2])[None, :] - np.arange(q.shape[2])[:, None]
    return window_mask(call, ahead, Value.known(np.array(past)), comparison, bound)


def _attend(
    call: OnnxCall, q: Value, k: Value, v: Value, bias: Value | None, scale: float, cap: float
) -> Value:
    logits = scores(call, q, k, scale, cap)
    logits = logits if bias is None else call.zip("add", logits, bias)
    return call.op("matmul", masked_softmax(call, logits, bias), v)
