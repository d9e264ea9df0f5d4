"""The kernels that hardware takes, as AMD's compiler compiles them for a card that is not there."""

from functools import cache

import pytest

from benchmarks.hardware.model import CARDS
from benchmarks.hardware.networks import estimate_network, plan_for
from benchmarks.hardware.radv import Radv, RadvError, library
from benchmarks.models import AGENTS, MODELS, load_network
from cml_engine.formats.loading import load
from cml_engine.gpu.shaders.hlsl import compile_spirv
from cml_engine.ir.limits import Limits
from cml_engine.ops.conv.kernels import conv, conv_window, depthwise, winograd
from cml_engine.ops.conv.node import ConvTile
from cml_engine.ops.declaration.hardware import hardware_table
from cml_engine.ops.matmul.kernels.matmul import tiles_for
from cml_engine.ops.reduction.reduce import _HARDWARE_THREADS
from tests.operators.test_half_products import chain

pytestmark = pytest.mark.skipif(library() is None, reason="Mesa's RADV is not installed")

CARD = CARDS["RX 6800"]
#: executed instructions per multiply-add of the demo's networks: a change may not add to them.
#: Where waves share a sum, each computes the addresses
PER_PRODUCT = {
    "upres": 2.4,
    "texture": 2.4,
    "population": 3.1,
    "integer/upres": 1.3,
    "integer/texture": 1.15,
    "integer/population": 1.45,
}
#: the fewest waves of a SIMD, of 16; Winograd's stages hold a tile in registers, large register
#: tiles the sums of many products, and windows the inputs of two turns: these need no other wave
LEAST_WAVES = {
    "winograd input": 3,
    "winograd output": 2,
    "winograd product": 3,
    "conv": 3,
    "conv_window": 2,
}
USUAL_WAVES = 4


_AGENTS = [model for model in MODELS if model.startswith("agent-")]


@pytest.fixture(scope="module")
def radv():
    try:
        return Radv(CARD.family)
    except RadvError as error:
        pytest.skip(f"RADV has no {CARD.family}: {error}")


def waves_of(step):
    stem = str(step.path).rpartition("/")[2].removesuffix(".hlsl")
    stage = next(
        (f" {n}" for n in ("input", "product", "output") if f"stage_is_{n}" in step.defines), ""
    )
    return LEAST_WAVES.get(stem + stage, USUAL_WAVES)


def test_products_of_16_bits_are_two_in_an_operation(radv):
    """The compiler packs them, so a product is less than an instruction."""
    plan = plan_for(chain(), "discrete", halves=True)
    network = estimate_network(
        "chain", plan, CARD, lambda key: radv.compile(compile_spirv(key)), ()
    )
    names = {i.name for s in network.steps for block in s.kernel.listing.blocks for i in block}
    assert "v_pk_fma_f16" in names
    assert network.per_product["fma"] < 0.7
    for found in network.steps:
        assert found.kernel.spills == 0 and found.kernel.waves >= waves_of(found.step), found.step


@pytest.mark.parametrize("model", [*_AGENTS, "vit"])
def test_a_plan_with_halves_is_not_slower_than_one_of_floats(model, radv):
    """Convolutions multiply in 16 bits only where that makes the plan faster by the model."""
    graph, _ = load_network(model)
    kernels = cache(lambda key: radv.compile(compile_spirv(key)))
    seconds = [
        estimate_network(model, plan_for(graph, "discrete", halves), CARD, kernels, ()).seconds
        for halves in (False, True)
    ]
    assert seconds[1] <= 1.02 * seconds[0]


@pytest.mark.parametrize("agent", sorted(PER_PRODUCT))
def test_demo_kernels_fit_the_registers_and_add_no_instructions(agent, radv):
    plan = plan_for(load(AGENTS / f"{agent}.nnef"), "discrete")
    network = estimate_network(agent, plan, CARD, lambda key: radv.compile(compile_spirv(key)), ())
    assert len(network.steps) == len(plan.steps)
    for found in network.steps:
        assert found.kernel.spills == 0, found.step
        assert found.kernel.waves >= waves_of(found.step), found.step
    assert sum(network.per_product.values()) <= PER_PRODUCT[agent]
    assert network.roof < network.seconds < 1e-3


def test_large_tiles_spend_most_instructions_on_products():
    """The vector arithmetic of a turn is products but for at most 15 %."""
    for name, loop in (("tile 16x4 by 64", 256), ("winograd 16x4 by 64", 512)):
        cycles = hardware_table(Limits()).kernels[name]
        assert 2 * loop / cycles.busy[-1] > 0.85, name


@pytest.mark.parametrize("scalar_loads", [True, False])
def test_the_tables_have_every_tile_that_the_rules_compare(scalar_loads):
    kernels = hardware_table(Limits(scalar_loads=scalar_loads)).kernels
    direct = [
        f"{kind}{numbers}tile {r}x{c} by 64"
        for kind in ("", "transposed ")
        for numbers in ("", "dot4 ", "half ")
        for r, c in conv._TILES
    ]
    by_channel = [
        f"{stored}depthwise {kind}{r}x{c} by 64"
        for stored in ("", "half ")
        for kind, sizes in (("tile ", conv._DEPTHWISE_TILES), ("", depthwise._TILES))
        for r, c in sizes
    ]
    stages = [f"{n}winograd {r}x{c} by 64" for n in ("", "half ") for r, c in winograd._TILES]
    inside = ["3x3 inside", "3x3 inside once"]
    windows = [
        f"{kind} {numbers}window {ConvTile(r, c, 64, parts)}"
        for numbers, kinds, blocks, sizes in (
            ("", inside, conv_window._BLOCKS, conv_window._TILES),
            ("half ", [], conv_window._BLOCKS, conv_window._TILES),
            ("dot4 ", [], conv_window._BYTE_BLOCKS, conv_window._BYTE_TILES),
        )
        for kind in ("3x3", *kinds, *(f"1x1x{n}" for n in blocks))
        for r, c in sizes
        for parts in conv_window.PARTS
        if (parts - 1) * r * c <= conv_window.MOST_SHARED
    ]
    products = [f"{kind}matmul tile {t}" for kind in ("", "computed ") for t in tiles_for(Limits())]
    transforms = [f"{n}winograd {end}" for n in ("", "half ") for end in ("input", "output")]
    lines = [
        f"{kernel} threads {t}"
        for kernel in ("reduce", "softmax", "standardize")
        for t in _HARDWARE_THREADS
    ]
    tiles = direct + by_channel + windows + stages + products + transforms + lines
    assert sorted(kernels) == sorted(tiles)


def test_a_wave_that_fills_a_card_is_as_long_as_one():
    table = hardware_table(Limits())
    one, full, more = (
        table.seconds("tile 16x4 by 64", groups, [1, 3, 3, 15])
        for groups in (1, table.simds, table.simds + 1)
    )
    assert one == full < more


def test_threads_share_filters_where_each_lane_loads_them():
    """A window of one position would load four numbers of the filter for four products, if each
    lane loads what is the same for all."""
    graph = load(AGENTS / "texture.nnef")

    def columns(scalar_loads):
        steps = plan_for(graph, "discrete", scalar_loads=scalar_loads).steps
        windows = [step for step in steps if "conv_window" in str(step.path)]
        return [int(step.defines["COLUMNS"]) for step in windows]

    assert max(columns(True)) == 1
    assert sum(n > 1 for n in columns(False)) > len(columns(False)) / 2
