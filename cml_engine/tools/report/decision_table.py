"""The decisions of a plan and the measurements behind them, for ``cml info --decisions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cml_engine.compiler.plan import Plan
from cml_engine.compiler.planning.decisions import (
    NO_DECISIONS,
    Decision,
    Decisions,
    decisions_of,
    resolve_overrides,
)
from cml_engine.compiler.tuning_tables import Record, known
from cml_engine.ir.graph import Graph
from cml_engine.ops.declaration.choice import Choice
from cml_engine.tools.report.folder.page import Cell, Html, details, listed, table


def decisions_on(
    device: str,
    written: Graph,
    optimized: Graph,
    plan: Plan,
    decide: Decisions = NO_DECISIONS,
) -> list[Decision]:
    """Returns all decisions of the plan, each with the reason for it.

    ``device`` is "" without a GPU; ``decide`` has the caller's own decisions.
    """
    records = known(device) if device else {}

    def reason(choice: Choice) -> str:
        return _reason(records, choice)

    return decisions_of(optimized, plan, reason, resolve_overrides(decide, written, optimized))


def _reason(records: Mapping[str, Record], choice: Choice) -> str:
    """Returns a text with the reason for a kernel choice: a measurement, or else a table."""
    record = records.get(choice.key)
    if record is None:
        return "a table says so"
    return (
        f"{record.ratio:.2f} of the time of {record.default}, measured {record.rounds} times "
        f"({record.source})"
    )


#: options beyond this number are shown after a click
_LISTED = 2


def decisions_table(decisions: Sequence[Decision]) -> Html:
    """Returns an HTML table with a row for each decision."""
    rows = ((d.subject, d.kind, d.chosen, d.by, d.why, _others(d)) for d in decisions)
    return table(("subject", "kind", "chosen", "by", "why", "instead of"), rows)


def _others(decision: Decision) -> Cell:
    others = [option for option in decision.options if option != decision.chosen]
    if len(others) <= _LISTED:
        return ", ".join(others)
    return details(f"{len(others)} others", listed(others))
