"""Elementwise operators applied in place to a result that nobody else holds.

``elementwise.py`` defines them. These give the same values (NaN and infinity included; of the two
zeros perhaps the other one) without a mask and with at most one temporary: ``np.where`` takes ten
times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cml_engine.graph import Attrs
from cml_engine.ops.broadcast import left_view

Array = np.ndarray[Any, Any]

_ZERO = np.float32(0)


def apply_in_place(op: str, attrs: Attrs, x: Array, others: Sequence[Array]) -> bool:
    """``x = op(x, *others)``; False (and nothing done) where there is no way to do so here."""
    form = _FORMS.get(op)
    if form is None or not all(_fits(x, other) for other in others):
        return False
    return form(attrs, x, *(left_view(other, x.ndim) for other in others))


def _fits(x: Array, other: Array) -> bool:
    """Whether broadcasting with it leaves the shape and the type of ``x``."""
    pairs = zip(other.shape, x.shape, strict=False)
    return (
        other.dtype == x.dtype and other.ndim <= x.ndim and all(n in (1, wide) for n, wide in pairs)
    )


def _relu(attrs: Attrs, x: Array) -> bool:
    np.fmax(x, _ZERO, out=x)  # as x > 0 ? x : 0 does, fmax makes 0 of NaN
    return True


def _prelu(attrs: Attrs, x: Array, slope: Array) -> bool:
    if np.all((slope > 0) & (slope <= 1)):
        # the larger of the two; not so for a slope of 0, for that makes NaN of infinity
        np.maximum(x, x * slope, out=x)
        return True
    if not np.isfinite(slope).all():
        return False
    below = np.minimum(x, _ZERO)
    below *= slope
    np.maximum(x, _ZERO, out=x)
    np.add(x, below, out=x)
    return True


def _leaky_relu(attrs: Attrs, x: Array) -> bool:
    return _prelu(attrs, x, np.asarray(attrs["alpha"], np.float32))


def _clamp(attrs: Attrs, x: Array, low: Array, high: Array) -> bool:
    np.minimum(x, high, out=x)
    np.maximum(x, low, out=x)
    return True


def _add(attrs: Attrs, x: Array, other: Array) -> bool:
    np.add(x, other, out=x)
    return True


_FORMS: Mapping[str, Callable[..., bool]] = {
    "relu": _relu,
    "prelu": _prelu,
    "leaky_relu": _leaky_relu,
    "clamp": _clamp,
    "add": _add,
}
