"""Tests that a plan's decisions state who made them and why, and that options can override them."""

import json
from dataclasses import asdict, fields

import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.decisions import (
    decisions_of,
    parse_decisions,
    resolve_overrides,
)
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.layouts import layouts_for
from cml_engine.compiler.planning.plan_graph import lower, plan_graph
from cml_engine.errors import OperatorError
from cml_engine.ir.limits import Limits
from cml_engine.ops import Case, Random
from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.indexing import scatter
from cml_engine.runtime.session import CompileOptions
from cml_engine.testing import case_graph
from tests.fixtures.graphs import Net
from tests.fixtures.models import write_model

MODEL = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 4, 16, 16]);
    one = variable<scalar>(shape = [16, 4, 3, 3], label = 'one');
    two = variable<scalar>(shape = [16, 16, 3, 3], label = 'two');
    three = variable<scalar>(shape = [3, 32, 1, 1], label = 'three');
    conv1 = conv(image, one, 0.0, padding = [(1, 1), (1, 1)]);
    relu1 = relu(conv1);
    conv2 = conv(relu1, two, 0.0, padding = [(1, 1), (1, 1)]);
    relu2 = relu(conv2);
    both = concat([relu1, relu2], axis = 1);
    few = conv(both, three, 0.0);
    result = max_pool(few, size = [1, 1, 2, 2], stride = [1, 1, 2, 2]);
}
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("net") / "net.nnef", MODEL)
    return cml.load(folder, random_weights=0)


def planned(graph, decide=(), storage="float", table=None, **limits):
    optimized = optimize(graph)
    asked = resolve_overrides(dict(decide), graph, optimized)
    layouts = layouts_for(optimized, storage, asked["storage"], asked["layout"])
    options = PlanOptions(overrides=asked, variants=table or VariantTable())
    plan = lower(optimized, Limits(**{"software": True, **limits}), layouts, options)
    decisions = decisions_of(optimized, plan, overrides=asked)
    return plan, {(d.subject, d.kind): d for d in decisions}


@pytest.mark.parametrize("software", [True, False])
def test_the_whole_name_of_a_kernel_selects_it(graph, software):
    """Also where the name begins that of another one, as ``window 4x1`` and ``… in 2 parts``."""
    _, decisions = planned(graph, software=software)
    for subject in ("relu1", "relu2", "few"):
        for option in decisions[subject, "kernel"].options:
            _, by_user = planned(graph, {subject: {"kernel": option}}, software=software)
            assert by_user[subject, "kernel"].chosen == option


def test_every_decision_names_its_options_and_a_reason(graph):
    _, decisions = planned(graph)
    assert {kind for _, kind in decisions} == {"kernel", "layout", "storage", "view"}
    assert all(d.chosen in d.options and d.why and d.by == "rule" for d in decisions.values())
    assert "fewer than four channels" in decisions["few", "layout"].why


def test_decisions_precede_tuning_table_and_default_rule(graph):
    plan, decisions = planned(graph)
    rule = decisions["relu2", "kernel"]
    other = next(o for o in rule.options if o.split()[0] != rule.chosen.split()[0])
    third = next(o for o in rule.options if o.split()[0] not in (rule.chosen.split()[0], other))
    key = next(c.key for c in plan.choices if c.node == "conv 'relu2'")
    table = VariantTable.forcing(key, other)
    _, by_table = planned(graph, table=table)
    assert (by_table["relu2", "kernel"].chosen, by_table["relu2", "kernel"].by) == (other, "table")
    plan, by_user = planned(graph, {"relu2": {"kernel": third}}, table=table)
    assert (by_user["relu2", "kernel"].chosen, by_user["relu2", "kernel"].by) == (third, "user")
    assert third in {s.variant for s in plan.steps if s.title == "conv 'relu2'"}


