"""Random ONNX graphs, compared with ONNX Runtime: ``python -m tests.onnx_graphs --count 1000``.

A graph grows node by node. Each new node takes what is there (floats, integers, truth values, of
any shape), is run by ONNX Runtime alone, and is kept if that can do it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import cml_engine as cml
from tests.fixtures.onnx_models import model, value

Array = np.ndarray[Any, Any]
OPSET = 17
_MAX_SIZE = 4096


def session_of(network: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(network.SerializeToString(), options)


@dataclass
class Growing:
    """The graph so far, with the values that its names have."""

    rng: np.random.Generator
    values: dict[str, Array] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)

    def pick(self, kinds: str, rank: int | None = None) -> str:
        names = [
            name
            for name, array in self.values.items()
            if array.dtype.kind in kinds and (rank is None or array.ndim >= rank)
        ]
        return str(self.rng.choice(names))

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def axis(self, name: str) -> int:
        rank = self.values[name].ndim
        return int(self.rng.integers(-rank, rank))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def add(self, op: str, inputs: Sequence[str], results: int = 1, **attrs: Any) -> bool:
        outputs = [f"t{len(self.nodes)}_{i}" for i in range(results)]
        node = helper.make_node(op, list(inputs), outputs, **attrs)
        known = {**self.values, **self.weights}
        feeds = {name: known[name] for name in inputs if name}
        types = [value(name, array.shape, str(array.dtype)) for name, array in feeds.items()]
        alone = model([node], types, [value(o, None) for o in outputs], opset=OPSET)
        for output in alone.graph.output:
            output.type.Clear()
        try:
            found = session_of(alone).run(None, feeds)
        except Exception:
            return False
        if any(not 0 < array.size <= _MAX_SIZE or array.ndim > 6 for array in found):
            return False
        if any(array.dtype.kind == "f" and np.abs(array).max() > 1e4 for array in found):
            return False
        self.nodes.append(node)
        self.values.update(zip(outputs, found, strict=True))
        return True


Grow = Callable[[Growing], bool]


def _binary(*ops: str, kinds: str) -> Grow:
    def grow(g: Growing) -> bool:
        a, b = g.pick(kinds), g.pick(kinds)
        if g.values[a].dtype != g.values[b].dtype:
            return False
        return g.add(str(g.rng.choice(ops)), [a, b])

    return grow


def _unary(*ops: str, kinds: str) -> Grow:
    return lambda g: g.add(str(g.rng.choice(ops)), [g.pick(kinds)])


def _integer_division(g: Growing) -> bool:
    by = g.weight(g.rng.choice([-3, -2, 2, 5], 1))
    op, attrs = [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})][g.rng.integers(3)]
    return g.add(op, [g.pick("i"), by], **attrs)


def _reshape(g: Growing) -> bool:
    """To a shape that is computed from the tensor's own."""
    x = g.pick("fib", 2)
    last = g.weight(np.array([-1]))
    if not g.add("Shape", [x]):
        return False
    shape = f"t{len(g.nodes) - 1}_0"
    if not g.add("Gather", [shape, g.weight(np.array([g.rng.integers(-2, 2)]))]):
        return False
    return g.add("Concat", [f"t{len(g.nodes) - 1}_0", last], axis=0) and g.add(
        "Reshape", [x, f"t{len(g.nodes) - 1}_0"]
    )


def _slice(g: Growing) -> bool:
    x = g.pick("fib", 1)
    axis = g.axis(x)
    step = int(g.rng.choice([-2, -1, 1, 2]))
    ends = [int(n) for n in g.rng.integers(-6, 7, 2)]
    lists = [[ends[0]], [ends[1]], [axis], [step]]
    return g.add("Slice", [x, *(g.weight(np.array(v)) for v in lists)])


def _gather(g: Growing) -> bool:
    x = g.pick("fib", 1)
    axis = g.axis(x)
    extent = g.shape(x)[axis]
    if g.rng.random() < 0.5:
        indices = g.weight(g.rng.integers(-extent, extent, tuple(g.rng.integers(1, 3, 2))))
    else:
        indices = g.pick("i")
        found = g.values[indices]
        if found.min() < -extent or found.max() >= extent:
            return False
    return g.add("Gather", [x, indices], axis=axis)


def _reduce(g: Growing) -> bool:
    ops = ("Max", "Min", "Mean", "SumSquare", "L1", "L2", "LogSumExp", "Prod")
    x = g.pick("f", 1)
    keep = int(g.rng.integers(2))
    return g.add(f"Reduce{g.rng.choice(ops)}", [x], axes=[g.axis(x)], keepdims=keep)


def _along(op: str, kinds: str = "f", results: int = 1, **attrs: Any) -> Grow:
    def grow(g: Growing) -> bool:
        x = g.pick(kinds, 1)
        return g.add(op, [x], results, axis=g.axis(x), **attrs)

    return grow


