"""Tests of the faster functions that CPU sessions call: prepared convolutions, results in place.

They agree with the operators' definitions for every memory order of the inputs.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import ShapeError
from cml_engine.ir.graph import Attrs, Fact, Graph, Node
from cml_engine.ops import load_families, register
from cml_engine.ops.common import blas
from cml_engine.ops.conv import cpu_channels_last, cpu_winograd
from cml_engine.ops.conv.cases import CONV_CASES, conv_case
from cml_engine.ops.conv.cpu import conv_cpu
from cml_engine.ops.conv.shapes import conv_shape
from cml_engine.ops.declaration.registry import formula_of, lookup, registered, unregister
from cml_engine.ops.declaration.scratch import Scratch
from cml_engine.ops.declaration.spec import EXACT, OpSpec, same_as
from cml_engine.ops.elementwise.elementwise import in_place
from cml_engine.ops.elementwise.in_place import apply_in_place
from cml_engine.tools.testing import case_graph, full_attrs
from tests.reference.formulas import FORMULAS

load_families()
PREPARED = [name for name, spec in registered().items() if spec.prepare]


def channels_last(x):
    """Returns an array of the same shape and values with dimension 1 last in memory."""
    if x.ndim < 3:
        return x
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    return np.moveaxis(last, -1, 1)


def orders(arrays):
    """Yields the list of arrays in several memory orders with equal values.

    The first array is as it is, channels last, and with gaps; then all arrays are channels last.
    """
    first, *others = arrays
    yield [first, *others]
    yield [channels_last(first), *others]
    if first.ndim >= 3:
        wide = np.zeros((*first.shape[:-1], first.shape[-1] + 3), first.dtype)
        wide[..., : first.shape[-1]] = first
        yield [channels_last(wide)[..., : first.shape[-1]], *others]
    if others and others[0].shape == first.shape:
        yield [channels_last(a) for a in arrays]


@pytest.mark.parametrize("op", PREPARED)
def test_every_case_in_every_order_of_memory(op):
    spec, scratch, compared = lookup(op), Scratch(), 0
    for case in spec.cases:
        graph, inputs = case_graph(op, case, constants=True)
        (node,) = graph.nodes
        values = {**graph.constants, **inputs}
        arrays = [values[name] for name in node.inputs]
        facts = [graph.facts[name] for name in node.inputs]
        constants = [graph.constants.get(name) for name in node.inputs]
        function = spec.prepare(node.attrs, facts, constants, scratch)
        if function is None:
            continue
        with np.errstate(all="ignore"):
            wanted = spec.cpu(node.attrs, *arrays)
            for given in orders(arrays):
                got = function(node.attrs, *given)
                assert got.shape == wanted.shape
                assert got.dtype == wanted.dtype
                bound = spec.tolerance
                if bound is EXACT:
                    np.testing.assert_array_equal(got, wanted, err_msg=case.note)
                else:
                    np.testing.assert_allclose(
                        got, wanted, bound.rtol, bound.atol, err_msg=case.note
                    )
        compared += 1
    assert compared > 2


def by(way, case, rng):
    """Asserts that the prepared function ``way`` agrees with conv for all memory orders."""
    arrays = [
        g if isinstance(g, np.ndarray) else rng.uniform(-1, 1, g).astype(np.float32)
        for g in case.inputs
    ]
    attrs = Attrs(case.attrs)
    shape = conv_shape(attrs, *(Fact("scalar", a.shape) for a in arrays))
    wanted = conv_cpu(attrs, *arrays)
    for given in orders(arrays):
        got = way(shape, arrays[1], Scratch())(attrs, *given)
        bound = 5e-6 * np.abs(wanted).max(initial=1)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=str(case))


def shape_of(case):
    facts = [Fact("scalar", np.shape(a) if isinstance(a, np.ndarray) else a) for a in case.inputs]
    return conv_shape(Attrs(case.attrs), *facts)


def test_windows_of_every_shape(rng):
    cases = [c for c in CONV_CASES if shape_of(c).groups == 1 and 0 not in c.inputs[0]]
    assert len(cases) > 20
    for case in cases:
        by(cpu_channels_last.Windows, case, rng)


@pytest.mark.parametrize("block", [1, 3000, 100_000])
def test_products_in_blocks(rng, monkeypatch, block):
    """Matrix products are right in blocks of few rows, with a remainder, and of all rows."""
    monkeypatch.setattr(blas, "_BLOCK", block)
    by(cpu_channels_last.Windows, conv_case((2, 9, 11, 17), (11, 9, 1, 1)), rng)
    by(cpu_channels_last.Windows, conv_case((1, 9, 11, 17), (11, 9, 3, 3)), rng)


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect-even"])
def test_depthwise_windows(rng, border):
    tried = 0
    for _ in range(60):
        count = int(rng.integers(1, 4))
        channels, batch = (int(n) for n in rng.integers(1, (9, 3)))
        extents, kernel, stride, dilation = (
            [int(n) for n in rng.integers(1, most, count)] for most in (13, 5, 4, 3)
        )
        padding = [tuple(int(n) for n in rng.integers(-1, 4, 2)) for _ in range(count)]
        case = conv_case(
            (batch, channels, *extents), (channels, 1, *kernel), groups=channels, border=border,
            stride=stride, dilation=dilation, padding=padding,
        )  # fmt: skip
        try:
            shape_of(case)
        except ShapeError:
            continue
        by(cpu_channels_last.Depthwise, case, rng)
        tried += 1
    assert tried > 20


def test_the_rules_choose_the_convolution_kernel():
    def chosen(x, filter, given=True, **attrs):
        case = conv_case(x, filter, **attrs)
        facts = [Fact("scalar", s) for s in (x, filter, (1, filter[0]))]
        constants = [None, np.ones(filter, np.float32) if given else None, None]
        way = cpu_channels_last.prepare_conv(Attrs(case.attrs), facts, constants, Scratch())
        return type(way).__name__

    assert chosen((1, 16, 9, 9), (16, 1, 3, 3), groups=16) == "Depthwise"
    assert chosen((1, 16, 9, 9), (32, 1, 3, 3), groups=16) == "partial"
    assert chosen((1, 16, 9, 9), (16, 1, 3, 3), given=False, groups=16) == "partial"
    assert chosen((1, 512, 9, 900), (512, 1, 3, 3), groups=512) == "partial", "a filter of 16 MB"
    assert chosen((1, 16, 9, 9), (24, 16, 1, 1)) == "Windows"
    assert chosen((1, 3, 9, 9), (24, 3, 3, 3)) == "Windows"
    assert chosen((1, 1, 9, 9), (24, 1, 3, 3)) == "partial"
    assert chosen((1, 64, 64, 64), (64, 64, 3, 3), padding=[(1, 1), (1, 1)]) == "Winograd"
    assert chosen((1, 16, 0, 9), (24, 16, 1, 1)) == "partial"


# ---------------------------------------------------------------- sessions


def mobile(rng):
    """Returns a graph of depthwise and pointwise layers, clamps, a residual, pool and concat."""
    constants = {
        name: rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        for name, shape in {
            "w1": (24, 8, 1, 1), "w2": (24, 1, 3, 3), "w3": (8, 24, 1, 1),
            "b": (1, 24), "c": (1, 8),
        }.items()
    }  # fmt: skip
    constants |= {"low": np.float32(0).reshape(()), "high": np.float32(0.6).reshape(())}
    around = {"padding": [(1, 1), (1, 1)]}
    pool = {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2]}
    nodes = (
        Node("conv", ("x", "w1", "b"), ("p",), full_attrs("conv", {})),
        Node("clamp", ("p", "low", "high"), ("q",)),
        Node("conv", ("q", "w2", "b"), ("d",), full_attrs("conv", {**around, "groups": 24})),
        Node("relu", ("d",), ("e",)),
        Node("conv", ("e", "w3", "c"), ("f",), full_attrs("conv", {})),
        Node("add", ("f", "x"), ("g",)),
        Node("max_pool", ("g",), ("h",), full_attrs("max_pool", pool)),
        Node("nearest_upsample", ("h",), ("i",), Attrs({"factor": [2, 2]})),
        Node("concat", ("g", "i"), ("y",), Attrs({"axis": 1})),
    )
    facts = {"x": Fact("scalar", (1, 8, 64, 48))}
    facts |= {name: Fact("scalar", value.shape) for name, value in constants.items()}
    return infer_facts(Graph("mobile", ("x",), ("y", "g"), nodes, facts, constants))


def defined(graph, x):
    values = {**graph.constants, "x": x}
    for node in graph.nodes:
        arrays = [values[n] for n in node.reads]
        values[node.outputs[0]] = lookup(node.op).cpu(node.attrs, *arrays)
    return [values[name] for name in graph.outputs]


def test_results_of_earlier_runs_stay_valid(rng):
    """The results of earlier runs stay right after later runs, so they share no reused memory."""
    graph = mobile(rng)
    session = cml.Session(graph, "cpu")
    given = [rng.uniform(-1, 1, (1, 8, 64, 48)).astype(np.float32) for _ in range(3)]
    results = [session.run({"x": x}) for x in given]
    for x, result in zip(given, results, strict=True):
        for name, wanted in zip(graph.outputs, defined(graph, x), strict=True):
            np.testing.assert_allclose(result[name], wanted, rtol=1e-5, atol=2e-5)


def test_results_last_as_long_as_a_view_of_them():
    scratch = Scratch()
    held = scratch.result(8, 1024)
    view = held.transpose(1, 0)[5:]
    address = held.__array_interface__["data"][0]
    del held
    assert not np.may_share_memory(scratch.result(8, 1024), view)
    del view
    again = scratch.result(4, 2000)
    assert again.__array_interface__["data"][0] == address, "what nobody holds is used again"


def test_results_are_as_many_as_live_at_once():
    scratch = Scratch()
    for size in (5000, 9000, 7000, 30000, 6000):
        first, second = scratch.result(size), scratch.result(size)
        assert not np.may_share_memory(first, second)
        del first, second
    assert len(scratch._results) == 2


def by_formula(attrs, x, filter, bias):
    return FORMULAS["conv"](x, filter, bias, **attrs)[0]


def random_conv(rng, shape, channels, padding, border="constant"):
    case = conv_case(shape, (channels, shape[1], 3, 3), padding=padding, border=border)
    x, filter = (rng.uniform(-1, 1, s).astype(np.float32) for s in case.inputs[:2])
    bias = rng.uniform(-1, 1, (1, channels)).astype(np.float32)
    attrs = Attrs(case.attrs)
    return attrs, x, filter, bias


def by_tiles(attrs, x, filter, bias):
    facts = [Fact("scalar", a.shape) for a in (x, filter, bias)]
    shape = conv_shape(attrs, *facts)
    return cpu_winograd.Winograd(shape, filter, Scratch())(attrs, x, filter, bias), shape


def check(attrs, x, filter, bias):
    got, shape = by_tiles(attrs, x, filter, bias)
    wanted = by_formula(attrs, x, filter, bias)
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-6 * np.abs(wanted).max())


def test_random_windows(rng):
    for _ in range(40):
        padding = [tuple(rng.integers(-2, 5, 2).tolist()) for _ in range(2)]
        shape = (*rng.integers(1, 4, 2).tolist(), *rng.integers(1, 15, 2).tolist())
        border = str(rng.choice(["constant", "replicate", "reflect", "reflect-even"]))
        attrs, x, filter, bias = random_conv(rng, shape, int(rng.integers(1, 5)), padding, border)
        try:
            wanted = conv_cpu(attrs, x, filter, bias)
        except ShapeError:
            continue
        got, _ = by_tiles(attrs, x, filter, bias)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_error_at_64_channels(rng):
    """Winograd's error with 64 channels is below 1e-4, less than half of conv's tolerance."""
    attrs, x, filter, bias = random_conv(rng, (1, 64, 33, 30), 64, [(1, 1), (1, 1)])
    got, shape = by_tiles(attrs, x, filter, bias)
    wanted = by_formula(attrs, x, filter, bias)
    assert np.abs(got - wanted).max() < 1e-4


@pytest.mark.parametrize("floats", [1, 72 * 8 * 20, 72 * 8 * 90])
def test_winograd_in_parts_equals_the_whole(rng, monkeypatch, floats):
    """Winograd's result is the same in parts of one or more rows of tiles, or of some images."""
    case = random_conv(rng, (5, 8, 21, 18), 6, [(1, 1), (1, 1)])
    whole, _ = by_tiles(*case)
    monkeypatch.setattr(cpu_winograd, "_MOST_SCRATCH", floats)
    parts, _ = by_tiles(*case)
    np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-5)


