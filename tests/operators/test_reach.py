"""Tests that a NaN disturbs the results that depend on it and no others, for every operator.

The operators run in NumPy, and as kernels.
"""

import numpy as np
import pytest

from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.registry import is_registered, lookup
from tests.proofs.random_calls import samples
from tests.reference.calls import OPERATORS, SampleCall
from tests.reference.reach import check_reach, problems, reach

WITH_KERNELS = [op for op in OPERATORS if not is_registered(op) or lookup(op).kernel is not None]


@pytest.mark.parametrize("op", OPERATORS)
def test_a_nan_reaches_what_the_formula_says(op, tmp_path, rng):
    with np.errstate(all="ignore"):
        for call in samples(op):
            check_reach(call, "cpu", tmp_path, rng)


def test_a_wider_and_a_narrower_reach_are_noticed():
    """The judge notices a result that a NaN must not change, and one that it must."""
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 1, 3, 4)
    call = SampleCall("conv", (x, np.float32([[[[0.5, 1, -2]]]]), np.float32(0.25)))
    ((may, must),) = reach(call, 0, 1)
    assert np.flatnonzero(may).tolist() == np.flatnonzero(must).tolist() == [0, 1, 2]
    for reached, count in (([0, 1, 2], 0), ([0, 1, 2, 3], 1), ([0, 1], 1), ([4], 1)):

        def run(other, reached=reached):
            found = np.zeros(12)
            if np.isnan(other.arrays[0]).any():
                found[reached] = np.nan
            return [found.reshape(x.shape)]

        assert len(problems(call, 0, 1, run)) == count, reached


@pytest.mark.parametrize("op", WITH_KERNELS)
def test_a_nan_reaches_the_same_by_kernels(op, tmp_path, rng, gpu):
    with np.errstate(all="ignore"):
        for call in samples(op):
            check_reach(call, gpu, tmp_path, rng)


@pytest.mark.long
@pytest.mark.parametrize("op", ["conv", "deconv"])
def test_a_nan_reaches_the_same_by_every_variant(op, tmp_path, rng, gpu):
    """A NaN reaches the same results by every variant but Winograd's (test_winograd.py)."""

    def tables(session):
        return [
            VariantTable.forcing(choice.key, option)
            for choice in session.plan.choices
            for option in choice.options
            if not option.startswith("winograd")
        ]

    with np.errstate(all="ignore"):
        for call in samples(op):
            check_reach(call, gpu, tmp_path, rng, tables)
