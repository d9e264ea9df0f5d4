"""Tests that the demo's integer networks have the same digest on every device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cml_engine as cml
from cml_engine.demo_game.chain import load_chain
from cml_engine.demo_game.reporting.digest import tile_digest
from cml_engine.demo_game.tile_maker import TileMaker
from cml_engine.demo_game.training.integer import INTEGER
from cml_engine.integer import run_digest
from cml_engine.runtime.node_check import check_bits, random_words
from cml_engine.tools.selftest.networks import integer_digests
from tests.fixtures.integer.world import TILES

pytestmark = pytest.mark.gpu

LONG = pytest.mark.long
DIGESTS = integer_digests()
#: Chromium's driver on Debian and on other systems
SWIFTSHADER = [
    path
    for path in (
        Path("/usr/lib/chromium/vk_swiftshader_icd.json"),
        Path("/usr/lib64/chromium-browser/vk_swiftshader_icd.json"),
        Path("/opt/google/chrome/vk_swiftshader_icd.json"),
    )
    if path.is_file()
]
DIGESTS_HERE = """
import cml_engine as cml
from cml_engine.integer import run_digest
from cml_engine.runtime.node_check import random_words
from cml_engine.demo_game.training.integer import INTEGER
from cml_engine.tools.selftest.networks import integer_digests
gpu = cml.Gpu()
print(gpu.name)
for name in integer_digests():
    graph = cml.load(INTEGER / f"{name}.nnef")
    print(name, run_digest(graph, cml.Session(graph, gpu).run(random_words(graph, 11))))
"""


@pytest.mark.parametrize(
    "name", ["population", *(pytest.param(n, marks=LONG) for n in ("upres", "texture"))]
)
def test_no_bit_differs_from_numpy(name, gpu):
    graph = cml.load(INTEGER / f"{name}.nnef")
    inputs = random_words(graph, 11)
    check = check_bits(graph, gpu, inputs)
    assert check.ok, check
    assert run_digest(graph, cml.Session(graph, gpu).run(inputs)) == DIGESTS[name]


@LONG
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_demo_tiles_have_the_committed_digests(tile, makers):
    chain, maker = makers
    assert tile_digest(chain, tile, maker.make(tile, 7).__getitem__) == TILES[tile]


@pytest.fixture(scope="module")
def makers(gpu):
    chain = load_chain(integer=True)
    return chain, TileMaker(chain, gpu)


@LONG
@pytest.mark.skipif(not SWIFTSHADER, reason="no SwiftShader: it comes with Chromium")
def test_another_driver_gives_the_same_digests():
    icd = str(SWIFTSHADER[0])
    env = {**os.environ, "VK_ICD_FILENAMES": icd, "VK_DRIVER_FILES": icd}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS_HERE], env=env, capture_output=True, text=True, check=True
    )
    device, *lines = done.stdout.splitlines()
    assert "SwiftShader" in device and dict(line.split(" ", 1) for line in lines) == DIGESTS
