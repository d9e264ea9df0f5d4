"""Draws the figures of the documents from measured numbers: ``python -m benchmarks.plots``.

Frame times and operators come from ``python -m demo_game --compare --report out/demo.json``, the
times of engines from ``python tasks.py bench``, which writes ``out/bench.json``. Needs the extra
``plot``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
DOCS, OUT = ROOT / "docs", ROOT / "out"
_MODES = {
    "off": "no networks",
    "sliced": "networks in slices, in the time left",
    "unsliced": "whole networks in a frame",
}
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _GREY, _RED = "#2f6fb3", "#9aa3ad", "#c8442e"
_OPERATORS = 12
Report = Mapping[str, Any]


def frame_times(runs: Sequence[Report], figure: Figure) -> None:
    """Draws the times of all frames into ``figure``, one row per mode.

    Frames over the target are red.
    """
    ordered = [run for mode in _MODES for run in runs if run["mode"] == mode]
    figure.set_size_inches(8, 1.4 * len(ordered) + 0.5)
    rows = figure.subplots(len(ordered), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, run in zip(rows, ordered, strict=True):
        times, target = run["frame_times_ms"], run["target_ms"]
        over = [frame for frame, ms in enumerate(times) if ms > target]
        axes.plot(times, color=_BLUE, linewidth=0.6)
        axes.plot(over, [times[frame] for frame in over], ".", color=_RED, markersize=3)
        axes.axhline(target, color="black", linestyle="--", linewidth=0.7)
        share = 100 * len(over) / len(times)
        axes.set_title(
            f"{_MODES[run['mode']]}: P50 {run['frame_ms']['p50']:.1f} ms, "
            f"P99 {run['frame_ms']['p99']:.1f} ms, {share:.1f} % over {target:.1f} ms",
            fontsize=9, loc="left",
        )  # fmt: skip
        axes.set_ylabel("ms")
        axes.set_xlim(0, len(times))
    rows[0].set_ylim(0, 3 * ordered[0]["target_ms"])
    rows[-1].set_xlabel(
        f"frame, {ordered[0]['width']}x{ordered[0]['height']} on {ordered[0]['device']}"
    )


def operators(runs: Sequence[Report], figure: Figure) -> None:
    """Draws bars of the GPU time of the costliest operators of the sliced flight."""
    (run,) = (run for run in runs if run["mode"] == "sliced")
    spent: Counter[str] = Counter()  # one operator may take several dispatches
    for row in run["operators"]:
        spent[f"{row['network']}: {row['operator']}"] += row["total_ms"]
    rows = spent.most_common(_OPERATORS)[::-1]
    _bars(figure, rows, [_BLUE] * len(rows))
    figure.axes[0].set_xlabel(f"GPU time in {run['frames']} frames, ms")


def engines(report: Report, figure: Figure) -> None:
    """Draws bars of the median times of the report's first network on every engine."""
    record = report["models"][0]
    rows = [row for row in record["results"] if row["median_ms"] is not None][::-1]
    colours = [_BLUE if row["key"].startswith("ours") else _GREY for row in rows]
    _bars(figure, [(row["title"], row["median_ms"]) for row in rows], colours)
    machine = report["machine"]
    label = f"{record['model']}, median ms; {machine['cores']} cores of {machine['cpu']}"
    figure.axes[0].set_xlabel(label)


def _bars(figure: Figure, rows: Sequence[tuple[str, float]], colours: Sequence[str]) -> None:
    """Draws a bar for each name and its milliseconds, the last row on top."""
    figure.set_size_inches(8, 0.28 * len(rows) + 0.8)
    axes = figure.subplots()
    bars = axes.barh([name for name, _ in rows], [ms for _, ms in rows], color=colours)
    axes.bar_label(bars, fmt="%.1f ms", padding=3, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


#: name of the figure's file: the function that draws it, and the file of its numbers
FIGURES: Mapping[str, tuple[Callable[[Any, Figure], None], str]] = {
    "frame_times.png": (frame_times, "demo.json"),
    "operators.png": (operators, "demo.json"),
    "engines.png": (engines, "bench.json"),
}


def draw(name: str, numbers: Path) -> Path:
    """Draws the figure ``name`` from a JSON file of numbers into ``docs/``; returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FIGURES[name][0](json.loads(numbers.read_text(encoding="utf-8")), figure)
    figure.savefig(DOCS / name, dpi=130)
    return DOCS / name


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.plots", description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], help="all if left out")
    options = parser.parse_args(arguments)
    for name in options.figures or FIGURES:
        numbers = OUT / FIGURES[name][1]
        try:
            print(draw(name, numbers))
        except ImportError:
            print('error: matplotlib is missing: pip install -e ".[plot]"', file=sys.stderr)
            return 1
        except (OSError, ValueError, KeyError) as error:
            print(f"error: '{numbers}' cannot be drawn: {error}\n{__doc__}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
