"""The host of many tests, and the input that they give to its ``conv_net``."""

import numpy as np
import pytest


@pytest.fixture
def image(rng):
    """A random input of ``conv_net``."""
    return rng.standard_normal((1, 8, 24, 24), np.float32)


@pytest.fixture
def host(gpu):
    """A frame loop on the suite's device."""
    from tests.fixtures.frames.host import Host  # needs wgpu, which may be missing here

    return Host(gpu, budget_ms=5.0)
