"""Random ONNX graphs on the engine and on ONNX Runtime."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests import onnx_graphs


def test_random_graphs():
    grown = [onnx_graphs.compare(seed) for seed in range(40)]
    rows = sum((g.rows for g in grown), Counter[str]())
    assert sum(rows.values()) > 200 and len(rows) > 90


def test_a_difference_is_seen(monkeypatch):
    """Some graph differs if products are replaced by sums."""
    from cml_engine.formats.onnx.call import OnnxCall

    real = OnnxCall.op

    def wrong(self, op, *inputs, **attrs):
        return real(self, "add" if op == "mul" else op, *inputs, **attrs)

    monkeypatch.setattr(OnnxCall, "op", wrong)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(40):
            onnx_graphs.compare(seed)
