"""Checks thousands of calls of every operator on both backends against the formulas.

    python -m tests.proofs.operator_calls   # some five thousand calls; writes docs/operators.md
    python -m tests.proofs.operator_calls --random 100 --backends cpu --no-write

Every call takes the path of a user: NNEF text in a folder, ``cml.load``, a session, a run. In half
of the runs the operands are weights in files instead of inputs. Exit code 1 if an answer is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cml_engine as cml
from cml_engine.cpu.compare import Comparison
from cml_engine.nnef.expansion.signatures import STDLIB
from cml_engine.ops.declaration.spec import Tolerance
from cml_engine.tools.report.operator_support import (
    OperatorSupport,
    operator_doc,
    operator_support,
)
from tests.fixtures import texts
from tests.proofs.campaign import FAILS, Outcome, run_cases
from tests.proofs.random_calls import random_call
from tests.reference.calls import (
    GRAPH_LEVEL,
    OPERATORS,
    SIGNATURES,
    SampleCall,
    declared_calls,
    judge,
    tolerance_of,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
#: random calls of each operator, besides those of its declaration
RANDOM = 20


@dataclass
class Tally:
    """The results of one operator on one backend: the calls and the descriptions of wrong ones.

    ``worst`` is the largest error as a share of the tolerance.
    """

    cases: int = 0
    worst: float = 0.0
    wrong: list[str] = field(default_factory=list)


def calls_of(op: str, count: int) -> Iterator[SampleCall]:
    """Yields an operator's declared calls, then ``count`` random ones that are the same in every
    run."""
    yield from declared_calls(op)
    for seed in range(count):
        yield random_call(op, 1000 * seed + OPERATORS.index(op))


def prove(op: str, count: int, backend: Any, folder: Path) -> Tally:
    """Runs all calls of an operator on a backend and returns their results, compared with the
    formulas.

    ``count`` is the number of random calls. Every second call has its operands in files.
    """
    tally = Tally()
    if op in GRAPH_LEVEL:
        for seed in range(count):
            pairs = graph_level(op, seed, folder, backend)
            _count(tally, [judge(op, got, right) for got, right in pairs], f"seed {seed}")
        return tally
    for i, call in enumerate(calls_of(op, count)):
        try:
            got = call.run(folder, backend, len(call.answers), fixed=i % 2 == 1)
        except cml.CmlError as error:
            tally.cases += 1
            tally.wrong.append(f"{shown(call)}: {error}")
            continue
        _count(tally, call.verdicts(got), shown(call))
    return tally


def _count(tally: Tally, verdicts: Sequence[Comparison], what: str) -> None:
    tally.cases += 1
    for verdict in verdicts:
        tally.worst = max(tally.worst, verdict.worst)
        if not verdict.ok:
            tally.wrong.append(f"{what}: {verdict.problem}")


def shown(call: SampleCall) -> str:
    shapes = ", ".join(str(list(a.shape)) for a in call.arrays)
    return f"{call.op}({shapes}; {dict(call.attrs)})"


def graph_level(op: str, seed: int, folder: Path, backend: Any) -> list[tuple[Any, Any]]:
    """Runs a random model of ``update``, ``constant``, ``variable`` or ``external``, which have no
    node.

    Returns pairs of a result and the expected value.
    """
    rng = np.random.default_rng(seed)
    shape = rng.integers(seed % 5 > 0, 5, rng.integers(6))
    x = rng.uniform(-2, 2, shape).astype(np.float32)
    if op == "update":
        body = "u = update(s, s + x); y = s * 1.0;"
        texts.write_text(folder, body, {"x": x, "s": 2 * x}, fixed=frozenset("s"))
        session = cml.Session(cml.load(folder), backend)
        return [(session.run({"x": x})["y"], (2 + i) * x) for i in range(3)]
    if op == "constant":
        numbers = ", ".join(repr(float(v)) for v in x.ravel())
        body = f"c = constant<scalar>(shape = {list(x.shape)}, value = [{numbers}]); y = z + c;"
        if not x.size:
            return [(x, x)]
        return [(texts.run_text(folder, body, {"z": np.zeros(x.shape)}, backend)[0], x)]
    x = x.astype((np.float32, np.int32, np.bool_)[seed % 3])
    fixed = frozenset("x") if op == "variable" else frozenset()
    return [(texts.run_text(folder, "y = copy(x);", {"x": x}, backend, fixed=fixed)[0], x)]


def document(tallies: dict[str, dict[str, Tally]], names: dict[str, str]) -> str:
    """Returns the text of ``docs/operators.md`` from the tallies by backend and operator.

    ``names`` has the devices' names by backend.
    """
    support = {row.name: row for row in operator_support()}
    totals = {b: sum(t.cases for t in of.values()) for b, of in tallies.items()}
    wrong = sum(len(t.wrong) for of in tallies.values() for t in of.values())
    fewest = min(t.cases for of in tallies.values() for t in of.values())
    ran = "; ".join(f"{totals[b]} calls on {names[b]}" for b in tallies)
    reasons = list(dict.fromkeys(t.why for op in SIGNATURES if (t := _tolerance(op)) is not None))
    lines = [
        "# Operators",
        "",
        "Written by `python -m tests.proofs.operator_calls`; do not edit. `cml ops NAME` shows an",
        "operator's signature, kernels and limits.",
        "",
        f"{ran}, at least {fewest} of each operator: {wrong} wrong answers.",
        "",
        "A call is a model of one line: text and weights in a folder, loaded, run, and compared",
        "with the operator's formula in double precision (`tests/reference/formulas.py`, which",
        "shares no line with the engine). The calls are those of the declaration and random ones.",
        "The worst error is a share of the tolerance: |got - wanted| <= atol + rtol |wanted|, for",
        "the reason below the tables. Quantising operators and `mod` jump where one of their",
        "roundings decides: there both answers are right, for an operand moved by a millionth.",
        "An operator is *native*, or *expanded* at load; *graph* is no work at run time.",
        "",
    ]
    for title, chosen in (
        ("NNEF 1.0.5", [op for op in SIGNATURES if op in STDLIB.signatures]),
        ("Extensions", [op for op in SIGNATURES if op not in STDLIB.signatures]),
    ):
        lines += [f"## {title}", "", _HEADER, "|---|---|---|--:|---|"]
        lines += [_row(op, support[op], tallies, reasons) for op in chosen]
        lines.append("")
    lines += ["## Tolerances", ""]
    lines += [f"- {_letter(i)}: {why}" for i, why in enumerate(reasons)]
    return "\n".join([*lines, ""])


_HEADER = "| operator | what it computes | runs | worst | rtol, atol |"


def _letter(index: int) -> str:
    """Returns the footnote letter of an index: a to z, then aa to az."""
    return "a" * (index // 26) + chr(ord("a") + index % 26)


def _tolerance(op: str) -> Tolerance | None:
    """Returns an operator's tolerance, or None if its results are exact."""
    if op in GRAPH_LEVEL:
        return None
    found = tolerance_of(op)
    return found if found.rtol or found.atol else None


