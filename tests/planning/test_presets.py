"""Tests of the order of operators that needs less memory, and of presets of options."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.compiler.optimize import AS_WRITTEN
from cml_engine.cooked import cook
from cml_engine.errors import InputError
from cml_engine.tools import cli
from tests.fixtures.graphs import random_graph
from tests.fixtures.models import write_model
from tests.fixtures.results import same_bits

pytestmark = pytest.mark.gpu

BRANCHES = 6


@pytest.fixture
def branching(tmp_path):
    """A network whose file widens every branch before it narrows the first one."""
    wide = "".join(f"s{i} = mul(e, {i + 1}.0); w{i} = tanh(s{i}); " for i in range(BRANCHES))
    narrow = "".join(f"n{i} = mean_reduce(w{i}, axes = [1]); " for i in range(BRANCHES))
    joined = ", ".join(f"n{i}" for i in range(BRANCHES))
    text = (
        "version 1.0; graph net(x) -> (y) { x = external<scalar>(shape = [1, 1, 32, 32]); "
        "many = variable<scalar>(shape = [1, 16, 1, 1], label = 'many'); e = mul(x, many); "
        f"{wide}{narrow}y = concat([{joined}], axis = 1); }}"
    )
    many = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16, 1, 1)
    return write_model(tmp_path / "net.nnef", text, many=many)


def session(gpu, graph, order):
    return cml.Session(graph, gpu, cml.CompileOptions(order=order))


def test_least_memory_finishes_a_branch_before_the_next(gpu, branching, rng):
    graph = cml.load(branching)
    usual, small = (session(gpu, graph, order) for order in ("file", "memory"))
    assert small.plan.memory.peak < 0.5 * usual.plan.memory.peak
    assert len(small.graph.nodes) == len(usual.graph.nodes)
    x = rng.standard_normal((1, 1, 32, 32), np.float32)
    assert_array_equal(small.run({"x": x})["y"], usual.run({"x": x})["y"])
    seen = []
    small.run({"x": x}, watch=lambda node, results: seen.append((node.outputs[0], results[0])))
    assert [name for name, _ in seen] == [n.outputs[0] for n in small.graph.nodes]
    assert_array_equal(seen[-1][1], small.run({"x": x})["y"])


@pytest.mark.parametrize("seed", range(6))
def test_least_memory_never_needs_more_than_the_file_and_has_its_bits(gpu, seed):
    graph, inputs = random_graph(seed)
    usual, small = (session(gpu, graph, order) for order in ("file", "memory"))
    assert small.plan.memory.peak <= usual.plan.memory.peak
    same_bits(small.run(inputs), usual.run(inputs))


def test_options_win_over_a_preset():
    assert cml.CompileOptions.preset("shipping") == cml.CompileOptions(order="memory")
    debug = cml.CompileOptions.preset("debug", tuned=True)
    assert debug == cml.CompileOptions(without=AS_WRITTEN, winograd=False)
    small = cml.CompileOptions.preset("smallest", storage="float", arena_limit=1 << 20)
    assert small == cml.CompileOptions(order="memory", arena_limit=1 << 20)


@pytest.mark.parametrize(
    "make, says",
    [
        (
            lambda: cml.CompileOptions.preset("fast"),
            "'shipping' or 'debug' or 'smallest', got 'fast'",
        ),
        (lambda: cml.CompileOptions.preset("debug", fast=True), "has no option.*fast"),
        (
            lambda: cml.CompileOptions(order="latency"),
            "'file' or 'memory', got 'latency'",
        ),
    ],
)
def test_unknown_presets_and_orders_are_refused(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_presets_of_the_command_line(branching, capsys):
    def steps(*options):
        assert cli.main(["info", str(branching), *options]) == 0
        return capsys.readouterr().out

    usual, shipping, smallest = (
        steps(*options) for options in ((), ("--preset", "shipping"), ("--preset", "smallest"))
    )
    assert len({usual, shipping, smallest}) == 3
    assert "16 bits" in smallest and "16 bits" not in shipping
    assert steps("--preset", "debug").count("tanh") > 0
    with pytest.raises(SystemExit):
        cli.main(["run", str(branching), "--preset", "fast"])
    assert "choose from 'shipping', 'debug', 'smallest'" in capsys.readouterr().err


def test_presets_of_cooked_networks(gpu, branching, tmp_path, rng):
    """A preset applies to a cooked file's plans; its results equal those of a session with it."""
    graph, x = cml.load(branching), {"x": rng.standard_normal((1, 1, 32, 32), np.float32)}
    peaks = []
    for preset in (None, "shipping", "smallest", "debug"):
        file = tmp_path / f"{preset}.cml"
        options = ["--preset", preset] if preset else []
        assert cli.main(["cook", str(branching), "-o", str(file), *options]) == 0
        assert cli.main(["cook", "--check", str(file)]) == 0
        cooked = cml.Session(cml.load_cooked(file, trusted=True), gpu)
        live = cml.CompileOptions.preset(preset) if preset else cml.CompileOptions()
        assert_array_equal(cooked.run(x)["y"], cml.Session(graph, gpu, live).run(x)["y"], preset)
        peaks.append(cooked.plan.memory.peak)
    usual, shipping, smallest, debug = peaks
    assert smallest <= shipping < 0.5 * usual and debug >= usual
    with pytest.raises(InputError, match="keep and plan are for sessions"):
        cook(graph, options=cml.CompileOptions(keep=("y",)))
