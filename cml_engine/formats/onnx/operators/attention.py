"""Imports Attention, RotaryEmbedding, LinearAttention and CausalConvWithState.

``attention_microsoft.py`` imports ONNX Runtime's own attention operators.
"""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.attributes import FLOAT, INT, Attr, at_least, one_of, required
from cml_engine.formats.onnx.call import OnnxCall
from cml_engine.formats.onnx.op_schemas import MICROSOFT, op
from cml_engine.formats.onnx.operators.movement import take_ranges
from cml_engine.formats.onnx.values import Value
from cml_engine.ir.graph import Array

NNEF = "matmul, mul, add, softmax"
_ATTENTION = {
    "is_causal": 0,
    "kv_num_heads": at_least(1),
    "q_num_heads": at_least(1),
    "qk_matmul_output_mode": Attr(int, 0, among=range(4)),
    "scale": FLOAT,
    "softcap": 0.0,
    "softmax_precision": INT,
}
_WINDOWED = {**_ATTENTION, "left_window_size": -1, "right_window_size": -1}


@op("Attention", nnef=NNEF, inputs=7, attrs=_ATTENTION, until=24)
@op("Attention", nnef=NNEF, inputs=7, attrs=_WINDOWED, since=25)
def attention(call: OnnxCall) -> list[Value | None]:
    flat = call[0].rank == 3
    q = split_heads(call, call[0], call.attr("q_num_heads"))
    k = split_heads(call, call[1], call.attr("kv_num_heads"))
    v = split_heads(call, call[2], call.attr("kv_num_heads"))
    past = call[4].shape[2] if call.has(4) else 0
    if past:
        k, v = call.concat([call[4], k], 2), call.concat([call[5], v], 2)
    present = [k, v]
    bias = _bias(call, q.shape[2], k.shape[2], past)
    repeats = q.shape[1] // k.shape[1]
    k, v = (repeat_heads(call, x, repeats) for x in (k, v))
    scale = call.attr("scale")
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    logits = scores(call, q, k, scale, call.attr("softcap"))
    biased = logits if bias is None else call.zip("add", logits, bias)
    weights = masked_softmax(call, biased, bias)
    y = call.op("matmul", weights, v)
    shown = [logits, logits, biased, weights][call.attr("qk_matmul_output_mode")]
    return [join_heads(call, y) if flat else y, *present, shown]


def scores(call: OnnxCall, q: Value, k: Value, scale: float, cap: float) -> Value:
    """Adds operators for the products of queries and keys times ``scale``; returns these logits.

    If ``cap`` is positive, a tanh limits them softly to -``cap`` to ``cap``.
    """
    logits = call.op("matmul", call.op("mul", q, float(scale)), k, transposeB=True)
    if cap <= 0:
        return logits
    return call.op("mul", call.op("tanh", call.op("mul", logits, 1 / cap)), cap)


def split_heads(call: OnnxCall, x: Value, heads: int | None) -> Value:
    """Splits [batch, length, heads * size] into [batch, heads, length, size].

    A tensor of four axes is returned unchanged.
    """
    if x.rank == 4:
        return x
    if x.rank != 3 or not heads or x.shape[2] % heads:
        raise call.shape_error(f"{x} of {heads} heads")
    batch, length, width = x.shape
    return call.transpose(call.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])


def join_heads(call: OnnxCall, x: Value) -> Value:
    batch, heads, length, size = x.shape
    return call.reshape(call.transpose(x, [0, 2, 1, 3]), [batch, length, heads * size])


def repeat_heads(call: OnnxCall, x: Value, times: int) -> Value:
    """Adds operators that repeat every head of [batch, heads, length, size] ``times`` times.

    Several heads of queries then share keys and values. Returns the result.
    """
    if times == 1:
        return x
    batch, heads, length, size = x.shape
    each = call.expand(call.unsqueeze(x, [2]), [batch, heads, times, length, size])
    return call.reshape(each, [batch, heads * times, length, size])


def _bias(call: OnnxCall, queries: int, keys: int, past: int) -> Value | None:
    """Returns the addend before the softmax for mask, causality, windows and lengths, or None.

    It is 0 where a query may attend to a key and minus infinity elsewhere.
    """
    found: Value | None = _mask(call, keys) if call.has(3) else None
    offset = _offset(call, queries, past)
    left = call.attributes.get("left_window_size", -1)
    right = call.attributes.get("right_window_size", -1)
    bounds: list[tuple[str, int]] = [("le", 0)] if call.attr("is_causal") else []
    bounds += [("le", right)] if right >= 0 else []
    bounds += [("ge", -left)] if left >= 0 else []
    call.allocate([queries, keys])
    ahead = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    for comparison, bound in bounds:
        found = add_mask(call, found, window_mask(call, ahead, offset, comparison, bound))
    if call.has(6):
        places = Value.known(np.arange(keys).reshape(1, 1, 1, keys))
        lengths = call.reshape(call[6], [call[6].shape[0], 1, 1, 1])
        found = add_mask(
            call, found, additive_mask(call, compare_values(call, "lt", places, lengths))
        )
    return found


