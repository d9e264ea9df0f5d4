"""Tests that passes treat an operator by its declared traits, not by its name."""

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import OperatorError
from cml_engine.ops import load_families
from cml_engine.ops.declaration.spec import Traits

load_families()


def test_game_operator_gets_no_engine_traits():
    cml.unregister("concat")
    try:
        spec = cml.register(cml.OpSpec("concat", infer=cml.same_as(0), cpu=np.concatenate))
        assert spec.traits == Traits()
        with pytest.raises(OperatorError, match="states traits, which are for the engine's own"):
            cml.register(
                cml.OpSpec("mine", infer=cml.same_as(0), cpu=np.abs, traits=Traits(is_sum=True))
            )
    finally:
        cml.unregister("concat")
