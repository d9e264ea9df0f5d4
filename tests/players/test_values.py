"""Tests that a file stores constants once and that all players build identical buffers from
them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.compiler.tuning_tables import shipped_table
from cml_engine.cooked import PROFILES, cook
from cml_engine.gpu.shaders import compilers
from tests.fixtures.cooked import counter, sections
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


#: by name: the network, and True if it is cooked in 16 bits
NETWORKS = {
    "a variable": (counter, False),
    "wide": (wide, False),
    "wide in 16 bits": (wide, True),
    "depthwise": (lambda: mobilenet_block().graph(), False),
    "matmul": (product, False),
    "matmul in 16 bits": (product, True),
    "integers": (integers, False),
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


def wanted(model: cml.Graph, half: bool) -> list[str]:
    """Returns the digests of the constant buffers in the model's plans, for all profiles in
    order."""
    storage = "half" if half else "float"
    found = []
    for profile in PROFILES.values():
        options = PlanOptions(variants=shipped_table(profile.tuned_as), packed_inputs=False)
        found += digests_of(
            plan_graph(optimize(model), profile.limits, storage, options, written=model)
        )
    return found


def test_all_players_make_the_buffers_of_the_model(tmp_path):
    """Python and C make the constant buffers of every plan of every network."""
    expected: dict[Path, list[str]] = {}
    for name, (make, half) in NETWORKS.items():
        model, file = make(), tmp_path / f"{name}.cml"
        options = cml.CompileOptions(storage="half" if half else "float")
        file.write_bytes(cook(model, options=options, golden=False))
        expected[file] = wanted(model, half)
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


def test_weights_of_integer_networks_are_stored_in_their_bits():
    model = integers()
    count = model.constants["w"].size
    assert size_of(cook(model, golden=False), "values") < 1.2 * count + 1000
