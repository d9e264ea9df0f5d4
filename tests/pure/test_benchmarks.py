"""The benchmark's arithmetic: ratios by round, and differences that cannot pass by accident."""

from __future__ import annotations

import numpy as np
import pytest

import cml_engine as cml
from benchmarks import layers, table
from benchmarks.contenders import CONTENDERS, Workload
from benchmarks.rounds import Result
from benchmarks.write_ncnn import write_ncnn
from cml_engine.convert import convert

BY_KEY = {contender.key: contender for contender in CONTENDERS}


def result(key, *turns, device="x"):
    return Result(BY_KEY[key], {"device": device, "version": "1"}, [list(t) for t in turns])


def test_ratio_is_taken_within_each_round():
    """A round that is slow for both must not count: 2, 2 and 3 times, although medians say 20."""
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
    absent = Result(BY_KEY["tract"], problem="not installed: pip install tract")
    text = table.markdown([result("ours-cpu", [3.0, 1.0, 2.0]), absent], {"ours-cpu": 2e-6})
    lines = text.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| 2.0 | 1.0 |" in lines[2]
    assert "2.0e-06" in lines[2]
    assert "not installed: pip install tract" in lines[3]


@pytest.mark.parametrize("make", [layers.mobilenet, layers.unet])
def test_a_network_of_the_bench_is_the_same_for_all_engines(make, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from benchmarks.write_onnx import write_onnx

    network = make(32)
    write_ncnn(network, tmp_path / "n.param", tmp_path / "n.bin")
    write_onnx(network, tmp_path / "n.onnx")
    graph = convert(tmp_path / "n.param", shape=network.shape)
    x = np.random.default_rng(0).random(network.shape, np.float32)
    (ours,) = cml.Session(graph, "cpu").run({graph.inputs[0]: x}).values()
    peer = onnxruntime.InferenceSession(
        str(tmp_path / "n.onnx"), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(ours, peer.run(None, {"data": x})[0], atol=2e-5)
