"""Tests that the faults of ``python -m tests.proofs.plant`` fit.

A fault that no longer fits must be rewritten in tests/fixtures/faults.py, in the commit that
changed its tokens, or the names of its tests: tokens that occur in the function exactly once, a
wrong replacement, and arguments of pytest that select a test.
"""

import argparse
import ast
import shlex
from functools import cache

import pytest

from cml_engine.ops.declaration.registry import load_families, registered
from tests.fixtures.faults import FAULTS
from tests.proofs import plant


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_matches_one_place(fault):
    assert fault.old != fault.new
    assert len(plant.places(fault)) == 1, "its text has changed: see this file's first lines"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_selects_a_test(fault):
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    parser.add_argument("-k", default="", dest="expression")
    chosen = parser.parse_args(shlex.split(fault.tests))
    for path in chosen.paths:
        assert selects(path, chosen.expression), f"no test in {path} has this name"


def selects(path, expression):
    """Returns True if a test in the file or folder may match an expression of ``pytest -k``."""
    alternatives = [part.split(" and ") for part in expression.split(" or ")]
    return any(
        any(all(word in names for word in words) for words in alternatives)
        for file in files_of(path)
        for names in names_of_tests(file)
    )


def files_of(path):
    place = plant.ROOT / path
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


@cache
def names_of_tests(file):
    """Returns a text for each test of a file: its name, and what the ids of its cases come from.

    These are its decorators, the constants that they name, and the declared cases of operators.
    """
    module = ast.parse(file.read_text(encoding="utf-8"))
    constants = {
        target.id: ast.unparse(statement)
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return [_names_of(test, constants) for test in tests if test.name.startswith("test_")]


def _names_of(test, constants):
    text = test.name
    for node in (node for decorator in test.decorator_list for node in ast.walk(decorator)):
        if isinstance(node, ast.Constant):
            text += f" {node.value}"
        elif isinstance(node, ast.Name):
            text += f" {node.id} {constants.get(node.id, '')}"
    return text + (cases_of_operators() if ".cases" in text or "OPERATORS" in text else "")


@cache
def cases_of_operators():
    load_families()
    cases = [(name, case.note) for name, spec in registered().items() for case in spec.cases]
    return " ".join(f"[{name}-{note}]".replace(" ", "_") for name, note in cases)


def test_a_name_that_no_test_has_selects_none():
    assert selects("tests/operators/test_operators.py", "conv and depthwise")
    assert not selects("tests/operators/test_operators.py", "conv and no_such_case")
    assert not selects("tests/operators/test_blas.py", "relu")
