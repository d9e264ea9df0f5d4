"""Exports integer operators, which have 32 bits and wrap around on overflow."""

from __future__ import annotations

import numpy as np

from cml_engine.formats.onnx.export.call import ExportCall
from cml_engine.formats.onnx.export.export_rules import rule

_SAME = {
    "int_add": "Add", "int_sub": "Sub", "int_mul": "Mul", "int_min": "Min", "int_max": "Max",
    "int_neg": "Neg", "int_abs": "Abs", "int_sign": "Sign", "int_lt": "Less",
    "int_gt": "Greater", "int_le": "LessOrEqual", "int_ge": "GreaterOrEqual", "int_eq": "Equal",
}  # fmt: skip
_BITS = {
    "bit_and": "BitwiseAnd", "bit_or": "BitwiseOr", "bit_xor": "BitwiseXor",
    "bit_not": "BitwiseNot",
}  # fmt: skip

for _table, _since in ((_SAME, 13), (_BITS, 18)):
    for _name, _onnx in _table.items():

        @rule(_name, onnx=f"`{_onnx}`", since=_since)
        def _same(c: ExportCall, op: str = _onnx) -> str:
            return c.add(op, *c.align_all())


def _safe_divisor(c: ExportCall, y: str) -> tuple[str, str, str]:
    """Returns ``y`` with 1 in place of 0 and -1, the mask of its zeros and the mask of its -1s.

    Processors trap on a division by 0 and on the smallest integer divided by -1.
    """
    zero = c.add("Equal", y, c.whole(0))
    minus = c.add("Equal", y, c.whole(-1))
    return c.where(c.add("Or", zero, minus), c.whole(1), y), zero, minus


def _is_plain(c: ExportCall) -> bool:
    divisor = c.value(1)
    return divisor is not None and not np.isin(divisor, (0, -1)).any()


@rule("int_div", onnx="`Div`, guarded: by 0 it is 0", function=True)
def _divide(c: ExportCall) -> str:
    x, y = c.align_all()
    if _is_plain(c):
        return c.add("Div", x, y)
    divisor, zero, minus = _safe_divisor(c, y)
    quotient = c.where(minus, c.add("Neg", x), c.add("Div", x, divisor))
    return c.where(zero, c.whole(0), quotient)


@rule("int_rem", "int_mod", onnx="`Mod`, guarded: by 0 it is 0", function=True)
def _remainder(c: ExportCall) -> str:
    x, y = c.align_all()
    divisor = y if _is_plain(c) else _safe_divisor(c, y)[0]
    return c.add("Mod", x, divisor, fmod=int(c.node.op == "int_rem"))


@rule("shift_left", "shift_right", onnx="`BitShift`, guarded: by more than 31 it is 0",
      function=True)  # fmt: skip
def _shift(c: ExportCall) -> str:
    x, y = c.align_all()
    low = c.add("GreaterOrEqual", y, c.whole(0))
    inside = c.add("And", low, c.add("Less", y, c.whole(32)))
    steps = c.cast(c.where(inside, y, c.whole(0)), "uint32")
    direction = "LEFT" if c.node.op == "shift_left" else "RIGHT"
    shifted = c.add("BitShift", c.cast(x, "uint32"), steps, direction=direction)
    return c.where(inside, c.cast(shifted, "integer"), c.whole(0))
