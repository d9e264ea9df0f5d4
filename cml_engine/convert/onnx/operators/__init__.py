"""The rows, by family; importing this package declares them all."""

from __future__ import annotations

from cml_engine.convert.onnx.operators import (
    activations,
    arithmetic,
    comparisons,
    constants,
    convolution,
    indexing,
    matrix,
    movement,
    normalization,
    ordering,
    pooling,
    reduction,
    resize,
)
from cml_engine.convert.onnx.operators.control import CONTROL

__all__ = [
    "CONTROL",
    "activations",
    "arithmetic",
    "comparisons",
    "constants",
    "convolution",
    "indexing",
    "matrix",
    "movement",
    "normalization",
    "ordering",
    "pooling",
    "reduction",
    "resize",
]
