"""Trains an agent with PyTorch on a pool of squares that grows while it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import cos, pi

import numpy as np
import torch
from torch.nn import functional

from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.training import data, ecology, materials
from cml_engine.demo_game.training.data import Sample
from cml_engine.demo_game.training.networks import AGENTS

#: makes a square from (rng, held_out): a function of an rng that returns a sample at each call
Maker = Callable[[np.random.Generator, bool], Callable[[np.random.Generator], Sample]]
#: what each surface agent learns, and the number of targets along one sample of the heights
SIMULATIONS = {"texture": (materials.paint, 2), "population": (ecology.populate, 1)}


class TorchOps:
    """The operators of :class:`Ops` on torch tensors.

    A convolution's first run creates its weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._random = torch.Generator().manual_seed(seed)
        self._fixed: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def conv(
        self,
        x: torch.Tensor,
        name: str,
        channels: int,
        size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        last: bool = False,
    ) -> torch.Tensor:
        if f"{name}_filter" not in self.weights:
            self._start(x, name, (channels, x.shape[1], size, size), (stride, dilation))
            if last:
                for part in ("filter", "bias"):
                    self.weights[f"{name}_{part}"] *= 0
        weights = self.weights[f"{name}_filter"], self.weights[f"{name}_bias"]
        return functional.conv2d(x, *weights, stride=stride, dilation=dilation)

    def _start(
        self, x: torch.Tensor, name: str, shape: tuple[int, ...], steps: tuple[int, int]
    ) -> None:
        """Creates random weights whose results for ``x`` have mean 0 and standard deviation 1.

        See Salimans and Kingma, "Weight normalization", 2016, section 3.
        """
        weight = torch.randn(shape, generator=self._random)
        y = functional.conv2d(x, weight, stride=steps[0], dilation=steps[1])
        spread = y.std(dim=(0, 2, 3), correction=0).clamp(min=1e-3)
        self.weights[f"{name}_filter"] = weight / spread.reshape(-1, 1, 1, 1)
        self.weights[f"{name}_bias"] = -y.mean(dim=(0, 2, 3)) / spread

    def fixed(
        self, x: torch.Tensor, name: str, weights: Array, bias: Array | None = None
    ) -> torch.Tensor:
        if name not in self._fixed:
            parameters = (
                torch.from_numpy(weights),
                None if bias is None else torch.from_numpy(bias[0]),
            )
            self._fixed[name] = parameters
        return functional.conv2d(x, *self._fixed[name])

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x)

    def clamp(self, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        """Returns ``x`` clamped.

        Gradients pass unchanged, so that a result beyond a bound can come back.
        """
        return x + (torch.clamp(x, low, high) - x).detach()

    def log2(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log2(x)

    def wave(self, x: torch.Tensor) -> torch.Tensor:
        return torch.abs(x - torch.floor(x) - 0.5)

    def concat(self, *xs: torch.Tensor) -> torch.Tensor:
        return torch.cat(xs, dim=1)

    def crop(self, x: torch.Tensor, before: int, after: int) -> torch.Tensor:
        return x[:, :, before:-after, before:-after]

    def depth_to_space(self, x: torch.Tensor, scale: int) -> torch.Tensor:
        return functional.pixel_shuffle(x, scale)


class Agent:
    """One of the networks with its weights; calling it runs it on torch tensors.

    name : a key of :data:`AGENTS`.
    example : inputs that the first weights are fitted to; without them the weights are of no use
        before :meth:`load`.
    """

    def __init__(
        self, name: str, example: Mapping[str, Array] | None = None, seed: int = 0
    ) -> None:
        self.name = name
        self.ops = TorchOps(seed)
        self._network = AGENTS[name]
        ones = {key: np.ones(shape, np.float32) for key, shape in self._network.shapes.items()}
        self.infer(example or ones)  # every weight is made when it is first met
        for weight in self.ops.weights.values():
            weight.requires_grad_()

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the network's one output; maps may be larger than a tile."""
        return self._network.apply(self.ops, inputs)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The trainable tensors by name."""
        return self.ops.weights

    def arrays(self) -> dict[str, Array]:
        """Returns the weights as float32 arrays by name, as they are exported."""
        return {k: v.detach().numpy().astype(np.float32) for k, v in self.weights.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Replaces weights by copies of these arrays, by name."""
        for name, array in arrays.items():
            self.weights[name].data = torch.from_numpy(array.copy())

    def infer(self, inputs: Mapping[str, Array]) -> Array:
        """Returns the network's output for NumPy arrays, without gradients."""
        with torch.no_grad():
            output: Array = self({key: _tensor(array) for key, array in inputs.items()}).numpy()
        return output


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def maker(name: str, upres: Agent) -> Maker:
    """Returns the maker of training samples for the agent of that name.

    For upres they are squares of land before and after rain, in training turned by one of their
    eight symmetries at random. For the others they are squares of the upres agent's land.
    """

    def make(rng: np.random.Generator, held_out: bool) -> Callable[[np.random.Generator], Sample]:
        place = data.random_place(rng, held_out)
        if name == "upres":
            square = data.erode_place(place)
            return lambda draw: data.upres_sample(square, 0 if held_out else int(draw.integers(8)))
        inputs = data.surface_inputs(place, upres.infer(data.unseen_inputs(place)))
        simulate, per_sample = SIMULATIONS[name]
        border = materials.BORDER * per_sample
        target = simulate(*inputs.values())[:, :, border:-border, border:-border]
        sample = Sample(inputs, np.ascontiguousarray(target))
        return lambda _: sample

    return make


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


def error(agent: Agent, sample: Sample, edges: float) -> torch.Tensor:
    """Returns the training loss: mean squared errors of values and of neighbours' differences.

    Heights count in cells. ``edges`` is the weight of the differences.
    """
    inputs = {key: _tensor(array) for key, array in sample.inputs.items()}
    wrong = agent(inputs) - _tensor(sample.target)
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


#: the channels of each quantity whose error is measured
_PARTS = {
    "texture": {"colour": slice(0, 3), "roughness": slice(3, 4)},
    "population": {"trees": slice(0, 1), "bushes": slice(1, 2), "rocks": slice(2, 3)},
}


def errors(agent: Agent, samples: list[Sample]) -> dict[str, float]:
    """Returns the agent's RMSE by quantity: for upres of heights and slopes, in cells."""
    wrong = [agent.infer(sample.inputs) - sample.target for sample in samples]
    if agent.name == "upres":
        wrong = [w / s.inputs["cell"] for w, s in zip(wrong, samples, strict=True)]
        slopes = [np.diff(w, axis=axis) for w in wrong for axis in (-2, -1)]
        return {"height": data.rms(wrong), "slope": data.rms(slopes)}
    return {key: data.rms([w[:, at] for w in wrong]) for key, at in _PARTS[agent.name].items()}
