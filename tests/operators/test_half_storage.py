"""Tests of tensors stored in 16 bits: rounding, kernels against rounded references, whole networks.

``test_operators.py`` runs every declared case of operators with the ``c4h`` layout: odd sizes,
single elements, guard bands, any partition. The tests here cover the rest.
"""

import dataclasses

import numpy as np
import pytest

from cml_engine import Session
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ir.layout import C4, C4H
from cml_engine.ir.layout import HALF as HALF_WEIGHTS
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.spec import Case
from cml_engine.runtime.node_check import round_to_half, run_stored
from cml_engine.runtime.session import CompileOptions
from cml_engine.testing import case_graph, full_attrs, reference
from tests.fixtures.graphs import Net, check_session
from tests.fixtures.operators import check_graph

pytestmark = pytest.mark.gpu

HALF = CompileOptions(storage="half", tuned=False)


def run(graph, layouts, gpu, inputs, **options):
    plan = lower(graph, gpu.limits, layouts, PlanOptions(keep=True, **options))
    program = GpuProgram(plan, gpu)
    program.run(inputs)
    return {name: inspect.read_tensor(program, place) for name, place in plan.tensors.items()}


def copied(values, source, target, gpu):
    """Returns values as a tensor, and their copy by a kernel from layout ``source`` to
    ``target``."""
    x = np.resize(values, (1, 4, 8, -(-values.size // 32))).astype(np.float32)
    facts = {"x": Fact("scalar", x.shape), "y": Fact("scalar", x.shape)}
    graph = Graph(
        "copy", ("x",), ("y",), (Node("copy", ("x",), ("y",), full_attrs("copy", {})),), facts
    )
    return x, run(graph, {"x": source, "y": target}, gpu, {"x": x})["y"]


def test_every_float16_value_is_copied_exactly(gpu):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for source, target in ((C4H, C4H), (C4H, C4), (C4, C4H)):
        x, y = copied(every, source, target, gpu)
        assert np.array_equal(y, x, equal_nan=True)
        assert np.array_equal(np.signbit(y[y == 0]), np.signbit(x[x == 0]))


def test_numbers_are_rounded_as_numpy_rounds(gpu, rng):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    beside = np.concatenate([np.nextafter(ties, np.float32(s)) for s in (-np.inf, np.inf)])
    edges = np.array([65519.996, 65520, 1e9, np.inf, -np.inf, np.nan, 2.0**-25, 1e-30], np.float32)
    every_nan = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    wide = (rng.standard_normal(4096) * 10.0 ** rng.uniform(-9, 6, 4096)).astype(np.float32)
    values = np.concatenate([ties, -ties, beside, edges, every_nan, wide])
    x, y = copied(values, C4, C4H, gpu)
    assert np.array_equal(y, round_to_half(x), equal_nan=True)


#: one node for each kernel of conv and deconv
CONVS = {
    "tile": ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3), stride=[1, 2])),
    "row tile": ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3))),
    "pointwise": ("conv", conv_case((1, 12, 5, 1), (7, 12, 1, 1))),
    "groups": ("conv", conv_case((1, 10, 9, 7), (15, 2, 3, 3), groups=5)),
    "depthwise": ("conv", conv_case((1, 10, 9, 7), (10, 1, 3, 3), groups=0)),
    "deconv": ("deconv", deconv_case((1, 8, 5, 6), (8, 6, 4, 4), (6,), stride=[2, 2])),
}


@pytest.mark.parametrize("name", CONVS)
def test_half_conv_differs_from_rounded_reference_only_at_ties(name, gpu):
    """A conv differs from its rounded reference in less than 1 % of values, and by one float16
    step.

    Its sums have another order and may round to the other side of a tie.
    """
    op, case = CONVS[name]
    graph, inputs = case_graph(op, case, constants=True)
    layouts = {"x0": C4H, "y0": C4H}
    got = run(graph, layouts, gpu, inputs)["y0"]
    expected = reference(graph, inputs, layouts)["y0"]
    differs = got != expected
    assert differs.mean() < 0.01
    steps = got.astype(np.float16).view(np.int16) - expected.astype(np.float16).view(np.int16)
    assert np.abs(steps).max() <= 1


