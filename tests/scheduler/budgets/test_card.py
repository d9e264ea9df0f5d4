"""Tests that budgets are kept on a simulated card of 60 compute units, and what slices cost there.

The steps are those of networks compiled for the card, whose SIMDs compute whole waves
(``benchmarks.hardware.frames``).
"""

from dataclasses import replace

import pytest

from benchmarks.hardware.frames import (
    SIMDS,
    dropping,
    sliced_cost,
    steady,
    stored_networks,
    unsliced_ms,
)
from cml_engine.scheduler.planning.plan import FramePlan, plan_frame, planned_slice
from cml_engine.scheduler.tools.simulate import WaveStep

NETWORKS = stored_networks()
FRAMES = 1500


@pytest.mark.shipped_guesses  # with guesses that are wrong by 30 times it learns for 3 000 frames
@pytest.mark.parametrize("clock", [steady, dropping])
@pytest.mark.parametrize(
    ("name", "budget_ms"), [("unet, 256²", 0.3), ("stylegan2, 256²", 1.0), ("stylegan2, 256²", 2.0)]
)
def test_slices_fill_the_card_and_budgets_are_kept(name, budget_ms, clock):
    """Budgets are kept, and at least half of the cut slices have a wave for every SIMD."""
    cost = sliced_cost(NETWORKS[name], budget_ms, clock, frames=FRAMES)
    assert cost.ratio <= 1.05
    assert cost.over <= 0.015
    assert cost.waves[1] >= SIMDS
    assert cost.used > 0.5


def test_small_slices_would_waste_the_card():
    """Slices of a quarter of a wave per SIMD take much longer than unsliced runs."""

    def in_small_slices(state):
        plan = plan_frame(state)
        pieces = [
            replace(piece, predicted_ms=share * part.predicted_ms)
            for part in plan.slices
            for first in range(part.first, part.first + part.count, SIMDS // 4)
            for count in [min(SIMDS // 4, part.first + part.count - first)]
            for share in [count / part.count]
            for piece in [planned_slice(state, part.job, part.step, first, count)]
        ]
        return FramePlan(pieces, plan.starts, plan.reason, plan.by_budget)

    cost = sliced_cost(NETWORKS["unet, 256²"], 0.5, planner=in_small_slices, frames=FRAMES)
    assert cost.ratio > 1.5


def test_a_wave_step_takes_the_time_of_its_busiest_simd():
    step = WaveStep(
        "k", 1000, simds=100, waves=2, busy_ms=0.1, alone_ms=0.3, resident=4, memory_ms=1.0
    )
    # each SIMD has at most one wave, or two, which wait for memory together; then it has four
    assert step.ms(1) == step.ms(50) == step.ms(51) == 0.3
    assert step.ms(200) == pytest.approx(0.4)
    assert step.ms(201) == pytest.approx(0.6)  # a second round of waves
    assert step.ms(1000) == pytest.approx(2.0) == pytest.approx(1000 * step.ms_per_group)


def test_the_networks_take_longer_than_a_budget():
    assert all(unsliced_ms(network) > 0.5 for network in NETWORKS.values())
