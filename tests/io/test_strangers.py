"""Tests that damaged files give a result or an error of the engine, in Python and in both players.

`python -m tests.proofs.fuzz --strangers --minutes 20` runs more cases.
"""

import json
import re
import sys
import warnings
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures import strangers
from tests.fixtures.strangers import Reader, Stranger
from tests.proofs import fuzz
from tests.proofs.campaign import FAILS

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the processor and memory of a process are "
    "read as Linux tells them"
)  # fmt: skip
CASES = 300
#: without a GPU
READERS = ("python", "c", "javascript")


@pytest.fixture(scope="module")
def whole():
    """Undamaged files of every format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return strangers.whole(1)


@pytest.fixture(scope="module")
def run(whole, tmp_path_factory):
    with ExitStack() as stack:
        yield strangers.checked(0, stack, tmp_path_factory.mktemp("kept"), READERS, whole)


def test_undamaged_sample_files_are_read(whole, run):
    assert {one.format for one in whole} >= {"onnx", "nnef", "tgz", "ncnn", "npy", "npz", "png"}
    ends = [end for number in range(len(whole)) for end in run(number)]
    assert [said for word, said in ends if word != "loads"] == []


def test_damaged_files(whole, run):
    """No reader fails on any cut or random damage of the files.

    Every format has refused files, and more than half of the formats have random damage that
    loads. A cut file loads only as NNEF in Python.
    """
    ends = defaultdict(set)
    first = len(whole) + len(strangers.cuts(whole))
    for number in range(len(whole), first + CASES):
        for word, said in run(number):
            assert word != FAILS, said
            ends[said.partition(":")[0]].add((number >= first, word))
    drawn = {name: {word for later, word in words if later} for name, words in ends.items()}
    assert all(words - {"loads"} for words in drawn.values())
    assert sum("loads" in words for words in drawn.values()) > len(drawn) / 2
    cut = {name for name, words in ends.items() if (False, "loads") in words}
    assert cut <= {"nnef, python"}, "graph.quant may be empty; every other file is whole or refused"


READ = (
    "import sys, time, os\nprint('ready', flush=True)\nfor line in sys.stdin: print({}, flush=True)"
)


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("1 / 0", "ends with 1: .*ZeroDivisionError"),
        ("any(iter(int, 1))", "not done after"),
        ("[None for i in range(9_000_000)] and 'loads'", "takes .* s, more than 0.02"),
        ("bytes(b'1') * 80_000_000 and 'loads'", "takes .* MiB, more than 64"),
    ],
)
def test_a_reader_that_crashes_or_hangs_is_a_failure(does, problem, tmp_path, monkeypatch, capsys):
    """A reader that crashes, hangs, or takes too much time or memory is a failure with exit code 1.

    Each failure is written as a folder with the file, and a new process reads the next file.
    """
    monkeypatch.setattr(strangers, "SECONDS", 0.5 if "bytes" in does else 0.02)
    monkeypatch.setattr(strangers, "MEGABYTES", 64)
    made = [Stranger("made up", "m.onnx", {"m.onnx": b"abc"})]
    monkeypatch.setattr(strangers, "whole", lambda: made)
    reader = Reader([sys.executable, "-c", READ.format(does)], {})
    monkeypatch.setitem(strangers._MADE, "python", lambda: reader)
    words = ["--strangers", "--readers", "python", "--cases", "2", "--keep", str(tmp_path)]
    assert fuzz.main(words) == 1
    assert "2 cases: 2 FAILS" in capsys.readouterr().out
    for number, data in enumerate((b"abc", b"")):
        folder = tmp_path / f"strangers-0-{number}"
        (said,) = json.loads((folder / "problem.json").read_text()).values()
        assert re.search(problem, said)
        assert (folder / "made up/m.onnx").read_bytes() == data
