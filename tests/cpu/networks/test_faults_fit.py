"""Tests that the faults of ``python -m tests.plant`` fit.

A fault that no longer fits must be rewritten in tests/fixtures/faults.py, in the commit that
changed its tokens: tokens that occur in the function exactly once, and a wrong replacement.
"""

import shlex

import pytest

from tests import plant
from tests.fixtures.faults import FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_matches_one_place(fault):
    assert fault.old != fault.new
    assert len(plant.places(fault)) == 1, "its text has changed: see this file's first lines"
    files = [word for word in shlex.split(fault.tests) if word.startswith("tests/")]
    assert files and all((plant.ROOT / file.split("::")[0]).exists() for file in files)
