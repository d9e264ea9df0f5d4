"""Damaged files give a graph or a CmlError; whatever else they gave would be found.

`python -m tests.fuzz --bytes --minutes 5` goes on from here.
"""

import time
import warnings
from collections import Counter

import numpy as np
import pytest

import cml_engine as cml
from tests import fuzz
from tests.fixtures import fuzz_bytes
from tests.fixtures.fuzz_bytes import Damaged, Model

CASES = 100


@pytest.fixture(scope="module")
def models():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fuzz_bytes.models(1)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(), fuzz_bytes.traced():
        warnings.simplefilter("ignore")
        yield


def test_the_undamaged_models_load(models, tmp_path):
    assert {model.format for model in models} >= {"onnx", "nnef", "tgz", "tar", "ncnn"}
    for model in models:
        name = min(model.files)
        assert fuzz_bytes.outcome(Damaged(model, name, model.files[name]), tmp_path) == "loads"


def test_cut_files(models, tmp_path):
    cases = fuzz_bytes.cuts(models)
    ends = Counter((case.model.format, fuzz_bytes.outcome(case, tmp_path)) for case in cases)
    assert not [said for _, said in ends if said.startswith("FAILS")]
    assert {f for f, said in ends if said == "loads"} <= {"tar"}, "it ends with empty blocks"


def test_damaged_files(models, tmp_path):
    cases = [fuzz_bytes.drawn(models, 0, number) for number in range(CASES)]
    ends = Counter(fuzz_bytes.outcome(case, tmp_path) for case in cases)
    assert not [said for said in ends if said.startswith("FAILS")]
    assert ends["loads"] < CASES / 2 and len(ends) > 2
    again = fuzz_bytes.drawn(models, 0, 7)
    assert (again.file, again.data) == (cases[7].file, cases[7].data)


def _raises(_):
    raise KeyError("a traceback")


def _says_nothing(_):
    raise cml.ModelError("")


def _spins(_):
    end = time.process_time() + 5
    while time.process_time() < end:
        pass


def _takes(_):
    np.zeros(32 * 2**20, np.uint8)


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        (_raises, "KeyError"),
        (_says_nothing, "without a message"),
        (_spins, "not done after|takes"),
        (_takes, "MiB"),
    ],
)
def test_what_is_no_error_of_ours_is_found(load, problem, tmp_path, monkeypatch, capsys):
    """And written as a folder, with an exit code."""
    monkeypatch.setattr(fuzz_bytes, "SECONDS", 0.1)
    monkeypatch.setattr(fuzz_bytes, "MEGABYTES", 16)
    made = Model("made up", {"m.onnx": b"abc"}, load)
    monkeypatch.setattr(fuzz_bytes, "models", lambda: [made])
    keep = tmp_path / "kept"
    assert fuzz.main(["--bytes", "--cases", "1", "--keep", str(keep)]) == 1
    assert "1 FAILS" in capsys.readouterr().out
    (folder,) = keep.iterdir()
    assert (folder / "m.onnx").read_bytes() == b""
    assert any(word in (folder / "problem.txt").read_text() for word in problem.split("|"))
