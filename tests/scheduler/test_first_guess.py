"""Tests of the initial cost model, which is chosen by the device's name alone."""

import json

import pytest

from cml_engine import CostModel, FrameScheduler
from scheduler.planning.cost_model import _DEFAULTS, FirstGuess
from scheduler.tools.simulate import SimGpu, SimStep


def test_an_unknown_device_is_a_slow_one():
    assert FirstGuess.for_device("simulated") == FirstGuess()
    assert FirstGuess.for_device("") == FirstGuess()


def test_shipped_cost_tables_state_their_source():
    shipped = list(_DEFAULTS.glob("*.json"))
    assert shipped
    for path in shipped:
        source = json.loads(path.read_text(encoding="utf-8"))["source"]
        assert source.startswith(("measured on such a device: ", "estimated, not measured: ")), path


def test_kernel_cost_precedes_family_cost():
    guess = FirstGuess(1e6, 1e6, 0.0, {"conv": 2.0, "conv-12": 5.0})
    keys = ("conv+relu conv-12 1F 1B", "conv conv-99 1F 1B", "relu elementwise-1 1F 1B", "odd")
    steps = [SimStep(key, 1, 1.0, flops=1e6, nbytes=1.0) for key in keys]
    assert [guess.work_ms(step, 3) for step in steps] == [15.0, 6.0, 3.0, 3.0]


def test_measured_costs_precede_shipped_costs():
    step = SimStep("conv conv-1 1F 1B", 100, 1.0, flops=1e6, nbytes=1.0)
    model = CostModel(guess=FirstGuess(1e6, 1e6, 0.0, {"conv": 2.0}))
    assert model.predict_ms(step, 100) == pytest.approx(200.0)
    assert CostModel().predict_ms(step, 100) == pytest.approx(5.0, rel=0.01)
    model.learn([(step, 100)], 30.0)
    assert model.predict_ms(step, 100) == pytest.approx(30.0)


def test_the_guess_is_part_of_the_table(tmp_path):
    model = CostModel(guess=FirstGuess(1e6, 2e6, 0.5, {"conv": 2.0}, "made up"))
    model.save(tmp_path / "t.json")
    assert CostModel.load(tmp_path / "t.json").guess == model.guess
    missing = CostModel.load(tmp_path / "none.json", guess=model.guess)
    assert missing.guess == model.guess
    with pytest.raises(ValueError, match="not a device's first guess"):
        FirstGuess.from_json({"flops_per_ms": 1})


def test_scheduler_uses_shipped_costs_of_its_device():
    gpu = SimGpu()
    gpu.name = "llvmpipe (LLVM 15.0.6, 256 bits)"
    assert FrameScheduler(gpu).cost_model.guess == FirstGuess.for_device(gpu.name)
    assert FrameScheduler(SimGpu()).cost_model.guess == FirstGuess()
