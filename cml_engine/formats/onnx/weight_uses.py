"""The uses of an ONNX model's weights, from which random weights get their range."""

from __future__ import annotations

from collections.abc import Mapping

from cml_engine.formats.onnx.model import OnnxModelFile

#: the axis whose extent is the fan-in, and the roles of other weights
_PRODUCTS = {"MatMul": -2, "Gemm": -2, "Gather": -1}
_ADDED, _NEAR_ONE, _POSITIVE = "added", "near one", "positive"
_OPERANDS = {
    ("BatchNormalization", 1): _NEAR_ONE, ("BatchNormalization", 2): _ADDED,
    ("BatchNormalization", 3): _ADDED, ("BatchNormalization", 4): _POSITIVE,
    ("Conv", 2): _ADDED, ("ConvTranspose", 2): _ADDED, ("Gemm", 2): _ADDED,
    ("LayerNormalization", 1): _NEAR_ONE, ("LayerNormalization", 2): _ADDED,
    ("InstanceNormalization", 1): _NEAR_ONE, ("InstanceNormalization", 2): _ADDED,
    ("GroupNormalization", 1): _NEAR_ONE, ("GroupNormalization", 2): _ADDED,
    ("PRelu", 1): _NEAR_ONE,
}  # fmt: skip
_ELEMENTWISE = {"Add": _ADDED, "Sub": _ADDED, "Mul": _NEAR_ONE, "Div": _POSITIVE}


def find_weight_uses(model: OnnxModelFile) -> Mapping[str, str | float]:
    """Returns the first use of each initializer, by name: its fan-in, or its role in an operator.

    Initializers without a known use are missing.
    """
    found: dict[str, str | float] = {}
    tensors = model.graph.initializers
    for node in model.graph.nodes:
        for position, name in enumerate(node.inputs):
            if name in found or name not in tensors:
                continue
            shape = tensors[name].shape
            if use := _OPERANDS.get((node.op, position)) or _ELEMENTWISE.get(node.op):
                found[name] = use
            elif node.op in _PRODUCTS and len(shape) > 1:
                last = node.op == "Gemm" and node.attributes.get("transB", 0)
                found[name] = float(shape[-1 if last else _PRODUCTS[node.op]])
    return found
