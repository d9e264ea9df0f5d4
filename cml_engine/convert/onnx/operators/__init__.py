"""The rows, by family; importing this package declares them all."""

from __future__ import annotations

from cml_engine.convert.onnx.operators import (  # noqa: F401
    activations,
    arithmetic,
    attention,
    comparisons,
    constants,
    convolution,
    indexing,
    losses,
    matrix,
    movement,
    normalization,
    ordering,
    pooling,
    quantized,
    recurrent,
    reduction,
    resize,
    sampling,
    signal,
)
from cml_engine.convert.onnx.operators.control import CONTROL

__all__ = ["CONTROL"]