def test_a_bias_of_one_value(rng):
    attrs, x, filter, _ = random_conv(rng, (1, 8, 9, 9), 6, [(1, 1), (1, 1)])
    check(attrs, x, filter, np.float32(0.5).reshape(()))


def test_winograd_is_chosen_where_it_is_faster():
    def pays(x, filter, **attrs):
        case = conv_case(x, filter, **{"padding": [(1, 1), (1, 1)], **attrs})
        facts = [Fact("scalar", s) for s in (x, filter, (1, filter[0]))]
        return cpu_winograd.is_faster(conv_shape(Attrs(case.attrs), *facts))

    assert pays((1, 64, 64, 64), (64, 64, 3, 3))
    assert not pays((1, 3, 64, 64), (64, 3, 3, 3))
    assert not pays((1, 64, 2, 2), (64, 64, 3, 3))
    assert not pays((1, 64, 64, 64), (64, 64, 3, 3), stride=[2, 2])
    assert not pays((1, 64, 64, 64), (64, 64, 3, 3), dilation=[2, 1])
    assert not pays((1, 64, 64, 64), (64, 32, 3, 3), groups=2)
    assert not pays((1, 64, 64, 64), (64, 64, 3, 1), padding=[(1, 1), (0, 0)])
    assert not pays((1, 2048, 4, 4096), (2048, 2048, 3, 3)), "a row of tiles of 600 MB"


