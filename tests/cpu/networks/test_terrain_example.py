"""The terrain example around its network: squares, blending, heights and the picture."""

from __future__ import annotations

import numpy as np
import pytest

from examples.terrain_diffusion import __main__ as command
from examples.terrain_diffusion import network
from examples.terrain_diffusion.network import SIZE, canvas, heights, inputs_of, squares, terrain
from examples.terrain_diffusion.picture import shaded


def test_the_network_gets_noise_its_strength_and_a_difficulty_between_0_and_1():
    given = [inputs_of(canvas((SIZE, SIZE), 1), d) for d in (1, 100)]
    assert {name: value.shape for name, value in given[0].items()} == network.SHAPES
    assert [float(i["difficulty"][0]) for i in given] == [0, 1]
    assert given[0]["sigma"] == 80 and abs(given[0]["noisy"].std() - 80) < 2


@pytest.mark.parametrize("shape", [(128, 128), (129, 300), (128, 224), (320, 321)])
def test_squares_overlap_and_cover_everything(shape):
    covered = np.zeros(shape, int)
    for place in squares(*shape):
        assert covered[place].shape == (SIZE, SIZE)
        covered[place] += 1
    assert covered.min() == 1
    rows = {place[0].start for place in squares(*shape)}
    assert all(b - a <= SIZE - 32 for a, b in zip(sorted(rows), sorted(rows)[1:], strict=False))


def test_every_square_sees_its_part_of_one_canvas():
    """A network that changes nothing returns the canvas, for any blending."""
    found = terrain(lambda inputs: inputs["noisy"] / 400, (150, 230), seed=3, difficulty=50)
    wanted = heights(canvas((150, 230), 3)[0, 0] / 400)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_small_map_is_a_part_of_a_square():
    assert terrain(lambda inputs: inputs["noisy"], (40, 50), 0, 1).shape == (40, 50)


def test_the_network_s_range_is_0_to_the_highest_height():
    found = heights(np.array([[-1.5, -1, 0, 1, 2]], np.float32))[0]
    assert found[0] == found[1] == 0 and found[3] == found[4] == pytest.approx(22.16864)
    assert 0.4 < found[2] < 1.2, "half of the range is a bit over the linear part"


def test_light_comes_from_the_north_west():
    at = np.arange(64, dtype=np.float32)
    falling, rising = (shaded(sign * 0.05 * (at[:, None] + at)) for sign in (1, -1))
    assert falling.shape == (1, 3, 128, 128)
    assert 0 <= min(falling.min(), rising.min()) <= max(falling.max(), rising.max()) <= 1
    hill = shaded(-np.hypot(at[:, None] - 32, at - 32) / 20)[0].sum(0)
    assert hill[40:60, 40:60].mean() > 1.3 * hill[68:88, 68:88].mean()


def test_mistakes_are_told(capsys):
    with pytest.raises(SystemExit):
        command.main(["draw", "--difficulty", "0"])
    assert "wanted 1 to 100, got 0" in capsys.readouterr().err
