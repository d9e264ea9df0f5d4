"""The input that many tests give to a network of ``fixtures/frames/host.py``.

That module needs wgpu, which may be missing here.
"""

import numpy as np
import pytest


@pytest.fixture
def image(rng):
    """A random input of ``conv_net``."""
    return rng.standard_normal((1, 8, 24, 24), np.float32)
