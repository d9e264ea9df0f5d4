"""Tests that the report of ``cml frames`` describes the run."""

import json

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.scheduler.tools.measure import Percentiles, measure_frames
from tests.fixtures.frames.host import conv_net
from tests.fixtures.graphs import Net

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(gpu):
    if not gpu.has_timestamps:
        pytest.skip("no timestamp queries")
    waits = []
    wait, gpu.wait = gpu.wait, lambda: (waits.append(1), wait())
    session = cml.Session(conv_net(size=48), gpu)
    inputs = {"x": np.ones((1, 8, 48, 48), np.float32)}
    try:
        report = measure_frames(session, inputs, budget_ms=0.5, frames=100, layers=2)
    finally:
        del gpu.wait
    return report, len(waits)


def test_the_sliced_runs_are_the_unsliced_one_to_the_bit(measured):
    report, _ = measured
    assert report.identical and report.jobs >= 1 and report.frames_per_job >= 1


def test_measured_runs_reset_variables(gpu):
    net = Net(2, 4)
    total = net.random(2, 4)
    graph = net.graph(f"add({total}, x)").with_(updates=((total, "t0"),))
    options = {"budget_ms": 4.0, "frames": 3, "layers": 2}
    assert measure_frames(cml.Session(graph, gpu), net.input(), **options).identical


def test_every_kind_of_frame_is_waited_for(measured):
    """The benchmark waits in at least two frames for each frame with a slice.

    Otherwise the host's Python would compete for the cores of a software GPU, more in some types of
    frame than in others.
    """
    report, waits = measured
    of_ours = report.jobs * report.frames_per_job
    assert waits >= 2 * of_ours, "ours, and as many of the control dispatch"


def test_frames_report_json_has_all_fields(measured):
    report, _ = measured
    data = json.loads(report.json())
    expected = {
        "slices_ms", "control_ms", "frames", "frames_over_budget", "budget_used",
        "sliced_over_unsliced", "identical", "predicted_error_median",
        "scheduler_cpu_ms_per_frame",
    }  # fmt: skip
    assert expected <= data.keys()
    assert data["slices_ms"].keys() == {"p50", "p95", "p99", "max"}
    assert f"({report.sliced_over_unsliced_best:.3f} at best)" in str(report)


def test_percentiles():
    of = Percentiles.of([float(x) for x in range(100, 0, -1)])
    assert (of.p50, of.p95, of.p99, of.max) == (51.0, 96.0, 100.0, 100.0)
    assert Percentiles.of([]).tail == 0.0
