"""Tests that docs/onnx_operators.md lists the operators of the importer and of the exporter."""

from collections import Counter

from tests import onnx_nodes
from tests.reference.calls import SIGNATURES


def test_the_table_of_operators_is_that_of_the_importer():
    text = onnx_nodes.PAGE.read_text(encoding="utf-8")
    assert onnx_nodes.operator_table() in text, "run python -m tests.onnx_nodes --write"
    assert onnx_nodes.operator_table().count("\n") > 200


def test_the_table_of_operators_is_that_of_the_exporter():
    text = onnx_nodes.PAGE.read_text(encoding="utf-8")
    assert onnx_nodes.export_table() in text, "run python -m tests.onnx_nodes --write"
    assert Counter(map(onnx_nodes.class_of, SIGNATURES)) == {
        onnx_nodes.EXPORTED: 115,
        onnx_nodes.FUNCTION: 22,
        onnx_nodes.EXPANDED: 45,
        onnx_nodes.GRAPH: 4,
    }
