"""The conversions of all ONNX operators, a module per family; importing this registers them."""

from __future__ import annotations

from cml_engine.formats.onnx.operators import (  # noqa: F401
    activations,
    arithmetic,
    attention,
    attention_microsoft,
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
    unique,
)
from cml_engine.formats.onnx.operators.control import CONTROL

__all__ = ["CONTROL"]