def test_decision_may_choose_a_kernel_the_tuner_skips(tmp_path):
    small = write_model(tmp_path / "net.nnef", MODEL)  # few tiles: Winograd's would be wasted
    graph = cml.load(small, shapes=(1, 4, 12, 12), random_weights=0)
    decide = {"conv2": {"kernel": "winograd", "storage": "half"}}
    _, decisions = planned(graph, software=False)
    assert not any(o.startswith("winograd") for o in decisions["relu2", "kernel"].options)
    _, decisions = planned(graph, decide, software=False)
    assert decisions["relu2", "kernel"].chosen.startswith("winograd")
    with_its_tile = {"conv2": {"kernel": decisions["relu2", "kernel"].chosen}}
    assert planned(graph, with_its_tile, software=False)[1]["relu2", "kernel"].by == "user"


def test_storage_in_half_with_one_tensor_in_full(graph):
    plan, decisions = planned(graph, {"relu2": {"storage": "float"}}, storage="half")
    assert plan.layouts["relu2"] == "c4"
    assert decisions["relu2", "storage"].by == "user"


def test_tensors_beyond_a_binding_are_bound_in_the_fewest_parts(graph):
    bytes_of = {"image": 4096, "relu1": 16384, "relu2": 16384, "both": 32768, "few": 3072}
    plan, decisions = planned(graph, max_binding_bytes=12288)
    parts = {d.subject: d for d in decisions.values() if d.kind == "parts"}
    counts = {name: int(parts[name].chosen) for name in parts if name in bytes_of}
    assert counts == {"relu1": 2, "relu2": 2, "both": 3}
    assert all("this device binds at most 12288" in d.why for d in parts.values())
    assert max(b.nbytes for step in plan.steps for b in step.bindings) <= 12288
    for step in plan.steps:  # consecutive parts cover the whole tensor
        for one, next in zip(step.bindings, step.bindings[1:], strict=False):
            assert one.tensor != next.tensor or next.offset == one.end
    _, decisions = planned(graph, {"both": {"parts": "4"}}, max_binding_bytes=12288)
    assert (decisions["both", "parts"].chosen, decisions["both", "parts"].by) == ("4", "user")
    assert planned(graph, {"conv2": {"parts": "2"}})[1]["relu2", "parts"].options[:2] == ("1", "2")


def test_step_exceeding_binding_count_names_its_tensors(graph):
    with pytest.raises(cml.DeviceError, match="'relu1' in 6 bindings, together 10, .* allows 8"):
        planned(graph, max_binding_bytes=3072)


def test_kernels_with_atomics_are_not_bound_in_parts(monkeypatch):
    monkeypatch.setattr(scatter, "_MAX_SEARCHES", -1)
    shape = Random((128,), -128, 128, "integer")
    case = Case(((128,), shape, (128,)), {"reduction": "none", "axis": 0})
    graph, _ = case_graph("scatter_elements", case)
    with pytest.raises(cml.DeviceError, match=r"cannot be bound in parts: .* atomic operations\. "):
        plan_graph(graph, Limits(max_binding_bytes=256))


def test_a_layout_is_decided(graph):
    assert planned(graph)[0].layouts["relu2"] == "c4"
    assert "relu2" not in planned(graph, {"relu2": {"layout": "plain"}})[0].layouts


