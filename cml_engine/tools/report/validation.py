"""The result of ``cml validate``: the GPU compared with NumPy, by operator name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cml_engine.ir.graph import Node

if TYPE_CHECKING:
    from cml_engine.runtime.node_check import NodeCheck


@dataclass(frozen=True, slots=True)
class OpVerdict:
    """The result for all nodes of one operator name: their number and errors, and if they pass."""

    op: str
    count: int
    worst: float
    max_abs: float
    ok: bool
    note: str


@dataclass(frozen=True)
class Validation:
    """The results by operator name; ``first`` describes the first node that diverges, or is ""."""

    model: str
    device: str
    verdicts: tuple[OpVerdict, ...]
    first: str

    @property
    def ok(self) -> bool:
        return not self.first

    @classmethod
    def of(cls, model: str, device: str, checks: Iterable[NodeCheck]) -> Validation:
        by_op: dict[str, list[NodeCheck]] = {}
        first = ""
        for check in checks:
            by_op.setdefault(check.node.full_op, []).append(check)
            if not check.ok and not first:
                assert check.comparison is not None
                first = f"{_place(check.node)}{check.node.title}: {check.comparison.problem}"
        verdicts = tuple(_verdict(op, found) for op, found in by_op.items())
        return cls(model, device, verdicts, first)

    def __str__(self) -> str:
        lines = [
            f"GPU ({self.device}) against NumPy, each operator on the GPU's own inputs",
            f"{'operator':28s} {'count':>6s} {'max error':>12s} {'of tolerance':>13s}  verdict",
        ]
        for v in self.verdicts:
            verdict = ("ok" if v.ok else "DIVERGES") + (f" ({v.note})" if v.note else "")
            lines.append(
                f"{v.op:28s} {v.count:6d} {v.max_abs:12.3e} {100 * v.worst:11.1f} %  {verdict}"
            )
        lines.append(f"first divergence: {self.first}" if self.first else "all operators agree")
        return "\n".join(lines)


def _verdict(op: str, checks: list[NodeCheck]) -> OpVerdict:
    compared = [c.comparison for c in checks if c.comparison is not None]
    return OpVerdict(
        op=op,
        count=len(checks),
        worst=max((c.worst for c in compared), default=0.0),
        max_abs=max((c.max_abs for c in compared), default=0.0),
        ok=all(c.ok for c in checks),
        note=next((c.skipped for c in checks if c.skipped), ""),
    )


def _place(node: Node) -> str:
    return f"{node.source}: " if node.source else ""
