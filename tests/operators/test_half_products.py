"""Tests of convolutions whose products are of 16 bits (``CompileOptions(arithmetic="half")``)."""

import dataclasses

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.passes.half_products import allow_half_products
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.cooked.profiles import PROFILES
from cml_engine.errors import InputError
from cml_engine.gpu.program import inspect
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.layout import C4H
from cml_engine.ir.layout import HALF as HALF_MATRIX
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.spec import Case
from cml_engine.runtime.node_check import round_to_half
from cml_engine.runtime.session.compile_graph import make_plan, optimize_for
from cml_engine.testing import case_graph, reference
from tests.fixtures.graphs import Net
from tests.fixtures.operators import check_graph

LAYOUTS = {"x0": C4H, "y0": C4H}
HALF = cml.CompileOptions(storage="half", arithmetic="half", tuned=False)
#: an operator's case, and the kernels that compute it
CASES = {
    "border": ("conv", conv_case((2, 8, 9, 7), (10, 8, 3, 3)),
               ("half window 4x1 by 64", "half window 4x1 by 64 in 2 parts",
                "half tile 4x2 by 64")),
    "strides": ("conv", conv_case((2, 12, 9, 11), (5, 12, 3, 2), stride=[2, 3]),
                ("half window 4x2 by 64", "half tile 4x4 by 64")),
    "groups": ("conv", conv_case((1, 32, 5, 7), (32, 16, 3, 1), groups=2),
               ("half window 4x1 by 64 in 4 parts", "half tile 16x1 by 64")),
    "1x1": ("conv", conv_case((2, 17, 5, 7), (10, 17, 1, 1)), ("half window 8x1 by 64",)),
    "a position": ("conv", conv_case((1, 5, 1, 1), (3, 5, 3, 3)), ("half window 4x1 by 64",)),
    "nothing": ("conv", conv_case((0, 5, 4, 4), (3, 5, 3, 3)), ("",)),
    "deconv": ("deconv", deconv_case((1, 8, 5, 6), (8, 6, 4, 4), (6,), stride=[2, 2]),
               ("half tile 4x1 by 64", "half tile 8x1 by 64")),
    "winograd": ("conv", conv_case((2, 12, 15, 30), (10, 12, 3, 3)),
                 ("half winograd 8x1 by 64", "half winograd 8x2 by 64")),
}  # fmt: skip


@pytest.fixture
def hardware(gpu, set_limits):
    """The suite's device with the rules of hardware; skips the test if it has no shader-f16."""
    if not gpu.limits.half_arithmetic:
        pytest.skip("the device has no shader-f16")
    set_limits(software=False)
    return gpu


def forced(graph, gpu, option):
    """Returns a table that chooses the option."""
    choices = lower(graph, gpu.limits, LAYOUTS).choices
    if not option:  # nothing is computed
        assert not choices
        return VariantTable({})
    (choice,) = choices
    assert option in choice.options
    return VariantTable.forcing(choice.key, option)


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_within_the_tolerance_for_any_partition(name, hardware):
    op, case, options = CASES[name]
    graph, inputs = case_graph(op, case, constants=True)
    graph = allow_half_products(graph)
    for option in options:
        table = forced(graph, hardware, option)
        check_graph(graph, inputs, hardware, layouts=LAYOUTS, variants=table)


@pytest.mark.parametrize(
    ("option", "least", "most"),
    [
        ("half window 4x1 by 64", 1e-4, 4e-4),
        ("half tile 4x1 by 64", 5e-5, 3e-4),
        ("half winograd 8x1 by 64", 3e-4, 1e-3),
    ],
)
def test_the_mean_error_is_that_of_16_bits(option, least, most, hardware, rng):
    """The rms error, over the largest result, is that of 16-bit sums; rounding alone has 5e-5."""
    filter = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    x = round_to_half(rng.uniform(-1, 1, (1, 64, 16, 16)).astype(np.float32))
    case = Case((x, filter, np.zeros((1, 64), np.float32)))
    graph, _ = case_graph("conv", case, constants=True)
    exact = reference(graph, {"x0": x})["y0"]
    graph = allow_half_products(graph)
    layouts = {"x0": C4H}
    (choice,) = lower(graph, hardware.limits, layouts).choices
    plan = PlanOptions(variants=VariantTable.forcing(choice.key, option), keep=True)
    program = GpuProgram(lower(graph, hardware.limits, layouts, plan), hardware)
    program.run({"x0": x})
    got = inspect.read_tensor(program, program.plan.tensors["y0"])
    off = np.sqrt(np.mean((got - exact) ** 2)) / np.abs(exact).max()
    assert least < off < most


def chain():
    net = Net(1, 64, 32, 32)
    x = "x"
    for _ in range(3):
        x = net.op("relu", net.conv(x, 64))
    return net.graph(x)


def hardware_plan(graph, decide=None):
    options = dataclasses.replace(HALF, decide=decide or {})
    device = PROFILES["discrete"].with_f16
    return make_plan(optimize_for(graph, options), device, options, written=graph)


def products(rows):
    builder = cml.GraphBuilder("products")
    x = builder.input("x", [rows, 256])
    graph = builder.graph(y=builder.matmul(x, np.ones((256, 1024), np.float32)))
    (name,) = graph.constants
    return graph, name


@pytest.mark.parametrize(("rows", "layout"), [(1, HALF_MATRIX), (64, None)])
def test_a_matrix_that_tiles_multiply_stays_in_32_bits(rows, layout):
    """Tiles would unpack it in every turn; a product with one row reads it once."""
    graph, name = products(rows)
    assert hardware_plan(graph).layouts.get(name) == layout


def test_what_the_caller_decides_of_storage_stays():
    graph, name = products(64)
    decided = hardware_plan(graph, {name: {"storage": "half"}})
    assert decided.layouts[name] == HALF_MATRIX
    graph = chain()
    name = graph.nodes[0].outputs[0]
    free, decided = (hardware_plan(graph, d) for d in ({}, {name: {"storage": "float"}}))
    assert C4H in free.layouts.values()
    assert list(decided.layouts.values()).count(C4H) < list(free.layouts.values()).count(C4H)


def test_small_convolutions_of_one_tap_are_joined_in_32_bits():
    """A joined dispatch of floats saves a launch, which is worth more than products of 16 bits."""
    net = Net(1, 16, 24, 24)
    x = "x"
    for _ in range(3):
        x = net.op("relu", net.conv(x, 16, 1))
    plan = hardware_plan(net.graph(x))
    assert len(plan.steps) == 1 and C4H not in plan.layouts.values()


def kernels_of(options, half_arithmetic=True, software=False):
    graph = chain()
    device = PROFILES["discrete"]
    limits = dataclasses.replace(device.limits, half_arithmetic=half_arithmetic, software=software)
    device = dataclasses.replace(device, limits=limits)
    plan = make_plan(optimize_for(graph, options), device, options, written=graph)
    return [choice.chosen.startswith("half ") for choice in plan.choices]


def test_hardware_takes_them_where_the_input_is_stored_in_16_bits():
    assert kernels_of(HALF) == [False, True, True]
    assert not any(kernels_of(HALF, half_arithmetic=False))
    assert not any(kernels_of(HALF, software=True))
    assert not any(kernels_of(dataclasses.replace(HALF, arithmetic="float")))


def test_16_bit_arithmetic_needs_16_bit_storage():
    with pytest.raises(InputError, match="add storage='half'"):
        cml.CompileOptions(arithmetic="half")
