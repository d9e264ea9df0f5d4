"""The last frames as numbers for a graph: stacked lanes, percentiles, the latest overrun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demo_game.reporting.report import percentile
from demo_game.reporting.telemetry import FrameSample

Values = npt.NDArray[np.float64]
#: what lies above what, from the bottom
LANES = ("render", "inference", "other", "free", "over")


@dataclass(frozen=True)
class Lanes:
    """Tops of the stacked lanes in ms, ``tops[lane][i]`` of frame ``i``: ``(len(LANES), frames)``,
    and the frames' numbers. ``other`` is what an overrun spent neither on rendering nor on
    inference, up to the target; ``over`` what lies beyond it."""

    numbers: Values
    tops: Values


def complete(frames: Iterable[FrameSample]) -> list[FrameSample]:
    """The frames without the newest ones, whose times are still on their way. Where the GPU
    measures nothing only the last one is left out."""
    found = list(frames)[:-1]
    for back in range(len(found)):
        sample = found[-1 - back]
        if sample.render_ms is not None and sample.inference_ms is not None:
            return found[: len(found) - back]
    return found


def lanes(frames: Sequence[FrameSample], target_ms: float) -> Lanes:
    """The lanes of these frames."""
    count = len(frames)
    render = np.fromiter(((s.render_ms or 0.0) + s.overlay_ms for s in frames), float, count)
    inference = np.fromiter((s.inference_ms or 0.0 for s in frames), float, count)
    whole = np.fromiter((s.frame_ms for s in frames), float, count)
    numbers = np.fromiter((s.number for s in frames), float, count)
    used = render + inference
    late = whole > target_ms
    filled = np.maximum(used, target_ms)
    tops = [render, used, np.where(late, filled, used), filled, np.maximum(filled, whole)]
    return Lanes(numbers, np.stack(tops))


@dataclass(frozen=True, slots=True)
class FrameSummary:
    """P50, P95 and P99 of the frame times in ms, and how many frames exceeded the target."""

    frames: int
    p50: float
    p95: float
    p99: float
    over: int


def summary(frames: Sequence[FrameSample], target_ms: float) -> FrameSummary:
    """Returns percentiles and the number of late frames of ``frames``."""
    times = [s.frame_ms for s in frames]
    p50, p95, p99 = (percentile(times, share) for share in (0.5, 0.95, 0.99))
    return FrameSummary(len(times), p50, p95, p99, sum(t > target_ms for t in times))


def latest_overrun(frames: Sequence[FrameSample], target_ms: float) -> FrameSample | None:
    """The newest frame beyond the target."""
    return next((s for s in reversed(frames) if s.frame_ms > target_ms), None)


def mean_overlay_ms(frames: Iterable[FrameSample]) -> float:
    """GPU time of the overlay's own pass, over the frames that had one."""
    known = [s.overlay_ms for s in frames if s.overlay_ms > 0]
    return sum(known) / len(known) if known else 0.0
