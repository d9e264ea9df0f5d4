"""Tests that the tile in which a matrix product is computed suits the size of its result."""

import pytest

from cml_engine.ir.limits import Limits
from cml_engine.ops.matmul import matmul as _matmul  # noqa: F401
from cml_engine.ops.matmul.gpu import choose_tile


@pytest.mark.parametrize(
    "limits",
    [Limits(), Limits(software=True), *(Limits(software=True, subgroup_size=n) for n in (8, 16))],
)
def test_the_tile_fits_the_result(limits):
    large = choose_tile(2048, 2048, 1, limits)
    assert large.rows * large.cols >= 64
    assert choose_tile(1, 512, 1, limits).rows == 1
    assert choose_tile(4, 512, 1, limits).height < large.height
