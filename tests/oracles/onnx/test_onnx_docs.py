"""The examples without PyTorch in docs/your_model.md run; the one with PyTorch compiles."""

import re
from pathlib import Path

import pytest

pytest.importorskip("onnx")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "your_model.md"


def test_the_model_without_pytorch(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (made,) = (code for code in found if "onnx.save(" in code)
    (run,) = (code for code in found if "assert outputs" in code)
    monkeypatch.chdir(tmp_path)
    exec(compile(made + run, "your_model.md", "exec"), {})
    assert (tmp_path / "enlarge.onnx").exists()


def test_the_model_with_pytorch_is_python():
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (code for code in found if "torch.onnx.export(" in code)
    compile(example, "your_model.md", "exec")
