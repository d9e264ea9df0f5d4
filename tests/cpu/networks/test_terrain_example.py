"""The terrain example around its network: squares, blending, heights and the picture."""

import numpy as np
import pytest

from examples.terrain_diffusion import __main__ as command
from examples.terrain_diffusion import network
from examples.terrain_diffusion.network import SIZE, canvas, heights, inputs_of, squares, terrain


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


def test_mistakes_are_told(capsys):
    with pytest.raises(SystemExit):
        command.main(["draw", "--difficulty", "0"])
    assert "wanted 1 to 100, got 0" in capsys.readouterr().err
