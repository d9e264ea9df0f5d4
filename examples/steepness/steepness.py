"""``steepness``: an operator from whole numbers to whole numbers, with bounds on its results."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import cml_engine as cml
from cml_engine import ops


def steepness(attrs: ops.Attrs, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns, for each element, the sum of the absolute differences to its four neighbours.

    ``x`` is [N, C, H, W]; elements beyond the border equal those at the border.
    """
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    neighbours = (
        padded[..., :-2, 1:-1],
        padded[..., 2:, 1:-1],
        padded[..., 1:-1, :-2],
        padded[..., 1:-1, 2:],
    )
    return np.asarray(sum(np.abs(neighbour - x) for neighbour in neighbours))


cml.register(
    cml.OpSpec(
        name="steepness",
        signature="fragment steepness(x: tensor<scalar>) -> (y: tensor<scalar>);",
        doc="The sum of the absolute differences to the four neighbours.",
        infer=ops.same_as(0),
        cpu=steepness,
        kernel=cml.Kernel("steepness.hlsl"),
        exact=True,
        bounds=lambda attrs, x: (0, 4 * (x.high - x.low)),
        cases=[ops.Case(((1, 2, 5, 7),))],
    )
)
