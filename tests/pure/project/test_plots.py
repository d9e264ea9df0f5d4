"""Tests that the documents' figures can be drawn from reports as the commands write them."""

import json

import pytest
from PIL import Image

from benchmarks import plots

pytest.importorskip("matplotlib")

TIMES = {"p50": 9.0, "p99": 17.0}
ROWS = [{"network": "upres", "operator": f"conv '{name}'", "total_ms": 3.0} for name in "aab"]
RUN = {"target_ms": 16.7, "frame_ms": TIMES, "frame_times_ms": [8.0, 20.0] * 50, "frames": 100,
       "width": 960, "height": 540, "device": "llvmpipe", "operators": ROWS}  # fmt: skip
ENGINES = [{"key": "ours-gpu", "title": "this engine", "median_ms": 76.5},
           {"key": "other", "title": "another", "median_ms": 244.3},
           {"key": "missing", "title": "not installed", "median_ms": None}]  # fmt: skip
NUMBERS = {
    "demo.json": [{**RUN, "mode": mode} for mode in ("off", "sliced", "layer", "unsliced")],
    "bench.json": {
        "models": [{"model": "upres64", "results": ENGINES}],
        "machine": {"cores": 2, "cpu": "a CPU"},
    },
}


@pytest.mark.parametrize("name", plots.FIGURES)
def test_a_figure_is_drawn(name, tmp_path):
    numbers = tmp_path / plots.FIGURES[name][1]
    numbers.write_text(json.dumps(NUMBERS[numbers.name]))
    with Image.open(plots.draw(name, numbers, tmp_path)) as figure:
        assert figure.width > 900 and len(figure.convert("RGB").getcolors(1 << 20)) > 20


def test_missing_numbers_name_the_command_that_writes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots, "OUT", tmp_path)
    assert plots.main(["engines.png", "--folder", str(tmp_path)]) == 1
    assert "python tasks.py bench" in capsys.readouterr().err
