"""The results of ``cml validate``: GPU against NumPy, and the errors of 16-bit storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cml_engine.ir.graph import Graph, Node

if TYPE_CHECKING:
    from cml_engine.runtime.node_check import MeasuredErrors, NodeCheck, StorageError

_MULTIPLIED = "outputs on the GPU, convolutions multiplied in 16 bits (--half-arithmetic)"
_UNKNOWN = "outputs: not known to NumPy, for an operator before them has no CPU function"


@dataclass(frozen=True)
class Validation:
    """The checks of all nodes by operator name; ``first`` describes the first node that diverges.

    It is "" if none does.
    """

    device: str
    checks: dict[str, list[NodeCheck]]
    first: str

    @property
    def ok(self) -> bool:
        return not self.first

    @classmethod
    def of(cls, device: str, checks: Iterable[NodeCheck]) -> Validation:
        by_op: dict[str, list[NodeCheck]] = {}
        first = ""
        for check in checks:
            by_op.setdefault(check.node.full_op, []).append(check)
            if check.comparison is not None and not check.ok and not first:
                first = f"{_place(check.node)}{check.node.title}: {check.comparison.problem}"
                first += f"\n{check.advice}" if check.advice else ""
        return cls(device, by_op, first)

    def __str__(self) -> str:
        lines = [
            f"GPU ({self.device}) against NumPy, each operator on the GPU's own inputs",
            f"{'operator':28s} {'count':>6s} {'max error':>12s} {'of tolerance':>13s}  verdict",
        ]
        for op, checks in self.checks.items():
            compared = [c.comparison for c in checks if c.comparison is not None]
            largest = max((c.max_abs for c in compared), default=0.0)
            worst = max((c.worst for c in compared), default=0.0)
            note = next((f" ({c.skipped})" for c in checks if c.skipped), "")
            verdict = "ok" if all(c.ok for c in checks) else "DIVERGES"
            lines.append(
                f"{op:28s} {len(checks):6d} {largest:12.3e} {100 * worst:11.1f} %  {verdict}{note}"
            )
        lines.append(f"first divergence: {self.first}" if self.first else "all operators agree")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The largest and root-mean-square error, relative to the largest value of the tensor.

    A row is about all nodes of one operator name, or about one output.
    """

    name: str
    count: int
    largest: float
    rms: float
    where: str

    @classmethod
    def of(cls, name: str, errors: Sequence[StorageError]) -> ErrorRow:
        worst = max(errors, key=lambda e: e.largest)
        rms = max(e.rms for e in errors)
        return cls(name, len(errors), worst.largest, rms, worst.node.title)

    def __str__(self) -> str:
        return (
            f"{self.name:28s} {self.count:6d} {self.largest:10.2e} {self.rms:10.2e}  {self.where}"
        )


@dataclass(frozen=True)
class StorageReport:
    """The errors of 16-bit storage by operator and output, in NumPy and on the GPU (``measured``),
    and those of 16-bit arithmetic on the GPU (``multiplied``), not measured for ``why_not``.

    ``overflow`` describes the first value that 16 bits cannot hold, and ``overflown`` the first
    output with a product that they cannot hold; each is empty if there is none.
    """

    operators: tuple[ErrorRow, ...]
    outputs: tuple[ErrorRow, ...]
    measured: tuple[ErrorRow, ...]
    multiplied: tuple[ErrorRow, ...]
    why_not: str
    overflow: str
    overflown: str

    @property
    def ok(self) -> bool:
        return not self.overflow

    @classmethod
    def of(
        cls, graph: Graph, errors: Iterable[StorageError], measured: MeasuredErrors | None = None
    ) -> StorageReport:
        """Returns the report of all tensors' ``errors`` and the outputs' ``measured`` errors."""
        by_op: dict[str, list[StorageError]] = {}
        by_tensor: dict[str, StorageError] = {}
        overflow = ""
        for error in errors:
            node = error.node
            by_op.setdefault(node.full_op, []).append(error)
            by_tensor[error.tensor] = error
            if error.overflow and not overflow:
                overflow = (
                    f"{_place(node)}{node.title}: values reach {error.overflow:.6g}, 16 bits hold "
                    "65504 at most. Keep 32 bits, or scale the weights before it"
                )
        return cls(
            tuple(ErrorRow.of(op, rows) for op, rows in by_op.items()),
            tuple(
                ErrorRow.of(name, [by_tensor[name]]) for name in graph.outputs if name in by_tensor
            ),
            _output_rows(measured.stored if measured else ()),
            _output_rows(multiplied := measured.multiplied if measured else []),
            measured.why_not if measured else "",
            overflow,
            next((error.tensor for error in multiplied if error.overflow), ""),
        )

    def __str__(self) -> str:
        lines = [
            "16-bit storage against 32 bits, by NumPy: errors over the largest value of a tensor, "
            "which grow from operator to operator",
            f"{'operator':28s} {'count':>6s} {'largest':>10s} {'rms':>10s}  largest at",
            *map(str, self.operators),
            *(["outputs", *map(str, self.outputs)] if self.outputs else [_UNKNOWN]),
            *(["outputs on the GPU", *map(str, self.measured)] if self.measured else []),
            *([_MULTIPLIED, *map(str, self.multiplied)] if self.multiplied else []),
        ]
        if self.why_not:
            lines.append(f"{_MULTIPLIED}: not measured: {self.why_not}")
        if self.overflow:
            lines.append(f"first value too large for 16 bits: {self.overflow}")
        if self.overflown:
            lines.append(
                f"multiplied in 16 bits, output '{self.overflown}' is not finite: a product or a "
                "transformed input exceeds 65504. Multiply in 32 bits (leave --half-arithmetic "
                "out), or scale the weights"
            )
        return "\n".join(lines)


def _output_rows(errors: Iterable[StorageError]) -> tuple[ErrorRow, ...]:
    return tuple(ErrorRow.of(error.tensor, [error]) for error in errors)


def _place(node: Node) -> str:
    return f"{node.source}: " if node.source else ""
