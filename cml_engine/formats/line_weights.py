"""Resizes of lines by constant weights, as the elements that each result reads.

A product with the matrix of weights would multiply all other elements by 0, and one infinity or NaN
would make the whole line NaN.
"""

from __future__ import annotations

import numpy as np

from cml_engine.ir.graph import Array


def taps_of(matrix: Array) -> tuple[Array, Array]:
    """Returns the elements that each row of a matrix of weights reads, and their weights.

    Both are arrays [rows, taps], int32 and float32, with as many taps as the fullest row has
    weights. Other rows read one of their own elements again, with the weight 0.
    """
    is_read = matrix != 0
    taps = max(int(is_read.sum(1).max(initial=0)), 1)
    order = np.argsort(~is_read, axis=1, kind="stable")[:, :taps]  # a row's own elements come first
    weights = np.take_along_axis(matrix, order, 1)
    places = np.where(weights != 0, order, order[:, :1])
    return places.astype(np.int32), weights.astype(np.float32)
