"""Tests that a process that runs many networks keeps a limited number of their pipelines."""

import gc
import sys
from itertools import islice, product

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.gpu.device import PipelineCache
from cml_engine.gpu.shaders.hlsl import ShaderKey, step_keys
from tests.fixtures.graphs import Net

pytestmark = pytest.mark.gpu

_UNARY = "abs neg sign floor ceil sqr relu rcp".split()  # operators that compile fast


def networks(count):
    """Yields ``count`` graphs of one fused elementwise kernel, each with a different formula."""
    for first, second, third in islice(product(_UNARY, repeat=3), count):
        yield Net(1, 64).graph(f"{third}({second}({first}(x)))")


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])
def test_memory_stays_flat_over_many_networks(gpu, monkeypatch, count):
    if count == 100:  # one shader for all pipelines, because compilation takes most of the time
        code = step_keys(cml.Session(next(networks(1)), gpu).plan)[0].code()
        monkeypatch.setattr(ShaderKey, "code", lambda key: code)
    monkeypatch.setattr(gpu, "_pipelines", PipelineCache(capacity=16))
    blocks = []
    with np.errstate(all="ignore"):
        for number, graph in enumerate(networks(count)):
            if number in (count // 2, count - 1):
                gc.collect()
                blocks.append(sys.getallocatedblocks())
            cml.Session(graph, gpu).run({"x": np.ones((1, 64), np.float32)})
    gc.collect()
    assert len(gpu._pipelines) == 16 and gpu.pipelines_built == count
    # over the second half, bounded caches still grow by 0.3 to 1.3 blocks of Python's memory for
    # each network, and earlier tests add up to some hundred in all; a kept network is 800 blocks
    assert blocks[1] - blocks[0] < 50 * count / 2


def test_a_pipeline_lasts_as_long_as_a_session(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "_pipelines", PipelineCache(capacity=1))
    sessions = [cml.Session(graph, gpu) for graph in networks(3)]
    sessions[0].program.evict()
    for session in sessions:
        session.run({"x": np.ones((1, 64), np.float32)})
    assert gpu.pipelines_built == len(gpu._pipelines) == 3
    sessions[0].close()
    del sessions[1:], session
    gc.collect()
    assert len(gpu._pipelines) == 1
