"""Tests that a file stores constants once and that all players build identical buffers from
them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.tuning_tables import shipped_table
from cml_engine.cooked import PROFILES, cook
from cml_engine.gpu.shaders import compilers
from cml_engine.runtime.session.compile_graph import optimize_for
from tests.fixtures.cooked import HALVES, counter, sections, wide_model
from tests.fixtures.graphs import Net, mobilenet_block
from tests.fixtures.integer.networks import IntegerNet, line
from tests.players.building import SANITIZED, build
from tests.players.playing import run_play

pytestmark = pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler to cook with")


def wide() -> cml.Graph:
    """Returns a network with Winograd convs, long rows in its first layer, a deconv and groups."""
    net = Net(1, 3, 32, 32)
    x = net.conv(net.conv(net.conv("x", 37, 7), 45), 45)
    return net.graph(net.conv(net.deconv(x, 12), 24, groups=3))


def product() -> cml.Graph:
    net = Net(9, 40)
    return net.graph(net.op("matmul", "x", net.random(40, 33), transposeA=False, transposeB=False))


def integers() -> cml.Graph:
    net = IntegerNet()
    x = net.input("x", (1, 12, 9, 9), 0.5)
    w = net.weight("w", np.random.default_rng(0).integers(-99, 99, (20, 12, 3, 3)), 0.01)
    sums = net.op("conv", x, w, net.weight("b", [[1 << 20]], 0.005, 32), padding=[(1, 1)] * 2)
    return net.graph(net.op("relu", sums, to=line(64.0, signed=False)))


HALF = cml.CompileOptions(storage="half")
#: by name: the network, and the options with which it is cooked
NETWORKS = {
    "a variable": (counter, cml.CompileOptions()),
    "wide": (wide, cml.CompileOptions()),
    "wide in 16 bits": (wide, HALF),
    "products in 16 bits": (wide_model, HALVES),
    "depthwise": (lambda: mobilenet_block().graph(), cml.CompileOptions()),
    "matmul": (product, cml.CompileOptions()),
    "matmul in 16 bits": (product, HALF),
    "integers": (integers, cml.CompileOptions()),
}


def digests_of(plan) -> list[str]:
    found = []
    for values, nbytes in ((plan.weights, plan.weights_bytes), (plan.own, plan.own_bytes)):
        whole = bytearray(nbytes)
        for offset, array in values.values():
            content = np.ascontiguousarray(array).tobytes()
            whole[offset : offset + len(content)] = content
        found.append(hashlib.sha256(whole).hexdigest())
    return found


def wanted(model: cml.Graph, compiled: cml.CompileOptions) -> list[str]:
    """Returns the digests of the constant buffers in the model's plans, for all profiles in
    order."""
    optimized, found = optimize_for(model, compiled), []
    for profile in PROFILES.values():
        profiles = [profile]
        if compiled.arithmetic == "half" and not profile.limits.software:
            profiles.insert(0, profile.with_f16)
        for each in profiles:
            options = PlanOptions(variants=shipped_table(each.tuned_as), packed_inputs=False)
            plan = plan_graph(
                optimized, each.limits, compiled.storage, options,
                arithmetic=compiled.arithmetic, written=model,
            )  # fmt: skip
            found += digests_of(plan)
    return found


def test_all_players_make_the_buffers_of_the_model(tmp_path):
    """Python and C make the constant buffers of every plan of every network."""
    expected: dict[Path, list[str]] = {}
    for name, (make, options) in NETWORKS.items():
        model, file = make(), tmp_path / f"{name}.cml"
        file.write_bytes(cook(model, options=options, golden=False))
        expected[file] = wanted(model, options)
    program = build("check.c", "-O1", *SANITIZED)
    for file, digests in expected.items():
        plans = cml.load_cooked(file).cooked_form.plans
        assert [d for p in plans for d in digests_of(p.plan("net"))] == digests, file.stem
        run = run_play(program, "--values", file)
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.split() == digests, f"{file.stem} in C"


def size_of(data: bytes, tag: str) -> int:
    return sum(nbytes for name, _, nbytes in sections(data) if name == tag)


def test_weights_are_stored_once_for_all_profiles():
    net = Net(1, 32, 16, 16)
    model = net.graph(net.conv(net.conv("x", 64), 64))
    weights = sum(array.nbytes for array in model.constants.values())
    assert weights > 200_000
    for player in (False, True):
        values = size_of(cook(model, golden=False, player=player), "values")
        assert weights <= values < 1.01 * weights + 1000


def test_products_in_16_bits_take_their_filters_from_the_same_weights():
    """Filters of Winograd's tiles, which have four times as many numbers, are made at load."""
    model = wide_model()
    stored, made = (
        size_of(cook(model, ["discrete"], options, golden=False), "values")
        for options in (HALF, HALVES)
    )
    assert stored < made < stored + 2 * 2 * 9 * 64 * 8 + 1000


def test_weights_of_integer_networks_are_stored_in_their_bits():
    model = integers()
    count = model.constants["w"].size
    assert size_of(cook(model, golden=False), "values") < 1.2 * count + 1000
