"""Runs ONNX's own backend node tests on the engine.

Every case of floats, integers and truth values ends as one of three: PASS (the results agree within
the case's own tolerance), UNSUPPORTED (the import refuses it, with the operator and the reason),
FAIL (anything else). ``--round-trip`` takes the cases through NNEF and the engine's export to ONNX
Runtime. ``--calls 20`` exports 20 random calls of every operator and runs them in ONNX Runtime.
``--write`` regenerates the tables of docs/onnx_operators.md.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.cpu.compare import compare
from cml_engine.errors import CmlError, NeedsConstant, UnsupportedOp
from cml_engine.errors.arguments import ONNX_OPSET
from cml_engine.formats.onnx.export import onnx_parts
from cml_engine.formats.onnx.export.call import load_export_rules
from cml_engine.formats.onnx.export.game_operators import is_compound
from cml_engine.io import write_atomically
from cml_engine.io.data_folders import cache_folder
from cml_engine.ir.counted import counted_axes, trimmed
from cml_engine.ir.graph import NUMPY_DTYPE, Array, Graph
from cml_engine.ops.declaration.registry import registered
from cml_engine.ops.declaration.spec import Tolerance
from tests.proofs.campaign import FAILS, Outcome, run_cases
from tests.proofs.random_calls import random_call
from tests.reference.calls import GRAPH_LEVEL, OPERATORS, SIGNATURES

#: the supported types of inputs and outputs; other floats are computed in 32 bits
FITTING = frozenset(
    f"tensor({name})"
    for name in (
        *("float", "double", "float16", "bfloat16", "bool"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
#: operators for training or for random numbers: out of scope
LEFT_OUT = re.compile(r"^test_(adagrad|adam|momentum|nesterov|gradient|training|random|bernoulli)")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one of ONNX's cases: PASS, UNSUPPORTED or FAIL, with the reason.

    ``bound`` names the inputs that were given as constants; ``known`` is True if loading
    computed all results.
    """

    name: str
    operator: str
    verdict: str
    reason: str = ""
    bound: tuple[str, ...] = ()
    known: bool = False


@cache
def cases() -> dict[str, Any]:
    """Returns the onnx package's node tests by name, without training, random values and other
    types.

    The package computes them whenever it is asked, so they are kept in the cache folder.
    """
    import onnx

    file = cache_folder() / "tests" / f"onnx-{onnx.__version__}-numpy-{np.__version__}.pickle"
    try:
        found = pickle.loads(file.read_bytes())
    except OSError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from onnx.backend.test.case.node import collect_testcases

            found = collect_testcases(None)
        with suppress(OSError):
            write_atomically(file, pickle.dumps(found))
    return {case.name: case for case in found if _fits(case)}


def _fits(case: Any) -> bool:
    domains = {node.domain for node in case.model.graph.node}
    if LEFT_OUT.match(case.name) or "ai.onnx.preview.training" in domains:
        return False
    return _types(case.model) <= FITTING


def _types(model: Any) -> set[str]:
    import onnx

    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
    found = set()
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.WhichOneof("value")
        element = value.type.tensor_type.elem_type
        found.add(f"tensor({names[element]})" if kind == "tensor_type" else str(kind))
    return found


def with_model(case: Any, model: Any) -> Any:
    """Returns a copy of the case with another model."""
    changed = copy(case)
    changed.model = model
    return changed


def data_sets(case: Any) -> Iterator[tuple[list[Array], list[Array]]]:
    """Yields the inputs and the expected outputs of each of the case's data sets."""
    for inputs, outputs in case.data_sets:
        yield [_array(x) for x in inputs], [_array(y) for y in outputs]


