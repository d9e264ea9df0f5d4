"""Tests of the JavaScript player in Deno: its files, its types, its decisions and its results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
import demo_game.operators  # noqa: F401 - registers the game's own operators
from cml_engine.cooked import cook
from cml_engine.cooked.kernels import read_kernels
from cml_engine.cooked.reader import Container
from scheduler.recording import Recording
from tests.cooked_networks import NETWORKS
from tests.gpu.integer.test_bits import net_of
from tests.players.deno import ROOT, WEB, run_deno
from tests.players.networks import is_right, main, play_golden
from tests.players.test_replay import random_run
from tests.scheduler.test_record import eventful_run, run_by_wall_clock

HERE = Path(__file__).with_name("web")
MODULES = sorted(WEB.glob("*.js"))


def test_the_player_is_typed():
    run_deno("check", *MODULES)


def test_the_player_needs_nothing_else():
    text = (WEB / "cml.js").read_text()
    assert "import " not in text.replace("import(", "")


@pytest.mark.gpu
@pytest.mark.parametrize("file", sorted(f.name for f in HERE.glob("*.test.js")))
def test_in_deno(file):
    run_deno("test", "-A", "--no-check", HERE / file)


@pytest.mark.parametrize("run", [eventful_run, run_by_wall_clock, *range(12)])
def test_recordings_replay_to_the_same_slices(run, tmp_path):
    """A number is the seed of a random run."""
    recording = random_run(run) if isinstance(run, int) else run(400)[0]
    found = replayed(recording, tmp_path)
    assert found == {"frames": len(recording.decisions), "different": 0, "first": None}


def test_a_recording_with_other_timings_replays_to_others(tmp_path):
    """A recording with changed timings replays to other slices, so the comparison can fail."""
    recording = eventful_run(120)[0]
    for event in recording.events:
        if event["kind"] == "end":
            event["timings"] = [[f, g, 3 * ms] for f, g, ms in event["timings"]]
    assert replayed(recording, tmp_path)["different"] > 20


def replayed(recording: Recording, folder: Path) -> dict[str, object]:
    """Replays a recording in JavaScript; returns the program's JSON, with the number of
    different frames."""
    recording.save(folder / "run.json")
    done = run_deno("run", "-A", WEB / "replay.js", folder / "run.json", check=False)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a cooked file of the demo's terrain network."""
    file = tmp_path_factory.mktemp("cooked") / "terrain.cml"
    graph = cml.load(ROOT / "demo_game" / "models" / "terrain.nnef")
    file.write_bytes(cook(graph, ["portable"]))
    return file


@pytest.mark.gpu
def test_cooked_networks_give_what_python_gives(terrain, tmp_path, gpu):
    """A float network agrees with Python within 1e-4 and an integer network exactly.

    Any slices are bit-identical to a whole run.
    """
    exact = tmp_path / "exact.cml"
    device = "software" if gpu.limits.software else "portable"
    exact.write_bytes(cook(NETWORKS["integer-population"](), [device]))
    found = play_golden([terrain, exact])
    assert all(is_right(one) for one in found), found
    assert 0 < found[0]["error"] < 1e-4 and found[1]["tolerance"] == 0


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_gives_what_python_gives(name):
    assert main([name]) == 0


@pytest.mark.gpu
def test_an_integer_network_gives_the_same_bits(tmp_path):
    """The web player's results of an integer network are bit-identical to the expected ones.

    Its kernels multiply bytes (``dot4I8Packed``), and the file has them as WGSL only.
    """
    file = tmp_path / "net.cml"
    file.write_bytes(cook(net_of(8)[0], ["portable"]))
    kernels = read_kernels(Container(memoryview(file.read_bytes()), None), trusted=True)
    wgsl = [k.kernel.code() for k in kernels if not k.has_spirv]
    assert wgsl and all("dot4I8Packed" in text for text in wgsl)
    found = json.loads(run_deno("run", "-A", WEB / "check.js", file).stdout)
    assert found["identical"] and found["error"] == 0


@pytest.mark.gpu
def test_frames_are_measured_as_by_the_command(terrain):
    words = ("--frames", "10", "--budget-ms", "0.5", "--json")
    found = json.loads(run_deno("run", "-A", WEB / "frames.js", terrain, *words).stdout)
    assert found["identical"] and found["budget_ms"] == 0.5 and found["jobs"] >= 1
    kinds = [found[f"{kind}_ms"]["p50"] for kind in ("slices", "control", "layers", "unsliced")]
    assert np.isfinite(kinds).all() and min(kinds) > 0
