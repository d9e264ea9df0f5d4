"""Tests of the conv and deconv kernels beyond their declared cases: epilogues, variants, shapes.

``test_operators.py`` runs every declared case in every layout; the tests here cover all other
nodes.
"""

import dataclasses

import numpy as np
import pytest

import cml_engine.ops.conv.kernels.winograd
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import lower, plan_graph
from cml_engine.errors import InputError, ShapeError
from cml_engine.gpu.shaders.hlsl import step_keys
from cml_engine.ir.graph import Attrs, Epilogue, Fact
from cml_engine.ir.layout import C4
from cml_engine.ir.limits import Limits
from cml_engine.ops.conv.cases import conv_case, deconv_case
from cml_engine.ops.conv.node import CONV
from cml_engine.ops.elementwise.elementwise_op import ELEMENTWISE
from cml_engine.testing import case_graph
from tests.fixtures.kernels import conv_kernel
from tests.fixtures.operators import check_graph

pytestmark = pytest.mark.gpu

PORTABLE = Limits()
LAYOUTS = ({}, {"x0": C4}, {"y0": C4}, {"x0": C4, "y0": C4})
#: nodes of each kernel variant: the variant, operator, case, and whether weights are constant
KERNELS = {
    f"{variant.name}, {case.note}": (variant, op, case, True)
    for variant in CONV.variants
    for op, case in variant.examples
}
KERNELS["computed filter"] = (
    next(variant for variant in CONV.variants if variant.name == "tile"),
    "conv",
    conv_case((1, 8, 9, 7), (10, 8, 3, 3)),
    False,
)
#: epilogues of a node: operators with the shapes of their operands. Each operator and each type of
#: operand occurs in a chain, which costs no more to compile than a single operator
EPILOGUES = {
    "slopes": [
        ("leaky_relu", (), {"alpha": 0.1}),
        ("prelu", ("[1,C]",), {}),
        ("prelu", ("[1,C,1,1]",), {}),
        ("tanh", (), {}),
    ],
    "gates": [
        ("silu", (), {}),
        ("prelu", ("[]",), {}),
        ("clamp", (-0.5, 0.25), {}),
        ("mul", ("computed [1,C,1,1]",), {}),
    ],
    "channels": [("div", ("computed []",), {}), ("sub", ("[1,C]",), {}), ("mul", ("same",), {})],
    "all": [
        ("add", ("same",), {}),
        ("prelu", ("[1,C]",), {}),
        ("add", ("same",), {}),
        ("relu", (), {}),
        ("sigmoid", (), {}),
    ],
}
_NAMED = {op for chain in EPILOGUES.values() for op, _, _ in chain}
#: all other fusable operators, so that a new one is covered without a change here
EPILOGUES["channels"] += [
    (name, (), dict(spec.cases[0].attrs))
    for name, spec in ELEMENTWISE.items()
    if spec.formula.fusable and spec.formula.arity == 1 and not spec.custom and name not in _NAMED
]


def graph_with(kernel, chain, rng):
    """Returns a graph of one node that runs on ``kernel``, and its inputs.

    ``chain`` lists operators that are fused into the node, with their operands and attributes.
    """
    _, op, case, constants = KERNELS[kernel]
    graph, inputs = case_graph(op, case, constants=constants)
    result = graph.facts["y0"]
    facts, fixed, epilogues = dict(graph.facts), dict(graph.constants), []
    channels = (1, result.shape[1])
    shapes = {"same": result.shape, "[1,C]": channels, "[]": (), "[1,C,1,1]": (*channels, 1, 1)}
    for op_name, operands, attrs in chain:
        names = [f"e{len(facts) + i}" for i in range(len(operands))]
        for name, operand in zip(names, operands, strict=True):
            if isinstance(operand, float):
                value = np.array(operand, np.float32)
            else:
                shape = shapes[operand.removeprefix("computed ")]
                value = rng.choice([-1, 1], shape) * rng.uniform(0.5, 1.5, shape)
            is_constant = isinstance(operand, float) or operand.startswith("[")
            (fixed if is_constant else inputs)[name] = np.asarray(value, np.float32)
            facts[name] = Fact("scalar", np.shape(value))
        epilogues.append(Epilogue(op_name, tuple(names), Attrs(attrs)))
    node = dataclasses.replace(graph.nodes[0], epilogues=tuple(epilogues))
    graph = graph.with_(nodes=(node,), facts=facts, constants=fixed, inputs=tuple(inputs))
    return graph, inputs


def layouts_with(graph, layouts):
    """Returns the layouts, with the blocked layout added for fused operands as large as the result.

    If the result is not blocked, the layouts are returned unchanged.
    """
    if "y0" not in layouts:
        return layouts
    result = graph.facts["y0"]
    operands = [n for e in graph.nodes[0].epilogues for n in e.inputs]
    same = [n for n in operands if graph.facts[n] == result and n not in graph.constants]
    return {**layouts, **dict.fromkeys(same, C4)}


