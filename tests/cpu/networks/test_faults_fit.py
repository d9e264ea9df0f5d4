"""Tests that the faults of ``python -m tests.plant`` fit, and that it detects survivors.

A fault that no longer fits must be rewritten in tests/fixtures/faults.py, in the commit that
changed its tokens: tokens that occur in the function exactly once, and a wrong replacement.
"""

import shlex

import pytest

from tests import plant
from tests.fixtures.faults import FAULTS

COMPARE = "tests/pure/planning/test_compare.py"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_matches_one_place(fault):
    assert fault.old != fault.new
    assert len(plant.places(fault)) == 1, "its text has changed: see this file's first lines"
    files = [word for word in shlex.split(fault.tests) if word.startswith("tests/")]
    assert files and all((plant.ROOT / file.split("::")[0]).exists() for file in files)


@pytest.fixture(scope="module")
def tree():
    with plant.copies(1) as free:
        yield free.get()


def test_planted_fault_is_noticed_and_reverted(tree):
    fault = next(f for f in FAULTS if f.name.startswith("compare: whole numbers"))
    file = tree / fault.file
    before = file.read_bytes()
    outcome = plant.judge(fault, tree)
    assert outcome.test.startswith(COMPARE) and not outcome.why
    assert file.read_bytes() == before
