"""Builds the agents' networks as graphs of the engine, and writes them as NNEF folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import cml_engine as cml
from cml_engine.demo_game.arrays import Array
from cml_engine.demo_game.training.networks import AgentNetwork


class GraphOps:
    """The operators of :class:`Ops` that add nodes to a graph instead of computing."""

    def __init__(self, builder: cml.GraphBuilder, weights: Mapping[str, Array]) -> None:
        self._builder, self._weights = builder, weights

    def conv(self, x: cml.Tensor, name: str, channels: int, size: int, *, stride: int = 1,
             dilation: int = 1, last: bool = False) -> cml.Tensor:  # fmt: skip
        del channels, size, last  # the weights say
        bias = self._weights[f"{name}_bias"].reshape(1, -1)
        return self._conv(x, name, self._weights[f"{name}_filter"], bias, stride, dilation)

    def fixed(
        self, x: cml.Tensor, name: str, weights: Array, bias: Array | None = None
    ) -> cml.Tensor:
        return self._conv(x, name, weights, bias)

    def _conv(
        self, x: cml.Tensor, name: str, filter: Array, bias: Array | None, stride: int = 1,
        dilation: int = 1,
    ) -> cml.Tensor:  # fmt: skip
        make = self._builder
        return make.conv(
            x,
            make.weights(filter, f"{name}_filter"),
            0.0 if bias is None else make.weights(bias, f"{name}_bias"),
            padding=[(0, 0), (0, 0)], stride=[stride] * 2, dilation=[dilation] * 2,
        )  # fmt: skip

    def relu(self, x: cml.Tensor) -> cml.Tensor:
        return self._builder.relu(x)

    def clamp(self, x: cml.Tensor, low: float, high: float) -> cml.Tensor:
        return self._builder.clamp(x, low, high)

    def log2(self, x: cml.Tensor) -> cml.Tensor:
        return self._builder.log2(x)

    def wave(self, x: cml.Tensor) -> cml.Tensor:
        return self._builder.abs(x - self._builder.floor(x) - 0.5)

    def concat(self, *xs: cml.Tensor) -> cml.Tensor:
        return self._builder.concat(list(xs), axis=1)

    def crop(self, x: cml.Tensor, before: int, after: int) -> cml.Tensor:
        ends = [size - after for size in x.shape[2:]]
        return self._builder.slice(x, axes=[2, 3], begin=[before] * 2, end=ends)

    def depth_to_space(self, x: cml.Tensor, scale: int) -> cml.Tensor:
        return self._builder.depth_to_space(x, block_size=scale, blocks_first=False)


def build(name: str, network: AgentNetwork, weights: Mapping[str, Array]) -> cml.Graph:
    """Returns the network as a graph with these weights."""
    builder = cml.GraphBuilder(name)
    inputs = {key: builder.input(key, shape) for key, shape in network.shapes.items()}
    result = network.apply(GraphOps(builder, weights), inputs)
    return builder.graph(**{network.output: result})


def replace_model(folder: Path, graph: cml.Graph) -> None:
    """Writes the graph as an NNEF folder in place of the one that is there."""
    shutil.rmtree(folder, ignore_errors=True)
    cml.save(graph, folder)


def import_weights(folder: Path, names: Iterable[str]) -> dict[str, Array]:
    """Returns the weights of these names as arrays, from an agent's folder."""
    constants = cml.load(folder).constants
    return {k: constants[k][0] if k.endswith("_bias") else constants[k] for k in names}
