"""Tests of the benchmark's arithmetic: ratios by round and significant differences."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from benchmarks import facts, layers, table, write_docs
from benchmarks.contenders import CONTENDERS, Workload
from benchmarks.frames import cost
from benchmarks.kernels.roofline import KernelTimes, Peaks, markdown, work_of
from benchmarks.models import AGENTS, MODELS
from benchmarks.ncnn.graph import CannotWrite, bilinear, graph_to_ncnn
from benchmarks.ncnn.transformers import Transformer
from benchmarks.ncnn.write import write_ncnn
from benchmarks.rounds import EngineResult
from cml_engine.compiler.passes.infer import infer_node
from cml_engine.compiler.planning.lower import lower
from cml_engine.formats.builder import GraphBuilder
from cml_engine.ir.layout import C4
from cml_engine.ir.limits import Limits
from cml_engine.ops import load_families, lookup
from cml_engine.ops.conv.cases import conv_case
from cml_engine.tools.testing import case_graph
from examples.stylegan2.network import build
from examples.stylegan2.parameters import Config, random_parameters

BY_KEY = {contender.key: contender for contender in CONTENDERS}


def result(key, *turns, device="x"):
    return EngineResult(BY_KEY[key], {"device": device, "version": "1"}, [list(t) for t in turns])


def test_ratio_is_taken_within_each_round():
    """The ratio is taken per round, so a round that is slow for both does not count."""
    slow = result("ours-gpu", [2.0], [200.0], [300.0])
    fast = result("ncnn-vulkan", [1.0], [100.0], [100.0])
    assert slow.ratio_to(fast) == 2.0


def test_goal_fails_beyond_its_limit():
    peer = result("ncnn-vulkan", [9.0])
    for time, holds in ((5.9, True), (6.1, False)):
        verdicts = table.verdicts("upres64", [result("ours-gpu", [time]), peer], {})
        assert [v for v, _ in verdicts] == [holds]
        assert table.verdicts("unet", [result("ours-gpu", [time]), peer], {})[0][0]


def test_a_ratio_that_got_worse_is_found_and_a_slower_machine_is_not():
    def report(ours, theirs):
        results = [result("ours-gpu", [ours]), result("ncnn-vulkan", [theirs])]
        return {"models": [{"model": "unet", "ratios": table.ratios("unet", results)}]}

    before = report(10.0, 20.0)
    assert table.worse(report(100.0, 200.0), before) == []
    assert table.worse(report(14.0, 20.0), before) == [
        "unet: ours-gpu ÷ ncnn-vulkan is 0.70, was 0.50"
    ]
    assert table.worse(report(14.0, 20.0), {"models": []}) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros((1, 2)), 0.0),
        (np.array([[0.0, 0.5]]), 0.5),
        (np.array([[0.0, np.nan]]), np.inf),
        (np.zeros((1, 3)), np.inf),
    ],
)
def test_difference(tmp_path, value, expected):
    workload = Workload(tmp_path)
    np.save(workload.output("ncnn-cpu"), np.zeros((1, 2)))
    np.save(workload.output("ours-cpu"), value)
    found = table.differences([result("ncnn-cpu"), result("ours-cpu")], workload)
    assert found == {"ncnn-cpu": 0.0, "ours-cpu": expected}


def test_nothing_is_compared_without_the_reference(tmp_path):
    workload = Workload(tmp_path)
    np.save(workload.output("ours-cpu"), np.zeros(2))
    assert table.differences([result("ours-cpu")], workload) == {}


def test_table_shows_who_is_absent_and_why():
    absent = EngineResult(BY_KEY["tract"], problem="not installed:\n  pip | install tract")
    text = table.markdown([result("ours-cpu", [3.0, 1.0, 2.0]), absent], {"ours-cpu": 2e-6})
    lines = text.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| 2.0 | 1.0 |" in lines[2]
    assert "2.0e-06" in lines[2]
    assert "not installed: pip ¦ install tract" in lines[3]


@pytest.mark.parametrize("make", [layers.mobilenet, layers.unet])
def test_a_network_of_the_bench_is_the_same_for_all_engines(make, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    network = make(32)
    write_ncnn(network, tmp_path / "n.param", tmp_path / "n.bin")
    graph = cml.load(tmp_path / "n.param", shapes=network.shape)
    cml.save(graph, tmp_path / "n.onnx", opset=13)
    x = np.random.default_rng(0).random(network.shape, np.float32)
    (ours,) = cml.Session(graph, "cpu").run({graph.inputs[0]: x}).values()
    peer = onnxruntime.InferenceSession(
        str(tmp_path / "n.onnx"), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(ours, peer.run(None, {"data": x})[0], atol=2e-5)


def test_a_difference_is_measured_by_the_size_of_the_values(tmp_path):
    workload = Workload(tmp_path)
    assert table.tolerance(workload) == table.TOLERANCE
    for largest, wanted in ((0.5, 1e-4), (300.0, 3e-2)):
        np.save(workload.output("ncnn-cpu"), np.array([0.0, -largest]))
        assert table.tolerance(workload) == pytest.approx(wanted)
    ours = result("ours-gpu", [1.0])
    for difference, holds in ((2e-2, True), (4e-2, False)):
        verdicts = table.verdicts("unet", [ours], {"ours-gpu": difference}, 3e-2)
        assert [v for v, _ in verdicts] == [holds]


def graph_of(name):
    if name == "stylegan2":
        config = Config(16, channel_base=256, channel_most=16, latent=32)
        return build(config, random_parameters(config, 1))
    return cml.load(AGENTS / f"{name}.nnef")


def inputs_of(graph):
    random = np.random.default_rng(3)
    made = {name: random.random(graph.facts[name].shape, np.float32) for name in graph.inputs}
    return made | ({"cell": np.full((1, 1, 1, 1), 8, np.float32)} if "cell" in made else {})


@pytest.mark.parametrize("name", ["stylegan2", "upres", "texture", "population"])
@pytest.mark.parametrize("key", ["onnxruntime", "ncnn-cpu"])
def test_a_network_of_ours_is_the_same_in_other_engines_files(name, key, tmp_path):
    pytest.importorskip(BY_KEY[key].module)
    workload, graph = Workload(tmp_path), graph_of(name)
    if key == "onnxruntime":
        cml.save(graph, workload.onnx, opset=13)
    else:
        graph_to_ncnn(graph, workload.param, workload.weights)
    inputs = inputs_of(graph)
    (ours,) = cml.Session(graph, "cpu").run(inputs).values()
    found = BY_KEY[key].load(workload).run(inputs)
    np.testing.assert_allclose(found, ours, atol=1e-5 * max(1, np.abs(ours).max()))


def test_what_a_format_cannot_say_is_refused_by_name(tmp_path):
    load_families()
    make = GraphBuilder(infer_node)
    make.node("softmax", [make.input("x", (1, 4))], "y", axes=[1])
    with pytest.raises(CannotWrite, match="softmax 'y'"):
        graph_to_ncnn(make.graph("g", ["y"]), tmp_path / "n.param", tmp_path / "n.bin")
    wide = make.node(
        "multilinear_upsample", [make.input("image", (1, 1, 2, 2))], "z", factor=[4, 4],
        method="symmetric", border="constant",
    )  # fmt: skip
    with pytest.raises(CannotWrite, match=wide):
        bilinear(make.nodes[-1], 1)


def test_inputs_come_back_in_their_order(tmp_path):
    workload = Workload(tmp_path)
    workload.save_inputs({"z": np.zeros(2, np.float32), "a": np.ones(3, np.float32)})
    assert [(k, v.size) for k, v in workload.load_inputs().items()] == [("z", 2), ("a", 3)]


def test_the_bench_has_every_network_that_is_promised():
    agents = {f"agent-{name}" for name in ("upres", "texture", "population")}
    others = {"upres64", "upres128", "mobilenet", "unet", "stylegan2", "vit", "gpt"}
    assert set(MODELS) == agents | others


@pytest.mark.parametrize("causal", [False, True])
def test_a_transformer_is_attention_and_causal_where_it_says_so(causal, tmp_path):
    """A transformer in ncnn's format loads; later tokens change earlier ones unless it is
    causal."""
    small = Transformer(5, 8, 2, causal=causal, blocks=1)
    small.write(tmp_path / "t.param", tmp_path / "t.bin")
    session = cml.Session(cml.load(tmp_path / "t.param", shapes={"data": small.shape}), "cpu")
    tokens = np.random.default_rng(0).standard_normal(small.shape, np.float32)
    (first,) = session.run({"data": tokens}).values()
    tokens[0, 3, 0] += 1
    (second,) = session.run({"data": tokens}).values()
    assert first.shape == small.shape
    moved = np.abs(second - first).max(-1)[0] > 1e-4
    assert moved.tolist() == [not causal] * 3 + [True, True]


def test_facts_fail_beyond_their_limits():
    def holds(arena=105, divergence=""):
        found = facts.Facts(9, 4, 3, arena, 100, 8, 1.0, 2.0, divergence)
        return [holds for holds, _ in facts.verdicts(found)]

    assert holds() == [True, True]
    assert holds(arena=106) == [False, True]
    assert holds(divergence="conv 'c': nan") == [True, False]
    assert [v for v, _ in facts.verdicts("no GPU")] == [False]


def test_the_table_of_facts_has_a_row_for_each():
    found = facts.Facts(9, 4, 3, 1_000_000, 1_000_000, 8_000_000, 12.0, 34.0, "conv 'c': nan")
    lines = facts.markdown({"a": found, "b": "no GPU"}).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| a | 9 | 4 | 3 | 1.00 | 1.000 | 8.00 | 12 | 34 | DIVERGES |"
    assert "no GPU" in lines[3]


@pytest.fixture(scope="module")
def winograd():
    """Returns the steps of a Winograd convolution and the cost of the convolution."""
    load_families()
    case = conv_case((1, 64, 32, 32), (64, 64, 3, 3))
    graph, _ = case_graph("conv", case, constants=True)
    node = graph.nodes[0]
    facts = [graph.facts[n] for n in node.inputs], [graph.facts[n] for n in node.outputs]
    steps = lower(graph, Limits(), {"x0": C4, "y0": C4}).steps
    assert [step.path for step in steps] == ["conv/winograd.hlsl"] * 3
    return steps, lookup("conv").cost(node.attrs, *facts)


def test_winograds_stages_count_what_they_do(winograd):
    """The Winograd product counts a quarter of the direct work.

    36 products replace 16 results of nine products each. Both transforms move 36 values for 16.
    """
    (first, product, last), direct = winograd
    assert work_of(product).flops == pytest.approx(direct.flops / 4, rel=0.01)
    for step in (first, last):
        values = 32 * 32 * 64 * 4
        assert sorted((work_of(step).read, work_of(step).written)) == [values, values * 36 / 16]


@pytest.mark.parametrize(
    ("peaks", "limit"),
    [
        (Peaks(4e8, 1e15, 1e-9), "products"),
        (Peaks(1e15, 1e7, 1e-9), "memory"),
        (Peaks(1e15, 1e15, 5e-2), "launches"),
        (Peaks(1e15, 1e15, 1e-9), "instructions"),
    ],
)
def test_the_nearest_limit_of_a_kernel(winograd, peaks, limit):
    (_, product, _), _ = winograd
    kernel = KernelTimes.of("m", [product], [0.1, 0.1, 9.0], [0.2, 0.2, 9.0], [peaks] * 3)
    assert kernel.limit == limit
    assert (kernel.ms, kernel.time_share) == (100.0, 0.5)
    assert kernel.flops == pytest.approx(work_of(product).flops / 0.1)


def test_the_table_of_kernels_sums_up_what_is_short(winograd):
    steps, _ = winograd
    peaks = [Peaks(1e9, 1e9, 1e-6)]
    times = (0.90, 0.09, 0.01)
    kernels = [
        KernelTimes.of("m", [s], [t], [1.0], peaks) for s, t in zip(steps, times, strict=True)
    ]
    lines = markdown(kernels, 0.1).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| conv | winograd input | 1 | 900.00 | 90.0% |")
    assert lines[3].startswith("| 2 more |  | 2 | 100.00 | 10.0% |")


def test_the_docs_keep_what_is_written_by_hand():
    machine = {"time": "2026-01-02T03:04", "commit": "abc", "cores": 2, "cpu": "a CPU"}
    quiet, busy = ({"machine": machine, "warning": text} for text in ("", "it is busy"))
    before = f"# Benchmarks\n\nby hand\n\n{write_docs.MARK}\n\nold tables\n"
    once = write_docs.page(before, "| bench |\n", "| kernels |\n", (quiet, busy))
    assert once.startswith("# Benchmarks\n\nby hand\n")
    assert "old tables" not in once
    assert once.index("| bench |") < once.index("| kernels |")
    assert "2026-01-02, commit abc, 2 cores of a CPU.\n\n| bench |" in once
    assert "2 cores of a CPU. Warning: it is busy.\n\n| kernels |" in once
    assert write_docs.page(once, "| bench |\n", "| kernels |\n", (quiet, busy)) == once
    with pytest.raises(ValueError, match="no line"):
        write_docs.page("# Benchmarks\n", "", "", (quiet, busy))
    assert write_docs.MARK in write_docs.PAGE.read_text(encoding="utf-8")


def test_a_filter_that_is_an_input_is_no_layer_of_ncnn(tmp_path):
    load_families()
    make = GraphBuilder(infer_node)
    x, filter = make.input("x", (1, 1, 8, 8)), make.input("filter", (4, 1, 3, 3))
    make.node("conv", [x, filter, make.literal(0.0)], "y", padding=[(1, 1), (1, 1)])
    with pytest.raises(CannotWrite, match="a filter that is computed"):
        graph_to_ncnn(make.graph("g", ["y"]), tmp_path / "n.param", tmp_path / "n.bin")


def test_what_a_frame_costs_adds_up_and_its_hitches_do_not_count() -> None:
    def frames(whole, **parts):
        return [cost.FrameCauses(whole, dict(parts)) for _ in range(8)]

    hitches = [cost.FrameCauses(90.0, {cost.NETWORKS: 80.0})] * 2
    cause = "planning and encoding slices"
    without = frames(9.0, **{cost.PICTURE: 7.0, cause: 0.5})
    with_them = frames(12.0, **{cost.NETWORKS: 1.0, cost.PICTURE: 7.5, cause: 1.25})
    rows = {row.cause: row for row in cost.table(without + hitches, with_them + hitches)}
    assert (rows[cause].without, rows[cause].with_them) == (0.5, 1.25)
    assert rows[cost.REST].without == pytest.approx(1.5)
    assert rows[cost.REST].with_them == pytest.approx(2.25)
    assert rows["a frame"].with_them == 12.0 and "+3.00" in str(rows["a frame"])