# ---------------------------------------------------------------- sessions


def conv_chain(rng, *tail):
    """Returns a graph x -> conv -> prelu -> conv -> ``tail``, large enough for Winograd's tiles."""
    constants = {
        "w1": rng.uniform(-0.1, 0.1, (48, 48, 3, 3)).astype(np.float32),
        "w2": rng.uniform(-0.1, 0.1, (48, 48, 3, 3)).astype(np.float32),
        "b": rng.uniform(-1, 1, (1, 48)).astype(np.float32),
        "s": rng.uniform(-0.5, 1.5, (1, 48)).astype(np.float32),
    }
    attrs = full_attrs("conv", {"padding": [(1, 1), (1, 1)]})
    nodes = (
        Node("conv", ("x", "w1", "b"), ("c",), attrs),
        Node("prelu", ("c", "s"), ("p",)),
        Node("conv", ("p", "w2", "b"), ("d",), attrs),
        *tail,
    )
    facts = {"x": Fact("scalar", (2, 48, 17, 19))}
    facts |= {name: Fact("scalar", value.shape) for name, value in constants.items()}
    return infer_facts(Graph("chain", ("x",), nodes[-1].outputs, nodes, facts, constants))


def test_a_session_agrees_with_the_definitions(rng, monkeypatch):
    calls = []
    tiles = cpu_winograd.Winograd.__call__
    monkeypatch.setattr(
        cpu_winograd.Winograd, "__call__", lambda *a: calls.append(a[2].shape) or tiles(*a)
    )
    graph = conv_chain(rng, Node("add", ("d", "p"), ("e",)), Node("relu", ("e",), ("y",)))
    x = rng.uniform(-1, 1, (2, 48, 17, 19)).astype(np.float32)
    session = cml.Session(graph, "cpu")
    got, again = session.run({"x": x})["y"], session.run({"x": x})["y"]
    assert len(calls) == 4
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, again)
    np.testing.assert_allclose(got, defined(graph, x)[0], rtol=1e-5, atol=1e-5)