def _offset(call: OnnxCall, queries: int, past: int) -> Value:
    """Returns, as a value of int64, the position among the keys of the first query.

    It is the number of past keys, or the keys' valid length minus the number of queries.
    """
    if call.has(6) and not past:
        lengths = call.reshape(call[6], [call[6].shape[0], 1, 1, 1])
        if lengths.array is not None:
            return Value.known(lengths.array - queries)
        return call.op("int_sub", lengths, queries)
    return Value.known(np.array(past, np.int64))


def window_mask(call: OnnxCall, ahead: Array, offset: Value, comparison: str, bound: int) -> Value:
    """Returns an additive mask: 0 where ``ahead`` compares true with ``offset + bound``, else -inf.

    ``ahead`` is a key's index minus a query's, and ``comparison`` is ``"le"`` or ``"ge"``.
    """
    limit = (
        Value.known(offset.array + bound)
        if offset.array is not None
        else call.op("int_add", offset, bound)
    )
    return additive_mask(call, compare_values(call, comparison, Value.known(ahead), limit))


def compare_values(call: OnnxCall, name: str, x: Value, y: Value) -> Value:
    if x.array is not None and y.array is not None:
        functions = {"le": np.less_equal, "ge": np.greater_equal, "lt": np.less}
        return Value.known(functions[name](x.array, y.array))
    return call.zip(f"int_{name}", x, y)


def _mask(call: OnnxCall, keys: int) -> Value:
    """Returns the mask input as an addend, extended to ``keys`` keys.

    The added keys are masked out.
    """
    mask, missing = call[3], keys - call[3].shape[-1]
    if missing > 0:
        shape = [*mask.shape[:-1], missing]
        rest = np.zeros(shape, np.bool_) if mask.kind == "logical" else np.full(shape, -np.inf)
        mask = call.concat([mask, Value.known(rest.astype(mask.dtype))], mask.rank - 1)
    return additive_mask(call, mask) if mask.kind == "logical" else call.scalar(mask)


def additive_mask(call: OnnxCall, allowed: Value) -> Value:
    if allowed.array is not None:
        return Value.known(np.where(allowed.array, 0, -np.inf).astype(np.float32))
    return call.op("select", allowed, 0.0, float("-inf"))


def add_mask(call: OnnxCall, x: Value | None, y: Value) -> Value:
    if x is None:
        return y
    if x.array is not None and y.array is not None:
        return Value.known(x.array + y.array)
    return call.zip("add", x, y)


def masked_softmax(call: OnnxCall, logits: Value, bias: Value | None) -> Value:
    """Adds a softmax of logits over the last axis; rows that are masked out entirely give 0.

    ``bias`` is the mask that the logits already contain. Returns the weights.
    """
    last = logits.rank - 1
    weights = call.op("softmax", logits, axes=[last])
    if bias is None:
        return weights
    if bias.array is not None:
        empty = np.isneginf(bias.array.max(-1, keepdims=True))
        if not empty.any():
            return weights
        return call.zip("select", Value.known(empty), 0.0, weights)
    top = call.op("max_reduce", bias, axes=[bias.rank - 1])
    nothing = call.op("lt", top, float(np.finfo(np.float32).min))
    return call.zip("select", nothing, 0.0, weights)


# -- positions -----------------------------------------------------------------------------------

_ROTARY = {"interleaved": 0, "num_heads": at_least(0, 0), "rotary_embedding_dim": at_least(0, 0)}


@op("RotaryEmbedding", nnef="gather, split, mul, add, sub, concat", inputs=4, attrs=_ROTARY)
def rotary_embedding(call: OnnxCall) -> Value:
    return _rotate_values(call, call[1], call[2], call[3] if call.has(3) else None)


@op("RotaryEmbedding", nnef="gather, split, mul, add, sub, concat", inputs=4, domain=MICROSOFT,
    attrs={**_ROTARY, "is_packed_batching": 0, "scale": 1.0})  # fmt: skip
def microsoft_rotary_embedding(call: OnnxCall) -> Value:
    if call[1].shape == (1,):
        raise call.unsupported_error("a single first position")
    if call.attr("is_packed_batching") or call.attr("scale") != 1.0:
        raise call.unsupported_error("is_packed_batching or a scale")
    return _rotate_values(call, call[2], call[3], call[1])


