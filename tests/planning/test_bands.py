"""Tests that networks beyond a memory limit or a device's buffers are planned in bands or parts.

Their results are bit-identical to those of whole runs, in NumPy and on a GPU.
"""

import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cml_engine as cml
from cml_engine.compiler.optimize import optimize
from cml_engine.compiler.planning.bands.rewrite import (
    OperatorRun,
    find_graph_rows,
    rewrite_in_bands,
)
from cml_engine.compiler.planning.decisions import decisions_of, resolve_overrides
from cml_engine.compiler.planning.draft import PlanOptions
from cml_engine.compiler.planning.plan_graph import plan_graph
from cml_engine.cooked.cook import cook
from cml_engine.cooked.profiles import PROFILES
from cml_engine.cpu.compare import compare
from cml_engine.cpu.cpu_program import CpuProgram
from cml_engine.errors import CmlError, DeviceError, InputError
from cml_engine.ir.limits import Limits
from cml_engine.ops.declaration.registry import load_families, registered
from cml_engine.runtime.session import random_inputs
from cml_engine.testing import case_graph
from cml_engine.tools.report.model_facts import ModelFacts
from tests.fixtures.graphs import random_maps
from tests.fixtures.models import write_model
from tests.fixtures.results import same_bits

load_families()
#: a wide middle between a small input and a small output
WIDE = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 2, 61, 24]);
    one = variable<scalar>(shape = [32, 2, 3, 3], label = 'one');
    two = variable<scalar>(shape = [32, 32, 3, 3], label = 'two');
    three = variable<scalar>(shape = [2, 32, 3, 3], label = 'three');
    conv1 = conv(image, one, 0.0);
    relu1 = relu(conv1);
    conv2 = conv(relu1, two, 0.0, dilation = [2, 2]);
    sum = add(conv2, relu1);
    few = conv(sum, three, 0.0, stride = [2, 2]);
    larger = nearest_upsample(few, factor = [2, 2]);
    result = sigmoid(larger);
}
"""


def loaded(text, folder):
    return cml.load(write_model(folder / "net.nnef", text), random_weights=0)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return optimize(loaded(WIDE, tmp_path_factory.mktemp("wide")))


def planned(graph, limit=0, decide=(), **limits):
    options = PlanOptions(arena_limit=limit)
    return plan_graph(graph, Limits(**limits), options=options, decide=dict(decide))


def is_possible(run):
    """Returns True if a run can be computed in bands: its nodes have rules that fit together, and
    a result is read after it."""
    chart = run.chart
    banded = [k for k in range(run.first, run.end) if k not in run.aside]
    if not run.results or any(chart.rules[k] is None for k in banded):
        return False
    return all(
        read.span is not None and read.axis == chart.axes[read.name]
        for rule in run.inside.values()
        for read in rule.for_rows(0, rule.extent).reads
        if read.name in run.inside
    )


def longest_runs(graph):
    """Returns the runs of nodes that can be computed in several bands, in order, each as long as
    possible.

    They do not overlap.
    """
    chart, runs, first = find_graph_rows(graph, {}, ()), [], 0
    while first < len(graph.nodes):
        ends = range(len(graph.nodes), first, -1)
        run = next((r for end in ends if is_possible(r := OperatorRun(chart, first, end))), None)
        runs += [run] if run is not None and run.max_bands > 1 else []
        first = run.end if run is not None else first + 1
    return runs


def in_counts(graph, count):
    runs = [(run, min(count, run.max_bands)) for run in longest_runs(graph)]
    return rewrite_in_bands(graph, runs).finished() if runs else None


BANDED = [(n, c) for n, spec in registered().items() if spec.traits.rows for c in spec.cases]


def test_every_banded_operator_is_bit_identical():
    seen = set()
    for name, case in BANDED:
        graph, inputs = case_graph(name, case)
        banded = in_counts(graph, 3)
        if banded is None:
            continue
        seen.add(name)
        expected, got = CpuProgram(graph).run(inputs), CpuProgram(banded).run(inputs)
        for output, array in expected.items():
            verdict = compare(got[output], array, registered()[name].allowed_error)
            assert verdict.ok, f"{name} {case.id}: {verdict.problem}"
    assert len(seen) > 25, seen
    assert {"conv", "deconv", "max_pool", "multilinear_upsample", "pad", "transpose"} <= seen


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7))
def test_random_networks_are_bit_identical_in_bands(seed, count):
    graph, inputs = random_maps(seed)
    graph = optimize(graph)
    banded = in_counts(graph, count)
    if banded is not None:
        expected, got = CpuProgram(graph).run(inputs), CpuProgram(banded).run(inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, rtol=2e-4, atol=2e-4)


def test_the_arena_stays_within_its_limit(wide):
    peak = planned(wide).memory.peak
    for share in (0.9, 0.7, 0.5):
        plan = planned(wide, int(share * peak))
        assert plan.memory.peak <= share * peak and plan.bands
        assert all(run.count > 1 for run in plan.bands)
    bands = plan.bands[0]
    assert bands.recomputed > 0 and bands.nbytes < bands.whole_bytes == peak
    assert [c.node for c in plan.choices] == [c.node for c in planned(wide).choices]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.95, 0.8, 0.6, 0.4]))
def test_arena_limit_is_kept_or_refused_with_a_feasible_one(seed, share):
    graph = optimize(random_maps(seed)[0])
    limit = max(int(share * planned(graph).memory.peak), 1)
    try:
        assert planned(graph, limit).memory.peak <= limit
    except InputError as error:
        enough = int(error.message.split("the network takes ")[1].split()[0])
        assert limit < enough and planned(graph, enough).memory.peak <= enough


@pytest.mark.parametrize("share", [0.7, 0.3])
def test_a_deep_network_is_planned_in_a_moment(share, tmp_path):
    """A network of 233 operators is planned within a memory limit in less than 5 s of processor
    time.

    If a plan is possible, its peak is within the limit.
    """
    lines = [f"c{k} = relu(conv(c{k - 1}, one, 0.0)); " for k in range(1, 233)]
    body = "c0 = relu(conv(image, first, 0.0));\n" + "\n".join(lines)
    text = f"""version 1.0;