def _row(
    op: str, support: OperatorSupport, tallies: dict[str, dict[str, Tally]], reasons: list[str]
) -> str:
    alike = support.gpu == support.cpu
    runs = support.gpu if alike else f"{support.gpu}, {support.cpu} on the CPU"
    worst = max(of[op].worst for of in tallies.values())
    found = _tolerance(op)
    near = "exact"
    if found is not None:
        near = f"{found.rtol:.1g}, {found.atol:.1g} ({_letter(reasons.index(found.why))})"
    doc = operator_doc(op).replace("|", "\\|")
    return f"| `{op}` | {doc} | {runs} | {100 * worst:.0f} % | {near} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=RANDOM, help="random calls of each operator")
    parser.add_argument("--backends", nargs="+", choices=("cpu", "gpu"), default=["cpu", "gpu"])
    parser.add_argument("--no-write", action="store_true", help="leave docs/operators.md alone")
    a = parser.parse_args()
    gpu = cml.Gpu() if "gpu" in a.backends else None
    names = {"cpu": "NumPy", "gpu": gpu.name if gpu else ""}
    tallies: dict[str, dict[str, Tally]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for backend in a.backends:
            device = gpu if backend == "gpu" else "cpu"
            tallies[backend] = {op: prove(op, a.random, device, Path(folder)) for op in SIGNATURES}
    if not a.no_write:
        DOCUMENT.write_text(document(tallies, names), encoding="utf-8")
    every = (tally for of in tallies.values() for tally in of.values())
    return run_cases([outcome] for tally in every for outcome in outcomes_of(tally))


def outcomes_of(tally: Tally) -> Iterator[Outcome]:
    yield from ((FAILS, what) for what in tally.wrong)
    yield from (("right", "") for _ in range(tally.cases - len(tally.wrong)))


if __name__ == "__main__":
    sys.exit(main())
