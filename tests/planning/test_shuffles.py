"""Tests of convolutions that store what a pixel shuffle behind them would move."""

import re
from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import VariantTable
from tests.fixtures.operators import check_graph

#: channels, positions and filters that fill no tile, one position, and a large map
CASES = [
    ((2, 8, 5, 7), 3, (2, 2), 3),
    ((1, 5, 9, 1), 2, (3, 1), 1),
    ((1, 16, 1, 1), 5, (1, 2), 3),
    ((3, 5, 6, 11), 1, (2, 3), 1),
    ((1, 40, 24, 25), 4, (2, 2), 3),
]


def shuffling(shape, maps, factors, taps, order=(0, 1, 4, 2, 5, 3), op="conv", extra=False):
    """Returns the graph of a convolution, with a pixel shuffle and an addition behind it."""
    rng = np.random.default_rng(0)
    batch, channels, height, width = shape
    y, x = factors
    builder = cml.GraphBuilder("shuffling")
    source = builder.input("x", list(shape))
    before = builder.conv(source, weights(rng, channels, channels, 1, 1))
    filters = (maps * y * x, channels) if op == "conv" else (channels, maps * y * x)
    padding = [(taps // 2, taps // 2)] * 2
    result = getattr(builder, op)(
        before, weights(rng, *filters, taps, taps), weights(rng, 1, maps * y * x), padding=padding
    )
    split = builder.reshape(result, shape=[batch, maps, y, x, height, width])
    moved = builder.transpose(split, axes=list(order))
    outputs = {"y": builder.reshape(moved, shape=[batch, maps, height * y, width * x])}
    if extra:
        outputs["z"] = builder.exp(result)
    return infer_facts(builder.graph(**outputs))


def weights(rng, *shape):
    """Returns small whole numbers, whose sums are exact."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def hardware(**limits):
    return replace(Limits(), software=False, **limits)


def ops_of(graph, limits, **options):
    return [s.op for s in lower(graph, limits, choose_layout(graph), PlanOptions(**options)).steps]


def test_the_transpose_is_no_dispatch_on_hardware():
    graph = shuffling(*CASES[0])
    assert "transpose" not in ops_of(graph, hardware())
    assert "transpose" in ops_of(graph, replace(Limits(), software=True))
    assert "transpose" in ops_of(graph, hardware(), keep=True)


@pytest.mark.parametrize("other", ["order", "reader"])
def test_what_others_read_and_other_orders_are_copied(other):
    changes = {"order": {"order": (0, 1, 4, 3, 5, 2)}, "reader": {"extra": True}}[other]
    shape = (1, 8, 6, 6)
    graph = shuffling(shape, 2, (6, 6), 3, **changes)
    assert "transpose" in ops_of(graph, hardware())


def test_the_result_of_the_convolution_takes_no_memory():
    graph = shuffling((1, 8, 32, 32), 8, (2, 2), 3)
    stored = lower(graph, hardware(), choose_layout(graph), PlanOptions())
    copied = lower(graph, replace(Limits(), software=True), choose_layout(graph), PlanOptions())
    assert stored.memory.peak < copied.memory.peak


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "case"), [*(("conv", c) for c in CASES), ("deconv", CASES[0])])
def test_every_kernel_stores_the_same_bits_as_the_copy(op, case, gpu, set_limits, rng):
    """A convolution that stores its result shuffled has the bits of one with a separate copy."""
    set_limits(software=False)
    graph = shuffling(*case, op=op)
    inputs = {"x": weights(rng, *case[0])}
    layouts = choose_layout(graph)
    choices = lower(graph, gpu.limits, layouts).choices
    choice = next(c for c in choices if c.key.startswith(f"{op} {case[3]}x{case[3]}")
                  and c.node == graph.nodes[1].title)  # fmt: skip
    kinds = {re.sub(r"\d+x\d+ by \d+", "", o): o for o in reversed(choice.options)}
    for option in kinds.values():
        table = VariantTable.forcing(choice.key, option)
        options = PlanOptions(variants=table)
        plan = lower(graph, gpu.limits, layouts, options)
        assert "transpose" not in [step.op for step in plan.steps], option
        if not option.startswith("winograd"):  # its sums are not exact
            check_graph(graph, inputs, gpu, layouts=layouts, variants=table, keep=False)
        copied = lower(graph, gpu.limits, layouts, replace(options, keep=True))
        found, expected = (GpuProgram(p, gpu).run(inputs)["y"] for p in (plan, copied))
        assert np.array_equal(found, expected), option
