"""The errors that 16-bit storage causes in a network, for ``cml validate --half``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cml_engine.ir.graph import Graph, Node

if TYPE_CHECKING:
    from cml_engine.runtime.node_check import StorageError


_UNKNOWN = "outputs: not known to NumPy, for an operator before them has no CPU function"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The largest and root-mean-square error, relative to the largest value of the tensor.

    A row is about the worst node of one operator name, or about one output.
    """

    name: str
    count: int
    largest: float
    rms: float
    where: str


@dataclass(frozen=True)
class StorageReport:
    """The errors of 16-bit storage by operator and output, in NumPy and on the GPU (``measured``).

    ``overflow`` describes the first value that 16 bits cannot hold; it is empty if there is none.
    """

    model: str
    operators: tuple[ErrorRow, ...]
    outputs: tuple[ErrorRow, ...]
    measured: tuple[ErrorRow, ...]
    overflow: str

    @property
    def ok(self) -> bool:
        return not self.overflow

    @classmethod
    def of(
        cls, graph: Graph, errors: Iterable[StorageError], measured: Iterable[StorageError] = ()
    ) -> StorageReport:
        """Returns the report of all tensors' ``errors`` and the outputs' ``measured`` errors."""
        by_op: dict[str, list[StorageError]] = {}
        found: dict[str, StorageError] = {}
        overflow = ""
        for error in errors:
            node = error.node
            by_op.setdefault(node.full_op, []).append(error)
            found[error.tensor] = error
            if error.overflow and not overflow:
                overflow = (
                    f"{_place(node)}{node.title}: values reach {error.overflow:.6g}, 16 bits hold "
                    "65504 at most. Keep 32 bits, or scale the weights before it"
                )
        outputs = [found[name] for name in graph.outputs if name in found]
        return cls(
            graph.name,
            tuple(_worst(op, rows) for op, rows in by_op.items()),
            tuple(map(_row, outputs)),
            tuple(map(_row, measured)),
            overflow,
        )

    def __str__(self) -> str:
        lines = [
            "16-bit storage against 32 bits, by NumPy: errors over the largest value of a tensor, "
            "which grow from operator to operator",
            f"{'operator':28s} {'count':>6s} {'largest':>10s} {'rms':>10s}  largest at",
            *map(_line, self.operators),
            *(["outputs", *map(_line, self.outputs)] if self.outputs else [_UNKNOWN]),
            *(["outputs on the GPU", *map(_line, self.measured)] if self.measured else []),
        ]
        if self.overflow:
            lines.append(f"first value too large for 16 bits: {self.overflow}")
        return "\n".join(lines)


def _row(error: StorageError) -> ErrorRow:
    return ErrorRow(error.tensor, 1, error.largest, error.rms, error.node.title)


def _worst(op: str, errors: list[StorageError]) -> ErrorRow:
    worst = max(errors, key=lambda e: e.largest)
    rms = max(e.rms for e in errors)
    return ErrorRow(op, len(errors), worst.largest, rms, worst.node.title)


def _line(row: ErrorRow) -> str:
    return f"{row.name:28s} {row.count:6d} {row.largest:10.2e} {row.rms:10.2e}  {row.where}"


def _place(node: Node) -> str:
    return f"{node.source}: " if node.source else ""