def test_two_threads_may_run_one_session(rng):
    session = cml.Session(conv_chain(rng), "cpu")
    inputs = [rng.uniform(-1, 1, (2, 48, 17, 19)).astype(np.float32) for _ in range(8)]
    alone = [session.run({"x": x})["d"] for x in inputs]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda x: session.run({"x": x})["d"], inputs))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_updated_filter_is_not_prepared(rng):
    graph = conv_chain(rng, Node("add", ("w1", "w1"), ("w1_next",)))
    graph = graph.with_(updates=(("w1", "w1_next"),), outputs=("d",))
    program = CpuProgram(graph)
    x = rng.uniform(-1, 1, (2, 48, 17, 19)).astype(np.float32)
    first, second = (program.run({"x": x})["d"] for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    doubled = graph.with_(constants={**graph.constants, "w1": graph.constants["w1"] * 2})
    np.testing.assert_allclose(second, CpuProgram(doubled).run({"x": x})["d"], atol=1e-5)


def test_game_function_gets_contiguous_arrays(rng):
    seen = []

    def look(attrs, x):
        seen.append(x.flags.c_contiguous)
        return x.copy()

    register(OpSpec("look_at_it", infer=same_as(0), cpu=look, signature=LOOK))
    try:
        graph = conv_chain(rng, Node("look_at_it", ("d",), ("y",)))
        CpuProgram(graph).run({"x": np.zeros((2, 48, 17, 19), np.float32)})
    finally:
        unregister("look_at_it")
    assert seen == [True]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e37])
def test_nonfinite_inputs_affect_only_their_windows(rng, odd):
    """A NaN, infinite or huge input makes only those results non-finite that the formula does.

    A tile would spread it over sixteen results, and a transform may overflow where a sum does not.
    """
    attrs, x, filter, bias = random_conv(rng, (1, 8, 13, 14), 8, [(1, 1), (1, 1)])
    x[0, 3, 6, 7] = odd
    got, shape = by_tiles(attrs, x, filter, bias)
    with np.errstate(invalid="ignore"):
        wanted = by_formula(attrs, x, filter, bias).astype(np.float32)
    assert (~np.isfinite(wanted)).sum() == (9 * 8 if abs(odd) > 1e38 or odd != odd else 0)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
    far = np.ones((13, 14), bool)
    far[5:8, 6:9] = False
    np.testing.assert_allclose(got[:, :, far], wanted[:, :, far], rtol=0, atol=2e-5)


