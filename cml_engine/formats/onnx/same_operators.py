"""The operators and words that ONNX and the engine share: the engine's name by ONNX's.

The import reads the tables in this direction and the export in the other (:func:`onnx_names`).
"""

from __future__ import annotations

from collections.abc import Mapping

#: of numbers, with a form of their own for integers, such as ``int_add``
ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
COMPARISONS = {
    "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "Equal": "eq",
}  # fmt: skip
SIGNED = {"Abs": "abs", "Neg": "neg", "Sign": "sign"}
LIMITS = {"Max": "max", "Min": "min"}
LOGIC = {"And": "and", "Or": "or"}
BITS = {"BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor"}
#: of one operand of floats
FLOATS = {
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "rcp", "Floor": "floor",
    "Ceil": "ceil", "Round": "round_even", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Erf": "erf",
    "Sigmoid": "sigmoid", "Softplus": "softplus",
}  # fmt: skip
#: of one operand of floats and with attributes: the engine's name and ONNX's default of each
ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, tuple[str, float]]]] = {
    "LeakyRelu": ("leaky_relu", {"alpha": ("alpha", 0.01)}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "Selu": ("selu", {
        "alpha": ("alpha", 1.67326319217681884765625),
        "gamma": ("lambda", 1.05070102214813232421875),
    }),
}  # fmt: skip
#: operators whose import depends on their operands' types, and whose export does not
PLAIN = {
    "Pow": "pow", "Not": "not", "Identity": "copy", "Relu": "relu", "IsNaN": "is_nan",
    "IsInf": "is_inf",
}  # fmt: skip
REDUCTIONS = {
    "ReduceSum": "sum_reduce", "ReduceMean": "mean_reduce", "ReduceProd": "prod_reduce",
    "ReduceMax": "max_reduce", "ReduceMin": "min_reduce",
}  # fmt: skip
POSITIONS = {"ArgMax": "argmax_reduce", "ArgMin": "argmin_reduce"}

#: attributes' words: the modes of Pad, the padding modes of GridSample, and those of Resize
BORDERS = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": ""}
GRID_BORDERS = {"zeros": "constant", "border": "replicate", "reflection": "reflect"}
METHODS = {
    "bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic",
    "nearest": "nearest",
}  # fmt: skip
COORDINATES = {
    "half_pixel": "symmetric", "asymmetric": "asymmetric", "align_corners": "aligned",
    "pytorch_half_pixel": "symmetric",
}  # fmt: skip
ROUNDINGS = {
    "round_prefer_floor": "half_down", "round_prefer_ceil": "half_up", "floor": "floor",
    "ceil": "ceil",
}  # fmt: skip


def onnx_names(*tables: Mapping[str, str]) -> dict[str, str]:
    """Returns ONNX's name by the engine's: the first one where ONNX has several."""
    return {name: onnx for table in tables for onnx, name in reversed([*table.items()])}
