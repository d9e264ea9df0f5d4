"""Tests of variables that a network updates, on both backends, in whole runs and in frames.

A run reads the old values everywhere, and all variables change at once when it ends.
"""

import functools

import numpy as np
import pytest

import cml_engine as cml
from cml_engine import FrameScheduler
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.infer import infer_facts
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.ops import load_families
from cml_engine.runtime.node_check import check_nodes
from cml_engine.runtime.session import CompileOptions
from cml_engine.tools.testing import full_attrs
from scheduler.planning.plan import operators_per_frame
from tests.fixtures.graphs import Net

load_families()
SHAPE = (2, 4)
#: exact operators, which are bit-identical on every backend; other tests build their kernels too
BINARY = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}
PLANS = {
    "plain": CompileOptions(without=frozenset({"chains"})),
    "kept": CompileOptions(without=frozenset({"chains"}), plan=PlanOptions(keep=True)),
    "guarded": CompileOptions(without=frozenset({"chains"}), plan=PlanOptions(guard=256)),
    "no views": CompileOptions(without=frozenset({"chains"}), plan=PlanOptions(views=False)),
    "no passes": CompileOptions(without=frozenset({"bypass", "common", "fold", "chains"})),
}


def in_frames(session, gpu, inputs):
    """Runs a job with one operator per frame and returns its outputs by name."""
    scheduler = FrameScheduler(gpu, budget_ms=100.0)
    scheduler.planner = operators_per_frame(1)
    job = scheduler.submit(session, inputs)
    arrays = {}
    for _ in range(200):
        encoder = gpu.device.create_command_encoder()
        scheduler.encode(encoder)
        gpu.queue.submit([encoder.finish()])
        scheduler.end_frame()
        arrays = {name: job.read(name) for name in session.outputs}
        if job.ended and all(array is not None for array in arrays.values()):
            return arrays
    raise AssertionError(f"{job.state}: {job.error}")


class Stateful(Net):
    """A random network of small tensors with variables.

    ``made`` returns its graph, ``expected`` the right outputs of a sequence of runs.
    """

    def __init__(self, seed, nodes=9, variables=4):
        super().__init__(*SHAPE, seed=seed)
        self.variables = [self.random(*SHAPE) for _ in range(variables)]
        self.pool = ["x", self.random(*SHAPE), *self.variables]
        for _ in range(nodes):
            self.pool += self._some_node()
        pick = self.rng.permutation(self.pool)
        self.results = tuple(dict.fromkeys([*map(str, pick[:3]), self.variables[0], self.pool[-1]]))
        # half of the new values are stored with the weights: variables, constants, renamed tensors
        still = ["x", *self.constants, *(n for n in self.pool if n in self.renamed)]
        self.new = tuple(
            (v, str(self.rng.choice(still if self.rng.random() < 0.5 else self.pool)))
            for v in self.variables
        )

    @property
    def renamed(self):
        return {node.outputs[0] for node in self.nodes if node.op in ("reshape", "copy")}

    def _some_node(self):
        a, b = (str(n) for n in self.rng.choice(self.pool, 2))
        match self.rng.integers(6):
            case 0:
                flat = self.op("reshape", a, shape=[8], axis_start=0, axis_count=-1)
                return [self.op("reshape", flat, shape=list(SHAPE), axis_start=0, axis_count=-1)]
            case 1:
                return [self.op("copy", a)]
            case 2:
                return self.split(self.op("concat", a, b, axis=0), 0, [1, 1])
            case _:
                return [self.op(str(self.rng.choice(list(BINARY))), a, b)]

    def made(self):
        return self.graph(*self.results).with_(updates=self.new)

    def expected(self, turns):
        state, found = {v: self.constants[v] for v in self.variables}, []
        for inputs in turns:
            values = {**self.constants, **state, **inputs}
            for node in self.nodes:
                read = [values[name] for name in node.inputs]
                values |= zip(node.outputs, _worked_out(node, read), strict=True)
            found.append({name: values[name] for name in self.results})
            state = {v: values[new] for v, new in self.new}
        return found


def _worked_out(node, read):
    if node.op in BINARY:
        return [BINARY[node.op](*read)]
    if node.op == "concat":
        return [np.concatenate(read)]
    if node.op == "split":
        return list(np.split(read[0], 2))
    return [read[0].reshape(node.attrs.get("shape", SHAPE))]


