"""Workers with a GPU and neither a compiler nor a cache of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.cooked import cook
from cml_engine.distributed import map_network
from cml_engine.runtime.session import random_inputs
from demo_game.bake.__main__ import main
from demo_game.chain import MODELS, kept_names, load_chain
from demo_game.maker import TileMaker
from demo_game.reporting.digest import digest_of
from demo_game.world.tile import TileId

pytest.importorskip("distributed")
zarr = pytest.importorskip("zarr")

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = ("terrain", "upres", "surface", "texture", "paint", "population", "scatter")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """A client of a cluster whose only worker has no compiler."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as found,
    ):
        env = {**os.environ, "CML_CACHE_DIR": str(tmp_path / "cache")}
        words = [sys.executable, "-m", "dask", "worker", cluster.scheduler_address, "--no-nanny",
                 "--nthreads", "2", "--no-dashboard", "--preload", "tests.fixtures.no_compiler",
                 "--local-directory", str(tmp_path / "dask")]  # fmt: skip
        worker = subprocess.Popen(words, cwd=ROOT, env=env)
        try:
            yield found
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.long
def test_cooked_networks_and_planets_are_made_without_a_compiler(
    client: Any, gpu: cml.Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NETWORKS:
        network = cml.load(MODELS / f"{name}.nnef")
        (tmp_path / f"{name}.cml").write_bytes(cook(network, golden=False))
    graph = cml.load(MODELS / "texture.nnef")
    inputs = [random_inputs({name: graph.facts[name] for name in graph.inputs})]
    place = tmp_path / "out.zarr"
    report = map_network(tmp_path / "texture.cml", inputs, place, client, backend="gpu")
    assert report.complete and report.device == gpu.name
    wanted = cml.Session(graph, gpu).run(inputs[0])
    for name, value in wanted.items():
        np.testing.assert_array_equal(zarr.open_group(place)[name][0], value)

    monkeypatch.setattr("demo_game.bake.work.cooked_set", lambda: tmp_path)
    place = tmp_path / "planet.zarr"
    words = ["--region", "0:1,0:1", "--levels", "1:1", "-o", str(place), "--backend", "gpu"]
    assert main([*words, "--scheduler", client.scheduler.address]) == 0
    made = TileMaker(load_chain(), gpu).make(TileId(1, 0, 0), 7)
    tile = digest_of([made[name] for name in kept_names(TileId(1, 0, 0))])
    assert zarr.open_group(place)["L1/digest"][0, 0].tobytes().hex() == tile
    assert not list((tmp_path / "cache").rglob("*.shader"))