def _transpose(g: Growing) -> bool:
    x = g.pick("fib", 2)
    return g.add("Transpose", [x], perm=g.rng.permutation(g.values[x].ndim).tolist())


def _pad(g: Growing) -> bool:
    x = g.pick("fi", 1)
    pads = g.rng.integers(-1, 3, 2 * g.values[x].ndim)
    mode = str(g.rng.choice(["constant", "edge", "reflect"]))
    return g.add("Pad", [x, g.weight(pads)], mode=mode)


def _expand(g: Growing) -> bool:
    x = g.pick("fib")
    return g.add("Expand", [x, g.weight(np.array([2, *(1 for _ in g.shape(x))]))])


def _where(g: Growing) -> bool:
    a, b = g.pick("fi"), g.pick("fi")
    return g.values[a].dtype == g.values[b].dtype and g.add("Where", [g.pick("b"), a, b])


def _matmul(g: Growing) -> bool:
    x = g.pick("f", 1)
    width = g.shape(x)[-1]
    return g.add("MatMul", [x, g.weight(g.rng.standard_normal((width, 3)).astype(np.float32))])


def _elements(g: Growing) -> bool:
    return g.add("GatherElements", [g.pick("fi", 1), g.pick("i", 1)], axis=0)


def _cast(g: Growing) -> bool:
    kinds = {"fib": [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL]}
    return g.add("Cast", [g.pick("fib")], to=int(g.rng.choice(kinds["fib"])))


GROW: tuple[Grow, ...] = (
    _binary("Add", "Sub", "Mul", "Max", "Min", kinds="f"),
    _binary("Add", "Sub", "Mul", "Max", "Min", kinds="i"),
    _binary("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", kinds="fi"),
    _binary("And", "Or", "Xor", kinds="b"),
    _unary("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Floor", "Round", "Sign", kinds="f"),
    _unary("Neg", "Abs", "Sign", kinds="i"),
    _unary("Not", kinds="b"),
    _unary("Flatten", kinds="f"),
    _integer_division, _reshape, _slice, _gather, _reduce, _transpose, _pad, _expand, _where,
    _matmul, _elements, _cast,
    _along("Softmax"), _along("LogSoftmax"), _along("ArgMax"), _along("ArgMin", keepdims=0),
    _along("Hardmax"), _along("Split", "fib", 2),
)  # fmt: skip


def grown(seed: int, steps: int = 10) -> Growing:
    """A graph of some ten nodes."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
    inputs = {
        "x": rng.standard_normal(shape).astype(np.float32),
        "y": rng.standard_normal(shape[-1:]).astype(np.float32),
        "i": rng.integers(-3, 4, (3,)),
        "b": rng.random(shape) < 0.5,
    }
    g = Growing(rng, dict(inputs), inputs=inputs)
    for _ in range(20 * steps):
        with contextlib.suppress(ValueError):  # nothing there that it could take
            GROW[rng.integers(len(GROW))](g)
        if len(g.nodes) >= steps:
            break
    return g


def compare(seed: int) -> int:
    """One graph on the engine and on ONNX Runtime; gives its number of nodes."""
    g = grown(seed)
    made = [name for node in g.nodes for name in node.output]
    outputs = [value(name, None, str(g.values[name].dtype)) for name in made]
    inputs = [value(name, array.shape, str(array.dtype)) for name, array in g.inputs.items()]
    used = {name for node in g.nodes for name in node.input}
    weights = {name: array for name, array in g.weights.items() if name in used}
    network = model(g.nodes, inputs, outputs, weights, OPSET)
    wanted = session_of(network).run(None, g.inputs)
    with warnings.catch_warnings():  # of integers that are not proven to fit
        warnings.simplefilter("ignore", cml.nnef.NnefWarning)
        graph = cml.load(network.SerializeToString())
    got = cml.Session(graph, "cpu").run(g.inputs)
    for name, want in zip(made, wanted, strict=True):
        have = got[name]
        assert have.shape == want.shape, f"seed {seed}: {name} {have.shape}, wanted {want.shape}"
        if want.dtype.kind == "f":
            np.testing.assert_allclose(
                have, want, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}: {name}"
            )
        else:
            np.testing.assert_array_equal(have, want, err_msg=f"seed {seed}: {name}")
    return len(g.nodes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    a = parser.parse_args(argv)
    failed = 0
    for seed in range(a.first, a.first + a.count):
        try:
            compare(seed)
        except Exception as error:
            failed += 1
            said = " ".join(str(error).split())[:300]
            print(f"{type(error).__name__} at seed {seed}: {said}")  # noqa: T201
    print(f"{a.count} graphs, {failed} differ")  # noqa: T201
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
