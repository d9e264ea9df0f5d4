"""Tests of the demo's cooked networks: their use, and the command that cooks them in a process."""

import json
import shutil

import pytest

import cml_engine as cml
from cml_engine.demo_game import cooking
from cml_engine.demo_game.chain import MODELS, load_chain
from cml_engine.runtime.session import random_inputs
from tests.fixtures.results import same_bits

pytestmark = pytest.mark.gpu


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for cooked networks that does not exist yet, next to a single small network.

    The demo uses both folders instead of its own.
    """
    shutil.copytree(MODELS / "surface.nnef", tmp_path / "models" / "surface.nnef")
    monkeypatch.setattr(cooking, "MODELS", tmp_path / "models")
    monkeypatch.setattr(cooking, "COOKED", tmp_path / "cooked")
    return tmp_path / "cooked"


def test_cooked_set_is_used_while_it_is_current(folder, monkeypatch, gpu):
    assert cooking.cooked_set() is None
    cooking.make()
    assert cooking.cooked_set() == folder
    ours, cooked = (load_chain(cooked=which).graphs for which in (False, True))
    assert cooked["surface"].cooked_form is not None and ours["surface"].cooked_form is None
    assert cooked["terrain"].cooked_form is None  # it was not cooked here
    sessions = [cml.Session(graphs["surface"], gpu) for graphs in (ours, cooked)]
    inputs = random_inputs(sessions[0].inputs)
    same_bits(*(session.run(inputs) for session in sessions))
    (folder / "surface.cml").write_bytes(b"damaged")
    assert load_chain(cooked=True).graphs["surface"].cooked_form is None
    monkeypatch.setattr(cooking, "_fingerprint", lambda: "something has changed")
    assert cooking.cooked_set() is None
    monkeypatch.setattr(cooking, "_is_checkout", lambda: False)
    assert cooking.cooked_set() == folder  # an installed package does not change


def test_a_checkout_makes_its_set_once_behind_the_first_run(folder, monkeypatch):
    started, messages = [], []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: started.append(command))
    cooking.cook_in_background(messages.append)
    cooking.cook_in_background(messages.append)  # another process builds it already
    assert len(started) == len(messages) == 1 and "in the background" in messages[0]
    monkeypatch.setattr("os.nice", lambda _: 0)
    cooking._start_cooking()
    assert cooking.cooked_set() == folder and not cooking._lock().exists()
    cooking.cook_in_background(messages.append)
    assert len(started) == 1


def test_a_failed_cook_is_not_repeated(folder, monkeypatch):
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setattr(cooking, "make", lambda: cml.load(folder))
    cooking._begin()
    cooking._start_cooking()
    assert "error" in json.loads((folder / "made_of.json").read_text())
    assert cooking.cooked_set() is None
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: started.append(command))
    cooking.cook_in_background(started.append)
    assert started == []


def test_installed_package_does_not_cook(folder, monkeypatch):
    monkeypatch.setattr(cooking, "_is_checkout", lambda: False)
    cooking.cook_in_background(lambda message: pytest.fail(message))
    assert not folder.exists()
