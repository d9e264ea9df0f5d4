"""Draws the frame times of simulated policies; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scheduler.tools.simulate import SimulatedRun


def plot_outcomes(outcomes: Sequence[SimulatedRun], frame_ms: float, path: Path) -> None:
    """Writes a picture to ``path`` with one plot of frame times for each simulated run.

    A plot shows the time of every frame, the frame time and the budget. Raises ``ImportError`` if
    matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from cml_engine.io.atomic_write import write_atomically

    figure, axes = pyplot.subplots(
        len(outcomes), 1, sharex=True, figsize=(10, 2 * len(outcomes)), squeeze=False
    )
    for axis, outcome in zip(axes[:, 0], outcomes, strict=True):
        times = outcome.frame_times_ms
        over = [i for i, ms in enumerate(times) if ms > frame_ms * (1 + 1e-9)]
        axis.plot(times, linewidth=0.7, color="tab:blue", label="frame")
        axis.plot(outcome.inference_ms, linewidth=0.7, color="tab:green", label="networks")
        axis.axhline(frame_ms, linewidth=0.8, color="black", linestyle="--")
        axis.axhline(outcome.budget_ms, linewidth=0.8, color="tab:green", linestyle=":")
        axis.plot(over, [times[i] for i in over], ".", markersize=2, color="tab:red", label="late")
        axis.set_title(f"{outcome.name}: {len(over)} of {len(times)} frames late", fontsize=9)
        axis.set_ylabel("ms")
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(loc="upper right", fontsize=8, ncols=3)
    axes[-1, 0].set_xlabel("frame")
    figure.tight_layout()
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=110))
    pyplot.close(figure)
