"""Tests of a run's report, as words and as tables, and of its film."""

import numpy as np
from PIL import Image

from demo_game.headless import write_film
from demo_game.reporting.report import RunReport, player_table, table

TIMES = {"p50": 9.0, "p95": 15.0, "p99": 17.0, "max": 22.4}


def report(mode, **changed):
    known = {
        "mode": mode, "device": "d", "driver": "v", "quality": "software", "width": 960,
        "height": 540, "seed": 7, "clock": "real", "target_ms": 16.667, "frames": 600,
        "first_picture_s": 1.0, "ground_s": 2.0, "load_s": 3.0, "frame_ms": TIMES,
        "frame_times_ms": [9.0], "cpu_ms": TIMES,
        "render_ms": None, "inference_ms": None, "frames_over": 6, "frames_over_budget": None,
        "budget_used": None, "tiles": 0, "tiles_cancelled": 0, "tiles_per_s": 0.0,
        "jobs_per_s": {}, "latency_s": {**TIMES, "p50": 2.66}, "memory_peak_bytes": 1,
        "memory_bytes_by_owner": {}, "world": "abc",
    }  # fmt: skip
    return RunReport(**{**known, **changed})


def test_plain_table_of_a_comparison():
    runs = [report("off"), report("sliced", tiles=19, frames_over=12),
            report("unsliced", tiles=51, frames_over=78)]  # fmt: skip
    said = player_table(runs).splitlines()
    assert said[0] == "600 frames of one flight, each to take 16.7 ms:"
    assert said[2].startswith("no networks") and " - " in said[2] and "1.0 %" in said[2]
    assert "19       2.7 s" in said[3] and "2.0 %     22 ms" in said[3]
    assert "alone, +1.0 percentage points" in said[5] and "+12.0 unsliced" in said[5]
    assert "the world is the same" in said[5]
    other = [*runs[:2], report("unsliced", world="xyz")]
    assert "WORLDS DIFFER" in player_table(other)
    assert len(player_table(runs[1:2]).splitlines()) == 3, "nothing to compare with"
    assert len(table(runs).splitlines()) == 4


def test_a_film_has_all_its_pictures(tmp_path, rng):
    pictures = [rng.integers(0, 255, (90, 500, 3)).astype(np.uint8) for _ in range(5)]
    write_film(tmp_path / "film.gif", pictures)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 5 and film.size == (400, 72)  # type: ignore[attr-defined]
        assert film.info["duration"] == 100 and film.info["loop"] == 0