def forced(kernel, graph, limits, layouts):
    """Returns a variant table that selects ``kernel`` in every node that allows it."""
    return KERNELS[kernel][0].forced(lower(graph, limits, layouts).choices)


def test_every_operator_that_a_kernel_may_fuse_is_in_a_chain():
    assert {op for chain in EPILOGUES.values() for op, _, _ in chain} == {
        name for name, spec in ELEMENTWISE.items() if spec.formula.fusable and not spec.custom
    }


def layouts_of(kernel):
    """Returns the layouts in which a kernel can run."""
    return {"windows": LAYOUTS[:1], "plain": LAYOUTS[::2]}.get(KERNELS[kernel][0].name, LAYOUTS)


def with_epilogues():
    """Yields each kernel with each epilogue in each layout.

    In the suite each shader has each epilogue once, and its examples and layouts take turns.
    """
    paths = [variant.kernel.path for variant, *_ in KERNELS.values()]
    for number, (kernel, path) in enumerate(zip(KERNELS, paths, strict=True)):
        examples, example = min(paths.count(path), 4), paths[:number].count(path)
        possible = layouts_of(kernel)
        for at, chain in enumerate(EPILOGUES):
            for place, layouts in enumerate(possible):
                turn = (paths.index(path) + at) % len(possible)
                in_suite = at % examples == example % 4 and place == turn
                marks = () if in_suite else pytest.mark.long
                yield pytest.param(
                    kernel, chain, layouts, id=f"{kernel}-{chain}-{place}", marks=marks
                )


@pytest.mark.parametrize(("kernel", "chain", "layouts"), list(with_epilogues()))
def test_epilogues_in_every_kernel_and_layout(kernel, chain, layouts, gpu, rng):
    graph, inputs = graph_with(kernel, EPILOGUES[chain], rng)
    layouts = layouts_with(graph, layouts)
    table = forced(kernel, graph, gpu.limits, layouts)
    check_graph(graph, inputs, gpu, layouts=layouts, partitions=1, variants=table)


