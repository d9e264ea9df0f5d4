"""Tests of kernel variants that ``test_every_variant.py`` misses, and of the three ways to scatter.

They are chosen on hardware GPUs only, or are products with fused operators. They run on any GPU.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cml_engine import GraphBuilder
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.graph import Attrs, Epilogue, Fact
from cml_engine.ir.layout import C4, C4H
from cml_engine.ops import Case, Random
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.shapes import reciprocal
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.registry import lookup
from cml_engine.ops.indexing import scatter
from cml_engine.runtime.node_check import round_to_half
from cml_engine.runtime.session import Session
from cml_engine.testing import case_graph
from tests.fixtures.kernels import conv_kernel
from tests.fixtures.operators import check_graph, check_on_gpu

pytestmark = pytest.mark.gpu

OPS = (
    *("transpose", "slice", "tile", "concat", "nearest_upsample", "matmul", "linear"),
    *("concat_windows", "matmul_heads", "matmul_parts", "standardize"),
)
LARGER = {
    "transpose": [
        Case(((100, 67),), {"axes": [1, 0]}),
        Case(((2, 70, 9, 31),), {"axes": [0, 2, 3, 1]}),
        Case(((40, 3, 50),), {"axes": [2, 1, 0]}),
    ],
    "matmul": [
        Case(((300, 70), (70, 260)), {"transposeA": False, "transposeB": False}),
        Case(((9, 4, 65), (9, 33, 65)), {"transposeA": False, "transposeB": True}),
    ],
}
#: test_operators.py runs the declared cases as the device's own type; here it is the other type
CASES = [
    pytest.param(name, case, other, id=f"{name}-{i}-{'other' if other else 'own'}")
    for name in OPS
    for i, case in enumerate([*lookup(name).cases, *LARGER.get(name, [])])
    for other in ((True,) if case in lookup(name).cases else (True, False))
]


ROWS = {"transposeA": False, "transposeB": False}
ROW_TILE = conv_case((2, 13, 9, 7), (18, 13, 3, 3))
#: the shader, the operator, its case, the layout of maps ("" is plain), whether B is constant
IN_64_BITS = [
    ("conv/winograd", "conv", conv_case((2, 52, 15, 30), (60, 52, 3, 3)), C4H, True),
    ("conv/conv_row_tile", "conv", ROW_TILE, C4, True),
    ("conv/conv_row_tile", "conv", ROW_TILE, C4H, True),
    ("conv/conv", "conv", conv_case((2, 13, 9, 7), (18, 13, 1, 1)), C4, True),
    ("conv/depthwise", "conv", conv_case((2, 10, 9, 7), (10, 1, 3, 3), groups=0), C4H, True),
    ("conv/conv_phases", "deconv",
     deconv_case((2, 10, 5, 7), (10, 18, 3, 3), (18,), stride=[2, 2]), C4, True),
    *(("matmul/matmul", "matmul", Case(shapes, ROWS), "", constants)
      for shapes in (((2, 3, 17, 20), (2, 1, 20, 11)), ((33, 72), (72, 64)))
      for constants in (True, False)),
]  # fmt: skip


@pytest.mark.parametrize(("shader", "op", "case", "layout", "constants"), IN_64_BITS)
def test_64_bit_integers_change_no_bit(shader, op, case, layout, constants, gpu, set_limits):
    """Four neighbours move as two 64-bit integers or each by itself; the last blocks have
    padding."""
    graph, inputs = case_graph(op, case, constants=constants)
    inputs = {name: round_to_half(values) for name, values in inputs.items()}
    layouts = dict.fromkeys(("x0", "y0"), layout) if layout else {}
    options = PlanOptions()
    if shader == "conv/winograd":
        options = PlanOptions(variants=conv_kernel("winograd", graph, gpu.limits, layouts))
    results = []
    for int64 in (gpu.limits.int64, False):
        set_limits(int64=int64)
        check_graph(graph, inputs, gpu, layouts=layouts, variants=options.variants)
        plan = lower(graph, gpu.limits, layouts, options)
        assert plan.steps[-1].path == f"{shader}.hlsl"
        results.append(GpuProgram(plan, gpu).run(inputs)["y0"])
    assert np.array_equal(*results)


@pytest.mark.parametrize(("op", "case", "other"), CASES)
def test_variant(op, case, other, gpu, set_limits):
    software = gpu.limits.software != other
    set_limits(software=software)
    for constants in (False, True) if len(case.inputs) > 1 else (False,):
        check_on_gpu(op, case, gpu, constants=constants)


@pytest.mark.parametrize(
    ("op", "attrs", "expected"),
    [("gather", {"axis": 0}, [1, 4, 1, 4, 3]), ("gather_nd", {}, [4, 4, 1, 4, 3])],
)
def test_gather_clamps_indices_on_the_gpu(op, attrs, expected, gpu):
    """On the GPU a gather clamps an index outside the axis to its ends; ``gather_nd`` counts from
    the end.

    The CPU refuses such an index.
    """
    index = np.array([-1, 4, -(2**31), 2**31 - 1, 2], np.int32)
    index = index[:, None] if op == "gather_nd" else index
    graph, inputs = case_graph(op, Case((np.arange(1, 5, dtype=np.float32), index), attrs))
    np.testing.assert_array_equal(Session(graph, gpu).run(inputs)["y0"], expected)


STEPS = {op: Epilogue(op) for op in ("relu", "sigmoid", "tanh", "silu")} | {
    "leaky_relu": Epilogue("leaky_relu", (), Attrs(alpha=0.1)),
    "prelu": Epilogue("prelu", ("slopes",)),
    "clamp": Epilogue("clamp", ("low", "high")),
    "add": Epilogue("add", ("other",)),
    "bias": Epilogue("sub", ("row",)),
    "scale": Epilogue("mul", ("computed row",)),
    "mask": Epilogue("add", ("matrix",)),
    "computed_mask": Epilogue("add", ("computed matrix",)),
}


def fused(op, case, rng, *steps):
    """Returns the case's graph with these operators as epilogues of its node, and its inputs."""
    graph, inputs = case_graph(op, case)
    result = graph.facts[graph.outputs[0]]
    constants = {
        "slopes": rng.random((1, result.shape[1]), np.float32),
        "low": np.float32(-0.4).reshape(()),
        "high": np.float32(0.6).reshape(()),
        "row": rng.random((*[1] * (result.rank - 1), result.shape[-1]), np.float32),
        "matrix": rng.random((*[1] * (result.rank - 2), *result.shape[-2:]), np.float32),
    }
    others = {
        "other": rng.random(result.shape, np.float32),
        "computed row": rng.random(constants["row"].shape, np.float32),
        "computed matrix": rng.random(constants["matrix"].shape, np.float32),
    }
    facts = {n: Fact("scalar", a.shape) for n, a in {**constants, **others}.items()}
    node = replace(graph.nodes[0], epilogues=tuple(STEPS[s] for s in steps))
    graph = graph.with_(
        inputs=(*graph.inputs, *others),
        nodes=(node,),
        facts={**graph.facts, **facts},
        constants={**graph.constants, **constants},
    )
    return graph, {**inputs, **others}


