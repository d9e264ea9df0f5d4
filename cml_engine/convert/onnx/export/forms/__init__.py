"""The forms of all operators; importing a family declares its rows."""

from cml_engine.convert.onnx.export.forms import (
    elementwise,
    indexing,
    integers,
    movement,
    pooling,
    products,
    reductions,
    regions,
    resampling,
)

FAMILIES = (
    elementwise, integers, movement, products, pooling, reductions, resampling, indexing, regions
)  # fmt: skip
