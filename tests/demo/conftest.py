"""Keeps the games of GPU tests from thawing the objects that the suite froze."""

from unittest.mock import Mock

import pytest


@pytest.fixture(autouse=True, scope="module")
def collector(request):
    """A stand-in for Python's garbage collector as the game uses it.

    A game that ends thaws all frozen objects, the suite's nine thousand tests among them; every
    later collection would then take most of a second.
    """
    if request.node.get_closest_marker("gpu") is None:  # these tests start no game
        yield None
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cml_engine.demo_game.game.gc", stand_in := Mock())
        yield stand_in
