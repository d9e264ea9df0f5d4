"""Operators that ONNX and NNEF share, for import and export: NNEF's name by ONNX's."""

from __future__ import annotations

#: of numbers, with a form of their own for integers, such as ``int_add``
ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
COMPARISONS = {
    "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "Equal": "eq",
}  # fmt: skip
SIGNED = {"Abs": "abs", "Neg": "neg", "Sign": "sign"}
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
