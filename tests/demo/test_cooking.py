"""Tests of the demo's cooked networks and their use."""

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


def test_a_package_uses_its_cooked_networks(folder, monkeypatch, gpu):
    monkeypatch.setattr(cooking, "_is_checkout", lambda: False)
    assert cooking.cooked_set() is None
    folder.mkdir()
    (folder / "old.cml").touch()
    cooking.make()
    assert cooking.cooked_set() == folder
    assert [path.name for path in folder.iterdir()] == ["surface.cml"]
    ours, cooked = (load_chain(cooked=which).graphs for which in (False, True))
    assert cooked["surface"].cooked_form is not None and ours["surface"].cooked_form is None
    assert cooked["terrain"].cooked_form is None  # it was not cooked here
    sessions = [cml.Session(graphs["surface"], gpu) for graphs in (ours, cooked)]
    inputs = random_inputs(sessions[0].inputs)
    same_bits(*(session.run(inputs) for session in sessions))
    (folder / "surface.cml").write_bytes(b"damaged")
    assert load_chain(cooked=True).graphs["surface"].cooked_form is None


def test_a_checkout_does_not_use_cooked_networks(folder):
    """A checkout ignores cooked networks, because its models and kernels may have changed since."""
    cooking.make()
    assert cooking.cooked_set() is None
