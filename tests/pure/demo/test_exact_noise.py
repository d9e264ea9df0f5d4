"""Tests that the integer world's noise equals a reference in Python's integers, also at
extremes."""

import random

import numpy as np
import pytest

from demo_game.world import exact_noise, noise
from tests.reference import exact_land

FUNCTIONS = ("height", "detail", "moisture", "grain")
#: the ends of 32 bits, of a world of 2^31 metres, and of lattice cells
EDGES = [n for at in (0, 2**13, 2**29, 2**31 - 1) for n in (at - 1, at, -at)]
SEEDS = (0, 7, 2**31 - 1)


@pytest.mark.parametrize("level", range(7))
def test_noise_equals_exact_integers_and_fits_in_32_bits(level):
    rng = random.Random(level)
    places = [(x, z) for x in EDGES for z in rng.sample(EDGES, 3)]
    places += [(rng.randrange(-(2**31), 2**31), rng.randrange(-4000, 4000)) for _ in range(40)]
    x, z = (np.array(axis, np.int32) for axis in zip(*places, strict=True))
    for name in FUNCTIONS:
        seed = rng.choice(SEEDS)
        found = getattr(exact_noise, name)(noise.Cells(x, z, level, seed))
        wanted = [getattr(exact_land, name)(*place, level, seed) for place in places]
        assert found.tolist() == wanted, name


def test_the_steepest_corners_fit_into_32_bits(monkeypatch):
    """The reference, which checks every sum, accepts extreme gradients that no hash gives
    together."""
    for h in (0, 1023, 1023 << 10, (1 << 20) - 1):
        turned = iter(range(1 << 30))
        monkeypatch.setattr(
            exact_land, "hashed", lambda *_, h=h, t=turned: h ^ ((1 << 20) - 1) * (next(t) % 2)
        )
        for x in (0, 1, 4095, 4096, 8191):
            exact_land.height(x, 8191 - x, 0, 0)
            exact_land.detail(x, 8191 - x, 6, 0)


def test_integer_heights_are_within_metres_of_float_heights():
    rng = np.random.default_rng(1)
    x, z = rng.integers(-(2**18), 2**18, (2, 500), dtype=np.int32)
    cells = noise.Cells(x, z, 0, 7)
    metres = exact_noise.height(cells) / 2.0**exact_noise.HEIGHT_BITS
    assert 0 < np.abs(metres - noise.height(cells)).max() < 4.0
