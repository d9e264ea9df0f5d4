"""Elementwise operators in NumPy against Python's own mathematics, and NNEF's broadcasting."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ir.layout import C4, PLAIN
from cml_engine.ops import load_families
from cml_engine.ops.common.broadcast import broadcast_shapes, collapse, left_view, walk
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.elementwise.erf import erf
from cml_engine.ops.elementwise.row import ROWS

load_families()


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


#: operator, arguments, expected result; straight from the standard's formulas
VALUES = [
    ("erf", (0.75,), 0.7111556337),
    ("gelu_erf", (1.5,), 1.3997892),
    ("add", (1.5, 2.0), 3.5),
    ("sub", (1.5, 2.0), -0.5),
    ("mul", (1.5, 2.0), 3.0),
    ("div", (1.0, 4.0), 0.25),
    ("pow", (-3.0, 2.0), 9.0),
    ("pow", (-2.0, 3.0), -8.0),
    ("pow", (0.0, 0.0), 1.0),
    ("pow", (4.0, 0.5), 2.0),
    ("pow", (-2.0, 0.5), math.nan),
    ("min", (math.nan, 2.0), 2.0),
    ("max", (math.nan, 2.0), 2.0),
    ("min", (1.0, math.nan), math.nan),
    ("min", (1.0, 2.0), 1.0),
    ("max", (1.0, 2.0), 2.0),
    ("lt", (1.0, 1.0), False),
    ("le", (1.0, 1.0), True),
    ("gt", (2.0, 1.0), True),
    ("ge", (0.0, 1.0), False),
    ("eq", (1.0, 1.0), True),
    ("ne", (1.0, 1.0), False),
    ("and", (True, False), False),
    ("or", (True, False), True),
    ("not", (True,), False),
    ("clamp", (5.0, 0.0, 1.0), 1.0),
    ("clamp", (0.5, 2.0, 1.0), 2.0),  # max(min(x, b), a): the lower bound wins
    ("round", (0.5,), 1.0),
    ("round", (-0.5,), 0.0),
    ("round", (2.5,), 3.0),
    ("round", (-1.5,), -1.0),
    ("round", (0.49999997,), 0.0),
    ("round", (8388609.0,), 8388609.0),
    ("floor", (-1.5,), -2.0),
    ("ceil", (-1.5,), -1.0),
    ("sign", (0.0,), 0.0),
    ("sign", (-7.0,), -1.0),
    ("abs", (-2.0,), 2.0),
    ("neg", (2.0,), -2.0),
    ("rcp", (4.0,), 0.25),
    ("sqr", (-3.0,), 9.0),
    ("sqrt", (9.0,), 3.0),
    ("rsqr", (2.0,), 0.25),
    ("rsqrt", (4.0,), 0.5),
    ("log2", (8.0,), 3.0),
    ("relu", (-1.0,), 0.0),
    ("prelu", (-2.0, 0.25), -0.5),
    ("silu", (1.5,), 1.5 * sigmoid(1.5)),
    ("gelu", (1.5,), 1.5 * sigmoid(1.702 * 1.5)),  # NNEF's approximation, not erf
    ("sigmoid", (0.0,), 0.5),
    ("sigmoid", (-200.0,), 0.0),
    ("sigmoid", (200.0,), 1.0),
    ("softplus", (200.0,), 200.0),  # log(exp(x) + 1) overflows
    ("softplus", (0.0,), math.log(2)),
    ("tanh", (-200.0,), -1.0),
    *[
        (name, (0.7,), getattr(math, name)(0.7))
        for name in (
            "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
            "asinh", "atanh",
        )
    ],
    ("acosh", (1.7,), math.acosh(1.7)),
]  # fmt: skip
WITH_ATTRS = [
    ("leaky_relu", (-2.0,), {"alpha": 0.1}, -0.2),
    ("leaky_relu", (3.0,), {"alpha": 2.0}, 3.0),
    ("elu", (-1.0,), {"alpha": 2.0}, 2 * (math.exp(-1) - 1)),
    ("selu", (-1.0,), {"alpha": 1.5, "lambda": 2.0}, 2 * 1.5 * (math.exp(-1) - 1)),
    ("selu", (1.0,), {"alpha": 1.5, "lambda": 2.0}, 2.0),
    ("softabs", (3.0,), {"epsilon": 7.0}, 4.0),
    # order of operands: input, mean, variance, offset, scale
    ("batch_normalization", (5.0, 1.0, 3.0, 10.0, 7.0), {"epsilon": 1.0}, 10 + 7 * (5 - 1) / 2),
]


def run(op, *arrays, **attrs):
    return lookup(op).cpu(Attrs(attrs), *arrays)


def array(value):
    return np.array(value, np.bool_ if isinstance(value, bool) else np.float32)


@pytest.mark.parametrize(("op", "operands", "wanted"), VALUES)
def test_values(op, operands, wanted):
    got = run(op, *map(array, operands))
    assert got.dtype == array(wanted).dtype
    assert got.shape == ()
    np.testing.assert_allclose(got.astype(float), float(wanted), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("op", "operands", "attrs", "wanted"), WITH_ATTRS)
def test_values_with_attributes(op, operands, attrs, wanted):
    np.testing.assert_allclose(run(op, *map(array, operands), **attrs), wanted, rtol=1e-6)


def test_every_operator_has_a_value_here():
    tested = {v[0] for v in VALUES} | {v[0] for v in WITH_ATTRS} | {"select", "copy"}
    elsewhere = {"fmod", "is_inf", "is_nan", "round_even"}  # as those of integers are
    floats = {n for n, row in ROWS.items() if "integer" not in row.types and not row.custom}
    assert tested == floats - elsewhere


def test_select_and_copy_keep_the_type():
    condition = np.array([True, False])
    got = run("select", condition, np.array([1, 2], np.int32), np.array(9, np.int32))
    assert got.tolist() == [1, 9] and got.dtype == np.int32
    for dtype in (np.float32, np.int32, np.bool_):
        assert run("copy", np.ones((2, 0), dtype)).dtype == dtype


def test_a_result_never_shares_memory_with_an_operand():
    x = np.ones((3,), np.float32)
    assert not np.shares_memory(run("copy", x), x)


def naive_broadcast(function, arrays):
    """Broadcasts by the standard's rule, index by index: leading dimensions aligned, missing
    ones 1."""
    rank = max(a.ndim for a in arrays)
    shapes = [a.shape + (1,) * (rank - a.ndim) for a in arrays]
    out = tuple(max(s[d] for s in shapes) if all(s[d] for s in shapes) else 0 for d in range(rank))
    result = np.zeros(out, np.float32)
    for at in itertools.product(*map(range, out)):
        values = []
        for a, shape in zip(arrays, shapes, strict=True):
            index = tuple(0 if n == 1 else i for i, n in zip(at, shape, strict=True))
            values.append(float(a.reshape(shape)[index]))
        result[at] = function(*values)
    return result


@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 128, 1, 1), (1, 128, 1)),
        ((2, 3, 4), (2, 3)),
        ((3,), (3, 2)),
        ((), (2, 2)),
        ((2, 1, 3), (1, 4, 1, 2)),
        ((2, 0), (2, 1, 3)),
    ],
)
def test_shapes_are_aligned_from_the_left(shapes, rng):
    x, y = (rng.uniform(-1, 1, s).astype(np.float32) for s in shapes)
    got = run("sub", x, y)
    np.testing.assert_array_equal(got, naive_broadcast(lambda a, b: np.float32(a) - np.float32(b),
                                                       [x, y]))  # fmt: skip
    inferred = lookup("sub").infer(Attrs(), Fact("scalar", x.shape), Fact("scalar", y.shape))
    assert inferred == Fact("scalar", got.shape)


def test_three_operands_are_broadcast_together(rng):
    condition, x, y = rng.uniform(size=(2,)) > 0.5, rng.uniform(size=(1, 3)), rng.uniform(size=())
    got = run("select", condition, x.astype(np.float32), y.astype(np.float32))
    assert got.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert got[i, j] == np.float32(x[0, j] if condition[i] else y)


def test_numpys_own_alignment_is_refused():
    with pytest.raises(ShapeError, match=r"\[2,.?3\] and \[3\].*dimension 0 is 2 and 3.*unsqueeze"):
        broadcast_shapes((2, 3), (3,))


@pytest.mark.parametrize(
    ("op", "facts", "message"),
    [
        ("add", [Fact("integer", ()), Fact("scalar", ())], "operand 1 is tensor<integer>.*cast"),
        ("and", [Fact("logical", ()), Fact("scalar", ())], "operand 2 .* wanted tensor<logical>"),
        ("select", [Fact("logical", ()), Fact("integer", ()), Fact("scalar", ())], "operand 3"),
        ("relu", [], "wanted 1 operands, got 0"),
    ],
)
def test_wrong_operands_are_refused(op, facts, message):
    with pytest.raises(ShapeError, match=message):
        lookup(op).infer(Attrs(alpha=1.0), *facts)


def test_result_types():
    scalar, logical = Fact("scalar", (2,)), Fact("logical", (2,))
    assert lookup("lt").infer(Attrs(), scalar, scalar) == logical
    assert lookup("copy").infer(Attrs(), logical) == logical
    assert lookup("select").infer(Attrs(), logical, scalar, Fact("scalar", ())) == scalar


# ---------------------------------------------------------------- walks


def blocked(array):
    """Returns the array's elements in the memory order of c4."""
    n, c, *spatial = array.shape
    return np.moveaxis(array.reshape(n, c // 4, 4, *spatial), 2, -1).ravel()


extents = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5)


@given(extents, st.data())
def test_a_walk_meets_every_element_in_order(shape, data):
    """The walk gives the position of result element i in every operand."""
    operand = [n if data.draw(st.booleans()) else 1 for n in shape]
    operand = operand[: data.draw(st.integers(0, len(shape)))]
    array = np.arange(np.prod(operand, dtype=int)).reshape(operand)
    wanted = np.broadcast_to(left_view(array, len(shape)), shape).ravel()
    facts = Fact("scalar", tuple(operand)), Fact("scalar", tuple(shape))
    steps = walk([(facts[0], PLAIN)], facts[1], PLAIN)
    np.testing.assert_array_equal(array.ravel()[offsets(steps, 0)], wanted)


@pytest.mark.parametrize("layouts", list(itertools.product([PLAIN, C4], repeat=3)))
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (1, 4, 1), (1, 8, 2, 1, 3)])
def test_a_walk_over_blocked_layouts(shape, layouts):
    """For any layouts, the operands' walks visit the elements that match the result's walk."""
    full = np.arange(np.prod(shape)).reshape(shape)
    fact = Fact("scalar", shape)
    channel = Fact("scalar", (1, shape[1]))
    operands = [(fact, layouts[0]), (fact, layouts[1]), (channel, PLAIN)]
    steps = walk(operands, fact, layouts[2])
    wanted = blocked(full) if layouts[2] == C4 else full.ravel()
    for k in (0, 1):
        words = blocked(full) if layouts[k] == C4 else full.ravel()
        np.testing.assert_array_equal(words[offsets(steps, k)], wanted)
    channels = np.broadcast_to(np.arange(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2)), shape)
    wanted = blocked(channels) if layouts[2] == C4 else channels.ravel()
    np.testing.assert_array_equal(offsets(steps, 2), wanted)


def offsets(steps, operand):
    grid = np.indices(steps.extents)
    return sum(
        s * i for s, i in zip(steps.strides[operand], grid, strict=True)
    ).ravel()  # fmt: skip


def test_dense_operands_collapse_to_one_run():
    assert collapse((2, 3, 4), [(12, 4, 1), (12, 4, 1)]).extents == (24,)
    assert collapse((2, 3, 4), [(12, 4, 1), (0, 1, 0)]).extents == (2, 3, 4)
    assert collapse((1, 3, 4), [(12, 4, 1), (0, 1, 0)]).extents == (3, 4)
    assert collapse((), [()]).extents == (1,)


def test_erf_in_pieces_is_the_same_of_every_element(rng):
    """Covers arrays larger than a piece, empty arrays and unusual memory orders."""
    large = rng.standard_normal((70, 300)).astype(np.float32)
    for x in (large, large.T, large[:0], large[0, 0]):
        wanted = [erf(value) for value in np.reshape(x, -1)[-300:]]
        got = erf(x)
        assert got.shape == x.shape
        np.testing.assert_array_equal(got.reshape(-1)[-300:], np.reshape(wanted, -1))