extension KHR_enable_operator_expressions;
graph net(image) -> (c232)
{{
    image = external<scalar>(shape = [1, 3, 48, 48]);
    first = variable<scalar>(shape = [8, 3, 1, 1], label = 'first');
    one = variable<scalar>(shape = [8, 8, 1, 1], label = 'one');
    {body}
}}
"""
    graph = optimize(loaded(text, tmp_path))
    limit = int(share * planned(graph).memory.peak)
    begun = time.process_time()
    with suppress(InputError):
        assert planned(graph, limit).memory.peak <= limit
    assert time.process_time() - begun < 5  # seconds on a busy machine; 0.5 s on an idle one


def test_a_network_without_steps_has_a_limit_too():
    text = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 16]);
    y = reshape(x, shape = [4, 4]);
}
"""
    graph = optimize(cml.load(cml.nnef.MemoryModel(text)))
    assert not planned(graph, 256).steps
    with pytest.raises(InputError, match="the network takes 256 "):
        planned(graph, 255)


def test_bands_use_the_kernels_of_the_unbanded_plan(wide):
    unbanded, plan = planned(wide), planned(wide, planned(wide).memory.peak // 2)
    codes = {}
    for step in unbanded.steps:
        codes.setdefault(step.title, set()).add((step.path, str(sorted(step.defines.items()))))
    banded = [s for s in plan.steps if s.op == "conv"]
    assert len(banded) > len([s for s in unbanded.steps if s.op == "conv"])
    for step in banded:
        title = plan.bands_of.get(step.title, step.title)
        assert (step.path, str(sorted(step.defines.items()))) in codes[title]


def test_an_impossible_arena_limit_names_the_operator_and_a_possible_limit(wide):
    with pytest.raises(InputError) as caught:
        planned(wide, 20_000)
    message = str(caught.value)
    assert "net.nnef/graph.nnef:1" in message and "may take 20000 bytes" in message
    assert f"takes {planned(wide).memory.peak} at once as it is" in message
    least = int(message.split("the network takes ")[1].split()[0])
    assert planned(wide, least).memory.peak <= least
    with pytest.raises(InputError, match="at the least"):
        planned(wide, least - 1)


def test_bands_are_a_decision_and_may_be_decided(wide):
    limit = planned(wide).memory.peak * 7 // 10
    plan = planned(wide, limit)
    (decision,) = (d for d in decisions_of(wide, plan) if d.kind == "bands")
    assert decision.by == "rule" and decision.chosen in decision.options
    assert "more than the arena may" in decision.why and "computed twice" in decision.why
    decide = {decision.subject: {"bands": "7"}}
    more = planned(wide, limit, decide)
    assert [run.count for run in more.bands if decision.subject in run.results] == [7]
    overrides = resolve_overrides(decide, wide, wide)
    found_again = decisions_of(wide, more, overrides=overrides)
    assert {d.by for d in found_again if d.kind == "bands"} == {"user"}
    again = planned(wide, limit, {decision.subject: {"bands": decision.chosen}})
    assert str(again) == str(plan)


def test_decided_kernels_are_used_in_bands(wide):
    decide = {name: {"kernel": "tile"} for name in ("relu1", "sum", "few")}
    plan = planned(wide, planned(wide, 0, decide).memory.peak // 2, decide)
    assert plan.bands and all(s.variant.startswith("tile ") for s in plan.steps if s.op == "conv")


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("result", "99", "it has rows for 62 at most"),
        ("result", "none", "wanted a count, '1' to '128', got 'none'"),
        ("nothing", "2", "computes no tensor 'nothing'"),
    ],
)
def test_invalid_band_decisions_are_refused(wide, name, count, message):
    with pytest.raises(InputError, match=message):
        decide = {name: {"bands": count}}
        cml.CompileOptions(decide=decide)
        planned(wide, 0, decide)


