"""One budget bounds the memory and the work of a load, whatever it reads."""

from __future__ import annotations

import os

import pytest

import cml_engine as cml
from cml_engine import budget
from cml_engine.budget import Budget, LoadLimits, OverBudget, current, load_budget
from cml_engine.cli.main import main


def test_limits_are_read_from_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    found = LoadLimits.parse("memory=8G, nodes=500000")
    assert (found.memory, found.nodes, found.steps) == (8 << 30, 500_000, LoadLimits().steps)
    monkeypatch.setenv(budget.VARIABLE, "steps=7k")
    assert LoadLimits.default().steps == 7 << 10
    assert LoadLimits().memory == budget.machine_memory() // 2


@pytest.mark.parametrize(
    "text", ["memory", "memory=", "memory=x", "memory=-1", "memory=1GG", "size=1",
             "nodes=1,nodes=2", "nodes=0", "memory=1.5G", ","]
)  # fmt: skip
def test_limits_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(cml.InputError, match="wanted"):
        LoadLimits.parse(text)


@pytest.mark.parametrize("value", [0, -1, 1.5, "8G", None, True])
def test_limits_are_integers_above_0(value: object) -> None:
    with pytest.raises(cml.InputError, match="memory is .*: wanted an integer"):
        LoadLimits(memory=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["memory", "nodes", "steps"])
def test_a_message_says_what_exceeds_which_limit_and_how_to_raise_it(limit: str) -> None:
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


def test_a_load_within_a_load_shares_its_budget() -> None:
    with load_budget(LoadLimits(nodes=2)) as outer, load_budget() as inner:
        assert inner is outer is current()
    assert current() is not outer


def test_the_command_line_sets_the_limits_of_one_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["info", "m.onnx", "--load-limits", "memory=lots"]) == 2
    assert "cannot read 'memory=lots'" in capsys.readouterr().err
    assert main(["info", "no such model.onnx", "--load-limits", "memory=8G"]) == 2
    assert budget.VARIABLE not in os.environ