PRODUCTS = {
    "reduced": ("linear", ((1, 512), (10, 512), (1, 10)), {}),
    # few rows, because small tiles compile fast
    "tiles": ("linear", ((10, 30), (21, 30), (1, 21)), {}),
    "several dispatches": ("linear", ((6, 5000), (200, 5000), ()), {}),
    "batches": ("matmul", ((2, 3, 9, 20), (2, 1, 20, 11)), ROWS),
}
CHAINS = {
    "linear": ("add prelu", "prelu add clamp sigmoid"),
    "matmul": (
        "relu silu add",
        "leaky_relu tanh add",
        "sigmoid clamp add",
        "bias scale add",
        "mask",
        "bias computed_mask relu",
    ),
}


@pytest.mark.parametrize(
    ("name", "steps"),
    [(name, chain) for name, (op, *_) in PRODUCTS.items() for chain in CHAINS[op]],
)
def test_products_with_epilogues(name, steps, gpu, rng):
    op, shapes, attrs = PRODUCTS[name]
    check_graph(*fused(op, Case(shapes, attrs), rng, *steps.split()), gpu)


SCATTER_CASES = [
    pytest.param(op, case, id=f"{op}-{case.note}".replace(" ", "_"))
    for op in ("scatter_elements", "scatter_nd")
    for case in lookup(op).cases
    if case.attrs["reduction"] == "none"
]


def ways(graph, gpu):
    """Returns the name of the kernel of each step in the graph's plan."""
    return [Path(step.path).stem for step in lower(graph, gpu.limits).steps]


@pytest.mark.parametrize(("op", "case"), SCATTER_CASES)
def test_marking(op, case, gpu, monkeypatch):
    graph, inputs = case_graph(op, case)
    monkeypatch.setattr(scatter, "_MAX_SEARCHES", -1)
    check_graph(graph, inputs, gpu)
    if graph.facts["y0"].size:
        assert ways(graph, gpu)[-1] == "take"