def check_turns(run, wanted, turns, what):
    for turn, (inputs, expected) in enumerate(zip(turns, wanted, strict=True)):
        got = run(inputs)
        for name, value in expected.items():
            np.testing.assert_array_equal(got[name], value, f"{what}, run {turn}, '{name}'")


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_of_variables_on_both_backends_and_in_frames(seed, gpu):
    net = Stateful(seed)
    graph = net.made()
    turns = [{"x": net.rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(3)]
    wanted = net.expected(turns)
    for name in ("plain", "no passes"):
        session = cml.Session(graph, "cpu", PLANS[name])
        for _ in range(2):
            check_turns(session.run, wanted, turns, f"cpu, {name}")
            session.reset()
    kind = list(PLANS)[seed % len(PLANS)]
    session = cml.Session(graph, gpu, PLANS[kind])
    check_turns(session.run, wanted, turns, f"gpu, {kind}")
    session.reset()
    check_turns(functools.partial(in_frames, session, gpu), wanted, turns, f"frames, {kind}")


def simple(updates, outputs, nodes=(), **variables):
    facts = {"x": Fact("scalar", (3,))} | {v: Fact("scalar", (3,)) for v in variables}
    constants = {v: np.full(3, value, np.float32) for v, value in variables.items()}
    return infer_facts(
        Graph("simple", ("x",), outputs, tuple(nodes), facts, constants, updates=updates)
    )


X = {"x": np.full(3, 7, np.float32)}


@pytest.mark.parametrize(
    ("updates", "wanted"),
    [
        ((("a", "b"), ("b", "c"), ("c", "x")), [[1, 2, 3], [2, 3, 7], [3, 7, 7]]),
        ((("a", "b"), ("b", "a")), [[1, 2, 3], [2, 1, 3], [1, 2, 3]]),
        ((("a", "x"), ("b", "a")), [[1, 2, 3], [7, 1, 3], [7, 7, 3]]),
        ((("a", "c"), ("b", "b")), [[1, 2, 3], [3, 2, 3], [3, 2, 3]]),
        ((("a", "b"), ("b", "c"), ("c", "a")), [[1, 2, 3], [2, 3, 1], [3, 1, 2]]),
    ],
    ids=["shift register", "swap", "input", "constant", "ring"],
)
def test_values_that_only_change_places(updates, wanted, gpu):
    graph = simple(updates, ("a", "b", "c"), a=1, b=2, c=3)
    for backend in (gpu, "cpu"):
        session = cml.Session(graph, backend)
        sliced = functools.partial(in_frames, session, gpu)
        for run in [session.run] if backend == "cpu" else [session.run, sliced]:
            session.reset()
            for values in wanted:
                got = run(X)
                assert [got[n][0] for n in "abc"] == values


def test_validation_checks_the_run_and_not_the_values_after_it(gpu):
    nodes = [
        Node("reshape", ("a",), ("r",), full_attrs("reshape", {"shape": [3, 1]})),
        Node("add", ("a", "x"), ("sum",), full_attrs("add", {})),
        Node("neg", ("r",), ("n",), full_attrs("neg", {})),
    ]
    graph = simple((("a", "sum"),), ("r", "n", "sum"), nodes, a=1)
    assert all(check.ok for check in check_nodes(optimize(graph), gpu, X))


def test_a_feature_map_as_state_in_16_bits(gpu):
    net = Net(1, 3, 6, 8)
    state = net.random(1, 8, 6, 8)
    summed = net(f"add(conv(x, 8), {state})")
    graph = net.graph(net.conv(net(f"relu({summed})"), 3), state).with_(updates=((state, summed),))
    turns = [net.input() for _ in range(3)]
    half, full = (
        cml.Session(graph, backend, CompileOptions(storage=storage))
        for backend, storage in ((gpu, "half"), ("cpu", "float"))
    )
    for inputs in turns:
        got, wanted = half.run(inputs), full.run(inputs)
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, atol=0.02)


def test_a_new_value_of_another_shape_is_refused():
    graph = simple((), ("a",), a=1)
    facts = {**graph.facts, "y": Fact("scalar", (4,))}
    wrong = graph.with_(inputs=("x", "y"), facts=facts, updates=(("a", "y"),))
    with pytest.raises(
        cml.ModelError, match=r"update of 'a' wants scalar\[3\], 'y' is scalar\[4\]"
    ):
        cml.Session(wrong, "cpu")
