"""Tests of convolutions of one tap that one dispatch computes, one after the other."""

from dataclasses import replace

import numpy as np
import pytest

import cml_engine as cml
from benchmarks.models import AGENTS
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import choose_layout
from cml_engine.compiler.planning.plan_graph import lower
from cml_engine.gpu.program.program import GpuProgram
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.choice import TunedChoice, VariantTable
from tests.fixtures.graphs import Net
from tests.fixtures.operators import check_graph, declare

HARDWARE = replace(Limits(), software=False)
CHAIN = "conv/conv_chain.hlsl"
#: the shape of the input, the channels of each convolution, and the factor of a pixel shuffle
CASES = [
    ((1, 24, 9, 11), (32, 32, 16), 2),
    ((2, 32, 7, 5), (12, 20), 1),
    ((3, 4, 1, 1), (4, 5), 3),
    ((1, 8, 33, 5), (16, 32, 8, 16), 2),
    ((2, 16, 13, 1), (8, 3), 1),
]


def chain(
    shape, channels, factor=1, *, window=True, extra=False, activation="relu", taps=1, whole=False
):
    """Returns the graph of convolutions behind a window, with a pixel shuffle at their end.

    Sums of ``whole`` numbers are exact.
    """
    rng = np.random.default_rng(0)

    def weights(*shape):
        if whole:
            return rng.integers(-1, 2, shape).astype(np.float32)
        return (rng.standard_normal(shape) / 4).astype(np.float32)

    builder = cml.GraphBuilder("chain")
    x = builder.input("x", list(shape))
    count, inside = shape[1], {"padding": [(0, 0), (0, 0)]}
    if window:
        x = builder.relu(builder.conv(x, weights(count, count, 1, 2), weights(1, count)))
    for i, rows in enumerate(channels):
        last = i == len(channels) - 1
        rows, side = rows * factor**2 if last else rows, taps if last else 1
        sums = builder.conv(x, weights(rows, count, side, side), weights(1, rows), **inside)
        x = builder.clamp(sums, -1.0, 2.0) if last else getattr(builder, activation)(sums)
        count = rows
        if extra and i == 0:
            y = builder.neg(x)
    outputs = {"y": x} if factor == 1 else {"y": shuffled(builder, x, shape, count, factor)}
    return optimize(builder.graph(**outputs, **({"z": y} if extra else {})))


def shuffled(builder, x, shape, count, factor):
    batch, _, height, width = shape
    maps = count // factor**2
    split = builder.reshape(x, shape=[batch, maps, factor, factor, height, width])
    moved = builder.transpose(split, axes=[0, 1, 4, 2, 5, 3])
    return builder.reshape(moved, shape=[batch, maps, height * factor, width * factor])


def chains_of(graph, limits=HARDWARE, **options):
    """Returns the number of convolutions that dispatches of chains compute."""
    plan = lower(graph, limits, choose_layout(graph), PlanOptions(**options))
    return [str(s.defines["LAYERS"]).count("LAYER(") for s in plan.steps if str(s.path) == CHAIN]


@pytest.mark.parametrize("case", CASES)
def test_convolutions_of_one_tap_are_one_dispatch_on_hardware(case):
    graph = chain(*case)
    assert chains_of(graph) == [len(case[1])]
    assert chains_of(graph, replace(Limits(), software=True)) == []
    assert chains_of(graph, keep=True) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": True},  # the first result has another reader
        {"channels": (6, 8)},  # a map between them has no whole blocks of channels
        {"channels": (36, 8)},  # or more than groupshared memory holds
        {"activation": "cos"},  # an epilogue that computes no four numbers at once
        {"taps": 3},
        {"shape": (1, 8, 256, 129)},  # a map that fills a card
    ],
)
def test_others_have_dispatches_of_their_own(changes):
    graph = chain(**{"shape": (1, 8, 6, 6), "channels": (8, 8), **changes})
    assert chains_of(graph) == []


def test_a_device_with_small_workgroups_has_no_chains():
    assert chains_of(chain(*CASES[0]), replace(HARDWARE, max_group_threads=128)) == []


