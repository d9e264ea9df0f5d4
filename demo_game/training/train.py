"""Trains an agent on a pool of squares that grows while it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import numpy as np
import torch

from demo_game.training import data, ecology, materials
from demo_game.training.data import Sample
from demo_game.training.torch_ops import Agent

Array = np.ndarray[Any, Any]
#: makes a square from (rng, held_out): a function of an rng that returns a sample at each call
Maker = Callable[[np.random.Generator, bool], Callable[[np.random.Generator], Sample]]


def upres_maker() -> Maker:
    """Returns a maker of upres samples: squares of land before and after rain.

    For training, each draw turns a square by one of its eight symmetries at random.
    """

    def make(rng: np.random.Generator, held_out: bool) -> Callable[[np.random.Generator], Sample]:
        square = data.erode_place(data.random_place(rng, held_out))
        if held_out:
            return lambda _: data.upres_sample(square)
        return lambda draw: data.upres_sample(square, int(draw.integers(8)))

    return make


def surface_maker(upres: Agent, simulate: Callable[..., Array], per_sample: int) -> Maker:
    """Returns a maker of samples on the upres agent's land, whose targets ``simulate`` makes.

    per_sample : the number of targets along one sample of the heights.
    """
    border = materials.BORDER * per_sample

    def make(rng: np.random.Generator, held_out: bool) -> Callable[[np.random.Generator], Sample]:
        place = data.random_place(rng, held_out)
        inputs = data.surface_inputs(place, upres.infer(data.unseen_inputs(place)))
        target = simulate(*inputs.values())[:, :, border:-border, border:-border]
        sample = Sample(inputs, np.ascontiguousarray(target))
        return lambda _: sample

    return make


def maker(name: str, upres: Agent) -> Maker:
    """Returns the maker of training samples for the agent of that name."""
    if name == "upres":
        return upres_maker()
    simulate, per_sample = {
        "texture": (materials.paint, 2),
        "population": (ecology.populate, 1),
    }[name]
    return surface_maker(upres, simulate, per_sample)


def stack_samples(samples: list[Sample]) -> Sample:
    """Returns one sample that is the batch of these, stacked along the first axis."""
    keys = samples[0].inputs
    inputs = {key: np.concatenate([s.inputs[key] for s in samples]) for key in keys}
    return Sample(inputs, np.concatenate([s.target for s in samples]))


@dataclass(frozen=True, slots=True)
class Course:
    """The parameters of a training run.

    ``batch`` tiles a step come from random squares of a pool, which begins with ``first``
    squares and gets a new one every ``every`` steps. ``edges`` weighs the error of differences
    to neighbours against that of values. ``tile`` has the input and output size of a tile.
    """

    steps: int
    tile: tuple[int, int]
    batch: int = 8
    first: int = 100
    every: int = 2
    rate: float = 4e-3
    edges: float = 1.0


COURSES = {
    "upres": Course(9000, (36, 96), edges=4.0, first=250, every=12, rate=3e-3),
    "texture": Course(4500, (96, 128)),
    "population": Course(3500, (96, 64)),
}


@dataclass(frozen=True, slots=True)
class Progress:
    """The state after a step: the agent, the number of steps, the pool's squares, the loss."""

    agent: Agent
    steps: int
    squares: int
    loss: float


def error(agent: Agent, sample: Sample, edges: float) -> Any:
    """Returns the training loss: mean squared errors of values and of neighbours' differences.

    Heights count in cells. ``edges`` is the weight of the differences.
    """
    inputs = {key: torch.from_numpy(np.ascontiguousarray(v)) for key, v in sample.inputs.items()}
    wrong = agent(inputs) - torch.from_numpy(np.ascontiguousarray(sample.target))
    if agent.name == "upres":
        wrong = wrong / inputs["cell"]
    slopes = wrong.diff(dim=2).square().mean() + wrong.diff(dim=3).square().mean()
    return wrong.square().mean() + edges * slopes


def train(name: str, make: Maker, course: Course, seed: int) -> Iterator[Progress]:
    """Trains a new agent of that name; yields its progress after every step."""
    rng = np.random.default_rng(seed)
    pool = [make(rng, False) for _ in range(course.first)]

    def batch() -> Sample:
        picked = rng.integers(0, len(pool), course.batch)
        return stack_samples([pool[int(k)](rng).tile(rng, *course.tile) for k in picked])

    agent = Agent(name, batch().inputs, seed)
    optimizer = torch.optim.Adam(list(agent.weights.values()), lr=course.rate)
    for number in range(1, course.steps + 1):
        if number % course.every == 0:
            pool.append(make(rng, False))
        warm, done = min(1.0, number / 100), number / course.steps
        for group in optimizer.param_groups:
            group["lr"] = course.rate * warm * (0.5 + 0.5 * cos(pi * done))
        loss = error(agent, batch(), course.edges)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield Progress(agent, number, len(pool), float(loss.detach()))
