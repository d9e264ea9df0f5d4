"""``conv`` and ``deconv`` in NumPy against loops written straight from the standard's formulas."""

import itertools

import numpy as np
import pytest

from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact
from cml_engine.ops.conv.cases import CONV_CASES, DECONV_CASES, conv_case, deconv_case
from cml_engine.ops.conv.conv import infer_conv, infer_deconv
from cml_engine.ops.conv.cpu import conv_cpu, deconv_cpu
from cml_engine.ops.conv.shapes import conv_shape, deconv_shape
from tests.reference.naive import border_index


def arrays_of(case, rng):
    return [
        given if isinstance(given, np.ndarray) else rng.uniform(-1, 1, given).astype(np.float32)
        for given in case.inputs
    ]


def naive_conv(attrs, x, filter, bias):
    shape = conv_shape(attrs, *(Fact("scalar", a.shape) for a in (x, filter, bias)))
    out = np.zeros((shape.batch, shape.out_channels, *shape.narrow))
    out += bias.reshape(-1, *(1,) * len(shape.axes)) if bias.size else 0
    for at, tap in itertools.product(np.ndindex(*shape.narrow), np.ndindex(*filter.shape[2:])):
        index = [
            border_index(p * a.stride + t * a.dilation - a.before, a.wide, attrs["border"])
            for p, t, a in zip(at, tap, shape.axes, strict=True)
        ]
        if None in index:
            continue
        for n, o in np.ndindex(out.shape[:2]):
            first = o // shape.group_out * shape.group_in
            values = x[(n, slice(first, first + shape.group_in), *index)]
            out[(n, o, *at)] += filter[(o, slice(None), *tap)].astype(np.float64) @ values
    return out


def naive_deconv(attrs, x, filter, bias):
    shape = deconv_shape(attrs, *(Fact("scalar", a.shape) for a in (x, filter, bias)))
    out = np.zeros((shape.batch, shape.out_channels, *shape.wide))
    out += bias.reshape(-1, *(1,) * len(shape.axes)) if bias.size else 0
    for n, c in np.ndindex(x.shape[:2]):
        group = c // shape.group_in if shape.group_in else 0
        for at in np.ndindex(*shape.narrow):
            for o in range(shape.group_out):
                for tap in np.ndindex(*filter.shape[2:]):
                    to = [
                        p * a.stride + t * a.dilation - a.before
                        for p, t, a in zip(at, tap, shape.axes, strict=True)
                    ]
                    if all(0 <= p < a.wide for p, a in zip(to, shape.axes, strict=True)):
                        target = (n, group * shape.group_out + o, *to)
                        out[target] += filter[(c, o, *tap)] * x[(n, c, *at)]
    return out


def ids(cases):
    return [f"{i}-{c.note}".replace(" ", "_") for i, c in enumerate(cases)]


@pytest.mark.parametrize("case", CONV_CASES, ids=ids(CONV_CASES))
def test_conv_against_loops(case, rng):
    agree(case, rng, naive_conv, conv_cpu, infer_conv)


@pytest.mark.parametrize("case", DECONV_CASES, ids=ids(DECONV_CASES))
def test_deconv_against_loops(case, rng):
    agree(case, rng, naive_deconv, deconv_cpu, infer_deconv)


def agree(case, rng, loops, cpu, infer):
    arrays = arrays_of(case, rng)
    attrs = Attrs(case.attrs)
    wanted = loops(attrs, *arrays)
    got = cpu(attrs, *arrays)
    assert got.shape == infer(attrs, *(Fact("scalar", a.shape) for a in arrays)).shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-5)


def test_the_loops_can_disagree(rng):
    """The comparison above fails for a flipped filter."""
    case = CONV_CASES[1]
    x, filter, bias = arrays_of(case, rng)
    attrs = Attrs(case.attrs)
    flipped = np.ascontiguousarray(filter[:, :, ::-1, ::-1])
    assert not np.allclose(conv_cpu(attrs, x, filter, bias), conv_cpu(attrs, x, flipped, bias))


def test_random_windows_against_loops(rng):
    """Uses any kernel, stride, dilation and padding that fits."""
    tried = 0
    for _ in range(60):
        kernel = rng.integers(1, 4, 2)
        attrs = {
            "stride": rng.integers(1, 4, 2).tolist(),
            "dilation": rng.integers(1, 3, 2).tolist(),
            "padding": [tuple(rng.integers(-1, 4, 2).tolist()) for _ in range(2)],
            "border": str(rng.choice(["constant", "replicate", "reflect", "reflect-even"])),
        }
        case = conv_case((1, 2, *rng.integers(1, 7, 2).tolist()), (3, 2, *kernel.tolist()), **attrs)
        arrays = arrays_of(case, rng)
        try:
            got = conv_cpu(Attrs(case.attrs), *arrays)
        except ShapeError:
            continue
        tried += 1
        wanted = naive_conv(Attrs(case.attrs), *arrays)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=case.id)
    assert tried >= 20


