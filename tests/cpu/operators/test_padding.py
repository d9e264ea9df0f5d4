"""pad in NumPy against np.pad and against a loop over indices."""

from itertools import product

import numpy as np
import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.movement.padding import border_index
from tests.reference import naive

NUMPY_MODES = {"replicate": "edge", "reflect": "reflect", "reflect-even": "symmetric"}


def pad(x, padding, border="constant", value=0.0):
    return lookup("pad").cpu(Attrs(padding=padding, border=border, value=value), x)


@pytest.mark.parametrize("border", ["constant", *NUMPY_MODES])
@pytest.mark.parametrize("padding", [[(1, 2), (0, 3)], [(9, 8), (7, 11)], [(0, 0), (0, 0)]])
@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (5, 1)])
def test_as_numpy_does(shape, padding, border, rng):
    x = rng.random(shape, np.float32)
    mode = NUMPY_MODES.get(border)
    wanted = np.pad(x, padding, mode) if mode else np.pad(x, padding, constant_values=2.5)
    assert np.array_equal(pad(x, padding, border, 2.5), wanted)


@pytest.mark.parametrize("border", ["constant", *NUMPY_MODES])
def test_negative_padding_crops(border):
    x = np.arange(7 * 5, dtype=np.int32).reshape(7, 5)
    padding = [(-2, 3), (4, -1)]
    result = pad(x, padding, border, -9)
    assert result.shape == (8, 8)
    for i, j in product(range(8), range(8)):
        at = [naive.border_index(i + 2, 7, border), naive.border_index(j - 4, 5, border)]
        assert result[i, j] == (-9 if None in at else x[tuple(at)])


@pytest.mark.parametrize("border", NUMPY_MODES)
@pytest.mark.parametrize("extent", [1, 2, 3, 8])
def test_border_index(border, extent):
    at = np.arange(-30, 31)
    wanted = [naive.border_index(int(i), extent, border) for i in at]
    assert border_index(border, at, extent).tolist() == wanted


@pytest.mark.parametrize(
    ("shape", "padding", "border", "said"),
    [
        ((3, 4), [(0, 0)], "constant", "'padding' has 1 values"),
        ((3, 4), [(-2, -2), (0, 0)], "constant", "leaves -1"),
        ((3, 4), [(0, 0), (0, 0)], "wrap", "wanted one of"),
        ((0, 4), [(1, 0), (0, 0)], "reflect", "nothing to repeat"),
    ],
)
def test_refuses(shape, padding, border, said):
    with pytest.raises(ShapeError, match=said):
        attrs = Attrs(padding=padding, border=border, value=0.0)
        lookup("pad").infer(attrs, Fact("scalar", shape))
