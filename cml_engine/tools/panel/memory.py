"""Converts GPU memory statistics to rows of text, the largest owners first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cml_engine.ir.memory import MemoryStats, mib

#: categories with a column; all others share a column
_COLUMNS = ("weights", "activations", "render")
OTHER = "other"
CATEGORIES = (*_COLUMNS, OTHER)
#: owners with a row; all others share a row
_SHOWN = 6
_SHOWN_LIMITS = {
    "max-buffer-size": "largest buffer",
    "max-storage-buffer-binding-size": "largest binding",
    "max-compute-invocations-per-workgroup": "threads in a workgroup",
    "max-compute-workgroup-storage-size": "shared memory",
}


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The memory of one owner as texts in MiB: a cell for each category, and the total."""

    owner: str
    cells: tuple[str, ...]
    total: str


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """The memory table: a row per owner, a text of the sum, and the filled share of the budget.

    ``filled`` is None without a budget.
    """

    owners: tuple[OwnerRow, ...]
    held: str
    filled: float | None


def memory_rows(stats: MemoryStats) -> MemoryRows:
    """Returns the memory statistics as rows of the largest owners, and one row for all others."""
    owners: dict[str, dict[str, int]] = {}
    for (owner, category), holding in stats.holdings.items():
        column = category if category in _COLUMNS else OTHER
        held = owners.setdefault(owner, {})
        held[column] = held.get(column, 0) + holding.nbytes
    totals = {owner: sum(held.values()) for owner, held in owners.items()}
    ranked = sorted(totals, key=lambda owner: (-totals[owner], owner))
    rows = [OwnerRow(o, _cells(owners[o]), short_mib(totals[o])) for o in ranked[:_SHOWN]]
    if len(ranked) > _SHOWN:
        rest = ranked[_SHOWN:]
        sums = {c: sum(owners[o].get(c, 0) for o in rest) for c in CATEGORIES}
        rows.append(OwnerRow(f"{len(rest)} more", _cells(sums), short_mib(sum(sums.values()))))
    said = f"{mib(stats.held_bytes)} held, peak {mib(stats.peak_bytes)}"
    budget = stats.budget_bytes
    return MemoryRows(tuple(rows), said, stats.reserved_bytes / budget if budget else None)


def _cells(held: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(short_mib(held[c]) if held.get(c) else "" for c in CATEGORIES)


def short_mib(nbytes: int) -> str:
    """Returns bytes as a text in MiB with about three digits, without the unit."""
    value = nbytes / (1 << 20)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def limit_lines(limits: Mapping[str, Any]) -> list[str]:
    """Returns lines of text with the device's limits that decide which networks fit.

    Limits that ``limits`` lacks are left out.
    """
    lines = []
    for key, said in _SHOWN_LIMITS.items():
        value = limits.get(key)
        if value is not None:
            shown = str(value) if "invocations" in key else mib(int(value)).replace(".00", "")
            lines.append(f"{said} {shown}")
    return lines
