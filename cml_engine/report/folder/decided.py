"""The decisions of a plan as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cml_engine.ops.declaration.choice import Choice
from cml_engine.planning.decisions import Decision, Reason
from cml_engine.report.folder.page import Cell, Html, details, listed, table
from cml_engine.tuning.tables import Record

#: more options than these are shown at a click
_LISTED = 2


def decisions_table(decisions: Sequence[Decision]) -> Html:
    """A row for each."""
    rows = ((d.subject, d.kind, d.chosen, d.by, d.why, _others(d)) for d in decisions)
    return table(("subject", "kind", "chosen", "by", "why", "instead of"), rows)


def _others(decision: Decision) -> Cell:
    others = [option for option in decision.options if option != decision.chosen]
    if len(others) <= _LISTED:
        return ", ".join(others)
    return details(f"{len(others)} others", listed(others))


def reason_in(records: Mapping[str, Record]) -> Reason:
    """What the device's table says of a choice."""

    def reason(choice: Choice) -> str:
        record = records.get(choice.key)
        if record is None:
            return "a table says so"
        return (
            f"{record.ratio:.2f} of the time of {record.default}, measured {record.rounds} times "
            f"({record.source})"
        )

    return reason
