"""The faults of ``python -m tests.plant`` fit the tree, and the command detects surviving ones.

A fault that no longer fits must be rewritten in tests/fixtures/faults.py, in the commit that
changed its tokens: tokens that occur in the function exactly once, and a wrong replacement.
"""

import shlex

import pytest

from tests import plant
from tests.fixtures.faults import FAULTS, Fault

COMPARE = "tests/pure/planning/test_compare.py"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_fits(fault):
    assert fault.old != fault.new
    assert len(plant.places(fault)) == 1, "its text has changed: see this file's first lines"
    files = [word for word in shlex.split(fault.tests) if word.startswith("tests/")]
    assert files and all((plant.ROOT / file.split("::")[0]).exists() for file in files)


def test_faults_have_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 40


@pytest.fixture(scope="module")
def tree():
    with plant.copies(1) as free:
        yield free.get()


def test_a_fault_is_noticed_and_taken_back(tree):
    fault = next(f for f in FAULTS if f.name.startswith("compare: whole numbers"))
    file = tree / fault.file
    before = file.read_bytes()
    outcome = plant.judge(fault, tree)
    assert outcome.test.startswith(COMPARE) and not outcome.why
    assert file.read_bytes() == before


def test_what_is_no_fault_survives(tree, monkeypatch):
    harmless = Fault(
        "none", "cml_engine/cpu/compare.py", "Compares arrays", "compares arrays", COMPARE
    )
    assert plant.judge(harmless, tree).why == "no test fails"
    monkeypatch.setattr(plant, "FAULTS", (harmless,))
    monkeypatch.setattr(plant, "campaign", lambda *a: [plant.FaultOutcome(harmless, 0, why="so")])
    assert plant.main([]) == 1 and plant.main(["no such name"]) == 1


def test_what_does_not_start_or_fit_proves_nothing(tree, monkeypatch):
    fault = next(f for f in FAULTS if f.name.startswith("compare: whole numbers"))
    monkeypatch.setattr(plant, "run", lambda tests, root: (2, [], "SyntaxError"))
    assert "do not run" in plant.judge(fault, tree).why
    gone = Fault("g", "cml_engine/cpu/compare.py", "not there", "", COMPARE)
    assert "stand 0 times" in plant.judge(gone, tree).why


def test_a_test_that_fails_without_the_fault_too_proves_nothing(tree, monkeypatch):
    fault = next(f for f in FAULTS if f.name.startswith("compare: whole numbers"))
    found = (1, [f"{COMPARE}::test_always"], "")
    monkeypatch.setattr(plant, "run", lambda tests, root: found)
    monkeypatch.setattr(plant, "copies", lambda count: plant.contextmanager(_one)(tree))
    (outcome,) = plant.campaign([fault], 1)
    assert not outcome.test and "without it too" in outcome.why


def _one(tree):
    free = plant.SimpleQueue()
    free.put(tree)
    yield free
