"""Elementwise operators fused into a kernel that produces a tensor: what the kernel must be given.

The shader's side is ``shaders_hlsl/include/epilogue.hlsli``. A kernel that takes epilogues lists
:data:`SUPPORTED`, appends :data:`PARAMS` to its parameters, and for each node asks
:func:`epilogue_of` for the defines, values and tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.graph import Epilogue
from cml_engine.ops.lowering import Lowering

Array = np.ndarray[Any, Any]

#: two numbers for each step
PARAMS = "epi_value:f8"
MAX_STEPS = 4
#: the shader's number of each operator
_CODES = {
    "relu": 1, "leaky_relu": 2, "prelu": 3, "sigmoid": 4, "tanh": 5, "clamp": 6, "add": 7,
    "silu": 8,
}  # fmt: skip
SUPPORTED = frozenset(_CODES)


@dataclass(frozen=True, slots=True)
class EpilogueArgs:
    """What a node's epilogues add to a dispatch; ``tensors`` are bound from the slot asked for."""

    defines: dict[str, int | str]
    params: dict[str, list[float]]
    tensors: tuple[str, ...]


def epilogue_of(
    op: Lowering, slot: int, channel_axis: int = 1, vector: bool = False
) -> EpilogueArgs:
    """The arguments of ``op``'s epilogues, their tensors bound as ``T<slot>``, ``T<slot+1>``, ….

    ``vector``: the kernel stores ``float4`` of four channels. A PReLU has one slope per index of
    ``channel_axis`` of the result.
    """
    if len(op.epilogues) > MAX_STEPS:
        raise op.refuse(f"{len(op.epilogues)} fused operators, at most {MAX_STEPS} are possible")
    kind = "float4" if vector else "float"
    defines: dict[str, int | str] = {"EPI_TYPE": kind}
    values = [0.0] * (2 * MAX_STEPS)
    tensors: list[str] = []
    for i, epilogue in enumerate(op.epilogues):
        if epilogue.op not in _CODES:
            raise op.refuse(f"cannot apply '{epilogue.op}' to its result; run it as its own node")
        defines[f"EPI{i}"] = _CODES[epilogue.op]
        values[2 * i : 2 * i + 2] = _numbers(op, epilogue)
        operand = _operand(op, epilogue, channel_axis)
        if operand is not None:
            defines[f"EPI{i}_TENSOR"] = f"T{slot + len(tensors)}"
            defines[f"T{slot + len(tensors)}_TYPE"] = _type_of(op, operand, kind)
            tensors.append(operand)
    return EpilogueArgs(defines, {"epi_value": values}, tuple(tensors))


def _numbers(op: Lowering, epilogue: Epilogue) -> tuple[float, float]:
    if epilogue.op == "leaky_relu":
        return float(epilogue.attrs["alpha"]), 0.0
    if epilogue.op == "clamp":
        low, high = (_constant(op, epilogue, name) for name in epilogue.inputs)
        if low.size != 1 or high.size != 1:
            raise op.refuse("a fused clamp takes single numbers; run it as its own node")
        return float(low.reshape(())), float(high.reshape(()))
    return 0.0, 0.0


def _operand(op: Lowering, epilogue: Epilogue, channel_axis: int) -> str | None:
    if epilogue.op == "prelu":
        return _slopes(op, epilogue, channel_axis)
    if epilogue.op != "add":
        return None
    other, result = epilogue.inputs[0], op.out_names[0]
    if op.fact(other) != op.fact(result) or op.is_blocked(other) != op.is_blocked(result):
        raise op.refuse(
            f"a fused add takes a tensor that lies as the result does, {op.fact(result)} "
            f"({op.layout(result)}); got {op.fact(other)} ({op.layout(other)})"
        )
    return other


def _type_of(op: Lowering, operand: str, kind: str) -> str:
    """A feature map's own type; slopes are packed as the shader computes."""
    return op.vector_type(operand) if operand in op.graph.facts else kind


def _slopes(op: Lowering, epilogue: Epilogue, channel_axis: int) -> str:
    """One slope per channel, filled up to whole vectors."""
    name = epilogue.inputs[0]
    channels = op.outputs[0].shape[channel_axis]
    value = _constant(op, epilogue, name)
    if value.size not in (1, channels):
        raise op.refuse(f"a fused prelu takes 1 or {channels} slopes, got {list(value.shape)}")

    def make() -> Array:
        return per_channel(value, channels)

    return op.pack(f"{name}.slopes{channels}", make)


def per_channel(value: Array, channels: int, multiple: int = 4) -> Array:
    """``value`` (one, or one for each channel) for each channel, with zeros to a whole multiple."""
    filled = np.zeros(-(-channels // multiple) * multiple, np.float32)
    filled[:channels] = value.reshape(-1)
    return filled


def _constant(op: Lowering, epilogue: Epilogue, name: str) -> Array:
    value = op.constant(name)
    if value is None:
        raise op.refuse(f"'{epilogue.op}' is fused with '{name}', which is not a constant")
    return value
