"""Shows the arena: the addresses of each tensor, and the steps during which it occupies them."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from cml_engine.compiler.plan import Binding, Plan
from cml_engine.io.json_files import Json
from cml_engine.tools.report.folder.page import Html

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 1200, 420, 76, 10, 24


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor's place in the arena: a range of bytes, and the steps that use it.

    It occupies bytes ``[offset, offset + nbytes)`` during steps ``first`` to ``last``. Inputs
    begin at step -1; outputs end at the number of steps.
    """

    tensor: str
    offset: int
    nbytes: int
    first: int
    last: int


def placed_tensors(plan: Plan) -> list[PlacedTensor]:
    """Returns the places of all tensors in the plan's arena, in the order of their first steps."""
    lives: dict[Binding, list[int]] = {}
    for place in plan.inputs.values():
        lives.setdefault(place.binding, []).append(-1)
    for step in plan.steps:
        for binding in step.bindings:
            lives.setdefault(binding, []).append(step.index)
    for place in plan.results.values():
        lives.setdefault(place.binding, []).append(len(plan.steps))
    return [
        PlacedTensor(binding.tensor, binding.offset, binding.nbytes, min(steps), max(steps))
        for binding, steps in lives.items()
        if binding.space == "arena"
    ]


def arena_data(plan: Plan) -> dict[str, Json]:
    """Returns the arena as a JSON object: peak, lower bound, number of steps, places of tensors."""
    memory = plan.memory
    return {
        "peak": memory.peak,
        "bound": memory.bound,
        "steps": len(plan.steps),
        "tensors": [asdict(tensor) for tensor in placed_tensors(plan)],
    }


def arena_picture(plan: Plan) -> Html:
    """Returns an SVG picture of the arena, with addresses upwards and steps to the right.

    The tensor under the pointer shows its name.
    """
    steps, size = len(plan.steps) + 2, max(plan.memory.peak, 1)
    high = _HEIGHT - _TOP - _BOTTOM
    wide = (_WIDTH - _LEFT - 8) / steps

    def y(address: float) -> float:
        return _TOP + high * (1 - address / size)

    parts = [_rect(t, wide, y, plan) for t in placed_tensors(plan)]
    bound, floor = y(plan.memory.bound), y(0)
    for address in (0, size / 2, size):
        parts.append(f'<text x="4" y="{y(address) + 4:.1f}">{address / 2**20:.2f} MiB</text>')
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{floor:.1f}"/>'
        f'<line class="bound" x1="{_LEFT}" x2="{_WIDTH}" y1="{bound:.1f}" y2="{bound:.1f}">'
        f"<title>lower bound: {plan.memory.bound} bytes</title></line>"
        f'<text x="{_LEFT}" y="{_HEIGHT - 7}">inputs</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 7}" text-anchor="end">'
        f"{len(plan.steps)} steps, outputs</text>"
    )
    return Html(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="the arena by step">'
        f"{''.join(parts)}</svg>"
    )


def _rect(placed: PlacedTensor, wide: float, y: Any, plan: Plan) -> str:
    x = _LEFT + wide * (placed.first + 1)
    top, bottom = y(placed.offset + placed.nbytes), y(placed.offset)
    hue = zlib.crc32(placed.tensor.encode()) % 360
    said = (
        f"{placed.tensor}: {placed.nbytes} bytes at {placed.offset}, "
        f"{_when(placed.first, plan)} to {_when(placed.last, plan)}"
    )
    return (
        f'<rect class="tensor" x="{x:.2f}" y="{top:.2f}" '
        f'width="{wide * (placed.last - placed.first + 1):.2f}" '
        f'height="{max(bottom - top, 0.5):.2f}" fill="hsl({hue} 55% 62%)">'
        f"<title>{escape(said)}</title></rect>"
    )


def _when(step: int, plan: Plan) -> str:
    if step < 0:
        return "the inputs"
    return f"step {step}" if step < len(plan.steps) else "the end"