def test_a_tensor_larger_than_a_buffer_is_computed_in_bands(wide):
    """A tensor larger than the device's buffers is split into bands without an option from the
    caller.

    If no band fits, planning raises a ``DeviceError``.
    """
    largest = max(4 * wide.facts[name].size for name in ("relu1", "sum"))
    plan = planned(wide, max_buffer_bytes=largest // 2, max_binding_bytes=1 << 20)
    assert plan.bands and max(b.nbytes for s in plan.steps for b in s.bindings) <= largest // 2
    with pytest.raises(DeviceError, match="allows buffers of 512"):
        planned(wide, max_buffer_bytes=512)


def test_weights_larger_than_a_buffer_are_refused(wide):
    with pytest.raises(DeviceError, match="the model's weights take"):
        planned(wide, planned(wide).memory.peak // 2, max_buffer_bytes=36_000)


def test_activations_in_several_buffers_are_not_cooked(tmp_path, monkeypatch):
    graph = loaded(WIDE, tmp_path)
    small = replace(PROFILES["portable"], limits=Limits(max_buffer_bytes=1 << 18))
    monkeypatch.setitem(PROFILES, "portable", small)
    with pytest.raises(DeviceError, match="players have one buffer for them"):
        cook(graph, ["portable"], golden=False)


def test_kept_tensors_are_not_banded(tmp_path):
    graph = optimize(loaded(WIDE, tmp_path).with_(taps={"relu1": "relu1"}))
    plan = planned(graph, planned(graph).memory.peak * 8 // 10)
    assert plan.taps["relu1"].fact.shape == graph.facts["relu1"].shape and plan.bands


def test_info_reports_banded_operators(tmp_path):
    graph = loaded(WIDE, tmp_path)
    unbanded = ModelFacts(graph).summary
    info = ModelFacts(graph, cml.CompileOptions(arena_limit=unbanded.arena_bytes // 2)).summary
    assert info.arena_bytes <= unbanded.arena_bytes // 2
    assert "bands of rows" in str(info) and "bands" not in str(unbanded)


FILTER = "f = variable<scalar>(shape = [{shape}], label = 'f');"
#: the operators behind an input ``x`` of 16 channels
OPERATORS = {
    "conv": FILTER.format(shape="16,16,3,3") + "y = conv(x, f, 0.0);",
    "residual": FILTER.format(shape="16,16,3,3")
    + "a = conv(x, f, 0.0); b = relu(a); y = add(b, x);",
    "depthwise conv": FILTER.format(shape="16,1,3,3") + "y = conv(x, f, 0.0, groups = 16);",
    "deconv": FILTER.format(shape="16,4,2,2")
    + "y = deconv(x, f, 0.0, stride = [2, 2], padding = [(0, 0), (0, 0)]);",
    "matmul": "y = matmul(x, x, transposeB = true);",
    "max_pool": "y = max_pool(x, size = [1, 1, 2, 2], stride = [1, 1, 2, 2],"
    " padding = [(0, 0), (0, 0), (0, 0), (0, 0)]);",
    "box": "y = box(x, size = [1, 1, 3, 3], normalize = true);",
    "upsample": "y = multilinear_upsample(x, factor = [2, 2]);",
    "elementwise": "a = exp(x); b = mul(a, x); y = add(b, 1.0);",
    "softmax": "y = softmax(x);",
    "reduce": "y = sum_reduce(x, axes = [2, 3]);",
    "concat": "y = concat([x, x], axis = 1);",
    "pad": "y = pad(x, padding = [(0, 0), (0, 0), (1, 1), (1, 1)], border = 'reflect');",
    "transpose": "y = transpose(x, axes = [0, 2, 3, 1]);",
    "argmax": "y = argmax_reduce(x, axes = [1]);",
}
SIZES = {"QVGA": (240, 320), "8K": (4320, 7680)}
GIB = 1 << 30
#: by the size of a binding: its bytes, those of the largest buffer, storage buffers of a kernel
DEVICES = {
    name: Limits(
        max_binding_bytes=binding, max_buffer_bytes=buffer, max_storage_buffers=storage_buffers
    )
    for name, binding, buffer, storage_buffers in (
        ("guaranteed", 128 << 20, 256 << 20, 8),
        ("128 MiB", 128 << 20, 16 * GIB, 256),
        ("2 GiB", 2 * GIB - 4, 2 * GIB, 16),
        ("4 GiB", 4 * GIB - 4, 16 * GIB, 16),
    )
}


def network(body, height, width):
    shape = re.search(r"shape = \[([\d,]+)\], label", body)
    weights = {"f": np.ones([int(n) for n in shape[1].split(",")], np.float32)} if shape else {}
    text = f"x = external<scalar>(shape = [1, 16, {height}, {width}]); {body}"
    return cml.load(
        cml.nnef.MemoryModel(f"version 1.0;\ngraph large(x) -> (y)\n{{\n{text}\n}}\n", weights)
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_network_is_refused_only_if_a_tensor_exceeds_the_largest_buffer(operator, size):
    graph = optimize(network(OPERATORS[operator], *SIZES[size]))
    largest = max(graph.facts[name].nbytes for name in (*graph.inputs, *graph.outputs))
    for limits in DEVICES.values():
        if largest <= limits.max_buffer_bytes:
            assert plan_graph(graph, limits).steps
        else:
            with pytest.raises(cml.DeviceError, match=f"{limits.max_buffer_bytes}"):
                plan_graph(graph, limits)


def test_a_fused_operator_without_tensors_costs_no_binding():
    body = OPERATORS["residual"]
    steps = plan_graph(optimize(network(body, *SIZES["8K"])), DEVICES["4 GiB"]).steps
    assert steps[0].fused[0] == "relu"


# --- on a GPU

INTEGER = Path(__file__).resolve().parents[2] / "demo_game" / "models" / "integer" / "upres.nnef"
#: residuals, a pixel shuffle as a transpose, an odd height; the third conv can use Winograd
UPSCALER = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 3, 45, 38]);
    one = variable<scalar>(shape = [48, 3, 3, 3], label = 'one');
    two = variable<scalar>(shape = [48, 48, 3, 3], label = 'two');
    three = variable<scalar>(shape = [12, 48, 3, 3], label = 'three');
    conv1 = conv(image, one, 0.0);
    relu1 = relu(conv1);
    conv2 = conv(relu1, two, 0.0);
    sum = add(conv2, relu1);
    conv3 = conv(sum, three, 0.0);
    apart = reshape(conv3, shape = [1, 3, 2, 2, 45, 38]);
    turned = transpose(apart, axes = [0, 1, 4, 2, 5, 3]);
    shuffled = reshape(turned, shape = [1, 3, 90, 76]);
    larger = multilinear_upsample(image, factor = [2, 2], border = 'replicate');
    result = add(shuffled, larger);
}
"""
#: strides, dilation, depthwise and transposed convs, and a skip connection
CODER = """\
version 1.0;
graph net(image) -> (result)
{
    image = external<scalar>(shape = [1, 2, 50, 21]);
    one = variable<scalar>(shape = [8, 2, 5, 3], label = 'one');
    two = variable<scalar>(shape = [13, 8, 3, 3], label = 'two');
    each = variable<scalar>(shape = [13, 1, 3, 3], label = 'each');
    back = variable<scalar>(shape = [13, 8, 4, 3], label = 'back');
    last = variable<scalar>(shape = [1, 16, 3, 1], label = 'last');
    first = conv(image, one, 0.0, border = 'reflect');
    level = sigmoid(first);
    small = max_pool(level, size = [1, 1, 2, 1], stride = [1, 1, 2, 1], border = 'ignore');
    deep = conv(small, two, 0.0, dilation = [2, 1]);
    spread = conv(deep, each, 0.0, groups = 0);
    up = deconv(spread, back, 0.0, stride = [2, 1], output_shape = [1, 8, 50, 21]);
    both = concat([up, level], axis = 1);
    result = conv(both, last, 0.0, padding = [(0, 2), (0, 0)]);
}
"""


def check_bands(graph, gpu, share, **options):
    """Asserts that a session in bands is bit-identical to one of the whole network.

    The bands use at most ``share`` of the whole session's memory. Returns the session in bands, its
    inputs and the outputs.
    """
    unbanded = cml.Session(graph, gpu, cml.CompileOptions(**options))
    limit = int(share * unbanded.plan.memory.peak)
    session = cml.Session(graph, gpu, cml.CompileOptions(arena_limit=limit, **options))
    assert session.plan.memory.peak <= limit and session.plan.bands
    inputs = random_inputs(unbanded.inputs, 3)
    expected = unbanded.run(inputs)
    same_bits(session.run(inputs), expected)
    return session, inputs, expected


@pytest.fixture(scope="module")
def upscaler(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("up") / "net.nnef", UPSCALER)
    return cml.load(folder, random_weights=0)


@pytest.mark.parametrize("storage", ["float", "half"])
def test_an_upscaler_in_bands(upscaler, gpu, storage):
    check_bands(upscaler, gpu, 0.65, storage=storage)


def test_an_encoder_and_decoder_in_bands(gpu, tmp_path):
    graph = cml.load(write_model(tmp_path / "net.nnef", CODER), random_weights=0)
    session, _, _ = check_bands(graph, gpu, 0.7)
    assert any(len(run.operators) > 2 for run in session.plan.bands)


def test_an_integer_network_in_bands(gpu):
    check_bands(cml.load(INTEGER), gpu, 0.85)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000))
def test_random_networks_in_bands_on_the_gpu(gpu, seed):
    graph, inputs = random_maps(seed)
    unbanded = cml.Session(graph, gpu)
    limit = int(0.8 * unbanded.plan.memory.peak)
    try:
        session = cml.Session(graph, gpu, cml.CompileOptions(arena_limit=max(limit, 1)))
    except CmlError as error:
        assert "at the least" in str(error)
        return
    same_bits(session.run(inputs), unbanded.run(inputs))


def test_banded_session_is_reshaped_and_reloaded(gpu, tmp_path):
    graph = cml.load(write_model(tmp_path / "net.nnef", WIDE), random_weights=0)
    session, inputs, _ = check_bands(graph, gpu, 0.6)
    shapes = {"image": (1, 2, 71, 24)}
    larger, alone = session.reshaped(shapes), cml.Session(graph.reshaped(shapes), gpu)
    assert larger.plan.bands and larger.plan.memory.peak <= session.options.arena_limit
    larger_inputs = random_inputs(alone.inputs, 4)
    assert np.array_equal(larger.run(larger_inputs)["result"], alone.run(larger_inputs)["result"])
    other = cml.load(tmp_path / "net.nnef", random_weights=1)
    session.replace(other)
    session.take_replacement()
    assert session.plan.bands
    expected = cml.Session(other, gpu).run(inputs)["result"]
    assert np.array_equal(session.run(inputs)["result"], expected)


def test_jobs_in_slices_and_no_watching(upscaler, gpu, host):
    session, inputs, expected = check_bands(upscaler, gpu, 0.7)
    (got,) = host.finish(host.submit(session, inputs), name="result")
    assert np.array_equal(got, expected["result"])
    with pytest.raises(InputError, match="is computed in bands of rows"):
        session.run(inputs, watch=lambda node, results: None)
