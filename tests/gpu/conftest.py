"""The host of many tests, and the input that they give to its ``conv_net``."""

from dataclasses import replace

import numpy as np
import pytest

from cml_engine.ops.declaration.registry import load_families

load_families()


@pytest.fixture
def image(rng):
    """A random input of ``conv_net``."""
    return rng.standard_normal((1, 8, 24, 24), np.float32)


@pytest.fixture
def host(gpu):
    """A frame loop on the suite's device."""
    from tests.fixtures.frames.host import Host  # needs wgpu, which may be missing here

    return Host(gpu, budget_ms=5.0)


@pytest.fixture
def set_limits(gpu, monkeypatch):
    """A function that changes limits of the suite's device for one test."""

    def change(**limits):
        monkeypatch.setattr(gpu, "limits", replace(gpu.limits, **limits))

    return change


@pytest.fixture
def timed_gpu(gpu):
    """The suite's device; skips the test if it has no timestamps."""
    if not gpu.has_timestamps:
        pytest.skip("no timestamp queries")
    return gpu