def test_maps_inside_a_chain_take_no_memory_and_no_choices():
    graph = chain((1, 24, 40, 40), (32, 32, 16))
    plan = lower(graph, HARDWARE, choose_layout(graph), PlanOptions())
    assert len(plan.choices) == 1  # of the window
    apart = lower(graph, replace(Limits(), software=True), choose_layout(graph), PlanOptions())
    assert plan.memory.peak < apart.memory.peak


@pytest.mark.parametrize(("name", "count"), [("texture", 3), ("population", 2)])
def test_the_demos_networks_end_in_a_chain(name, count):
    assert chains_of(optimize(cml.load(AGENTS / f"{name}.nnef"))) == [count]


@pytest.mark.parametrize(
    ("side", "threads", "expected"), [(20, 512, 8), (20, 511, 4), (43, 512, 8), (44, 512, 4)]
)
def test_more_waves_share_the_channels_of_a_small_map(side, threads, expected):
    """A card has 120 SIMDs, and a workgroup of four waves 64 positions."""
    graph = chain((1, 8, side, side), (8, 8), window=False)
    plan = lower(graph, replace(HARDWARE, max_group_threads=threads), {}, PlanOptions())
    assert [step.defines["WAVES"] for step in plan.steps if str(step.path) == CHAIN] == [expected]


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [256, 512])
@pytest.mark.parametrize("case", CASES)
def test_chains_are_bit_identical_to_single_convolutions(case, threads, gpu, set_limits, rng):
    """A chain in one dispatch gives the bits of one dispatch per convolution, in any slices."""
    if gpu.limits.max_group_threads < threads:
        pytest.skip(f"this device has workgroups of {gpu.limits.max_group_threads} threads")
    set_limits(software=False, max_group_threads=threads)
    graph = chain(*case, whole=True)
    inputs = {"x": rng.integers(-2, 3, case[0]).astype(np.float32)}
    check_graph(graph, inputs, gpu, layouts=choose_layout(graph), keep=False)
    graph = chain(*case)
    inputs = {"x": rng.standard_normal(case[0]).astype(np.float32)}
    layouts = choose_layout(graph)
    # waves that share a sum add it in another order
    choices = lower(graph, gpu.limits, layouts, PlanOptions(keep=True)).choices
    picks = {
        choice.key: TunedChoice("window 4x1 by 64")
        for choice in choices
        if "conv 1x1" in choice.key
    }
    apart = PlanOptions(keep=True, variants=VariantTable(picks))
    plans = [lower(graph, gpu.limits, layouts, options) for options in (PlanOptions(), apart)]
    assert len(plans[0].steps) < len(plans[1].steps)
    found, expected = (GpuProgram(plan, gpu).run(inputs)["y"] for plan in plans)
    assert np.array_equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["plain", "blocks"])
@pytest.mark.parametrize("activation", ["sigmoid", "silu", "tanh"])
def test_inputs_of_a_network_and_epilogues(layout, activation, gpu, set_limits, rng):
    """The first convolution reads a plain input, or blocks; rows beyond the last channel are
    zeros."""
    set_limits(software=False)
    graph = chain((2, 8, 7, 9), (12, 5), window=layout == "blocks", activation=activation)
    inputs = {"x": rng.standard_normal((2, 8, 7, 9)).astype(np.float32)}
    check_graph(graph, inputs, gpu, layouts=choose_layout(graph), keep=False)


@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize(("in_place", "expected"), [("x", []), ("", [2])])
def test_inputs_whose_memory_a_result_takes_are_read_before(in_place, expected):
    source = "void kernel(uint i) { y[i] = x[i] + 1; }"
    declare(source, cpu=lambda attrs, x: x + 1, kernel={"in_place": in_place} if in_place else None)
    net = Net(1, 8, 6, 6)
    before = net.op("conv", "x", net.random(8, 8, 3, 3), net.random(1, 8))
    first = net.op("conv", before, net.random(8, 8, 1, 1), net.random(1, 8))
    changed = net.op("own", before)
    second = net.op("conv", first, net.random(8, 8, 1, 1), net.random(1, 8))
    graph = net.graph(net.op("concat", second, changed, axis=1))
    plan = lower(graph, HARDWARE, {}, PlanOptions())
    chains = [step for step in plan.steps if str(step.path) == CHAIN]
    assert [str(s.defines["LAYERS"]).count("LAYER(") for s in chains] == expected
