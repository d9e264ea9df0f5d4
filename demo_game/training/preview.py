"""Draws pictures of an agent's targets (above) and its results (below)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cml_engine.io.atomic_write import write_atomically
from demo_game.training.data import Sample
from demo_game.training.torch_ops import Agent

Array = np.ndarray[Any, Any]
#: squares side by side
SHOWN = 6


def relief(heights: Array, cell: float) -> Array:
    """Returns heights (rows, columns), lit from the north-west, as colours in [0, 1]."""
    dz, dx = np.gradient(heights / cell)
    light = (1.2 + 1.5 * dx + 1.5 * dz) / np.sqrt(1 + (2 * dx) ** 2 + (2 * dz) ** 2)
    shade: Array = np.repeat(np.clip(0.55 * light, 0, 1)[..., None], 3, axis=2)
    return shade


def picture(name: str, values: Array, cell: float) -> Array:
    """Returns an agent's result or target (channels, rows, columns) as colours."""
    if name == "upres":
        return relief(values[0], cell)
    order = [2, 0, 1] if name == "population" else [0, 1, 2]
    colours: Array = values[order].transpose(1, 2, 0)
    return colours


def preview(agent: Agent, samples: list[Sample], path: Path) -> None:
    """Writes a PNG with the targets and results of a few samples from the steeper half."""

    def column(sample: Sample) -> Array:
        cell = float(sample.inputs["cell"][0, 0, 0, 0])
        both = (sample.target, agent.infer(sample.inputs))
        return np.concatenate([picture(agent.name, values[0], cell) for values in both], axis=0)

    def steepness(sample: Sample) -> float:
        key = "coarse" if agent.name == "upres" else "heights"
        return float(np.abs(np.diff(sample.inputs[key])).mean() / sample.inputs["cell"].mean())

    shown = sorted(samples, key=steepness)[len(samples) // 2 :: max(1, len(samples) // 2 // SHOWN)]
    image = np.concatenate([column(s) for s in shown[:SHOWN]], axis=1)
    made = Image.fromarray((image * 255).astype(np.uint8))
    write_atomically(path, lambda file: made.save(file, "PNG"))
