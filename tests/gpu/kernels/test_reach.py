"""Tests that a NaN disturbs the results that depend on it and no others, for every kernel."""

import numpy as np
import pytest

from cml_engine.ops import is_registered, lookup
from tests.generate import samples
from tests.reference.calls import OPERATORS
from tests.reference.reach import check_reach

WITH_KERNELS = [op for op in OPERATORS if not is_registered(op) or lookup(op).kernel is not None]


@pytest.mark.parametrize("op", WITH_KERNELS)
def test_a_nan_reaches_what_the_formula_says(op, tmp_path, rng, gpu):
    with np.errstate(all="ignore"):
        for call in samples(op):
            check_reach(call, gpu, tmp_path, rng)