def _rotate_values(call: OnnxCall, cosines: Value, sines: Value, positions: Value | None) -> Value:
    x = call[0]
    flat, heads = x.rank == 3, call.attr("num_heads")
    if flat:
        batch, length, width = x.shape
        if not heads:
            raise call.shape_error("num_heads is missing")
        x = call.reshape(x, [batch, length, heads, width // heads])
    else:
        x = call.transpose(x, [0, 2, 1, 3])
    size = call.attr("rotary_embedding_dim") or x.shape[3]
    c, s = (_cache(call, v, positions) for v in (cosines, sines))
    y = rotate(call, x, c, s, size, bool(call.attr("interleaved")))
    return call.reshape(y, call[0].shape) if flat else call.transpose(y, [0, 2, 1, 3])


def rotate(call: OnnxCall, x: Value, c: Value, s: Value, size: int, interleaved: bool) -> Value:
    """Adds operators that apply a rotary embedding to the first ``size`` elements of every head.

    ``x`` is [batch, length, heads, head size]; ``c`` and ``s`` are the cosines and sines.
    Returns the result, of the shape of ``x``.
    """
    turned, rest = call.slice(x, 3, 0, size), call.slice(x, 3, size, x.shape[3])
    a, b = _halves(call, turned, size, interleaved)
    real = call.op("sub", call.op("mul", a, c), call.op("mul", b, s))
    imaginary = call.op("add", call.op("mul", a, s), call.op("mul", b, c))
    if interleaved:
        both = call.op("stack", real, imaginary, axis=4)
        turned = call.reshape(both, [*x.shape[:3], size])
    else:
        turned = call.concat([real, imaginary], 3)
    return call.concat([turned, rest], 3)


def _halves(call: OnnxCall, x: Value, size: int, interleaved: bool) -> list[Value]:
    if not interleaved:
        return call.split(x, 3, [size // 2, size // 2])
    return [take_ranges(call, x, {3: range(first, size, 2)}) for first in (0, 1)]


def _cache(call: OnnxCall, cache: Value, positions: Value | None) -> Value:
    """Returns the cosines or sines of a rotary embedding, [batch, length, 1, half the size].

    They are the rows of ``cache`` at the positions, or all of it without positions.
    """
    if positions is not None:
        cache = call.op("gather", cache, positions, axis=0)
    cache = call.unsqueeze(cache, [cache.rank - 1])
    return cache if cache.rank == 4 else call.unsqueeze(cache, [0])


# -- recurrent attention -------------------------------------------------------------------------

_LINEAR = {
    "chunk_size": 64,
    "kv_num_heads": required(at_least(1)),
    "q_num_heads": required(at_least(1)),
    "scale": 0.0,
    "update_rule": one_of("gated_delta", "gated", "delta", "linear"),
}


@op("LinearAttention", nnef="matmul, mul, add, exp", inputs=6, attrs=_LINEAR)
def linear_attention(call: OnnxCall) -> list[Value | None]:
    heads, groups, rule = (
        call.attr("kv_num_heads"),
        call.attr("q_num_heads"),
        call.attr("update_rule"),
    )
    q, k, v = (
        split_heads(call, call[0], groups),
        split_heads(call, call[1], heads),
        split_heads(call, call[2], heads),
    )
    batch, _, length, size = k.shape
    call.check_written_out(length)
    gating, delta = rule in ("gated", "gated_delta"), rule in ("delta", "gated_delta")
    decay = call.op("exp", split_heads(call, call[4], heads)) if gating else None
    beta = split_heads(call, call[5], call[5].shape[2]) if delta else None
    zero = Value.known(np.zeros((batch, heads, size, v.shape[3]), np.float32))
    state = call[3] if call.has(3) else zero
    outputs = []
    for t in range(length):
        key, value = (call.slice(x, 2, t, t + 1) for x in (k, v))
        if decay is not None:
            state = call.op(
                "mul", state, call.transpose(call.slice(decay, 2, t, t + 1), [0, 1, 3, 2])
            )
        if beta is not None:
            old = call.op("matmul", key, state)
            value = call.op("mul", call.op("sub", value, old), call.slice(beta, 2, t, t + 1))
        state = call.op("add", state, call.op("matmul", key, value, transposeA=True))
        read = repeat_heads(call, state, groups // heads)
        outputs.append(call.op("matmul", call.slice(q, 2, t, t + 1), read))
    scale = call.attr("scale") or 1 / np.sqrt(size)
    y = call.op("mul", call.concat(outputs, 2), float(scale))
    return [join_heads(call, y), state]


@op(
    "CausalConvWithState",
    nnef="concat, conv, silu",
    inputs=4,
    attrs={"activation": one_of("none", "silu", "swish")},
)
def causal_conv(call: OnnxCall) -> list[Value | None]:
    x, weights = call[0], call[1]
    batch, channels, length = x.shape
    before = weights.shape[2] - 1
    zero = Value.known(np.zeros((batch, channels, before), np.float32))
    padded = call.concat([call[3] if call.has(3) else zero, x], 2)
    bias = call.unsqueeze(call[2], [0]) if call.has(2) else call.emit.value(0.0)
    y = call.op("conv", padded, weights, bias, border="constant", padding=[(0, 0)], stride=[1],
                dilation=[1], groups=channels)  # fmt: skip
    y = y if call.attr("activation") == "none" else call.op("silu", y)
    return [y, call.slice(padded, 2, length, length + before)]
