"""matmul and linear in NumPy against sums by hand."""

from itertools import product

import numpy as np
import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.matmul import matmul as _matmul  # noqa: F401
from cml_engine.ops.matmul.tiles import choose_tile


def attrs(a=False, b=False):
    return Attrs(transposeA=a, transposeB=b)


@pytest.mark.parametrize(("flip_a", "flip_b"), [*product([False, True], repeat=2)])
@pytest.mark.parametrize(("lead_a", "lead_b"), [((), ()), ((2, 1), (1, 3)), ((2, 3), (2, 3))])
def test_matmul(flip_a, flip_b, lead_a, lead_b, rng):
    a = rng.random((*lead_a, *((4, 3) if flip_a else (3, 4))), np.float32)
    b = rng.random((*lead_b, *((5, 4) if flip_b else (4, 5))), np.float32)
    result = lookup("matmul").cpu(attrs(flip_a, flip_b), a, b)
    fact = lookup("matmul").infer(
        attrs(flip_a, flip_b), Fact("scalar", a.shape), Fact("scalar", b.shape)
    )
    assert fact.shape == result.shape
    for *lead, m, n in product(*(range(e) for e in result.shape)):
        in_a = [0 if e == 1 else i for i, e in zip(lead, lead_a, strict=True)]
        in_b = [0 if e == 1 else i for i, e in zip(lead, lead_b, strict=True)]
        wanted = 0.0
        for k in range(4):
            x = a[(*in_a, k, m)] if flip_a else a[(*in_a, m, k)]
            y = b[(*in_b, n, k)] if flip_b else b[(*in_b, k, n)]
            wanted += float(x) * float(y)
        assert result[(*lead, m, n)] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("bias_shape", [(), (1,), (1, 1), (1, 5), (5,)])
def test_linear(bias_shape, rng):
    x, w = rng.random((2, 3), np.float32), rng.random((5, 3), np.float32)
    bias = rng.random(bias_shape, np.float32)
    result = lookup("linear").cpu(Attrs(), x, w, bias)
    for m, n in product(range(2), range(5)):
        wanted = sum(float(x[m, k]) * float(w[n, k]) for k in range(3))
        wanted += float(bias.reshape(-1)[n if bias.size > 1 else 0])
        assert result[m, n] == pytest.approx(wanted, rel=1e-6)


def test_a_sum_of_nothing():
    empty = np.zeros((2, 0), np.float32)
    assert lookup("matmul").cpu(attrs(), empty, empty.T).tolist() == [[0, 0], [0, 0]]
    bias = np.array([[1, 2]], np.float32)
    assert lookup("linear").cpu(Attrs(), empty, empty, bias).tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("op", "shapes", "said"),
    [
        ("matmul", [(2, 3), (4, 5)], "3 columns but B has 4 rows"),
        ("matmul", [(2, 3), (1, 3, 5)], "equal ranks"),
        ("matmul", [(3,), (3,)], "2 or more"),
        ("matmul", [(2, 4, 3), (3, 3, 5)], "2 matrices meet 3"),
        ("linear", [(2, 3), (5, 4), ()], "3 channels in, but the filter takes 4"),
        ("linear", [(2, 3, 1), (5, 3), ()], "rank 2"),
        ("linear", [(2, 3), (5, 3), (1, 4)], r"wanted \[1,5\]"),
    ],
)
def test_refuses(op, shapes, said):
    facts = [Fact("scalar", s) for s in shapes]
    with pytest.raises(ShapeError, match=said):
        lookup(op).infer(attrs(), *facts)


@pytest.mark.parametrize(
    "limits",
    [Limits(), Limits(software=True), *(Limits(software=True, subgroup_size=n) for n in (8, 16))],
)
def test_the_tile_fits_the_result(limits):
    large = choose_tile(2048, 2048, 1, limits)
    assert large.rows * large.cols >= 64
    assert choose_tile(1, 512, 1, limits).rows == 1
    assert choose_tile(4, 512, 1, limits).height < large.height