@pytest.mark.parametrize(
    "decide, words",
    [
        ({"nothing": {"kernel": "tile"}}, "computes no tensor 'nothing'"),
        ({"conv2": {"kernel": "depthwise"}}, "conv 'relu2' cannot have the kernel 'depthwise'"),
        ({"result": {"kernel": "tile"}}, "there is nothing to choose"),
        ({"result": {"storage": "half"}}, "'result' cannot be stored as 'half'"),
        ({"both": {"parts": "1"}}, "it takes 32768 bytes, and this device binds at most 16384"),
        (
            {"few": {"parts": "7"}},
            "'few' cannot be bound in 7 parts: it takes 3072 bytes, and each",
        ),
        (
            {"ghost": {"parts": "2"}},
            "'ghost' cannot be bound in parts: no kernel of 'net' binds it",
        ),
        ({"few": {"layout": "c4"}}, "'few' cannot lie in blocks of four channels: it has fewer"),
        (
            {"conv2": {"storage": "half"}, "relu2": {"storage": "float"}},
            "'relu2': storage 'float' and 'half' are asked for",
        ),
    ],
)
def test_impossible_decisions_are_refused_with_the_reason(graph, decide, words):
    with pytest.raises(cml.InputError, match="decide: ") as refused:
        planned(graph, decide, max_binding_bytes=16384, max_storage_buffers=16)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "decide",
    [[], {"a": "half"}, {"a": {"colour": "red"}}, {"a": {"storage": "fp8"}}, {"a": {"kernel": 3}}],
)
def test_invalid_decisions_are_refused(decide):
    with pytest.raises(cml.InputError, match="^decide: "):
        cml.CompileOptions(decide=decide)


@pytest.mark.parametrize("kind", [cml.CompileOptions, PlanOptions])
def test_every_compile_option_refuses_invalid_values(kind):
    words = {"without": {"fuze"}, "storage": "fp8", "guard": -1}
    for option in fields(kind):
        for value in (object(), words.get(option.name, 2.5)):
            with pytest.raises(cml.InputError):
                kind(**{option.name: value})
                pytest.fail(f"{kind.__name__}({option.name}={value!r}) was taken")


@pytest.mark.parametrize("option", [f.name for f in fields(cml.Kernel)])
def test_every_kernel_field_refuses_invalid_values(option):
    stated = {"source": "void kernel(uint thread) { y[thread] = x[thread]; }"}
    for value in (object(), "any word", 2.5):
        if option in ("source", "path", "name") and isinstance(value, str):
            continue
        kernel = cml.Kernel(**{**stated, option: value})
        spec = cml.OpSpec(
            "promises", ops.same_as(0), kernel=kernel,
            signature="fragment promises(x: tensor<scalar>) -> (y: tensor<scalar>);",
        )  # fmt: skip
        with pytest.raises(OperatorError):
            cml.register(spec)
            ops.unregister("promises")
            pytest.fail(f"Kernel({option}={value!r}) was taken")


@pytest.mark.parametrize("data", [7, [7], [{"subject": "a"}], [{"subject": 1, "kind": "kernel"}]])
def test_invalid_files_of_decisions_are_refused(data):
    with pytest.raises(cml.InputError, match="^decide: "):
        parse_decisions(data)


def test_saved_decisions_reproduce_the_plan(graph):
    requested = {"conv2": {"kernel": "winograd", "storage": "half"}, "both": {"parts": "3"}}
    plan, decisions = planned(graph, requested)
    data = json.loads(json.dumps([asdict(d) for d in decisions.values()]))
    again, decided = planned(graph, parse_decisions(data))
    assert [str(step) for step in again.steps] == [str(step) for step in plan.steps]
    assert {d.by for d in decided.values() if d.kind != "view"} == {"user"}


def net():
    made = Net(1, 4, 3, 2)
    return made.graph(made.op("relu", "x"))


WRONG = [
    (lambda: CompileOptions(without=frozenset({"chain"})),
     "passes to leave out: wanted some of chains, .*views, .*got 'chain'"),
    (lambda: CompileOptions(without="chains"), "wanted a set of names, .*got 'chains'"),
    (lambda: optimize(net(), frozenset({"fusing"})), "wanted some of fuse, "),
    (lambda: CompileOptions(storage="half", blocked_layout=False), "blocks of four channels"),
    *((lambda limit=limit: CompileOptions(arena_limit=limit),
       "arena_limit: wanted a whole number of 1 to")
      for limit in (0, float("nan"), 1 << 60)),
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
    (lambda: cml.save(net(), None), "the place to save to: wanted a path, got None"),
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
