"""Tests that a session refuses an invalid option at once and names it."""

import pytest

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.dispatches import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.lower import lower
from cml_engine.ir.limits import Limits
from cml_engine.runtime.session import CompileOptions
from tests.fixtures.graphs import Net


def net():
    made = Net(1, 4, 3, 2)
    return made.graph(made.op("relu", "x"))


NAN = float("nan")
WRONG = [
    (lambda: CompileOptions(without=frozenset({"nonsense"})), "passes to leave out.*'nonsense'"),
    (lambda: CompileOptions(without=frozenset({"chain"})), "wanted some of chains, .*views"),
    (lambda: CompileOptions(without="chains"), "wanted a set of names, .*got 'chains'"),
    (lambda: optimize(net(), frozenset({"fusing"})), "wanted some of fuse, "),
    (
        lambda: CompileOptions(storage="nonsense"),
        "storage: wanted 'float' or 'half', got 'nonsense'",
    ),
    (lambda: CompileOptions(storage="half", blocked_layout=False), "blocks of four channels"),
    *((lambda limit=limit: CompileOptions(arena_limit=limit),
       "arena_limit: wanted a whole number of 1 to")
      for limit in (0, -1, 1.5, NAN, "7", 1 << 60)),
    (lambda: PlanOptions(arena_limit=1, keep=True), "kept whole"),
    (lambda: CompileOptions(cpu="numpy"),
     "cpu: wanted 'allow' or 'refuse' or 'onnxruntime', got 'numpy'"),
    (lambda: CompileOptions(cpu_threads=0), "cpu_threads: wanted a whole number of 1 to"),
    (lambda: layouts_for(net(), "Half"), "storage: wanted 'float' or 'half', got 'Half'"),
    (lambda: PlanOptions(guard=-256), "guard: wanted a whole number"),
    (lambda: lower(net(), Limits(), {}, PlanOptions(guard=16)), "guard: wanted a multiple of 256"),
    (lambda: lower(net(), Limits(), {}, PlanOptions(stub="relo")), "has no operator 'relo'"),
    (lambda: cml.Session("model.nnef", "cpu"), r"graph \(cml.load gives one\): wanted a Graph"),
    (lambda: cml.save("model.nnef", "m.onnx"), "the graph to save .*: wanted a Graph"),
    (lambda: cml.save(net(), None), "cannot save to None: wanted a path"),
    (lambda: cml.Session(net(), "cuda"), "unknown backend 'cuda'"),
    (lambda: cml.Session(net(), "cpu", {"storage": "half"}), "options: wanted a CompileOptions"),
    (lambda: cml.Session(net(), "cpu", deferred=None), "deferred: wanted True or False"),
    (lambda: cml.Session(net(), "cpu", arena=3), "arena: wanted a str, got 3"),
    (lambda: cml.Session(net(), "cpu").rank(runs=0), "runs: wanted a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), WRONG)
def test_invalid_option_value_is_refused_on_construction(make, says):
    with pytest.raises(cml.InputError, match=says):
        make()


def test_every_pass_has_its_name():
    everything = frozenset({"fold", "chains", "views"})
    options = CompileOptions(without=everything, storage="half", plan=PlanOptions(guard=512))
    assert cml.Session(net(), "cpu", options).options.without == everything
