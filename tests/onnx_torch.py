"""Networks as PyTorch exports them, by both exporters, against ONNX Runtime: a table.

    python -m tests.onnx_torch --python /path/to/another/python --only vit

PyTorch is large, so it may live in an environment of its own: ``--python`` names one that has
torch, onnx and onnxscript. That one writes the files (``tests/fixtures/onnx_torch_models.py``);
this process, which needs onnxruntime, imports and runs them on NumPy and on a GPU.

PASS: both backends agree with ONNX Runtime. UNSUPPORTED: the import refuses the file. NO EXPORT:
PyTorch cannot write it. Anything else is FAIL, and gives exit code 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/onnx_operators.md"
BEGIN, END = "<!-- architectures -->\n", "<!-- end of architectures -->"
#: relative to the largest value
_MOST_APART = 1e-4
_EXPORTERS = ("torchscript", "dynamo")


@dataclass(frozen=True)
class FileOutcome:
    """The outcome of a file: its class, and a note with the difference (PASS) or the reason
    (others)."""

    kind: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.note}".strip()


def export(python: str, folder: Path, only: Sequence[str]) -> dict[str, str]:
    """Exports the networks into the folder; returns the reasons of those that could not be
    written."""
    command = [python, "-m", "tests.fixtures.onnx_torch_models", str(folder), *only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} cannot export:\n{done.stderr[-2000:]}")
    found: dict[str, str] = json.loads((folder / "exports.json").read_text(encoding="utf-8"))
    return found


def judge(folder: Path, why: str, gpu: cml.Gpu | None) -> FileOutcome:
    """Imports one file and compares it with ONNX Runtime."""
    if why:
        return FileOutcome("NO EXPORT", why)
    model, inputs = folder / "m.onnx", dict(np.load(folder / "inputs.npz"))
    wanted = _onnxruntime(model, inputs)
    try:
        graph = cml.load(model, shapes={name: array.shape for name, array in inputs.items()})
    except cml.CmlError as error:
        return FileOutcome("UNSUPPORTED", str(error).splitlines()[-1])
    worst = 0.0
    for backend in ("cpu", *([gpu] if gpu else [])):
        try:
            found = cml.Session(graph, backend).run(inputs)
        except cml.CmlError as error:
            return FileOutcome("FAIL", str(error).splitlines()[0])
        worst = max(worst, *(_apart(found[name], array) for name, array in wanted.items()))
    return FileOutcome("PASS" if worst <= _MOST_APART else "FAIL", f"{worst:.0e}")


def _onnxruntime(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    known = {i.name for i in session.get_inputs()}
    given = {name: array for name, array in inputs.items() if name in known}
    return dict(zip(names, session.run(names, given), strict=True))


def _apart(found: Array, wanted: Array) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-6))


def table(outcomes: Mapping[str, Mapping[str, FileOutcome]]) -> str:
    lines = ["| network | `dynamo=False` | `dynamo=True` |", "|---|---|---|"]
    for name, found in outcomes.items():
        lines.append(f"| {name} | {' | '.join(str(found[e]) for e in _EXPORTERS)} |")
    return "\n".join(lines)


def write(text: str) -> None:
    """Writes the table into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--only", nargs="*", default=[], help="networks by name")
    parser.add_argument("--no-gpu", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder that the files stay in")
    parser.add_argument(
        "--write", action="store_true", help="the table into docs/onnx_operators.md"
    )
    options = parser.parse_args()
    gpu = None if options.no_gpu else cml.Gpu()
    outcomes: dict[str, dict[str, FileOutcome]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for key, why in export(options.python, folder, options.only).items():
            name, exporter = key.rsplit(" ", 1)
            outcome = judge(folder / key.replace(" ", "_"), why, gpu)
            outcomes.setdefault(name, {})[exporter] = outcome
            print(f"{key:40} {outcome}", flush=True)
    if options.write:
        write(table(outcomes))
    return int(any(o.kind == "FAIL" for found in outcomes.values() for o in found.values()))


if __name__ == "__main__":
    sys.exit(main())