LOOK = "fragment look_at_it(x: tensor<scalar>) -> (y: tensor<scalar>);"

# ---------------------------------------------------------------- in place

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 1e-45, -1e-45, 3e38, -3e38, 0.3], np.float32
).reshape(1, 1, 12)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "attrs", "others"),
    [
        ("relu", {}, []),
        *(("leaky_relu", {"alpha": a}, []) for a in (0.0, 0.1, 1.0, 2.0, -0.5, np.inf, np.nan)),
        ("prelu", {}, [[[0.1, 0.9, 1.0]]]),
        ("prelu", {}, [[[0.0, 2.5, -1.0]]]),
        ("prelu", {}, [0.25]),
        ("prelu", {}, [[[np.inf, 1.0, np.nan]]]),
        ("clamp", {}, [0.0, 1.0]),
        ("clamp", {}, [np.nan, 6.0]),
        ("add", {}, [[[[np.inf]], [[0.5]], [[np.nan]]]]),
    ],
)
def test_in_place_elementwise_equals_the_definition(op, attrs, others):
    x = np.tile(SPECIAL.reshape(1, 1, 12), (2, 3, 1))
    operands = [np.array(o, np.float32).reshape(np.shape(o)[-2:] if op != "add" else (1, 3, 1))
                for o in others]  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = lookup(op).cpu(Attrs(attrs), x, *operands)
        done = apply_in_place(formula_of(op), Attrs(attrs), x, operands)
    finite = np.isfinite(list(attrs.values())).all() and all(np.isfinite(o).all() for o in operands)
    assert done or not finite
    if done:
        np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("slopes", [(1, 7), (1, 7, 1, 1), (), (2, 7, 30, 40), (1, 1, 30)])
@pytest.mark.parametrize("low", [-1.0, 0.1])
def test_prelu_in_blocks(rng, monkeypatch, slopes, low):
    monkeypatch.setattr(in_place, "_BLOCK", 1000)
    slope = rng.uniform(low, 1, slopes).astype(np.float32)
    for order in ((0, 1, 2, 3), (0, 3, 1, 2)):
        shape = np.array((2, 7, 30, 40))
        laid = [int(shape[order.index(axis)]) for axis in range(4)]
        x = rng.uniform(-1, 1, laid).astype(np.float32).transpose(order)
        wanted = lookup("prelu").cpu(Attrs({}), x, slope)
        assert apply_in_place(formula_of("prelu"), Attrs({}), x, [slope])
        np.testing.assert_array_equal(x, wanted)


def test_in_place_requires_equal_shape_and_type():
    x = np.ones((1, 3, 1), np.float32)
    for other in (np.ones((1, 3, 2), np.float32), np.ones((1, 3, 1, 1), np.float32),
                  np.ones((1, 3, 1), np.float64)):  # fmt: skip
        assert not apply_in_place(formula_of("add"), Attrs({}), x, [other])
    assert not apply_in_place(formula_of("sigmoid"), Attrs({}), x, [])
    assert (x == 1).all()


def test_scratch_grows_and_is_per_thread():
    scratch = Scratch()
    small = scratch.take("a", 4)
    assert np.shares_memory(small, scratch.take("a", 2, 2))
    assert scratch.take("a", 10, 10).shape == (10, 10)
    assert not np.shares_memory(scratch.take("a", 4), scratch.take("b", 4))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(scratch.take, "a", 4).result()
    assert not np.shares_memory(scratch.take("a", 4), other)


def test_a_large_image_is_done_in_stretches(rng):
    """A large convolution, computed in blocks of rows, equals convolutions of its parts."""
    x = rng.standard_normal((1, 16, 256, 40)).astype(np.float32)
    filter = rng.standard_normal((4, 16, 3, 3)).astype(np.float32)
    attrs = Attrs(conv_case(x.shape, filter.shape, padding=[(0, 0), (0, 0)]).attrs)
    zero = np.zeros((), np.float32)
    whole = conv_cpu(attrs, x, filter, zero)
    parts = [conv_cpu(attrs, x[:, :, i : i + 18], filter, zero) for i in (0, 100, 238)]
    for i, part in zip((0, 100, 238), parts, strict=True):
        np.testing.assert_allclose(whole[:, :, i : i + 16], part, rtol=1e-5, atol=1e-4)
