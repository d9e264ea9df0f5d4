"""A run in frames, as a picture of every frame's time."""

from __future__ import annotations

from collections.abc import Sequence

from cml_engine.report.folder.page import Html

_WIDTH, _HEIGHT, _LEFT, _TOP = 1200, 180, 76, 10
#: so many frames are drawn
SHOWN = 240


def frames_picture(times: Sequence[float], budget_ms: float) -> Html:
    """A bar for the inference time of each of the first frames, and the budget as a line."""
    times = times[:SHOWN]
    most = max([budget_ms, *times]) * 1.05
    high, wide = _HEIGHT - 2 * _TOP, (_WIDTH - _LEFT) / max(len(times), 1)

    def y(ms: float) -> float:
        return _TOP + high * (1 - ms / most)

    bars = "".join(
        f'<rect class="{"bar" if ms <= budget_ms * (1 + 1e-9) else "bar over"}" '
        f'x="{_LEFT + i * wide:.2f}" y="{y(ms):.2f}" width="{0.9 * wide:.2f}" '
        f'height="{y(0) - y(ms):.2f}"><title>frame {i}: {ms:.3f} ms</title></rect>'
        for i, ms in enumerate(times)
        if ms > 0
    )
    line = y(budget_ms)
    return Html(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="time by frame">{bars}'
        f'<line class="bound" x1="{_LEFT}" x2="{_WIDTH}" y1="{line:.2f}" y2="{line:.2f}"/>'
        f'<text x="4" y="{line + 4:.2f}">{budget_ms:g} ms</text></svg>'
    )