def _array(value: Any) -> Array:
    import onnx

    is_tensor = isinstance(value, onnx.TensorProto)
    array = np.asarray(onnx.numpy_helper.to_array(value) if is_tensor else value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


# -- export to ONNX

_TOLERANCE = Tolerance(0.0, 0.0, "an exported graph rounds in another order", 1e-5)


def exported(graph: Graph, opset: int = 20, **options: Any) -> bytes:
    """Returns the graph as the bytes of an ONNX file; raises an error if onnx's checker rejects
    it."""
    import onnx

    data = b"".join(onnx_parts(graph, opset, **options))
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
        if got[name].dtype != want.dtype:
            return f"'{name}' is {got[name].dtype}, wanted {want.dtype}"
        if problem := compare(got[name], want, _TOLERANCE).problem:
            return f"'{name}': {problem}"
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


# -- the cases

#: runs a graph on a backend with inputs, possibly after a conversion; returns the outputs
Through = Callable[[Graph, Any, Mapping[str, Array]], Mapping[str, Array]]


def directly(graph: Graph, backend: Any, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Runs the imported graph on the backend and returns its outputs by name."""
    return cml.Session(graph, backend).run(inputs)


def round_trip(graph: Graph, backend: Any, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Writes the graph as NNEF, reads it back, exports it to ONNX and returns ONNX Runtime's
    outputs.

    ``backend`` is not used.
    """
    with TemporaryDirectory() as folder:
        cml.save(graph, Path(folder) / "m")
        graph = cml.load(Path(folder) / "m")
    given = {n: np.asarray(inputs[n]).astype(NUMPY_DTYPE[graph.facts[n].dtype])
             for n in graph.inputs}  # fmt: skip
    outputs, axes = run_onnx(exported(graph), given), counted_axes(graph)
    return {name: trimmed(name, array, axes, outputs) for name, array in outputs.items()}


def run_case(case: Any, backend: Any, through: Through = directly) -> Verdict:
    """Runs one case on a backend and returns its verdict."""
    model = case.model
    ops = Counter(node.op_type for node in model.graph.node)
    operator = case.name if not ops else ops.most_common(1)[0][0]
    bound: tuple[str, ...] = ()
    known = False
    try:
        for inputs, expected in data_sets(case):
            got, bound, known = outputs_of(model, inputs, backend, through)
            names = [value.name for value in model.graph.output]
            for name, want in zip(names, expected, strict=True):
                _compare(name, got[name], want, case, _is_bfloat16(model, name))
    except UnsupportedOp as error:
        return Verdict(case.name, operator, "UNSUPPORTED", str(error), bound)
    except (CmlError, AssertionError) as error:
        return Verdict(case.name, operator, "FAIL", f"{type(error).__name__}: {error}", bound)
    except Exception as error:
        return Verdict(
            case.name, operator, "FAIL", f"raised {type(error).__name__}: {error}", bound
        )
    return Verdict(case.name, operator, "PASS", "", bound, known)


def outputs_of(
    model: Any, inputs: Sequence[Array], backend: Any, through: Through = directly
) -> tuple[Mapping[str, Array], tuple[str, ...], bool]:
    """Loads and runs an ONNX model; returns its outputs, the bound inputs, and True if all is
    known.

    Bound inputs are those that had to be given as constants to load the model. All is known if
    loading has computed every result.
    """
    data = model.SerializeToString()
    given = dict(zip([value.name for value in model.graph.input], inputs, strict=False))
    constants: dict[str, Array] = {}
    while True:
        rest = {name: array for name, array in given.items() if name not in constants}
        shapes = {name: array.shape for name, array in rest.items()}
        try:
            with warnings.catch_warnings():  # about integers that are not proven to fit
                warnings.simplefilter("ignore", cml.nnef.NnefWarning)
                graph = cml.load(data, shapes=shapes, constants=constants)
            break
        except NeedsConstant as error:
            new = [name for name in error.inputs if given[name].size <= _BINDABLE]
            if not new or any(given[name].ndim > 1 for name in new):
                raise
            constants |= {name: given[name] for name in new}
    nothing = all(node.op == "copy" for node in graph.nodes)
    return through(graph, backend, rest), tuple(constants), nothing


#: an input of rank 0 or 1 with at most this many elements (a shape, axes, scales) is bound as a
#: constant if the import needs its value
_BINDABLE = 64


def _is_bfloat16(model: Any, name: str) -> bool:
    """Returns True if the output is of type bfloat16, which NumPy lacks."""
    found = next(value for value in model.graph.output if value.name == name)
    return bool(found.type.tensor_type.elem_type == 16)


def _compare(name: str, have: Array, want: Array, case: Any, is_bfloat16: bool) -> None:
    assert have.shape == want.shape, f"'{name}' has the shape {have.shape}, wanted {want.shape}"
    if want.dtype.kind == "f":
        # a result of fewer bits was rounded at every step, ours is computed in 32
        eps = 2**-7 if is_bfloat16 else float(np.finfo(want.dtype).eps)
        rtol, expected = max(case.rtol, 4 * eps), want.astype(np.float64)
        np.testing.assert_allclose(
            have.astype(np.float64), expected, rtol, max(case.atol, 1e-6), err_msg=name
        )
    else:
        np.testing.assert_array_equal(have.astype(want.dtype), want, err_msg=name)


def run(
    backend: Any,
    names: Sequence[str] | None = None,
    through: Through = directly,
) -> list[Verdict]:
    """Runs the cases with these names, or all, and returns their verdicts in order."""
    found = cases()
    expected = found if names is None else names
    return [run_case(found[name], backend, through) for name in expected]


# -- the tables of docs/onnx_operators.md

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx_operators.md"
MARK = "<!-- {} -->"


def operator_table() -> str:
    """Returns the importer's operators as a Markdown table.

    Ranges of opsets in which an operator becomes the same share a row.
    """
    from cml_engine.formats.onnx import operators  # noqa: F401
    from cml_engine.formats.onnx.counted_statements import MEANINGS, STATEMENTS
    from cml_engine.formats.onnx.op_schemas import all_schemas

    lines = [f"- {word}: {meaning}" for word, meaning in MEANINGS.items()]
    lines += ["", "| operator | opsets | becomes | counted axes |", "|---|---|---|---|"]
    opsets: dict[tuple[str, str, str], list[str]] = {}
    for r in all_schemas():
        counted = STATEMENTS.get(r.name, "")
        opsets.setdefault((r.qualified, r.nnef, counted), []).append(r.opsets)
    for (name, nnef, counted), ranges in opsets.items():
        lines.append(f"| {name} | {', '.join(ranges)} | {nnef} | {counted} |")
    return "\n".join(lines)


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
    assert op not in registered() or is_compound(op), f"{op} has no ONNX form"
    return EXPANDED


def export_table() -> str:
    """Returns Markdown with each operator of NNEF and of the extensions: lists of those that need
    no explanation, and a table."""
    listed: dict[str, list[str]] = {GRAPH: [], EXPANDED: [], _ALIKE: []}
    rows = []
    for op in SIGNATURES:
        row = load_export_rules().get(op)
        since = f"; from opset {row.since} on" if row and row.since > ONNX_OPSET.low else ""
        is_alike = row and row.onnx.lower() == f"`{op.replace('_', '')}`" and not since
        if row and not is_alike:
            rows.append(f"| `{op}` | {class_of(op)} | {row.onnx}{since} |")
        else:
            listed[_ALIKE if is_alike else class_of(op)].append(f"`{op}`")
    lines = [f"- {_LISTED[name]}: {', '.join(ops)}" for name, ops in listed.items()]
    return "\n".join([*lines, "", "| operator | written as | of |", "|---|---|---|", *rows])


_ALIKE = "alike"
_LISTED = {
    GRAPH: "inputs, initializers and state",
    EXPANDED: "written as what they are made of",
    _ALIKE: "the ONNX operator of the same name",
}


def conformance(verdicts: Sequence[Verdict]) -> str:
    """Returns a Markdown summary: the number of passing cases, and a table of the unsupported
    ones."""
    counts = Counter(v.verdict for v in verdicts)
    share = 100 * counts["PASS"] / len(verdicts)
    by_operator: dict[str, list[str]] = {}
    for v in verdicts:
        if v.verdict == "UNSUPPORTED":
            by_operator.setdefault(v.operator, []).append(v.name.removeprefix("test_"))
    bound = Counter(v.operator for v in verdicts if v.bound and v.verdict == "PASS")
    listed = ", ".join(f"{name} {n}" for name, n in sorted(bound.items()))
    lines = [
        f"Of {len(verdicts)} cases {counts['PASS']} pass ({share:.1f} %), {counts['FAIL']} fail, "
        f"{counts['UNSUPPORTED']} are unsupported, on NumPy and on a GPU alike.",
        "",
        f"In {sum(bound.values())} of those that pass an input was given as a constant: {listed}.",
        f"In {sum(v.known for v in verdicts)} everything is known when the model is loaded.",
        "",
        "| unsupported | cases |",
        "|---|---|",
        *(f"| {op} | {', '.join(names)} |" for op, names in sorted(by_operator.items())),
    ]
    return "\n".join(lines)


def page(parts: Mapping[str, str], text: str) -> str:
    """Returns the page's ``text`` with new parts; a part stands between its mark and the next
    heading.

    ``parts`` has the new parts by the names in their marks.
    """
    for name, made in parts.items():
        first, mark, rest = text.partition(MARK.format(name))
        _, heading, rest = rest.partition("\n## ")
        text = f"{first}{mark}\n\n{made}\n{heading}{rest}"
    return text


def write() -> int:
    """Runs every case on the CPU and on the GPU and updates docs/onnx_operators.md; returns 0.

    If a case fails or the backends differ, it prints them instead, writes nothing and returns 1.
    """
    verdicts, on_gpu = run("cpu"), run(cml.Gpu())
    differ = [
        f"{a}, but {b}" for a, b in zip(verdicts, on_gpu, strict=True) if a.verdict != b.verdict
    ]
    failed = [str(v) for v in (*verdicts, *on_gpu) if v.verdict == "FAIL"]
    if differ or failed:
        print("\n".join([*differ, *failed]))
        return 1
    text = PAGE.read_text(encoding="utf-8")
    parts = {
        "conformance": conformance(verdicts),
        "operators": operator_table(),
        "export": export_table(),
    }
    PAGE.write_text(page(parts, text), encoding="utf-8")
    return 0


def run_call(op: str, seed: int) -> list[Outcome]:
    """Exports and runs a random call of an operator; returns the outcome, none if it has no form.

    A call is wrong if both ONNX Runtime and ONNX's own evaluator disagree with the engine, because
    each of them has faults.
    """
    call = random_call(op, seed)
    with TemporaryDirectory() as folder:
        graph = cml.load(call.write(Path(folder)))
    try:
        data = exported(graph)
    except UnsupportedOp:
        return []
    expected = on_cpu(graph, call.inputs)
    try:
        found = difference(run_onnx(data, call.inputs), expected)
    except Exception as error:  # of any kind: ONNX Runtime refuses the call
        found = str(error)
    if found and difference(reference(data, call.inputs), expected):
        return [(FAILS, f"{op} {seed} {dict(call.attrs)}: {found}")]
    return [("agree", "")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.onnx_nodes", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--verbose", action="store_true", help="say every case that does not pass")
    parser.add_argument(
        "--write", action="store_true", help="both backends, and docs/onnx_operators.md"
    )
    parser.add_argument(
        "--round-trip", action="store_true", help="through NNEF and back, in ONNX Runtime"
    )
    parser.add_argument("--calls", type=int, metavar="N", help="N random calls of every operator")
    a = parser.parse_args(argv)
    if a.write:
        return write()
    if a.calls:
        return run_cases(run_call(op, seed) for op, seed in product(OPERATORS, range(a.calls)))
    backend = cml.Gpu() if a.backend == "gpu" else "cpu"
    through = round_trip if a.round_trip else directly
    found = [case for name, case in cases().items() if a.match in name]
    return run_cases(outcomes_of(run_case(case, backend, through), a.verbose) for case in found)


def outcomes_of(v: Verdict, verbose: bool) -> list[Outcome]:
    """Returns the outcome of a case; with ``verbose`` one that is unsupported is printed, too."""
    said = f"{v.name}: {' '.join(v.reason.split())[:300]}"
    if verbose and v.verdict == "UNSUPPORTED":
        print(f"{v.verdict} {said}")
    return [(FAILS if v.verdict == "FAIL" else v.verdict, said)]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
