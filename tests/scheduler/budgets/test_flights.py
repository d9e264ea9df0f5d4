"""Tests that recorded flights of the demo, repeated on the virtual clock, have the same results."""

import pytest

from tests.scheduler.budgets.flights import RECORDED, Flight, FlightResult, simulate

FLIGHTS = sorted(RECORDED.glob("*.json"))


def test_flights_are_recorded():
    assert FLIGHTS


@pytest.mark.parametrize("path", FLIGHTS, ids=lambda path: path.stem)
def test_simulated_flight_has_the_work_and_the_late_frames_of_the_real_one(path):
    """Work and tiles agree within a fifth; late frames within that or a percentage point."""
    flight = Flight.load(path)
    real, simulated = FlightResult.of(flight), simulate(flight)
    assert simulated.work_ms == pytest.approx(real.work_ms, rel=0.2)
    assert simulated.late == pytest.approx(real.late, rel=0.2, abs=0.01)
    assert abs(simulated.tiles - real.tiles) <= max(4, 0.2 * real.tiles)
