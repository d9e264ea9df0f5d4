"""Computes and trains the networks with PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from demo_game.training.networks import AGENTS

Array = np.ndarray[Any, Any]


class TorchOps:
    """The operators of :class:`Ops` on torch tensors.

    A convolution's first run creates its weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self.weights: dict[str, Any] = {}
        self._random = torch.Generator().manual_seed(seed)
        self._fixed: dict[str, Any] = {}

    def conv(
        self,
        x: Any,
        name: str,
        channels: int,
        size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        last: bool = False,
    ) -> Any:
        if f"{name}.filter" not in self.weights:
            self._start(x, name, (channels, x.shape[1], size, size), (stride, dilation))
            if last:
                for part in ("filter", "bias"):
                    self.weights[f"{name}.{part}"] *= 0
        weights = self.weights[f"{name}.filter"], self.weights[f"{name}.bias"]
        return functional.conv2d(x, *weights, stride=stride, dilation=dilation)

    def _start(self, x: Any, name: str, shape: tuple[int, ...], steps: tuple[int, int]) -> None:
        """Creates random weights whose results for ``x`` have mean 0 and standard deviation 1.

        See Salimans and Kingma, "Weight normalization", 2016, section 3.
        """
        weight = torch.randn(shape, generator=self._random)
        y = functional.conv2d(x, weight, stride=steps[0], dilation=steps[1])
        spread = y.std(dim=(0, 2, 3), correction=0).clamp(min=1e-3)
        self.weights[f"{name}.filter"] = weight / spread.reshape(-1, 1, 1, 1)
        self.weights[f"{name}.bias"] = -y.mean(dim=(0, 2, 3)) / spread

    def fixed(self, x: Any, name: str, weights: Array, bias: Array | None = None) -> Any:
        if name not in self._fixed:
            made = torch.from_numpy(weights), None if bias is None else torch.from_numpy(bias[0])
            self._fixed[name] = made
        return functional.conv2d(x, *self._fixed[name])

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def div(self, x: Any, y: Any) -> Any:
        return x / y

    def relu(self, x: Any) -> Any:
        return functional.relu(x)

    def clamp(self, x: Any, low: float, high: float) -> Any:
        """Returns ``x`` clamped.

        Gradients pass unchanged, so that a result beyond a bound can come back.
        """
        return x + (torch.clamp(x, low, high) - x).detach()

    def log2(self, x: Any) -> Any:
        return torch.log2(x)

    def wave(self, x: Any) -> Any:
        return torch.abs(x - torch.floor(x) - 0.5)

    def concat(self, *xs: Any) -> Any:
        return torch.cat(xs, dim=1)

    def crop(self, x: Any, before: int, after: int) -> Any:
        return x[:, :, before:-after, before:-after]

    def depth_to_space(self, x: Any, scale: int) -> Any:
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
        self._network, shapes = AGENTS[name]
        ones = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
        self.infer(example or ones)  # every weight is made when it is first met
        for weight in self.ops.weights.values():
            weight.requires_grad_()

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Returns the network's one output; maps may be larger than a tile."""
        (output,) = self._network(self.ops, inputs).values()
        return output

    @property
    def weights(self) -> dict[str, Any]:
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
            given = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in inputs.items()}
            found: Array = self(given).numpy()
        return found