#: input channels, output channels, layout; in the suite every second pair has one layout
CHANNELS = [
    pytest.param(inside, out, LAYOUTS[place], id=f"{inside}-{out}-{place}",
                 marks=() if (i + j) % 2 == 0 and place == (i + j // 2) % 4
                 else pytest.mark.long)
    for i, inside in enumerate((1, 3, 4, 6, 16, 23))
    for j, out in enumerate((1, 5, 12, 40))
    for place in range(len(LAYOUTS))
]  # fmt: skip


@pytest.mark.parametrize(("inside", "out", "layouts"), CHANNELS)
def test_channels_of_any_number(inside, out, layouts, gpu):
    for window in (1, 3):
        case = conv_case((1, inside, 10, 7), (out, inside, window, window))
        graph, inputs = case_graph("conv", case, constants=True)
        check_graph(graph, inputs, gpu, layouts=layouts, partitions=1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_test_graphs_run_on_the_intended_kernel(kernel, gpu):
    """The graph that ``KERNELS`` has for a kernel runs on that kernel in each of its layouts."""
    variant = KERNELS[kernel][0]
    graph, _ = graph_with(kernel, [], np.random.default_rng(0))
    for layouts in layouts_of(kernel):
        options = PlanOptions(variants=forced(kernel, graph, gpu.limits, layouts))
        steps = lower(graph, gpu.limits, layouts, options).steps
        last = steps[-1]
        assert last.variant.startswith(variant.name) and last.path == variant.kernel.path
        packed = "conv/conv_pack.hlsl" in {step.path for step in steps}
        assert packed == (kernel == "computed filter")
        assert last.defines.get("DEPTHWISE", 0) == int(kernel == "tile, depthwise")


def test_decided_kernel_for_a_long_window_is_used_or_refused(gpu):
    graph, _ = case_graph("conv", conv_case((1, 1, 900), (8, 1, 400)), constants=True)
    for kernel in (variant.name for variant in CONV.variants):
        try:
            plan = plan_graph(graph, gpu.limits, decide={"y0": {"kernel": kernel}})
        except InputError as error:
            possible = error.message.partition("here it can be ")[2].split(", ")
            kernels = {option.partition(" ")[0] for option in possible}
            assert "windows" in kernels and kernel not in kernels
        else:
            assert plan.steps[-1].variant.startswith(kernel)


def branches(code):
    """Returns the number of branches in SPIR-V (OpSelectionMerge)."""
    words, position, count = memoryview(code).cast("I"), 5, 0
    while position < len(words):
        count += words[position] & 0xFFFF == 247
        position += words[position] >> 16
    return count


@pytest.mark.parametrize(
    ("kernel", "shape", "filter", "more"),
    [
        ("conv_plain", (1, 6, 15, 14), (8, 6, 5, 5), {"stride": [2, 3]}),
        ("conv_row_tile", (1, 32, 9, 8), (32, 32, 5, 5), {}),
        ("depthwise", (1, 32, 9, 8), (32, 1, 5, 5), {"groups": 32}),
        ("winograd", (1, 32, 40, 40), (32, 32, 3, 3), {}),
    ],
)
def test_a_border_adds_no_branch(kernel, shape, filter, more):
    """SwiftShader follows every path through a loop: 26 branches in a row take it minutes."""
    counts = set()
    for border in ("constant", "replicate", "reflect", "reflect-even"):
        graph, _ = case_graph(
            "conv", conv_case(shape, filter, border=border, **more), constants=True
        )
        keys = step_keys(lower(graph, Limits(software=True)))
        counts.add(tuple(branches(key.code()) for key in keys if key.path.stem == kernel))
    assert len(counts) == 1 and counts != {()}


#: two paddings of each kernel in the suite
PHASES = [
    pytest.param(stride, kernel, *padding, marks=pytest.mark.long if (i + j) % 2 else ())
    for i, (stride, kernel) in enumerate([(1, 2), (2, 2), (2, 5), (3, 4), (4, 9), (5, 5)])
    for j, padding in enumerate([(0, 0), (1, 2), (2 * kernel + 1, kernel), (kernel, 1)])
]


@pytest.mark.parametrize("stride, kernel, before, after", PHASES)
def test_phases_of_any_stride_and_padding(stride, kernel, before, after, gpu):
    """A deconv by phases is right for any stride and padding, even one larger than its filter."""
    size = max(3, (before + after) // stride + 3)
    axis = {"stride": [1, stride], "padding": [(0, 0), (before, after)]}
    case = deconv_case((1, 5, 2, size), (5, 7, 1, kernel), (7,), **axis)
    graph, inputs = case_graph("deconv", case, constants=True)
    assert lower(graph, gpu.limits, {"x0": C4}).steps[-1].path == "conv/conv_phases.hlsl"
    check_graph(graph, inputs, gpu, layouts={"x0": C4}, partitions=3)


def test_winograd_in_several_rounds(gpu, monkeypatch):
    """A Winograd conv whose scratch buffer is too small for its images runs in three rounds.

    The rounds give right results from and to both layouts.
    """
    monkeypatch.setattr(cml_engine.ops.conv.kernels.winograd, "_MAX_SCRATCH", 16 * 36 * 12 * 70)
    graph, inputs = case_graph("conv", conv_case((3, 48, 33, 30), (48, 48, 3, 3)), constants=True)
    assert len(lower(graph, gpu.limits, {"x0": C4}).steps) == 3 * 4
    for layouts in LAYOUTS[1:3]:
        check_graph(graph, inputs, gpu, layouts=layouts)


def test_winograd_is_near_exact_sums(gpu, rng):
    """Winograd's error is less than half the tolerance of a convolution.

    It depends on the interpolation points (docs/design/performance.md).
    """
    case = conv_case((1, 64, 32, 32), (64, 64, 3, 3), 0.0)
    graph, inputs = case_graph("conv", case, constants=True)
    table = conv_kernel("winograd", graph, gpu.limits)
    options = PlanOptions(variants=table)
    assert any(s.path == "conv/winograd.hlsl" for s in lower(graph, gpu.limits, {}, options).steps)
    worst = check_graph(graph, inputs, gpu, variants=table)
    assert worst < 0.5


@pytest.mark.parametrize(
    ("op", "case"),
    [
        ("conv", conv_case((1, 16, 62, 64), (40, 16, 3, 3))),
        ("conv", conv_case((1, 12, 9, 14), (40, 12, 5, 5))),
        ("conv", conv_case((1, 12, 9, 14), (12, 1, 4, 3), groups=0)),
        ("deconv", deconv_case((1, 12, 6, 6), (12, 40, 4, 4), stride=[2, 2])),
    ],
)
def test_portable_limits_choose_variants_that_agree(op, case, gpu, monkeypatch):
    """The variants chosen for a GPU without subgroups give the reference results."""
    monkeypatch.setattr(gpu, "limits", PORTABLE)
    graph, inputs = case_graph(op, case, constants=True)
    check_graph(graph, inputs, gpu, partitions=1)


def test_conv_kernels_stay_within_webgpu_limits():
    """No step of a conv kernel has more bindings or threads per group than WebGPU guarantees."""
    for kernel in KERNELS:
        graph, _ = graph_with(kernel, EPILOGUES["all"], np.random.default_rng(0))
        table = forced(kernel, graph, PORTABLE, {})
        plan = lower(graph, PORTABLE, options=PlanOptions(variants=table))
        for step in plan.steps:
            assert len(step.bindings) <= PORTABLE.max_storage_buffers
            assert int(step.defines["GROUP"]) <= PORTABLE.max_group_threads


def test_a_fused_operand_of_another_layout_is_refused(gpu, rng):
    graph, _ = graph_with("tile, a stride", [("add", ("same",), {})], rng)
    with pytest.raises(ShapeError, match=r"\(plain\), to its result, .* \(c4\)"):
        lower(graph, gpu.limits, {"y0": C4})