def test_winograd_loses_no_more_than_a_direct_kernel(gpu, rng):
    """The mean error of a Winograd conv in 16 bits is below that of a direct conv.

    Its filter is stored as int16 steps; float16 would lose three times as much.
    """
    filter = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    x = round_to_half(rng.uniform(-1, 1, (1, 64, 48, 48)).astype(np.float32))
    bias = np.zeros((1, 64), np.float32)
    graph, _ = case_graph("conv", Case((x, filter, bias)), constants=True)
    exact = reference(graph, {"x0": x})["y0"]
    got = run(graph, {"x0": C4H, "y0": C4H}, gpu, {"x0": x})["y0"]
    plan = lower(graph, gpu.limits, {"x0": C4H, "y0": C4H})
    assert [step.path for step in plan.steps] == ["conv/winograd.hlsl"] * 6  # in two rounds
    direct = run_stored(graph.nodes[0], graph, {"x0": C4H, "y0": C4H}, graph.constants | {"x0": x})
    assert np.sqrt(np.mean((got - exact) ** 2)) < np.sqrt(np.mean((direct[0] - exact) ** 2))


def test_padding_channels_of_a_block_stay_zero(gpu, rng):
    """Networks with channel counts that fill no block are right.

    The channels that fill up a block stay zero; a NaN there would spread in the next conv.
    """
    for channels in (5, 6, 7):
        net = Net(1, 8, 6, 5, seed=channels)
        net.conv(net(f"relu(conv(x, {channels}))"), 8)
        graph = optimize(net.graph(net.nodes[-1].outputs[0]))
        layouts = layouts_for(graph, "half")
        assert C4H in layouts.values()
        assert check_graph(graph, net.input(), gpu, layouts=layouts) <= 1


def test_residual_may_have_other_storage_than_the_result(gpu, rng):
    net = Net(1, 8, 7, 6)
    total = net("add(conv(x, 8), conv(x, 8, 1))")
    graph = optimize(net.graph(net.conv(total, 4)))
    (fused,) = (node for node in graph.nodes if node.epilogues)
    other = fused.epilogues[0].inputs[0]
    for residual, result in ((C4, C4H), (C4H, C4), (C4H, C4H)):
        layouts = {other: residual, fused.outputs[0]: result}
        check_graph(graph, net.input(), gpu, layouts=layouts)


def test_memory_and_weights_are_half(gpu):
    net = Net(1, 4, 40, 40)
    h = net.conv("x", 32, 1)
    for _ in range(3):
        h = net.conv(h, 32, 1)
    graph = net.graph(net.conv(net(f"mean_reduce({h}, axes=[2, 3])"), 4, 1))
    full, half = (
        Session(graph, gpu, dataclasses.replace(HALF, storage=s)).plan for s in ("float", "half")
    )
    assert half.memory.peak < 0.6 * full.memory.peak
    halved = {name: array for name, (_, array) in half.weights.items() if name.endswith(".half")}
    assert len(halved) == 4  # the last conv reads and writes 32 bits
    for name, array in halved.items():
        assert 2 * array.nbytes == full.weights[name.removesuffix(".half")][1].nbytes


def test_half_concat_parts_are_views(gpu):
    net = Net(1, 8, 8, 8)  # parts begin at multiples of 256 bytes
    parts = [net(f"relu(conv(x, {c}))") for c in (8, 4, 12)]
    graph = optimize(net.graph(net.conv(net.op("concat", *parts, axis=1), 4)))
    session = check_session(graph, gpu, net.input(), 2e-3, storage="half", tuned=False)
    assert "concat" not in [step.op for step in session.plan.steps]


PRODUCTS = {
    "linear": Case(((3, 96), (21, 96), (1, 21))),
    "linear of one": Case(((1, 96), (21, 96), (1, 21))),
    "matmul": Case(((9, 96), (96, 21)), {"transposeA": False, "transposeB": False}),
    "matmul of rows": Case(((2, 9, 96), (2, 21, 96)), {"transposeA": False, "transposeB": True}),
}


#: tiles differ in sizes only: each product has the default and one other; all in the long suite
TILES = 4
KERNELS_OF_PRODUCTS = [
    pytest.param(name, tile, marks=pytest.mark.long if tile not in (0, 1 + number % TILES) else ())
    for number, name in enumerate(PRODUCTS)
    for tile in range(1 + TILES)
]


@pytest.mark.parametrize("name, tile", KERNELS_OF_PRODUCTS)
def test_every_product_kernel_reads_half_weights(name, tile, gpu):
    graph, inputs = case_graph(name.split()[0], PRODUCTS[name], constants=True)
    layouts = {"x1": HALF_WEIGHTS}
    plan = lower(graph, gpu.limits, layouts)
    (choice,) = plan.choices
    options = sorted(choice.options, key=lambda option: option != "reduce")
    assert options[0] == "reduce" and len(options) == 1 + TILES and choice.default in options
    table = VariantTable.forcing(choice.key, options[tile])
    chosen = lower(graph, gpu.limits, layouts, PlanOptions(variants=table))
    assert [a.dtype for n, (_, a) in chosen.weights.items() if "half" in n] == [np.float16]
    check_graph(graph, inputs, gpu, layouts=layouts, variants=table)
