"""Tests that a NaN disturbs the results that depend on it and no others, for every kernel."""

import numpy as np
import pytest

from cml_engine.ops.declaration.choice import VariantTable
from cml_engine.ops.declaration.registry import is_registered, lookup
from tests.proofs.random_calls import samples
from tests.reference.calls import OPERATORS
from tests.reference.reach import check_reach

WITH_KERNELS = [op for op in OPERATORS if not is_registered(op) or lookup(op).kernel is not None]


@pytest.mark.parametrize("op", WITH_KERNELS)
def test_a_nan_reaches_what_the_formula_says(op, tmp_path, rng, gpu):
    with np.errstate(all="ignore"):
        for call in samples(op):
            check_reach(call, gpu, tmp_path, rng)


@pytest.mark.long
@pytest.mark.parametrize("op", ["conv", "deconv"])
def test_a_nan_reaches_the_same_by_every_kernel(op, tmp_path, rng, gpu):
    """A NaN reaches the same results by every kernel but Winograd's (test_winograd.py)."""

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
