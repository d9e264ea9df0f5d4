"""``cross(a, b)``: the cross product of 3-vectors along one axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import cml_engine as cml
from cml_engine import ops

Array = NDArray[np.float32]


def infer(attrs: ops.Attrs, a: ops.Fact, b: ops.Fact) -> ops.Fact:
    if a != b or a.shape[attrs.axis] != 3:
        raise cml.ModelError(f"wanted two equal tensors, 3 long on axis {attrs.axis}: {a}, {b}")
    return a


def cpu(attrs: ops.Attrs, a: Array, b: Array) -> Array:
    return np.cross(a, b, axis=attrs.axis)


def vectors(attrs: ops.Attrs, a: ops.Fact, b: ops.Fact) -> int:
    return a.size // 3


def cost(attrs: ops.Attrs, inputs: Sequence[ops.Fact], outputs: Sequence[ops.Fact]) -> ops.Cost:
    return ops.Cost(9 * outputs[0].size / 3, 2 * inputs[0].nbytes, outputs[0].nbytes)


CROSS = cml.register(
    cml.OpSpec(
        name="cross",
        signature="fragment cross(a: tensor<scalar>, b: tensor<scalar>, axis: integer = 1)"
        " -> (c: tensor<scalar>);",
        doc="The cross product of 3-vectors along one axis.",
        infer=infer,
        cpu=cpu,
        kernel=cml.Kernel("cross.hlsl", threads=vectors),
        cost=cost,
        cases=[
            ops.Case(((1, 3, 32, 32), (1, 3, 32, 32))),
            ops.Case(((7, 3), (7, 3))),
            ops.Case(((2, 5, 3), (2, 5, 3)), {"axis": 2}),
            ops.Case(((3, 4, 9), (3, 4, 9)), {"axis": 0}),
        ],
    )
)
