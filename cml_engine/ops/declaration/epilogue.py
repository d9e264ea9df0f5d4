"""Elementwise operators fused into a kernel that produces a tensor: what the kernel must be given.

The shader's side is ``shaders_hlsl/include/epilogue.hlsli``. A kernel that takes epilogues lists
:data:`SUPPORTED`, appends :data:`PARAMS` to its parameters, and for each node asks
:func:`epilogue_of` for the defines, values and tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cml_engine.graph import Epilogue, Fact
from cml_engine.ops.declaration.lowering import Lowering

Array = np.ndarray[Any, Any]

#: a longer chain is rare, and each step is registers of the producer's kernel
MAX_STEPS = 5
#: tensors that the steps read: with a conv's input, filter, bias and result, as many as every
#: device of WebGPU's binds
MAX_TENSORS = 4
#: two numbers for each step
PARAMS = f"epi_value:f{2 * MAX_STEPS}"
#: the shader's number of each operator
_CODES = {
    "relu": 1, "leaky_relu": 2, "prelu": 3, "sigmoid": 4, "tanh": 5, "clamp": 6, "add": 7,
    "silu": 8, "mul": 9, "sub": 10, "div": 11,
}  # fmt: skip
SUPPORTED = frozenset(_CODES)
#: those with a tensor beside the result, and the shader's number of what it has a value for
WITH_TENSOR = frozenset({"prelu", "add", "mul", "sub", "div"})
_BY_PLACE, _BY_CHANNEL, _BY_ONE, _BY_POSITION = 1, 2, 3, 4
#: larger numbers of positions are not exact in a float
_MOST_POSITIONS = 1 << 24


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

    ``vector``: the kernel stores ``float4`` of four channels. An operand has a value for every
    place of the result, for every index of its ``channel_axis``, one for all, or
    (:func:`is_by_position`) one for every position.
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
        if epilogue.op in WITH_TENSOR:
            by, operand = _operand(op, epilogue, channel_axis)
            tensor = f"T{slot + len(tensors)}"
            defines |= {f"EPI{i}_BY": by, f"EPI{i}_TENSOR": tensor}
            defines[f"{tensor}_TYPE"] = _type_of(op, operand, by, kind)
            if by == _BY_POSITION:
                values[2 * i] = float(op.fact(operand).size)
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


def is_by_position(operand: Fact, result: Fact) -> bool:
    """Whether the operand has one value for all channels at each position of a single picture:
    ``[1,1,H,W]``."""
    shape = (1, 1, *result.shape[2:])
    single = result.rank > 2 and result.shape[0] == 1
    return single and operand.shape == shape and operand.size <= _MOST_POSITIONS


def _operand(op: Lowering, epilogue: Epilogue, channel_axis: int) -> tuple[int, str]:
    """What the operand has a value for, and the tensor that has them."""
    name, result = epilogue.inputs[0], op.out_names[0]
    fact, channels = op.fact(name), op.outputs[0].shape[channel_axis]
    value, slopes = op.constant(name), epilogue.op == "prelu"
    if fact.size == 1 and not slopes:
        return _BY_ONE, name
    by_place = value is None and fact == op.fact(result)
    if not slopes and not by_place and channel_axis == 1 and is_by_position(fact, op.outputs[0]):
        return _BY_POSITION, name
    if value is not None and value.size in (1, channels):
        constant = value
        key = f"{name}.channels{channels}"
        return _BY_CHANNEL, op.pack(key, lambda: per_channel(constant, channels))
    if value is None and not slopes:
        if fact == op.fact(result) and op.is_blocked(name) == op.is_blocked(result):
            return _BY_PLACE, name
        if fact.size == channels and not op.is_blocked(name):
            return _BY_CHANNEL, name
    raise op.refuse(
        f"cannot apply '{epilogue.op}' with '{name}', {fact} ({op.layout(name)}), to its result, "
        f"{op.fact(result)} ({op.layout(result)}); run it as its own node"
    )


def _type_of(op: Lowering, operand: str, by: int, kind: str) -> str:
    """A feature map's own type; values for channels lie one after the other."""
    if by == _BY_PLACE:
        return op.vector_type(operand)
    return kind if by == _BY_CHANNEL else "float"


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
