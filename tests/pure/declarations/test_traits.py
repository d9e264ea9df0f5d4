"""Tests that passes read the declared traits of operators instead of comparing names."""

import ast
from pathlib import Path

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.errors import OperatorError
from cml_engine.ops import load_families, registered
from cml_engine.ops.declaration.traits import Traits

load_families()
ROOT = Path(__file__).resolve().parents[3] / "cml_engine"
#: the operators that a pass may name, and the reason
NAMED = {
    "passes/bypass.py": (
        {"copy", "pad", "mul", "transpose", "reshape"},
        "each rule says when that operator changes nothing",
    ),
    "passes/expand_normalization.py": (
        {"batch_normalization", "sqrt", "add", "sub", "mul", "div"},
        "one operator is written as others",
    ),
    "passes/fold_affine.py": (
        {"batch_normalization", "add", "sub", "mul", "div"},
        "what each of them is as a factor and an offset",
    ),
    "passes/fold_padding.py": ({"pad", "conv"}, "one becomes an attribute of the other"),
    "passes/group_normalization.py": (
        {
            "reshape",
            "moments",
            "batch_normalization",
            "mul",
            "add",
            "sub",
            "sqr",
            "mean_reduce",
            "tile",
        },
        "the operators that exporters write it as, and those that it becomes",
    ),
    "planning/bands/graph_rows.py": ({"slice", "concat"}, "bands are cut out and joined by them"),
    "passes/sink_transposes.py": ({"transpose"}, "the operator that moves"),
}


def names_in(source: str) -> set[str]:
    texts = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    return {text for text in texts if isinstance(text, str)} & set(registered())


@pytest.mark.parametrize("folder", ["passes", "planning", "backends", "gpu"])
def test_passes_name_only_the_operators_that_they_are_about(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        found = names_in(path.read_text(encoding="utf-8"))
        allowed, _ = NAMED.get(path.relative_to(ROOT).as_posix(), (set(), ""))
        assert found == allowed, path


def test_a_name_is_found():
    assert names_in("RULES = {'conv': 1, 'relo': 2}\nif op in ('stack',): pass") == {
        "conv",
        "stack",
    }


def test_a_games_operator_has_no_traits_of_ours():
    cml.unregister("concat")
    try:
        spec = cml.register(cml.OpSpec("concat", infer=cml.same_as(0), cpu=np.concatenate))
        assert spec.traits == Traits()
        with pytest.raises(OperatorError, match="states traits, which are for the engine's own"):
            cml.register(
                cml.OpSpec("mine", infer=cml.same_as(0), cpu=np.abs, traits=Traits(adds=True))
            )
    finally:
        cml.unregister("concat")
