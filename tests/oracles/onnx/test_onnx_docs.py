"""What docs/from_pytorch.md shows without PyTorch runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("onnx")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "from_pytorch.md"


def test_the_model_without_pytorch(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    made, run = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1:]
    monkeypatch.chdir(tmp_path)
    exec(compile(made + run, "from_pytorch.md", "exec"), {})
    assert (tmp_path / "enlarge.onnx").exists()


def test_the_model_with_pytorch_is_python():
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    compile(example, "from_pytorch.md", "exec")
