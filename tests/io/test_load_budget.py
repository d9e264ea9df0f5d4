"""Tests that one budget limits the memory and the work of loading, whatever the format."""

import os
import time

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.io import arrays, load_limits
from cml_engine.io.arrays import read_samples
from cml_engine.io.load_limits import Budget, LoadLimits, OverBudget, current_budget, load_budget


def test_limits_are_read_from_a_text(monkeypatch):
    found = LoadLimits.parse("memory=8G, nodes=500000")
    assert (found.memory, found.nodes, found.steps) == (8 << 30, 500_000, LoadLimits().steps)
    monkeypatch.setenv(load_limits.VARIABLE, "steps=7k")
    assert LoadLimits.default().steps == 7 << 10
    assert LoadLimits().memory == load_limits.machine_memory() // 2


@pytest.mark.parametrize(
    "text", ["memory", "memory=", "memory=x", "memory=-1", "memory=1GG", "size=1",
             "nodes=1,nodes=2", "nodes=0", "memory=1.5G", ","]
)  # fmt: skip
def test_limits_that_cannot_be_read_are_refused(text):
    with pytest.raises(cml.InputError, match="wanted"):
        LoadLimits.parse(text)


@pytest.mark.parametrize("limits", [LoadLimits, cml.cooked.CookedLimits])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8G", None, True])
def test_limits_are_integers_above_0(limits, value):
    with pytest.raises(cml.InputError, match=f"{limits.__name__}: steps is .*: wanted an integer"):
        limits(steps=value)


@pytest.mark.parametrize("limit", ["memory", "nodes", "steps"])
def test_limit_error_names_limit_and_how_to_raise_it(limit):
    spent = Budget(LoadLimits(**{limit: 1000}))
    charge = {
        "memory": spent.charge_bytes,
        "nodes": spent.charge_nodes,
        "steps": spent.charge_steps,
    }[limit]
    charge(1000, "the first tensor")
    with pytest.raises(OverBudget) as caught:
        charge(24, "the tensor 'w'")
    said = caught.value.message
    assert said.startswith("the tensor 'w' needs 24 ") and "the limit is 1,000" in said
    option = said.partition("--load-limits ")[2].partition(",")[0]
    assert getattr(LoadLimits.parse(option), limit) >= 1024


def test_a_load_within_a_load_shares_its_budget():
    with load_budget(LoadLimits(nodes=2)) as outer, load_budget() as inner:
        assert inner is outer is current_budget()
    assert current_budget() is not outer


def test_the_command_line_sets_the_limits_of_one_command(run_cml, refused):
    assert "cannot read 'memory=lots'" in refused("info m.onnx --load-limits memory=lots")
    run_cml("info", "no such model.onnx", "--load-limits", "memory=8G", ends=2)
    assert load_limits.VARIABLE not in os.environ


# -- readers ---------------------------------------------------------------------------------------

GRAPH = (
    "version 1.0;\nextension KHR_enable_operator_expressions;\n"
    "graph net(x) -> (y)\n{\n    x = external(shape = [1, 4]);\n"
)
SMALL = LoadLimits(memory=32 * 2**20, steps=200_000)


def nnef_of(body):
    return cml.nnef.MemoryModel(f"{GRAPH}{body}    y = relu(x);\n}}\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    c = constant(shape = [60000000], value = [1.0]);\n", "a constant of 60,000,000 elem"),
        (
            "".join(f"    c{i} = constant(shape = [65000], value = [1.0]);\n" for i in range(200)),
            "a constant of 65,000 elements needs 260,000 bytes, which makes 33,",
        ),
        ("    c = " + "1.0 + " * 200_000 + "1.0;\n", "the text's words and signs .* needs 2,048 "),
    ],
)
def test_nnef_exceeding_limits_is_refused(body, said):
    with pytest.raises(OverBudget, match=said) as caught:
        cml.load(nnef_of(body), limits=SMALL)
    assert caught.value.source is not None and caught.value.source.line > 5


def test_a_long_line_costs_no_more_than_a_short_one():
    """A model of 2000 operators on one line of 20 MB loads in less than 10 s.

    Each operator keeps only the beginning of its source line for messages.
    """
    body = "".join(f"r{i} = relu(x); " for i in range(2000))
    start = time.process_time()
    cml.load(nnef_of(f"{body} # {'a' * 20_000_000}\n"))
    assert time.process_time() - start < 10


def test_reshaped_graphs_have_separate_budgets():
    limits = LoadLimits(memory=20 * 2**20)
    graph = cml.load(nnef_of("c = constant(shape = [3000000], value = [1.0]);"), limits=limits)
    for rows in (2, 3):
        assert graph.reshaped({"x": (rows, 4)}).facts["y"].shape == (rows, 4)
    body = "c = constant(shape = shape_of(x), value = [1.0]);"
    graph = cml.load(nnef_of(body), limits=limits)
    with pytest.raises(OverBudget, match="--load-limits memory="):
        graph.reshaped({"x": (3_000_000, 4)})


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_compressed_inputs_exceeding_limits_are_refused(tmp_path, monkeypatch, kind):
    zeros, path = np.zeros((1, 5_000_000), np.float32), tmp_path / f"x.{kind}"
    if kind == "npz":
        np.savez_compressed(path, x=zeros)
        assert path.stat().st_size < 100_000
    else:
        np.save(path, zeros)
    monkeypatch.setenv(load_limits.VARIABLE, "memory=10M")
    with pytest.raises(cml.InputError, match=f"x.{kind}.* needs 20,000,[0-9]+ bytes"):
        arrays.read(path, "x", ops.Fact("scalar", zeros.shape))
    with pytest.raises(cml.InputError, match=f"x.{kind}.* needs 20,000,[0-9]+ bytes"):
        read_samples({"x": path}, {"x": ops.Fact("scalar", zeros.shape)})


def test_safetensors_with_a_long_header_are_refused(tmp_path):
    entries = ",".join(
        f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(100_000)
    )
    header = f"{{{entries}}}".encode()
    data = len(header).to_bytes(8, "little") + header
    with pytest.raises(OverBudget, match="the header of .* needs"):
        cml.load(nnef_of(""), weights=data, limits=SMALL)
