"""The uses of an ONNX model's weights, from which random weights get their range."""

from __future__ import annotations

from collections.abc import Mapping

from cml_engine.formats.onnx.model import OnnxModelFile
from cml_engine.formats.onnx.op_schemas import find_schemas
from cml_engine.nnef.files.weights import role_of

#: the axis whose extent is the fan-in
_PRODUCTS = {"MatMul": -2, "Gemm": -2, "Gather": -1}


def find_weight_uses(model: OnnxModelFile) -> Mapping[str, str | float]:
    """Returns the first use of each initializer, by name: its fan-in, or its role in an operator.

    Initializers without a known use are missing.
    """
    uses: dict[str, str | float] = {}
    tensors = model.graph.initializers
    for node in model.graph.nodes:
        schemas = find_schemas(node.domain, node.op)
        params = [p.name for p in schemas[0].parameters] if schemas else []
        for position, name in enumerate(node.inputs):
            if name in uses or name not in tensors:
                continue
            shape = tensors[name].shape
            param = params[position] if position < len(params) else ""
            if role := role_of(node.op.lower(), param):
                uses[name] = role
            elif node.op in _PRODUCTS and len(shape) > 1:
                is_transposed = node.op == "Gemm" and node.attributes.get("transB", 0)
                uses[name] = float(shape[-1 if is_transposed else _PRODUCTS[node.op]])
    return uses