@pytest.mark.parametrize("op", ["scatter_elements", "scatter_nd"])
def test_scatter_method_depends_on_constant_indices(op, gpu):
    case = lookup(op).cases[0]
    assert ways(case_graph(op, case)[0], gpu) == ["search"]
    assert ways(case_graph(op, case, constants=True)[0], gpu) == ["copy", "apply_lists"]


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("op", ["scatter_elements", "scatter_nd"])
def test_ranges_of_slots(op, software, gpu, set_limits):
    """A scatter into more slots than threads is right; each thread then handles a range of
    slots."""
    set_limits(software=software)
    attrs = {"reduction": "add"} | ({"axis": 0} if op == "scatter_elements" else {})
    indices = Random((99, 3) if op == "scatter_elements" else (99, 1), -5001, 5001, "integer")
    case = Case(((5001, 3), indices, (99, 3)), attrs)
    graph, inputs = case_graph(op, case)
    assert ways(graph, gpu) == ["search"]
    check_graph(graph, inputs, gpu)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5])
def test_loads_ahead_of_their_turn_miss_no_products(blocks, gpu, set_limits):
    """Kernels that load one or two turns ahead are right for odd, even and few turns."""
    set_limits(software=False)
    around = {"padding": [(1, 1), (1, 1)]}
    for op, case, options in (
        ("conv", conv_case((1, 4 * blocks, 5, 6), (9, 4 * blocks, 3, 3), **around),
         ("tile 4x1 by 64", "tile 8x2 by 64", "tile 16x4 by 64", "window 4x1 by 64",
          "window 8x4 by 64")),
        ("conv", conv_case((2, 4 * blocks - 1, 6, 7), (13, 4 * blocks - 1, 1, 1)),
         ("window 8x2 by 64",)),
        ("conv", conv_case((1, 4 * blocks, 32, 64), (9, 4 * blocks, 3, 3), **around),
         ("winograd 8x1 by 64", "winograd 8x2 by 64")),
        ("deconv", deconv_case((1, 4 * blocks, 3, 4), (4 * blocks, 5, 3, 3), (5,), stride=[2, 2]),
         ("tile 8x1 by 64",)),
        ("matmul", Case(((9, 4 * blocks), (4 * blocks, 12)), ROWS),
         ("tile 1x4 by 1x64", "tile 8x4 by 1x64", "tile 4x4 by 4x16", "tile 2x1 by 1x64")),
        ("matmul", Case(((2, 9, 32 * blocks + 5), (2, 32 * blocks + 5, 70)), ROWS),
         ("tile 4x1 by 1x64", "tile 4x4 by 1x64")),
        ("matmul", Case(((2, 5, 32 * blocks), (2, 32 * blocks, 70)), ROWS),
         ("tile 8x1 by 1x64",)),
    ):  # fmt: skip
        graph, inputs = case_graph(op, case, constants=True)
        (choice,) = lower(graph, gpu.limits).choices
        for option in options:
            assert option in choice.options
            table = VariantTable.forcing(choice.key, option)
            check_graph(graph, inputs, gpu, variants=table)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("channels", [8, 9, 12])
def test_tiles_whose_rows_the_channels_fill_and_others(channels, in_blocks, gpu, set_limits):
    """Results are right where every row of a tile is a channel, and where some are none."""
    set_limits(software=False)
    case = conv_case((2, 8, 5, 7), (channels, 8, 3, 3), padding=[(1, 1), (1, 1)])
    graph, inputs = case_graph("conv", case, constants=True)
    layouts = {name: C4 for name in (graph.inputs[0], *graph.outputs) if in_blocks}
    (choice,) = lower(graph, gpu.limits, layouts).choices
    for option in ("tile 4x1 by 64", "tile 8x2 by 64", "window 4x1 by 64", "window 8x1 by 64"):
        assert option in choice.options
        table = VariantTable.forcing(choice.key, option)
        plan = lower(graph, gpu.limits, layouts, PlanOptions(variants=table))
        rows = int(option.split()[1][0])
        assert ("FULL" in plan.steps[-1].defines) == (channels % rows == 0)
        check_graph(graph, inputs, gpu, layouts=layouts, variants=table)


