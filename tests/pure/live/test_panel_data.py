"""Tests of the data that the host panel shows, without drawing it."""

import pytest

from cml_engine import FrameReport
from cml_engine.tools.panel.frames import OperatorTime, bars, times, why
from cml_engine.tools.panel.ranking import RecentTimes, ordered, rows
from scheduler.reports import SliceReport

# --- operators


def operator(network, step, total_ms, runs=10.0):
    return OperatorTime(
        network, step, f"conv{step}", "conv", "graph.nnef:1", "conv/conv.hlsl", 4e6, 1e6,
        total_ms, 1.5 * total_ms, 3, runs,
    )  # fmt: skip


def keyed(operators):
    return {(o.network, o.step): o for o in operators}


def test_panel_row_states_share_and_average_time():
    found = rows(keyed([operator("upres", 0, 20.0), operator("texture", 1, 60.0)]))
    row = next(r for r in found if r.network == "upres")
    assert row.share == 0.25
    assert row.average_ms == 2.0
    assert row.error == pytest.approx(0.5)
    assert row.gflops == pytest.approx(2.0)  # 4e6 in 2 ms
    assert row.gbytes == pytest.approx(0.5)


def test_part_of_a_run_has_a_time_but_no_average():
    (row,) = rows(keyed([operator("upres", 0, 3.0, 0.0)]))
    assert (row.total_ms, row.average_ms, row.gflops) == (3.0, 0.0, 0.0)


def test_rows_sort_by_every_column_both_ways():
    found = rows(keyed([operator("upres", s, 5.0 * (s + 1), 7.0 - s) for s in range(5)]))
    keys = ("name", "share", "total_ms", "runs", "average_ms", "error", "gflops", "gbytes")
    for key in keys:
        up = [getattr(r, key) for r in ordered(found, key, False)]
        down = [getattr(r, key) for r in ordered(found, key, True)]
        assert up == sorted(up) and down == sorted(down, reverse=True)


def test_last_seconds_are_differences():
    recent, one = RecentTimes(), operator("upres", 0, 0.0, 0.0)
    operators = keyed([one])
    for tick in range(200):  # 20 s, 1 ms of it in each tenth
        one.total_ms, one.predicted_ms, one.runs = tick + 1.0, tick + 1.0, tick + 1.0
        recent.save(0.1 * tick, operators)
    (row,) = rows(operators, recent.before())
    assert 49 <= row.total_ms <= 56
    assert row.average_ms == pytest.approx(1.0)


# --- slices


def report(frame, measured):
    made = FrameReport(frame, 0.0, 4.0, 3.5, "budget")
    for job, ms in ((3, 1.0), (5, 2.0)):
        made.slices.append(SliceReport(job, 0, "conv", "conv", 0, 9, ms, 2 * ms, f"net {job}"))
    if measured:
        made.measured_ms = 6.0
    else:
        for part in made.slices:
            part.measured_ms = None
    return made


def test_timeline_bars_are_consecutive():
    found = bars(report(0, True))
    assert [(b.network, b.start_ms, b.ms) for b in found] == [
        ("net 3", 0.0, 2.0),
        ("net 5", 2.0, 4.0),
    ]
    assert [b.ms for b in bars(report(0, False))] == [1.0, 2.0]


def test_panel_states_measured_planned_and_budget_times():
    assert times(report(0, True)) == ["measured 6.00", "planned 3.00", "budget 4.00 ms"]
    assert times(report(0, False))[0] == "measured ..."
    idle = FrameReport(0, 0.0, 2.0, 1.8, "nothing to do")
    assert times(idle)[0] == "measured 0.00" and why(idle) == "no work is left"
    # 0.14 of 2.00 ms can be all that fits: the next slice is larger, or a margin is kept
    full = FrameReport(0, 0.0, 2.0, 1.6, "budget")
    assert why(full) == "the next slice does not fit (0.40 ms are kept free)"
