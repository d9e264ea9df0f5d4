"""Exports the engine's models to ONNX, checks them, runs them in ONNX Runtime and reads them back.

``python -m tests.onnx_export`` writes the table of operators into docs/onnx_operators.md; with
``--calls 20`` it makes 20 random calls of every operator. The declared cases are in
tests/oracles/onnx/test_onnx_export.py; ``python -m tests.onnx_nodes --round-trip`` takes ONNX's own
cases through NNEF and back.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.errors import UnsupportedOp
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.onnx.export import onnx_parts
from cml_engine.formats.onnx.export.operators import load_export_rules
from cml_engine.ir.graph import NUMPY_DTYPE, Graph
from cml_engine.ops import registered
from tests.generate import random_call
from tests.reference.calls import GRAPH_LEVEL, OPERATORS, SIGNATURES

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5


def exported(graph: Graph, opset: int = 20) -> bytes:
    """Returns the graph as the bytes of an ONNX file; raises an error if onnx's checker rejects
    it."""
    import onnx

    data = b"".join(onnx_parts(graph, opset))
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    return data


def run_onnx(data: bytes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs of an ONNX file by name, from ONNX Runtime without graph
    optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def reference(data: bytes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs of an ONNX file by name, from the onnx package's reference evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_from_string(data))
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))


def difference(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> str:
    """Returns the first difference of two sets of outputs in words; "" if they agree.

    Floats may differ by 1e-5 of the largest value. The order of the names must be the same.
    """
    if list(got) != list(wanted):
        return f"outputs are {list(got)}, wanted {list(wanted)}"
    for name, want in wanted.items():
        have = got[name]
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            return f"'{name}' is {have.dtype}{have.shape}, wanted {want.dtype}{want.shape}"
        if want.dtype != np.float32:
            if not np.array_equal(have, want):
                return f"'{name}' is {have.reshape(-1)[:8]}, wanted {want.reshape(-1)[:8]}"
            continue
        finite = np.isfinite(want)
        if not np.array_equal(have[~finite], want[~finite], equal_nan=True):
            return f"'{name}' has {have[~finite][:8]}, wanted {want[~finite][:8]}"
        worst = np.abs(have[finite].astype(np.float64) - want[finite]).max(initial=0)
        if not worst <= TOLERANCE * np.abs(want[finite]).max(initial=0):
            return f"'{name}' is off by {worst:.3g}"
    return ""


def on_cpu(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the engine's outputs on the CPU by name, in the graph's order."""
    with np.errstate(all="ignore"):
        found = cml.Session(graph, "cpu").run(dict(inputs))
    return {name: found[name] for name in graph.outputs}


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Returns random values for a graph's inputs: floats from 0 to 1, integers 0 to 2, or truth
    values."""
    random = np.random.default_rng(seed)
    return {
        name: (random.random(fact.shape) * (1 if fact.dtype == "scalar" else 3)).astype(
            NUMPY_DTYPE[fact.dtype]
        )
        for name, fact in ((name, graph.facts[name]) for name in graph.inputs)
    }


# -- the table of docs/onnx_operators.md

EXPORTED, FUNCTION, EXPANDED, GRAPH = "operators", "function", "expanded", "graph"


def class_of(op: str) -> str:
    """Returns the way in which an operator is exported, such as :data:`FUNCTION`.

    Raises ``AssertionError`` if none is defined.
    """
    if op in GRAPH_LEVEL:
        return GRAPH
    row = load_export_rules().get(op)
    if row is not None:
        return FUNCTION if row.function else EXPORTED
    assert op not in registered(), f"{op} has no ONNX form"
    return EXPANDED


def export_table() -> str:
    """Returns a Markdown table with a row for each operator of NNEF and of the extensions."""
    lines = ["| operator | written as | of |", "|---|---|---|"]
    for op in SIGNATURES:
        row = load_export_rules().get(op)
        since = f"; from opset {row.since} on" if row and row.since > ONNX_OPSET.low else ""
        made = f"{row.onnx}{since}" if row else _UNROWED[class_of(op)]
        lines.append(f"| `{op}` | {class_of(op)} | {made} |")
    return "\n".join(lines)


_UNROWED = {GRAPH: "inputs, initializers, state", EXPANDED: "what it is made of"}


# -- random calls --------------------------------------------------------------------------------


def random_calls(count: int) -> int:
    """Exports and runs ``count`` random calls of each operator; returns the number of wrong ones.

    A call is wrong if both ONNX Runtime and ONNX's own evaluator disagree with the engine, because
    each of them has faults.
    """
    wrong = 0
    for op, seed in product(OPERATORS, range(count)):
        call = random_call(op, seed)
        with TemporaryDirectory() as folder:
            graph = cml.load(call.write(Path(folder)))
        try:
            data = exported(graph)
        except UnsupportedOp:
            continue
        wanted = on_cpu(graph, call.inputs)
        try:
            found = difference(run_onnx(data, call.inputs), wanted)
        except Exception as error:  # of any kind: ONNX Runtime refuses the call
            found = str(error)
        if found and difference(reference(data, call.inputs), wanted):
            wrong += 1
            print(f"{op} {seed} {dict(call.attrs)}: {found}")  # noqa: T201
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_export", description=__doc__)
    parser.add_argument("--calls", type=int, metavar="N", help="N random calls of every operator")
    a = parser.parse_args(argv)
    if a.calls:
        return 1 if random_calls(a.calls) else 0
    from tests.onnx_nodes import PAGE, page

    text = PAGE.read_text(encoding="utf-8")
    Path(PAGE).write_text(page({"export": export_table()}, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
