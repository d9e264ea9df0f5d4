"""Measures the agents' errors on worlds that no training has seen, and those of simpler methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from demo_game.training.data import Sample, bicubic, fine, folded
from demo_game.training.networks import near
from demo_game.training.torch_ops import Agent, TorchOps

Array = np.ndarray[Any, Any]
Errors = dict[str, dict[str, float]]
#: bins of height, slope and moisture in the table that colours are looked up in
BINS = (
    (-200, -40, -10, -2, 0, 3, 8, 20, 50, 100, 200, 300, 400, 500, 600, 700, 800, 950, 1100, 1300),
    (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2),
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
)


def _rms(values: list[Array]) -> float:
    return float(np.sqrt(np.mean([np.mean(np.square(v, dtype=np.float64)) for v in values])))


def _heights(ways: dict[str, Callable[[Sample], Array]], held: list[Sample]) -> Errors:
    """Returns each method's RMSE of the heights in cells and of neighbours' differences."""
    found: Errors = {}
    for way, predict in ways.items():
        wrong = [(predict(s) - s.target) / s.inputs["cell"] for s in held]
        slopes = [np.diff(w, axis=axis) for w in wrong for axis in (-2, -1)]
        found[way] = {"height": _rms(wrong), "slope": _rms(slopes)}
    return found


def upres_errors(agent: Agent, held: list[Sample]) -> Errors:
    """Returns the errors of the agent, of bicubic interpolation, and of bicubic with noise."""

    def smooth(sample: Sample) -> Array:
        return bicubic(sample.inputs["coarse"][:, :, 5:-4, 5:-4])

    def noisy(sample: Sample) -> Array:
        detail = fine(sample.inputs["detail"][:, :, 6:-6, 6:-6], 4)
        result: Array = smooth(sample) + detail * sample.inputs["cell"]
        return result

    ways = {"agent": lambda s: agent.infer(s.inputs), "bicubic": smooth, "bicubic + noise": noisy}
    return _heights(ways, held)


def features(sample: Sample) -> Array:
    """Returns one row per sample with all that an agent is given about it: (rows * columns, 16)."""
    with torch.no_grad():
        given = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in sample.inputs.items()}
        seen = near(TorchOps(), given)["all"].numpy()[:, :, 2:-2, 2:-2]
    rows: Array = seen.transpose(0, 2, 3, 1).reshape(-1, seen.shape[1])
    return rows


def _rows(sample: Sample) -> Array:
    """Returns the target as one row per sample: (rows * columns, channels)."""
    per_sample = sample.target.shape[-1] // (sample.inputs["heights"].shape[-1] - 32)
    split = folded(sample.target, per_sample)
    rows: Array = split.transpose(0, 2, 3, 1).reshape(-1, split.shape[1])
    return rows


def _image(rows: Array, sample: Sample) -> Array:
    """Returns the rows of :func:`_rows` in the layout of a target (1, channels, rows, columns)."""
    size = sample.inputs["heights"].shape[-1] - 32
    per_sample = sample.target.shape[-1] // size
    return fine(rows.reshape(1, size, size, -1).transpose(0, 3, 1, 2), per_sample)


def _with_one(rows: Array) -> Array:
    return np.concatenate([rows, np.ones((len(rows), 1), np.float32)], axis=1)


def linear_regression(seen: list[Sample]) -> Callable[[Sample], Array]:
    """Fits a linear function of :func:`features` by least squares.

    Returns the predictor, cut to [0, 1].
    """
    x = _with_one(np.concatenate([features(s) for s in seen]))
    y = np.concatenate([_rows(s) for s in seen])
    weights = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64), rcond=None)[0]
    weights = weights.astype(np.float32)
    return lambda s: np.clip(_image(_with_one(features(s)) @ weights, s), 0, 1)


def logistic_regression(seen: list[Sample], steps: int = 300) -> Callable[[Sample], Array]:
    """Fits a sigmoid of a linear function of :func:`features` by Adam to least squares.

    Returns the predictor.
    """
    x = torch.from_numpy(_with_one(np.concatenate([features(s) for s in seen])))
    y = torch.from_numpy(np.concatenate([_rows(s) for s in seen]))
    weights = torch.zeros(x.shape[1], y.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for _ in range(steps):
        loss = (torch.sigmoid(x @ weights) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = weights.detach()

    def predict(sample: Sample) -> Array:
        rows = torch.sigmoid(torch.from_numpy(_with_one(features(sample))) @ found)
        return _image(rows.numpy(), sample)

    return predict


def mean(seen: list[Sample]) -> Callable[[Sample], Array]:
    """Returns a predictor that gives the mean target of ``seen`` everywhere."""
    value = np.mean([s.target.mean(axis=(0, 2, 3)) for s in seen], axis=0).reshape(1, -1, 1, 1)
    return lambda s: np.broadcast_to(value, s.target.shape)


def lookup(seen: list[Sample]) -> Callable[[Sample], Array]:
    """Fits a table of mean targets, one for each bin of :data:`BINS`; returns the predictor.

    Empty bins have the mean of all targets.
    """
    keys = np.concatenate([_bin(s) for s in seen])
    rows = np.concatenate([_rows(s) for s in seen])
    size = int(np.prod([len(edges) + 1 for edges in BINS]))
    count = np.bincount(keys, minlength=size)
    sums = np.stack([np.bincount(keys, column, size) for column in rows.T], axis=1)
    table = np.where(count[:, None] > 0, sums / np.maximum(count, 1)[:, None], rows.mean(axis=0))
    return lambda s: _image(table[_bin(s)].astype(np.float32), s)


def _bin(sample: Sample) -> Array:
    heights = sample.inputs["heights"][0, 0]
    dz, dx = np.gradient(heights / sample.inputs["cell"][0, 0])
    found: Array = np.zeros((), np.int64)
    for values, edges in zip(
        (heights, np.hypot(dx, dz), sample.inputs["moisture"][0, 0]), BINS, strict=True
    ):
        found = found * (len(edges) + 1) + np.digitize(values[16:-16, 16:-16].ravel(), edges)
    return found


def _split(ways: dict[str, Callable[[Sample], Array]], held: list[Sample],
           parts: dict[str, slice]) -> Errors:  # fmt: skip
    """Returns each method's RMSE (``ways``) for each group of channels (``parts``)."""
    found: Errors = {}
    for way, predict in ways.items():
        wrong = [predict(s) - s.target for s in held]
        found[way] = {part: _rms([w[:, at] for w in wrong]) for part, at in parts.items()}
    return found


def texture_errors(agent: Agent, seen: list[Sample], held: list[Sample]) -> Errors:
    ways = {
        "agent": lambda s: agent.infer(s.inputs),
        "table of height, slope, moisture": lookup(seen),
        "linear regression": linear_regression(seen),
    }
    return _split(ways, held, {"colour": slice(0, 3), "roughness": slice(3, 4)})


def population_errors(agent: Agent, seen: list[Sample], held: list[Sample]) -> Errors:
    ways = {
        "agent": lambda s: agent.infer(s.inputs),
        "mean": mean(seen),
        "logistic regression": logistic_regression(seen),
    }
    parts = {"trees": slice(0, 1), "bushes": slice(1, 2), "rocks": slice(2, 3)}
    return _split(ways, held, parts)


def errors(agent: Agent, seen: list[Sample], held: list[Sample]) -> Errors:
    """Returns the errors of the agent and of its baselines, by method and quantity.

    ``seen`` are the samples that baselines are fitted to, ``held`` those that errors are
    measured on.
    """
    if agent.name == "upres":
        return upres_errors(agent, held)
    measure = {"texture": texture_errors, "population": population_errors}[agent.name]
    return measure(agent, seen, held)
