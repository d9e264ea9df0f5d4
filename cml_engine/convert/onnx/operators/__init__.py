"""The rows, by family; importing this package declares them all."""

from __future__ import annotations

from cml_engine.convert.onnx.operators import (  # noqa: F401
    attention,
    attention_microsoft,
    constants,
    indexing,
    matrix,
    movement,
    normalization,
    ordering,
    recurrent,
    reduction,
    unique,
)
from cml_engine.convert.onnx.operators.control import CONTROL
from cml_engine.convert.onnx.operators.elementwise import (  # noqa: F401
    activations,
    arithmetic,
    comparisons,
    losses,
    quantized,
)
from cml_engine.convert.onnx.operators.spatial import convolution, pooling, resize, sampling, signal  # noqa: F401

__all__ = ["CONTROL"]
