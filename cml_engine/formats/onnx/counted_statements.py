"""A statement of each ONNX operator's effect along counted axes; one without is refused.

The statements are for people and for the check when a model is loaded. The rules of the NNEF
operators that an operator becomes (counted_axes.py) do what they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cml_engine.formats.onnx.same_operators import (
    ARITHMETIC,
    BITS,
    COMPARISONS,
    FLOATS,
    LOGIC,
    SIGNED,
)
from cml_engine.formats.onnx.values import Value, counted_error

#: the meaning of each statement, for the documentation
MEANINGS: Mapping[str, str] = {
    "carries": "the result has the same counted axes",
    "masks": "computes with the counted elements only",
    "compacts": "the elements of the result follow each other without gaps",
    "counts": "gives or takes the number of elements",
    "items": "computes each item of a counted axis 0 by itself; other axes are refused",
}

_CARRIES = (
    "Sum Max Min Mean Mod Pow Clip BitwiseNot BitShift Not Xor Where IsNaN IsInf Cast CastLike "
    "BitCast LeakyRelu Elu Selu Relu PRelu HardSigmoid HardSwish Mish Gelu BiasGelu FastGelu "
    "Swish QuickGelu SwiGLU Celu Softsign ThresholdedRelu Shrink Binarizer Scaler Identity "
    "Dropout Transpose Squeeze Unsqueeze Reshape Flatten Split Trilu BatchNormalization OneHot "
    "QuantizeLinear DequantizeLinear Gather GatherND GatherElements ScatterND ScatterElements "
    "Scatter ArrayFeatureExtractor LRN"
)
_MASKS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSum ReduceLogSumExp ArgMax ArgMin TopK CumSum CumProd Softmax LogSoftmax Hardmax "
    "MatMul Gemm FusedMatMul TransposeMatMul MatMulInteger Einsum LayerNormalization "
    "RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization InstanceNormalization MeanVarianceNormalization "
    "LpNormalization NonZero NonMaxSuppression Unique GlobalAveragePool GlobalMaxPool GlobalLpPool"
)
_ITEMS = (
    "Conv ConvTranspose FusedConv MaxPool AveragePool Resize Upsample GridSample RoiAlign "
    "DepthToSpace SpaceToDepth GroupNormalization GroupNorm"
)
#: by operator of ONNX's domains
STATEMENTS: Mapping[str, str] = {
    **dict.fromkeys((*ARITHMETIC, *COMPARISONS, *SIGNED, *LOGIC, *BITS, *FLOATS), "carries"),
    **dict.fromkeys(_CARRIES.split(), "carries"),
    **dict.fromkeys(_MASKS.split(), "masks"),
    **dict.fromkeys("Concat Pad Slice Tile Compress".split(), "compacts"),
    **dict.fromkeys("Shape Size ConstantOfShape Range Expand".split(), "counts"),
    **dict.fromkeys(_ITEMS.split(), "items"),
}
_DOMAINS = ("", "com.microsoft", "ai.onnx.ml")


def check_statement(op: str, domain: str, inputs: Sequence[Value | None]) -> None:
    """Raises an error if an input has a counted axis that an ONNX operator states nothing about."""
    statement = STATEMENTS.get(op, "") if domain in _DOMAINS else ""
    for value in inputs:
        for axis in value.counts if value is not None else ():
            if not statement or (statement == "items" and axis):
                assert value is not None
                raise counted_error(value, axis)