@pytest.mark.parametrize(("threads", "parts"), [(64, 1), (128, 2), (192, 3), (256, 4)])
def test_waves_of_a_sum_fit_a_workgroup(threads, parts, gpu):
    limits = replace(gpu.limits, software=False, max_group_threads=threads)
    case = conv_case((1, 20, 5, 6), (9, 20, 3, 3))
    graph, _ = case_graph("conv", case, constants=True)
    (choice,) = lower(graph, limits).choices
    options = [o for o in choice.options if o.startswith("window 4x1 by 64")]
    assert len(options) == parts


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_waves_that_share_a_sum_leave_out_no_part(blocks, gpu, set_limits):
    """Each of two to four waves adds some blocks of inputs, also if they do not divide evenly."""
    set_limits(software=False)
    for case, tile in (
        (conv_case((1, 4 * blocks, 5, 6), (9, 4 * blocks, 3, 3), padding=[(1, 1), (1, 1)]), "4x1"),
        (conv_case((2, 16 * blocks - 1, 5, 15), (13, 16 * blocks - 1, 1, 1)), "8x2"),
    ):
        graph, inputs = case_graph("conv", case, constants=True)
        (choice,) = lower(graph, gpu.limits).choices
        options = [o for o in choice.options if o.startswith(f"window {tile} by 64 in")]
        assert len(options) == sum(parts <= blocks for parts in (2, 3, 4))
        for option in options:
            table = VariantTable.forcing(choice.key, option)
            check_graph(graph, inputs, gpu, variants=table)


#: channels of the input and of the result, taps, attributes, and the tiles of a window
IMAGES = [
    (1, 5, (3, 3), {"padding": [(0, 0), (-1, -2)]}, ("4x1 by 64", "8x2 by 64")),
    (6, 4, (2, 3), {"padding": [(0, 0), (0, 0)], "stride": [2, 1], "dilation": [1, 2]},
     ("4x1 by 64",)),
    (12, 9, (3, 3), {"padding": [(-1, 0), (0, 0)], "dilation": [2, 2]},
     ("8x1 by 64", "4x1 by 64 in 3 parts")),
    (8, 8, (3, 2), {"padding": [(1, 1), (2, 0)], "border": "reflect"}, ("4x1 by 64", "4x2 by 64")),
    (16, 8, (1, 3), {"padding": [(0, 0), (1, 1)], "groups": 2}, ("4x1 by 64 in 2 parts",)),
]  # fmt: skip


@pytest.mark.parametrize("case", IMAGES, ids=lambda case: f"{case[0]} channels")
def test_an_image_alone_gives_the_bits_that_it_has_in_a_batch(case, gpu, set_limits, rng):
    """Addresses of one small image are computed in another way; they are right in any slices."""
    set_limits(software=False)
    channels, rows, taps, attrs, tiles = case
    shapes = (rows, channels // attrs.get("groups", 1), *taps), (1, rows)
    filter, bias = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    images = rng.standard_normal((2, channels, 13, 15)).astype(np.float32)
    layouts = {name: C4 for name in ("x", "y") if channels % 4 == 0}
    for tile in tiles:
        found = []
        for x in (images, images[1:]):
            builder = GraphBuilder("image")
            graph = builder.graph(
                y=builder.conv(builder.input("x", list(x.shape)), filter, bias, **attrs)
            )
            (choice,) = lower(graph, gpu.limits, layouts).choices
            table = VariantTable.forcing(choice.key, f"window {tile}")
            plan = lower(graph, gpu.limits, layouts, PlanOptions(variants=table))
            assert plan.steps[-1].defines["FEW"] == (len(x) == 1)
            check_graph(graph, {"x": x}, gpu, layouts=layouts, variants=table)
            found.append(GpuProgram(plan, gpu).run({"x": x})["y"][-1])
        assert found[0].tobytes() == found[1].tobytes(), tile


@pytest.mark.parametrize("count", [1, 2, 500, 1 << 15])
def test_reciprocals_divide_every_number_of_a_workgroup(count):
    numbers = np.arange(count, dtype=np.uint32)
    for divisor in (*range(1, 1200), 4095, 4097, 8191, 20_000, 32_767, 32_768):
        factor, shift = reciprocal(divisor, count)
        quotients = numbers * np.uint32(factor) >> np.uint32(shift)
        assert np.array_equal(quotients, numbers // divisor), divisor


@pytest.mark.parametrize("sides", [(1023, 1025), (3, 349_525), (349_525, 3), (1, 1_048_575)])
def test_positions_of_the_largest_small_image(sides, gpu, set_limits, rng):
    """Rounded quotients of 20 bits are exact, for long lines and short ones."""
    set_limits(software=False)
    x = rng.standard_normal((1, 1, *sides)).astype(np.float32)
    builder = GraphBuilder("large")
    y = builder.conv(
        builder.input("x", list(x.shape)),
        np.ones((1, 1, 1, 1), np.float32),
        padding=[(0, 0), (0, -1)],
    )
    graph = builder.graph(y=y)
    (choice,) = lower(graph, gpu.limits).choices
    table = VariantTable.forcing(choice.key, "window 4x1 by 64")
    plan = lower(graph, gpu.limits, options=PlanOptions(variants=table))
    assert plan.steps[-1].defines["FEW"] == 1
    assert np.array_equal(GpuProgram(plan, gpu).run({"x": x})["y"], x[..., :-1])
