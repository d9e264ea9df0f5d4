"""Tests of ``cml ops NAME``: every operator has a description and a signature."""

import re

import numpy as np
import pytest

import cml_engine as cml
from cml_engine.nnef.expansion.signatures import EXTENSIONS, STDLIB
from cml_engine.tools.report.operator_support import operator_doc, operator_text
from tests.fixtures.pages import ROOT

PAGE = ROOT / "docs/operators.md"
NAMES = [*STDLIB.fragments, *EXTENSIONS.fragments]


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_has_a_description(name):
    doc = operator_doc(name)
    assert doc.endswith(".") and len(doc) >= 3
    assert "made by the engine" not in doc
    shown = operator_text(name)
    assert f"signature  {name}(" in shown and f"meaning    {doc}" in shown and "runs  " in shown


def test_operators_page_has_the_same_descriptions():
    """docs/operators.md has the same description of every operator as ``cml ops``.

    ``python -m tests.prove`` writes the page.
    """
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| [a-z]", PAGE.read_text("utf-8"), re.MULTILINE))
    assert rows == {name: operator_doc(name).replace("|", "\\|") for name in NAMES}


def test_one_operator_shows_its_attributes_kernels_and_limits(run_cml):
    shown = run_cml("ops conv").out
    assert "attribute  groups: integer, default 1" in shown
    assert "conv/winograd.hlsl" in shown and "agree within" in shown


def test_an_expanded_operator_shows_its_body(run_cml):
    assert "mean, variance = moments(" in run_cml("ops layer_norm").out


def test_an_unknown_operator_has_similar_ones(refused):
    assert "no operator is called 'cnv'; did you mean 'conv'" in refused("ops cnv")


@pytest.mark.parametrize(
    ("doc", "says"), [("Twice the input.", "Twice the input."), ("", "give its cml.OpSpec a doc")]
)
@pytest.mark.usefixtures("own_operators")
def test_game_operator_has_a_description(doc, says):
    cml.register(
        cml.OpSpec(
            "twice",
            cml.same_as(0),
            cpu=lambda attrs, x: np.float32(2) * x,
            signature="fragment twice(x: tensor<scalar>) -> (y: tensor<scalar>)",
            doc=doc,
        )
    )
    shown = operator_text("twice")
    assert f"meaning    {says}" in shown or says in shown
    assert "signature  twice(x: tensor<scalar>)" in shown and "refused on the GPU" in shown
