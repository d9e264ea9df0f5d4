"""``cml ops``: every operator of NNEF and of the game, and how each backend runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cml_engine.nnef.signatures import standard_fragments
from cml_engine.ops import load_families, registered
from cml_engine.ops.spec import OpSpec

#: consumed by the reader: they become inputs, constants and state of the graph, not nodes
DECLARATIONS = ("external", "variable", "constant", "update")


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """``gpu`` and ``cpu`` say *native*, *expanded*, *graph* (no work at run time) or *refused*;
    ``note`` says why."""

    name: str
    gpu: str
    cpu: str
    note: str = ""


def operator_support() -> Iterator[OperatorSupport]:
    """All standard operators in the standard's order, then those registered beside it."""
    load_families()
    specs = registered()
    fragments = standard_fragments()
    for name, fragment in fragments.items():
        yield _standard(name, specs.get(name), fragment.body is not None)
    for name, spec in specs.items():
        if name not in fragments:
            yield _native(name, spec, "not in NNEF")


def operator_table() -> str:
    """The support of every operator as an aligned table with a summary line."""
    rows = list(operator_support())
    lines = [f"{'operator':32s} {'GPU':9s} {'CPU':9s}"]
    lines += [f"{r.name:32s} {r.gpu:9s} {r.cpu:9s} {r.note}".rstrip() for r in rows]
    runs = sum(r.gpu != "refused" and r.cpu != "refused" for r in rows)
    lines.append(f"{runs} of {len(rows)} operators run on both backends")
    return "\n".join(lines)


def _standard(name: str, spec: OpSpec | None, has_body: bool) -> OperatorSupport:
    if name in DECLARATIONS:
        return OperatorSupport(name, "graph", "graph", "read at load")
    if spec is not None:
        return _native(name, spec)
    if has_body:
        return OperatorSupport(name, "expanded", "expanded", "into other operators, at load")
    return OperatorSupport(name, "refused", "refused", "not implemented yet")


def _native(name: str, spec: OpSpec, note: str = "") -> OperatorSupport:
    if spec.alias:
        return OperatorSupport(name, "graph", "native", note or "an alias: no kernel runs")
    gpu = "native" if spec.kernel else "refused"
    cpu = "native" if spec.cpu else "refused"
    why = "has no HLSL kernel" if not spec.kernel else "" if spec.cpu else "has no CPU function"
    return OperatorSupport(name, gpu, cpu, note or why)
