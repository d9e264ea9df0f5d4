"""Tests of the benchmarks' arithmetic: ratios within each round, and significant differences."""

from benchmarks import players, table
from benchmarks.contenders import CONTENDERS
from benchmarks.rounds import EngineResult

BY_KEY = {contender.key: contender for contender in CONTENDERS}


def result(key, *turns):
    return EngineResult(BY_KEY[key], {"device": "x", "version": "1"}, [list(t) for t in turns])


def test_ratio_is_taken_within_each_round():
    """The ratio of two engines is that of their times in the same round.

    A round that is slow for both does not change it.
    """
    slow = result("ours-gpu", [2.0], [200.0], [300.0])
    fast = result("ncnn-vulkan", [1.0], [100.0], [100.0])
    assert slow.ratio_to(fast) == 2.0


def test_worse_ratio_is_reported_but_slower_machine_is_not():
    def report(ours, theirs):
        results = [result("ours-gpu", [ours]), result("ncnn-vulkan", [theirs])]
        return {"models": [{"model": "unet", "ratios": table.ratios("unet", results)}]}

    before = report(10.0, 20.0)
    assert table.worse(report(100.0, 200.0), before) == []
    assert table.worse(report(14.0, 20.0), before) == [
        "unet: ours-gpu ÷ ncnn-vulkan is 0.70, was 0.50"
    ]
    assert table.worse(report(14.0, 20.0), {"models": []}) == []


def test_players_are_compared_by_medians_and_the_least():
    vulkan = players.Figures([2.0, 4.0], [1.0, 9.0, 2.0, 9.0], [100.0, 100.0])
    native = players.Figures([4.0, 4.0], [1.0, 8.0, 1.0, 8.0], [200.0, 100.0])
    figures = {"Vulkan": vulkan, "wgpu-native": native, players.NCNN: players.Figures()}
    rows = players.table({"net": figures}, {"Vulkan": 90.4, "wgpu-native": 500.0}).splitlines()
    assert rows[2] == "| net | loading, ms | 3.0 (2.0) | 4.0 (4.0) | cannot load | 0.75 |"
    assert rows[3].endswith("| cannot load | 1.50 |") and len(rows) == 6
    assert rows[-1].endswith("| 90 | 500 |  | 0.18 |")
