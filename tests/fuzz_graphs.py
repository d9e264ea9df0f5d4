"""Random graphs of many operators: what networks have, and any call of any operator on its results.

Chains, branches, residuals, concats and splits come from tests/graphs.py, calls of all operators
from tests/generate.py; some tensors are variables that the graph updates.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.graph import Fact, Graph
from cml_engine.passes.infer import infer_facts
from tests.calls import OPERATORS, Call
from tests.generate import Numbers, random_call
from tests.graphs import Net, random_map, random_node

Array = np.ndarray[Any, Any]
_DTYPES = {"f": "scalar", "i": "integer", "b": "logical"}
#: values that arithmetic treats in ways of their own. Sums of the largest must not overflow, for in
#: what order a sum is made is nobody's promise; and there are no denormals, which a device may take
#: for 0, or for something else in a logarithm
ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, -1e30, 1e20, 65504, 1e-20], np.float32)
#: of the nodes: on feature maps as they are, in blocks of four channels, and any call
_KINDS = (0.4, 0.2, 0.4)


@dataclass(frozen=True)
class Case:
    """A graph and what it is run on."""

    graph: Graph
    inputs: dict[str, Array]


class Growing(Net):
    """A net with inputs of any type, into which the graphs of calls are put."""

    def __init__(self, shape: tuple[int, ...], rng: np.random.Generator) -> None:
        super().__init__(*shape)
        self.rng = rng
        self.inputs = self.input()
        self.maps = ["x"]
        #: every tensor that the next nodes may read
        self.names = ["x"]
        self.updates: list[tuple[str, str]] = []

    def given(self, array: Array, fixed: bool) -> str:
        """The array as a constant or as an input."""
        name = f"{'w' if fixed else 'i'}{len(self.facts)}"
        self.facts[name] = Fact(_DTYPES[array.dtype.kind], array.shape)
        (self.constants if fixed else self.inputs)[name] = array
        return name

    def fed(self, array: Array, first: bool) -> str:
        """A tensor for an operand like that array: one that is there, made to fit, or a new one."""
        fact = Fact(_DTYPES[array.dtype.kind], array.shape)
        alike = [n for n in self.names if self.facts[n] == fact]
        if alike and self.rng.random() < 0.7:
            return str(self.rng.choice(alike))
        wide = [n for n in self.names if self.facts[n].dtype == "scalar" and self.facts[n].size]
        if first and wide and fact.dtype == "scalar" and fact.size and self.rng.random() < 0.6:
            return self.fitted(str(self.rng.choice(wide)), fact)
        return self.given(array, bool(self.rng.random() < 0.6))

    def fitted(self, name: str, fact: Fact) -> str:
        """The tensor's values, repeated and cut off, in another shape."""
        shape = self.facts[name]
        if shape.size != fact.size:
            flat = self.op("reshape", name, shape=[shape.size])
            many = self.op("tile", flat, repeats=[-(-fact.size // shape.size)])
            name = self.op("slice", many, axes=[0], begin=[0], end=[fact.size], stride=[1])
        return self.op("reshape", name, shape=list(fact.shape))

    def call(self, call: Call, folder: Path) -> None:
        """The nodes of a call, which reads what is here."""
        arrays = [np.asarray(a, engine_type(a)) for a in call.arrays]
        operands = [self.fed(array, i == 0) for i, array in enumerate(arrays)]
        part = cml.load(Call(call.op, tuple(arrays), call.attrs).write(folder))
        names = dict(zip(call.names, operands, strict=True))
        prefix = f"c{len(self.facts)}_"
        for name, value in part.constants.items():
            names[name] = self.given(np.asarray(value), True)
        for i, node in enumerate(part.nodes):
            names |= {n: f"{prefix}{i}_{k}" for k, n in enumerate(node.outputs)}
            reads = tuple(names[n] for n in node.inputs)
            results = tuple(names[n] for n in node.outputs)
            self.nodes.append(replace(node, inputs=reads, outputs=results, source=None))
            self.facts |= {names[n]: part.facts[n] for n in node.outputs}
        self.take([names[n] for n in part.outputs])

    def take(self, names: list[str]) -> None:
        """Results for the next nodes to read."""
        self.names += names
        self.maps += [n for n in names if self._is_map(self.facts[n])]

    def _is_map(self, fact: Fact) -> bool:
        return fact.dtype == "scalar" and fact.rank == 4 and 0 < fact.size < 4000

    def remember(self) -> None:
        """A variable that takes a new value from some tensor after every run."""
        made = [n for n in self.names if self.facts[n].dtype == "scalar" and n not in self.inputs]
        if not made:
            return
        source = str(self.rng.choice(made))
        start = self.rng.uniform(-1, 1, self.shape(source)).astype(np.float32)
        state = self.given(start, True)
        half = self.op("mul", state, self.constant(0.5))
        self.updates.append((state, self.op("add", half, source)))
        self.take([half, self.updates[-1][1]])

    def case(self) -> Case:
        """What was made, with its last result and some others as outputs."""
        computed = [n for n in self.names if n not in self.inputs and n not in self.constants]
        last = computed[-1:] or [self.op("copy", "x")]
        others = [str(n) for n in self.rng.choice(computed or last, 2)]
        outputs = tuple(dict.fromkeys([*last, *others[: int(self.rng.integers(0, 3))]]))
        inputs = tuple(self.inputs)
        facts = {n: self.facts[n] for n in (*inputs, *self.constants)}
        graph = Graph(
            "fuzz", inputs, outputs, tuple(self.nodes), facts, self.constants,
            labels={state: state for state, _ in self.updates}, updates=tuple(self.updates),
        )  # fmt: skip
        return Case(infer_facts(graph), {n: np.asarray(self.inputs[n]) for n in inputs})


def engine_type(array: Any) -> np.dtype[Any]:
    kinds = {"f": np.float32, "i": np.int32, "u": np.int32, "b": np.bool_}
    return np.dtype(kinds[np.asarray(array).dtype.kind])


def random_case(rng: np.random.Generator, nodes: int, odd: bool = False) -> Case:
    """A graph of about so many nodes; with ``odd`` some values of its inputs are."""
    extents = tuple(int(n) for n in (rng.integers(1, 3), rng.choice([1, 3, 4, 8]), 5, 4))
    net = Growing(extents, rng)
    with tempfile.TemporaryDirectory() as folder:
        while len(net.nodes) < nodes:
            before = len(net.nodes)
            try:
                _grow(net, Path(folder))
            except cml.CmlError:  # what does not fit: the next may
                del net.nodes[before:]
    if rng.random() < 0.3:
        net.remember()
    case = net.case()
    return Case(case.graph, {n: sprinkled(a, rng) for n, a in case.inputs.items()} if odd else
                case.inputs)  # fmt: skip


def _grow(net: Growing, folder: Path) -> None:
    kind = net.rng.choice(3, p=_KINDS)
    maps = list(net.maps)
    if kind == 2 or not maps:
        op = str(net.rng.choice(OPERATORS))
        net.call(random_call(op, Numbers(int(net.rng.integers(2**31)))), folder)
        return
    if kind == 0:
        made = random_node(net, maps, net.rng)
    else:
        made = random_map(net, str(net.rng.choice(maps)), maps, net.rng)
    net.take([*maps[len(net.maps) :], made])


def sprinkled(array: Array, rng: np.random.Generator) -> Array:
    """The array with some odd values in it."""
    if array.dtype.kind != "f" or not array.size:
        return array
    where = rng.random(array.shape) < 0.1
    return np.where(where, rng.choice(ODD, array.shape), array).astype(np.float32)
