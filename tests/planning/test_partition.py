"""Tests of the order of nodes that groups operators without a kernel, and of their plan."""

import pytest

import cml_engine as cml
from cml_engine import ops
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.passes.partition import group_cpu_operators
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.ir.limits import Limits
from tests.fixtures.graphs import Net, random_graph


@pytest.fixture(autouse=True)
def host(own_operators):
    """Registers ``host``, which has no kernel and negates."""
    cml.register(
        cml.OpSpec(
            "host",
            infer=ops.same_as(0),
            cpu=lambda attrs, x: -x,
            signature="fragment host(x: tensor<scalar>) -> (y: tensor<scalar>);",
        )
    )


def planned(net, *outputs, taps=(), **options):
    graph = optimize(net.graph(*outputs).with_(taps={name: name for name in taps}))
    return plan_graph(graph, Limits(), options=PlanOptions(**options))


def test_a_graph_with_kernels_only_stays_as_it_is():
    graph, _ = random_graph(3)
    assert group_cpu_operators(graph) is graph


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("host(relu(host(x)))", 2),
        ("add(host(relu(x)), host(sigmoid(x)))", 1),
        ("add(host(x), relu(host(relu(x))))", 1),
        ("add(host(relu(host(x))), host(x))", 2),
        ("host(reshape(host(x), shape=[1, 60]))", 1),
        ("add(host(host(x)), host(relu(host(x))))", 2),
    ],
)
def test_no_path_explains_fewer_groups(text, groups):
    net = Net(1, 3, 4, 5)
    plan = planned(net, net(text))
    assert len(plan.cpu_parts) == groups
    assert sum(len(part.graph.nodes) for part in plan.cpu_parts) >= text.count("host")


def test_only_what_others_read_is_copied():
    net = Net(1, 3, 4, 5)
    first = net.op("host", net.op("relu", "x"))
    second = net.op("host", first)
    (part,) = planned(net, net.op("relu", second)).cpu_parts
    assert (tuple(part.reads), tuple(part.writes)) == (("t0",), (second,))
    assert (part.read_bytes, part.written_bytes) == (240, 240)
    (part,) = planned(net, net.op("relu", second), taps=(first,)).cpu_parts
    assert set(part.writes) == {first, second}


def test_results_that_stay_on_the_host_take_no_memory_of_the_device():
    sizes = []
    for count in (1, 5):
        net, y = Net(1, 3, 40, 50), "x"
        for _ in range(count):
            y = net.op("host", y)
        sizes.append(planned(net, y).memory.peak)
    assert sizes[0] == sizes[1]


def test_a_constant_that_only_the_host_reads_is_not_uploaded():
    cml.register(cml.OpSpec("host_add", infer=ops.same_as(0), cpu=lambda attrs, x, y: x + y))
    net = Net(1, 3, 4, 5)
    plan = planned(net, net.op("host_add", net.op("relu", "x"), net.random(1, 3, 4, 5)))
    assert plan.weights_bytes == 0
    assert "k0" in plan.cpu_parts[0].graph.constants


def test_parts_of_different_inputs_stay_apart_where_a_run_may_skip_one():
    """With retained inputs a run computes all of a part or nothing, so no part mixes inputs."""
    text = """version 1.0;
    graph net(x, z) -> (y)
    {
        x = external<scalar>(shape = [3]);
        z = external<scalar>(shape = [3]);
        a = host(x);
        b = host(z);
        y = add(a, b);
    }"""
    graph = cml.load(cml.nnef.MemoryModel(text, {}))
    for retain, count in ((False, 1), (True, 2)):
        plan = plan_graph(
            optimize(graph, retain=retain), Limits(), options=PlanOptions(retain=retain)
        )
        assert len(plan.cpu_parts) == count
    assert plan.reuse is not None
    assert {plan.steps[i].title for i in plan.reuse.steps(["x"])} != {s.title for s in plan.steps}


def test_a_plan_lists_the_part_among_its_steps():
    net = Net(1, 3, 4, 5)
    plan = planned(net, net("relu(host(relu(x)))"))
    assert [step.cpu_part is not None for step in plan.steps] == [False, True, False]
    assert [cost.on_cpu for cost in plan.step_costs()] == [False, True, False]
    assert "host 't1'" in str(plan) and "NumPy" in str(plan)
