"""Convolutions of one tap, one after the other, in one dispatch.

No operator has this kernel: planning joins the dispatches of several
(``compiler/planning/pointwise.py``). Shader: ``shaders_hlsl/conv/conv_chain.hlsl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cml_engine.ir.graph import Array, Epilogue
from cml_engine.ir.layout import C4, VECTOR_TYPE
from cml_engine.ir.limits import Limits
from cml_engine.ops.conv.shapes import MOST_FEW
from cml_engine.ops.declaration.epilogue import is_wide
from cml_engine.ops.declaration.expression import LETTERS
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.declaration.registry import formula_of
from cml_engine.ops.declaration.spec import Defines, Dispatch, engine_kernel

#: positions of a workgroup, and the waves that share its channels: WebGPU guarantees workgroups of
#: four waves, and the 16 KB that two maps of the most channels take
_LANES, _FEW_WAVES, _MANY_WAVES = 64, 4, 8
MOST_CHANNELS, _MOST_VALUES = 32, 40
KERNEL = engine_kernel(
    "conv/conv_chain.hlsl",
    f"batch:u volume:u out_c:u y_size:i3 value:f{_MOST_VALUES}",
    group=_LANES * _FEW_WAVES,
)


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of one tap: its filter (rows, input channels), its bias, one number for each
    row, and its epilogues, each with the values of its attributes and operands."""

    filter: Array
    bias: Array
    epilogues: Sequence[tuple[Epilogue, Sequence[float], Sequence[float]]]

    @property
    def in_blocks(self) -> int:
        return int(self.filter.shape[1]) // 4

    def vectors(self, waves: int) -> int:
        """Returns the number of blocks of four output channels that each wave computes."""
        return -(-len(self.filter) // (4 * waves))

    def packed(self, waves: int) -> tuple[Array, Array]:
        """Returns the filter as [wave][block][4 in][rows of a wave], and the bias, with zeros for
        rows that fill the last wave."""
        rows = 4 * self.vectors(waves) * waves
        filter, bias = (
            np.zeros((rows, self.filter.shape[1]), np.float32),
            np.zeros(rows, np.float32),
        )
        filter[: len(self.filter)], bias[: len(self.bias)] = self.filter, self.bias
        by_wave = filter.reshape(waves, 4 * self.vectors(waves), -1).transpose(0, 2, 1)
        return by_wave.reshape(-1), bias


def pack_layers(layers: Sequence[Layer], waves: int) -> Array:
    """Returns the filters and biases of a chain, as the kernel reads them."""
    return np.concatenate([array for layer in layers for array in layer.packed(waves)])


def groups_of(batch: int, volume: int) -> int:
    """Returns the workgroups that compute this many positions."""
    return -(-batch * volume // _LANES)


def waves_of(batch: int, volume: int, limits: Limits) -> int:
    """Returns the number of a workgroup's waves: eight if four would leave SIMDs idle, because a
    wave waits for one vector of the filter after the other."""
    are_idle = _FEW_WAVES * groups_of(batch, volume) <= hardware_table(limits).simds
    has_room = limits.max_group_threads >= _LANES * _MANY_WAVES
    return _MANY_WAVES if are_idle and has_room else _FEW_WAVES


def values_of(layers: Sequence[Layer]) -> list[float]:
    """Returns the numbers that the statements of a chain read."""
    steps = [step for layer in layers for step in layer.epilogues]
    return [value for _, attrs, operands in steps for value in (*attrs, *operands)]


def fits(layers: Sequence[Layer]) -> bool:
    """Returns True if the kernel has room for a chain: its maps, and the numbers that it reads."""
    maps = [layer.filter.shape[1] for layer in layers]
    return max(maps) <= MOST_CHANNELS and len(values_of(layers)) <= _MOST_VALUES


def launch_chain(
    layers: Sequence[Layer],
    waves: int,
    shape: Sequence[int],
    tensors: tuple[str, str, str],
    defines: Defines,
) -> Dispatch:
    """Returns the dispatch of a chain whose result has ``shape``.

    ``tensors`` are the input, the constant of :func:`pack_layers`, and the result. ``defines`` are
    those of the store, and ``PLAIN``.
    """
    batch, channels, *spatial = shape
    extents = [*[1] * (3 - len(spatial)), *spatial]
    volume = int(np.prod(extents))
    types = {
        "T0_TYPE": "float" if defines["PLAIN"] else VECTOR_TYPE[C4],
        "T1_TYPE": VECTOR_TYPE[C4],
    }
    out = VECTOR_TYPE[C4] if defines["OUT_C4"] else "float"
    return Dispatch(
        groups=groups_of(batch, volume),
        tensors=tensors,
        params={
            "batch": batch,
            "volume": volume,
            "out_c": channels,
            "y_size": extents,
            "value": values_of(layers) or [0.0],
        },
        defines={
            **types,
            **defines,
            "OUT": "T2",
            "T2_TYPE": out,
            "GROUP": _LANES * waves,
            "LANES": _LANES,
            "WAVES": waves,
            "FULL": int(channels % 4 == 0),
            "FEW": int(batch == 1 and volume < MOST_FEW),
            "MOST_BLOCKS": max(layer.in_blocks for layer in layers[1:]),
            "LAYERS": " ".join(_statements(layers, waves)),
        },
        kernel=KERNEL,
    )


def _statements(layers: Sequence[Layer], waves: int) -> list[str]:
    """Returns the macros of conv_chain.hlsl that compute the layers."""
    statements, at, first = [], 0, 0
    for n, layer in enumerate(layers):
        filter, bias = layer.packed(waves)
        bias_at, vectors = at + filter.size, layer.vectors(waves)
        places = f"{at // 4}, {bias_at // 4}, {layer.in_blocks}, {vectors}"
        text = _epilogue(layer, first)
        name = "FIRST_LAYER(" if n == 0 else f"LAYER({n}, "
        name = f"LAST_LAYER({n}, " if n == len(layers) - 1 else name
        statements.append(f"{name}{places}, {text})")
        at += filter.size + bias.size
        first += len(values_of([layer]))
    return statements


def _epilogue(layer: Layer, first: int) -> str:
    """Returns HLSL that applies the epilogues of a layer to ``v``; ``first`` is the index of its
    first number."""
    statements = []
    for epilogue, attrs, operands in layer.epilogues:
        formula = formula_of(epilogue.op)
        assert formula is not None  # epilogues have formulas
        names = [f"value({first + i})" for i in range(len(attrs) + len(operands))]
        first += len(names)
        text = formula.wide_expression("float4", names[: len(attrs)])
        others = [("float", name) for name in names[len(attrs) :]]
        values = epilogue.operands(others, [("float4", "v")])
        parts = [f"{t} {n} = {value};" for n, (t, value) in zip(LETTERS, values, strict=False)]
        statements.append(f"{{ {' '.join(parts)} v = {text}; }}")
    return " ".join(statements)


def is_possible(epilogue: Epilogue, values: Mapping[str, Array | None]) -> bool:
    """Returns True if the kernel can apply an epilogue whose operands have these values; None
    stands for a tensor that is computed."""
    numbers = [values[name] for name in epilogue.inputs]
    return is_wide(epilogue) and all(value is not None and value.size == 1 for value in numbers)
