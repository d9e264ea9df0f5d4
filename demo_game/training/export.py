"""Writes the trained networks as NNEF folders, operator by operator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.io.atomic_write import write_atomically
from cml_engine.nnef import write_tensor
from demo_game.training.networks import AGENTS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor of the NNEF text that is being written: its name and its shape."""

    name: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


class NnefOps:
    """The operators of :class:`Ops` that write lines of NNEF instead of computing.

    ``flops`` counts the multiplications and additions of convolutions.
    """

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = dict(weights)
        self.lines: list[str] = []
        self.flops = 0
        self._names = 0

    def _line(self, call: str, shape: tuple[int, ...], name: str = "") -> TracedTensor:
        if not name:
            self._names += 1
            name = f"t{self._names}"
        self.lines.append(f"{name} = {call};")
        return TracedTensor(name, shape)

    def variable(self, label: str) -> str:
        """Returns the name of a weight, and declares the weight at the first call."""
        name = label.replace(".", "_")
        shape = list(self.weights[label].shape)
        line = f"{name} = variable<scalar>(shape = {shape}, label = '{label}');"
        if line not in self.lines:
            self.lines.append(line)
        return name

    def conv(
        self,
        x: TracedTensor,
        name: str,
        channels: int,
        size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        last: bool = False,
    ) -> TracedTensor:
        del channels, size, last  # the weights say
        bias = self.weights[f"{name}.bias"]
        self.weights[f"{name}.bias"] = bias.reshape(1, -1)
        return self._conv(x, name, stride, dilation, True)

    def fixed(
        self, x: TracedTensor, name: str, weights: Array, bias: Array | None = None
    ) -> TracedTensor:
        self.weights[f"{name}.filter"] = weights
        if bias is not None:
            self.weights[f"{name}.bias"] = bias
        return self._conv(x, name, 1, 1, bias is not None)

    def _conv(
        self, x: TracedTensor, name: str, stride: int, dilation: int, bias: bool
    ) -> TracedTensor:
        o, i, kh, kw = self.weights[f"{name}.filter"].shape
        h, w = (
            (n - dilation * (k - 1) - 1) // stride + 1
            for n, k in zip(x.shape[2:], (kh, kw), strict=True)
        )
        self.flops += 2 * o * i * kh * kw * h * w
        given = [x.name, self.variable(f"{name}.filter")]
        if bias:
            given.append(self.variable(f"{name}.bias"))
        call = (
            f"conv({', '.join(given)}, padding = [(0, 0), (0, 0)], "
            f"stride = [{stride}, {stride}], dilation = [{dilation}, {dilation}])"
        )
        return self._line(call, (x.shape[0], o, h, w), f"{name}_conv")

    def _both(self, op: str, x: TracedTensor, y: TracedTensor | float) -> TracedTensor:
        sizes = y.shape if isinstance(y, TracedTensor) else (1,) * 4
        shape = tuple(max(a, b) for a, b in zip(x.shape, sizes, strict=True))
        return self._line(f"{op}({x}, {y})", shape)

    def add(self, x: TracedTensor, y: TracedTensor | float) -> TracedTensor:
        return self._both("add", x, y)

    def mul(self, x: TracedTensor, y: TracedTensor | float) -> TracedTensor:
        return self._both("mul", x, y)

    def div(self, x: TracedTensor, y: TracedTensor | float) -> TracedTensor:
        return self._both("div", x, y)

    def relu(self, x: TracedTensor) -> TracedTensor:
        return self._line(f"relu({x})", x.shape)

    def clamp(self, x: TracedTensor, low: float, high: float) -> TracedTensor:
        return self._line(f"clamp({x}, {low}, {high})", x.shape)

    def log2(self, x: TracedTensor) -> TracedTensor:
        return self._line(f"log2({x})", x.shape)

    def wave(self, x: TracedTensor) -> TracedTensor:
        part = self._both("sub", x, self._line(f"floor({x})", x.shape))
        return self._line(f"abs({self._both('sub', part, 0.5)})", x.shape)

    def concat(self, *xs: TracedTensor) -> TracedTensor:
        n, _, h, w = xs[0].shape
        shape = (n, sum(x.shape[1] for x in xs), h, w)
        return self._line(f"concat([{', '.join(x.name for x in xs)}], axis = 1)", shape)

    def crop(self, x: TracedTensor, before: int, after: int) -> TracedTensor:
        n, c, h, w = x.shape
        ends = [h - after, w - after]
        call = f"slice({x}, axes = [2, 3], begin = [{before}, {before}], end = {ends})"
        return self._line(call, (n, c, h - before - after, w - before - after))

    def depth_to_space(self, x: TracedTensor, scale: int) -> TracedTensor:
        n, c, h, w = x.shape
        split = (n, c // scale**2, scale, scale, h, w)
        moved = (n, c // scale**2, h, scale, w, scale)
        shape = (n, c // scale**2, scale * h, scale * w)
        y = self._line(f"reshape({x}, shape = {list(split)})", split)
        y = self._line(f"transpose({y}, axes = [0, 1, 4, 2, 5, 3])", moved)
        return self._line(f"reshape({y}, shape = {list(shape)})", shape)


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported model: FLOPs of one run, bytes of all files, SHA-256 over them in name order."""

    flops: int
    size: int
    sha256: str


def export(name: str, weights: Mapping[str, Array], folder: Path) -> Exported:
    """Writes the agent of that name as an NNEF folder, and loads it as a check.

    Returns cost and digest. Replaces the agent's files and keeps other files in the folder.
    """
    network, shapes = AGENTS[name]
    ops = NnefOps(weights)
    inputs = {key: TracedTensor(key, shape) for key, shape in shapes.items()}
    for key, shape in shapes.items():
        ops.lines.append(f"{key} = external<scalar>(shape = {list(shape)});")
    (found,) = network(ops, inputs).items()
    ops.lines[-1] = ops.lines[-1].replace(f"{found[1]} =", f"{found[0]} =", 1)
    body = "\n".join(f"    {line}" for line in ops.lines)
    text = f"version 1.0;\n\ngraph {name}({', '.join(inputs)}) -> ({found[0]})\n{{\n{body}\n}}\n"
    folder.mkdir(parents=True, exist_ok=True)
    for label, array in ops.weights.items():
        write_tensor(folder / f"{label}.dat", array)
    write_atomically(folder / "graph.nnef", text)
    cml.load(folder)  # what cannot be loaded is found out here
    files = sorted(folder / name for name in ("graph.nnef", *(f"{n}.dat" for n in ops.weights)))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return Exported(ops.flops, sum(file.stat().st_size for file in files), digest)


def import_weights(folder: Path, names: Iterable[str]) -> dict[str, Array]:
    """Returns the weights of these names as arrays, from a folder that :func:`export` wrote."""
    graph = cml.load(folder)
    found = {label: graph.constants[name] for name, label in graph.labels.items()}
    return {k: found[k][0] if k.endswith(".bias") else found[k] for k in names}