def test_deconv_is_the_transpose_of_conv(rng):
    """<conv(x), y> = <x, deconv(y)> for the same filter."""
    attrs = {"stride": [2, 3], "padding": [(1, 2), (0, 1)], "dilation": [2, 1]}
    filter = rng.standard_normal((6, 4, 3, 3)).astype(np.float32)
    x = rng.standard_normal((1, 4, 12, 14)).astype(np.float32)
    zero = np.zeros((), np.float32)
    made = conv_cpu(Attrs(conv_case(x.shape, filter.shape, **attrs).attrs), x, filter, zero)
    y = rng.standard_normal(made.shape).astype(np.float32)
    back = deconv_case(y.shape, filter.shape, output_shape=list(x.shape), **attrs)
    returned = deconv_cpu(Attrs(back.attrs), y, filter, zero)
    assert np.vdot(made, y) == pytest.approx(np.vdot(x, returned), rel=1e-4)


def test_a_large_image_is_done_in_stretches(rng):
    """The window matrix of 256x256x16 would take 38 MB; the result does not depend on its
    division."""
    x = rng.standard_normal((1, 16, 256, 40)).astype(np.float32)
    filter = rng.standard_normal((4, 16, 3, 3)).astype(np.float32)
    attrs = Attrs(conv_case(x.shape, filter.shape, padding=[(0, 0), (0, 0)]).attrs)
    zero = np.zeros((), np.float32)
    whole = conv_cpu(attrs, x, filter, zero)
    parts = [conv_cpu(attrs, x[:, :, i : i + 18], filter, zero) for i in (0, 100, 238)]
    for i, part in zip((0, 100, 238), parts, strict=True):
        np.testing.assert_allclose(whole[:, :, i : i + 16], part, rtol=1e-5, atol=1e-4)


CONV_REFUSALS = [
    (
        conv_case((1, 128, 8, 8), (32, 64, 3, 3)),
        r"filter has 64 input channels, input has 128 \(groups=1",
    ),
    (conv_case((1, 8, 8, 8), (8, 8, 3, 3), border="ignore"), "border='ignore'"),
    (conv_case((1, 8), (8, 8)), "rank 3, 4 or 5"),
    (conv_case((1, 8, 4, 4), (8, 8, 3)), "wanted rank 4"),
    (conv_case((1, 8, 4, 4), (8, 8, 3, 3), (1, 9)), "bias"),
    (conv_case((1, 8, 4, 4), (8, 8, 3, 3), stride=[1]), "has 1 values, wanted 2"),
    (conv_case((1, 8, 4, 4), (8, 8, 3, 3), dilation=[0, 1]), "wanted 1 or more"),
    (conv_case((1, 8, 4, 4), (8, 8, 3, 3), padding=[(1, 1)]), "wanted 2 pairs"),
    (conv_case((1, 8, 4, 4), (8, 8, 7, 7), padding=[(0, 0), (0, 0)]), "does not fit into 4"),
    (conv_case((1, 8, 4, 4), (8, 4, 3, 3), groups=3), "do not divide into groups=3"),
    (conv_case((1, 8, 4, 4), (7, 4, 3, 3), groups=2), "filter's output channels"),
    (conv_case((1, 8, 4, 4), (8, 8, 3, 3), groups=-1), "groups=-1"),
    (conv_case((1, 8, 4, 4), (8, 8, 0, 3)), "without extent"),
    (
        conv_case((1, 4, 0, 4), (4, 4, 3, 3), border="reflect", padding=[(2, 2), (1, 1)]),
        "finds no value",
    ),
]
DECONV_REFUSALS = [
    (deconv_case((1, 8, 4, 4), (4, 8, 3, 3)), "filter is for 4 input channels, input has 8"),
    (deconv_case((1, 8, 4, 4), (8, 8, 3, 3), border="reflect"), "no meaning for deconv"),
    (deconv_case((1, 8, 4, 4), (8, 4, 3, 3), output_shape=[1, 8, 4, 4]), "output_shape begins"),
    (deconv_case((1, 8, 4, 4), (8, 4, 3, 3), output_shape=[1, 4, 4]), "has 3 extents, wanted 4"),
    (
        deconv_case((1, 8, 4, 4), (8, 4, 3, 3), stride=[2, 2], output_shape=[1, 4, 12, 8]),
        "output_shape 12 goes back to 6",
    ),
    (deconv_case((1, 8, 1, 4), (8, 4, 3, 3), padding=[(2, 2), (0, 0)]), "crops all of the 3"),
]


@pytest.mark.parametrize(("case", "said"), CONV_REFUSALS, ids=[s for _, s in CONV_REFUSALS])
def test_conv_refuses_with_numbers(case, said):
    with pytest.raises(ShapeError, match=said):
        infer_conv(Attrs(case.attrs), *(Fact("scalar", tuple(s)) for s in case.inputs))


@pytest.mark.parametrize(("case", "said"), DECONV_REFUSALS, ids=[s for _, s in DECONV_REFUSALS])
def test_deconv_refuses_with_numbers(case, said):
    facts = [Fact("scalar", np.shape(s) if isinstance(s, np.ndarray) else s) for s in case.inputs]
    with pytest.raises(ShapeError, match=said):
        infer_deconv(Attrs(case.attrs), *facts)


def test_there_are_enough_cases():
    assert len(CONV_CASES) >= 25
    assert len(DECONV_CASES) >= 15
    borders = {case.attrs["border"] for case in CONV_CASES}
    assert borders == {"constant", "replicate", "reflect", "reflect-even"}
    assert len(list(itertools.chain(CONV_CASES, DECONV_CASES))) == len(
        {case.id for case in (*CONV_CASES, *DECONV_CASES)}
    )
